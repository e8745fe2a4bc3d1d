"""Stopping on Ctrl-C, and as schedulers and lost terminals ask for it: the first signal asks, the second insists.

SIGTERM comes before a kill, SIGUSR1 is what schedulers are told to send some minutes before the time is up, SIGHUP
comes when the terminal is gone (and is ignored under ``nohup``).
"""

import os
import signal
import threading
import time
from contextvars import copy_context
from types import FrameType
from typing import Any, Self

from phmctl.console import note

STARTER = "PHMCTL_STARTER"  # in the environment: the process to follow (:func:`follow`)
_TICK = 0.5  # seconds between two looks for the starter
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopRequest:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 set :attr:`received` instead of ending the process.

    A second signal ends it at once, with the shell's exit code (130, 143, 129, 138); without `insist` it changes
    nothing: of many processes each gets a scheduler's signal and that of their starter, which kills those that need too
    long. Signals that the parent told us to ignore stay ignored, and outside the main thread, where Python allows no
    handlers, nothing is watched.
    """

    def __init__(self, *, insist: bool = True) -> None:
        self._insist = insist
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._context = copy_context()  # a handler runs in that of what it interrupts, which may be silent

    @property
    def exit_code(self) -> int | None:
        """130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP, 138 after SIGUSR1; None when none came."""
        return None if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _WATCHED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if self._insist:
                raise SystemExit(128 + number)
            return
        self.received = signal.Signals(number)
        more = "; once more to stop at once" if self._insist else ""
        self._context.run(note, f"{self.received.name}: finishing the step, then saving{more}")


def follow(starter: int) -> None:
    """Ask this process to stop, as by SIGTERM, once its parent `starter` is gone: nobody would any more.

    What was killed cannot tell the processes that it started, but they get another parent.
    """

    def watch() -> None:
        while os.getppid() == starter:
            time.sleep(_TICK)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="phmctl-starter").start()


def follow_named() -> None:
    """Follow the process that the environment names, if it names one; what this process starts does not."""
    starter = os.environ.pop(STARTER, "")
    if starter.isdecimal():
        follow(int(starter))
