"""The processes that train one model together: started by ``torchrun``, connected by ``torch.distributed``.

All processes do the same steps at the same time. Rank 0 alone writes and prints. If a process dies or hangs, the
exchanges of the others fail within ``training.timeout``.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phmctl.console import silence
from phmctl.devices import World, pick_device, world
from phmctl.errors import PhmctlError, RecipeError
from phmctl.signals import StopRequest

T = TypeVar("T")


class PeerError(PhmctlError):
    """Another process of the training died, hangs, or failed."""


class ValidationStoppedError(PhmctlError):
    """A validation was broken off because the training was asked to stop."""


class Processes:
    """The processes of a training: the rank of this process, and the exchanges between all.

    Process r of W handles parts r, r + W, r + 2W, …
    """

    stop: StopRequest | None = None  # ends the training and breaks off a validation

    def __init__(self, world: World | None = None, timeout: float = 0.0) -> None:
        self._world = world or World()
        self._timeout = timeout  # seconds after which an exchange fails
        self.rank, self.count = self._world.rank, self._world.size
        self.leads = self.rank == 0
        self.many = self.count > 1

    def device(self, name: str) -> torch.device:
        """Return this process's device. Several processes on a machine use different GPUs. Raises RecipeError."""
        device, local_processes = pick_device(name), self._world.local_size
        if device.type == "cpu" or not self.many:
            return device
        if ":" in name or local_processes > torch.cuda.device_count():
            raise RecipeError(
                f"{local_processes} processes on this machine need a device each, and it has "
                f"{torch.cuda.device_count()}; start fewer, or set training.device=cuda or cpu"
            )
        torch.cuda.set_device(self._world.local_rank)
        return torch.device("cuda", self._world.local_rank)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of the parameters over all processes: one exchange, whose result they are slices of."""
        gradients = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
        if self.many and gradients:
            summed = self.total(torch.cat([gradient.flatten() for gradient in gradients.values()]))
            sizes = [parameter.numel() for parameter in gradients]
            for parameter, part in zip(gradients, torch.split(summed, sizes), strict=True):
                parameter.grad = part.view_as(parameter)

    def mine(self, parts: Sequence[T]) -> Iterator[T]:
        """Yield this process's parts. Raises ValidationStoppedError if any process was asked to stop."""
        for first in range(0, len(parts), self.count):
            if self.stopping():
                raise ValidationStoppedError("the validation was broken off: the training was asked to stop")
            if first + self.rank < len(parts):
                yield parts[first + self.rank]

    def stopping(self) -> bool:
        """Return whether any process was asked to stop, and mark all as asked if so."""
        received = self.stop.received if self.stop else None
        largest = torch.tensor(received or 0)
        self.exchange(dist.all_reduce, largest, op=dist.ReduceOp.MAX)
        number = int(largest)
        if self.stop is not None and number:
            self.stop.received = received or signal.Signals(number)
        return number > 0

    def exchange(self, operation: Callable[..., object], *arguments: object, **options: object) -> None:
        """Call an operation of ``torch.distributed``. Raises PeerError if a process does not take part in time."""
        if not self.many:
            return
        try:
            operation(*arguments, **options)
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.rank}: another process of this training ended, or did not answer within "
                f"{self._timeout:g} s ({str(error).splitlines()[0]})\n"
                "saved checkpoints are complete: the same command with --resume continues from the last one"
            ) from error

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place, and return it. On a GPU the host does not wait."""
        self.exchange(dist.all_reduce, tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        values: list[Any] = [value] * self.count
        self.exchange(dist.all_gather_object, values, value)
        return values

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy rank 0's tensors into the tensors of the other processes, which have the same shapes and order."""
        for tensor in tensors:
            self.exchange(dist.broadcast, tensor.detach(), src=0)

    def from_leader(self, function: Callable[[], T]) -> T:
        """Call a function in rank 0 and return the result in every process.

        If the function raises a PhmctlError, rank 0 raises it and the others exit silently with the same exit code.
        """
        results: list[Any] = [None]
        with self.agreed():
            if self.leads:
                results = [function()]
        self.exchange(dist.broadcast_object_list, results, src=0)
        return results[0]  # type: ignore[no-any-return]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Make all processes fail if the block raises a PhmctlError in any.

        Rank 0 raises the error of the first failing rank. The others exit silently with the same exit code.
        """
        error: PhmctlError | None = None
        try:
            yield
        except PhmctlError as caught:
            error = caught
        reports = self.gather(None if error is None else (type(error), str(error), error.exit_code))
        for rank, report in enumerate(reports):
            if report is not None:
                error_type, message, exit_code = report
                if not self.leads:
                    raise SystemExit(exit_code)
                raise error or error_type(f"rank {rank}: {message}")


@contextmanager
def joined(timeout: float) -> Iterator[Processes]:
    """Connect the processes that ``torchrun`` started, if any. Raises PeerError if one ends or does not answer."""
    this = world()
    if this.size == 1:
        yield Processes()
        return
    import torch.distributed.nn  # importing it later keeps the process group's threads alive until Python ends

    processes = Processes(this, timeout)
    # Tensors on the CPU go through gloo, so that exchanges between hosts wait for no device.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"

    def connect() -> None:
        limit = timedelta(seconds=timeout)
        # torchrun keeps one store for all restarts. A prefix hides the addresses of processes that have ended.
        store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        store = dist.PrefixStore(f"start-{restarts()}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)

    processes.exchange(connect)
    with silence(this.rank > 0):
        yield processes
        processes.exchange(dist.barrier)  # rank 0 may host the store
    dist.destroy_process_group()


def restarts() -> int:
    """Return how often ``torchrun --max-restarts`` has restarted the processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
