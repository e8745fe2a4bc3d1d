"""Stop a training after Ctrl-C or a signal from a scheduler or a lost terminal.

SIGTERM precedes a kill. Schedulers send SIGUSR1 some minutes before the time limit. SIGHUP follows a lost terminal and
is ignored under ``nohup``.
"""

import signal
import threading
from contextvars import copy_context
from types import FrameType
from typing import Any, Self

from phmctl.console import note

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopRequest:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 set :attr:`received` instead of ending the process.

    A second signal ends the process with the shell's exit code (130, 143, 129, 138) unless `second_ends` is False: each
    of several processes gets both the scheduler's signal and the launcher's, and the launcher kills slow processes.
    Signals that the parent process ignores stay ignored. Outside the main thread no signal is handled.
    """

    def __init__(self, *, second_ends: bool = True) -> None:
        self._second_ends = second_ends
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._context = copy_context()  # a handler runs in the context of the interrupted code, which may be silent

    @property
    def exit_code(self) -> int | None:
        """130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP, 138 after SIGUSR1, None without a signal."""
        return None if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            hint = "; repeat it to stop at once" if self._second_ends else ""
            self._context.run(note, f"{self.received.name}: finishing the step, then saving{hint}")
        elif self._second_ends:
            raise SystemExit(128 + number)
