"""Who of the processes is still there: each beats in a store of ``torch.distributed``, for the others to see.

Asked only when an exchange failed, to name who was lost; a training that goes well waits for none of it. A process
whose ``torchrun`` was killed is asked to stop: it would train on unseen, and hold the run.
"""

import os
import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from phmctl.devices import Place
from phmctl.training.signals import follow

JOB = "TORCHELASTIC_RUN_ID"  # torchrun's name for a start and all its restarts, in the environment
GROUP = "group"  # the purpose of the process group's own connection
_BEAT = 0.5  # seconds between two beats
_PATIENCE = 4.0  # seconds in which a process that lives beats at least once, on a busy machine too


class Company:
    """Beats for this process, and looks for the others' beats. A context.

    Args:
        where: which of how many processes this is.
    """

    def __init__(self, where: Place) -> None:
        self.step = 0
        self.resume = ""  # the command that goes on from the last checkpoint
        self._where = where
        self._beats = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True, name="phmctl-company")

    def __enter__(self) -> Self:
        self._store = meeting_place(self._where, "company", 30)
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(timeout=2 * _BEAT)

    def leave(self, reason: str) -> None:
        """Tell the others why this process ends."""
        with suppress(RuntimeError, dist.DistError):
            self._store.set(f"left/{self._where.rank}", reason.partition("\n")[0] or "it was stopped")

    def describe_loss(self, error: str) -> str:
        """Return who was lost, in words; takes some seconds.

        Args:
            error: what the exchange said.
        """
        try:
            found = self._find()
        except (RuntimeError, dist.DistError):
            found = "the process that keeps the others' meeting place is gone: rank 0, or torchrun on its machine"
        plain = re.sub(r"^\[\S+\] ", "", " ".join(error.split()))  # without the place in gloo's source
        reason = plain.partition(". ")[0]
        how = f"; go on from it with:\n{self.resume}" if self.resume else ""
        return (
            f"rank {self._where.rank} stopped after step {self.step}: {found} ({reason})\n"
            f"nothing was saved after the last checkpoint{how}"
        )

    def _find(self) -> str:
        self._store.set(f"lost/{self._where.rank}", "yes")  # this one is well: it only lost another
        before = self._beats_of_all()
        time.sleep(_PATIENCE)
        after = self._beats_of_all()
        suspects = [rank for rank in range(self._where.processes) if not self._says(f"lost/{rank}")]
        reasons = {rank: self._says(f"left/{rank}") for rank in suspects}
        gone = [rank for rank in suspects if not reasons[rank] and after[rank] == before[rank]]
        stuck = [rank for rank in suspects if not reasons[rank] and rank not in gone]
        parts = [f"rank {rank} failed: {reason}" for rank, reason in reasons.items() if reason]
        parts += [f"rank {rank} died or was halted" for rank in gone]
        parts += [f"rank {rank} did not finish step {self.step + 1} in time" for rank in stuck]
        return "; ".join(parts) or "another process did not answer in time"

    def _beats_of_all(self) -> list[bytes]:
        return [bytes(beat) for beat in self._store.multi_get([f"beat/{r}" for r in range(self._where.processes)])]

    def _says(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"beat/{self._where.rank}", str(self._beats))

    def _beat_on(self) -> None:
        starter = os.getppid() if JOB in os.environ else None
        with suppress(RuntimeError, dist.DistError):  # the store is gone, and with it its keeper: rank 0 or the starter
            while not self._done.wait(_BEAT) and starter in (None, os.getppid()):
                self._beat()
        if starter is not None:
            follow(starter, self._done)


def meeting_place(where: Place, name: str, timeout: float) -> Any:
    """Return a connection to the store where the processes of this start meet; the first one asked for may keep it.

    What an earlier start left there is not seen: ``torchrun`` keeps one store for all restarts, and gloo would find the
    addresses of processes that are dead.

    Args:
        where: which process this is.
        name: of what is kept there; each purpose has its own.
        timeout: seconds to wait for the one that keeps it.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    keeps = name == GROUP and where.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=keeps, timeout=timedelta(seconds=timeout), multi_tenant=True
    )
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"phmctl/{start}/{name}", store)  # type: ignore[attr-defined]
