"""The processes that train one model together: started by ``torchrun``, joined by ``torch.distributed``.

All of them take the same steps at the same time. What one of them must know of the others is asked for here: sums,
whether one was asked to stop, whether one failed. The first process, rank 0, writes and speaks; the others do neither.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from phmctl.console import silence
from phmctl.devices import Place, pick_device, place
from phmctl.errors import PhmctlError, RecipeError
from phmctl.training.company import GROUP, JOB, Company, meeting_place

T = TypeVar("T")
P = TypeVar("P")


class PeerError(PhmctlError):
    """Another process of the training died, hangs, or failed."""


class GivenUpError(PhmctlError):
    """Work between two saves was given up: the training was asked to stop."""


class Processes:
    """This process and the others; on its own it is all there is.

    Args:
        where: which of how many this is.
        company: watches the others; None on its own.
    """

    def __init__(self, where: Place | None = None, company: Company | None = None) -> None:
        self.where = where or Place()
        self._company = company

    @property
    def count(self) -> int:
        """How many processes there are: W."""
        return self.where.processes

    @property
    def rank(self) -> int:
        """This one's number, 0 to W − 1."""
        return self.where.rank

    @property
    def many(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Return the device for this process: of several on a machine each has its own.

        Raises:
            RecipeError: there is no such device here, or not one for each.
        """
        device = pick_device(name)
        if device.type == "cpu" or not self.many:
            return device
        if ":" in name:
            raise RecipeError(f"training.device = {name} is one device, and {self.count} processes want one each: cuda")
        here = self.where
        if here.here > torch.cuda.device_count():
            raise RecipeError(
                f"{here.here} processes on this machine want a device each, and it has {torch.cuda.device_count()}; "
                "start fewer, or set training.device=cpu"
            )
        torch.cuda.set_device(here.local_rank)
        return torch.device("cuda", here.local_rank)

    def threads(self, wanted: int) -> int:
        """Return this process's CPU threads of those that the recipe wants for all on this machine; 0 is no wish."""
        return max(wanted // self.where.here, 1) if wanted else 0

    # ------------------------------------------------------------------------------------- all together

    def total(self, sums: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; it is changed in place. On a GPU the host does not wait."""
        if self.many:
            dist.all_reduce(sums)
        return sums

    def merge(self, found: Mapping[int, Any]) -> dict[int, Any]:
        """Return what all processes found together."""
        merged: dict[int, Any] = {}
        for some in self.gather(dict(found)):
            merged.update(some)
        return merged

    def gather(self, value: T) -> list[T]:
        """Return each process's value, in order of ranks."""
        if not self.many:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def tell(self, value: T) -> T:
        """Return the first process's value in all of them."""
        if not self.many:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0)
        return told[0]

    def tell_tensors(
        self,
        groups: Mapping[str, Mapping[str, Tensor]] | None,
        place: Callable[[str, str, Tensor], Tensor] = lambda group, name, tensor: tensor,
    ) -> dict[str, dict[str, Tensor]]:
        """Return the first process's host tensors, by group and name, in all of them; the others give None.

        They are sent one at a time, and what `place` makes of each, given its group and name, is kept: a shard.
        """
        if not self.many:
            return {name: dict(group) for name, group in (groups or {}).items()}
        kinds = {g: {name: (t.shape, t.dtype) for name, t in group.items()} for g, group in (groups or {}).items()}
        told: dict[str, dict[str, Tensor]] = {}
        for group, members in self.tell(kinds).items():
            told[group] = {}
            for name, (shape, dtype) in members.items():
                own = groups[group][name].contiguous() if groups else torch.empty(shape, dtype=dtype)
                dist.broadcast(own, src=0)
                told[group][name] = place(group, name, own)
        return told

    def largest(self, number: int) -> int:
        """Return the largest of the processes' numbers, by way of the hosts; no device is waited for."""
        if not self.many:
            return number
        box = torch.tensor(number)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
        return int(box)

    def note_step(self, step: int) -> None:
        """Remember how far this one is, for the message when another is lost."""
        if self._company is not None:
            self._company.step = step

    def note_run(self, command: str) -> None:
        """Remember what continues the run, for the same message."""
        if self._company is not None:
            self._company.resume = command

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Fail everywhere where the block fails anywhere: with the error in the first process, silently in the others.

        Raises:
            PhmctlError: what the block raised here or elsewhere, with the rank if it was not the first's.
            SystemExit: in the other processes.
        """
        failure: PhmctlError | None = None
        try:
            yield
        except PhmctlError as error:
            failure = error
        if not self.many:
            if failure is not None:
                raise failure
            return
        found = self.gather(None if failure is None else (type(failure), str(failure), failure.exit_code))
        failed = [(rank, what) for rank, what in enumerate(found) if what is not None]
        if not failed:
            return
        rank, (kind, message, code) = failed[0]
        if not self.leads:
            raise SystemExit(code)
        if failure is not None and rank == 0:
            raise failure
        raise kind(f"rank {rank}: {message}")

    @contextmanager
    def company(self) -> Iterator[None]:
        """Turn a loss of the others into an error that names who was lost.

        Raises:
            PeerError: another process died, or did not answer within ``training.timeout``.
        """
        if self._company is None:
            yield
            return
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            if not _is_loss(error):
                self._company.leave(f"{type(error).__name__}: {error}")
                raise
            raise PeerError(self._company.describe_loss(str(error))) from error
        except BaseException as error:
            self._company.leave(str(error))
            raise


def _is_loss(error: BaseException) -> bool:
    """Whether an error says that another process does not answer."""
    signs = ("gloo", "nccl", "connection", "timed out", "timeout", "socket", "broken pipe", "store")
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(sign in text for sign in signs)


class Listening:
    """A process's share of a validation: every W-th part, with an ear for a wish to stop between two of them.

    Args:
        processes: who shares.
        asked: returns the number of the signal that this process got, 0 for none.
    """

    def __init__(self, processes: Processes, asked: Callable[[], int]) -> None:
        self._processes = processes
        self._asked = asked
        self.total = processes.total
        self.merge = processes.merge

    def mine(self, parts: Sequence[P]) -> Iterator[P]:
        """Yield this process's parts.

        Raises:
            GivenUpError: one of the processes was asked to stop.
        """
        rank, count = self._processes.rank, self._processes.count
        for start in range(0, len(parts), count):
            if self._processes.largest(self._asked()):
                raise GivenUpError("the validation was given up: the training was asked to stop")
            if start + rank < len(parts):
                yield parts[start + rank]


@contextmanager
def joined(timeout: float) -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started with this one, if it did; leave them at the end.

    Args:
        timeout: seconds that a process waits for another.

    Raises:
        PeerError: they do not come.
    """
    where = place()
    if where.processes == 1:
        yield Processes()
        return
    # Host tensors go by gloo, so that what hosts tell each other waits for no device.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        store = meeting_place(where, GROUP, timeout)
        limit = timedelta(seconds=timeout)
        dist.init_process_group(backend, store=store, rank=where.rank, world_size=where.processes, timeout=limit)
    except (RuntimeError, dist.DistError, ValueError) as error:
        raise PeerError(f"rank {where.rank}: the {where.processes} processes did not come together: {error}") from error
    company = Company(where)
    processes = Processes(where, company)
    with company, processes.company(), nullcontext() if processes.leads else silence():
        yield processes
        dist.barrier()  # the first may keep the others' meeting place
    dist.destroy_process_group()


def job() -> str | None:
    """Return the id that ``torchrun`` gave this start and all its restarts; None without it.

    Where nobody gave one (``--rdzv-id``), ``torchrun`` calls every job "none": then it is the ``torchrun`` of this
    machine itself, which starts its processes again as long as it lives.
    """
    given = os.environ.get(JOB)
    return f"{socket.gethostname()}:{os.getppid()}:{_begun(os.getppid())}" if given == "none" else given


def _begun(process: int) -> str:
    """Return when a process began, in the kernel's own count, which tells it from a later one of the same id."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_restart() -> bool:
    """Return whether ``torchrun --max-restarts`` started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
