"""The processes that train one model together: started by ``torchrun``, joined by ``torch.distributed``.

All of them do the same steps at the same time. Rank 0 writes and prints; the others do neither. A process that died or
hangs is known to the others by ``torch.distributed``'s own errors and time-outs, and ``torchrun`` ends them all.
"""

import inspect
import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phmctl.console import note, silence
from phmctl.devices import World, check_jobs, cores, pick_device, world
from phmctl.errors import PhmctlError, RecipeError, UserError
from phmctl.tasks.base import Share
from phmctl.training.signals import StopRequest, follow

T = TypeVar("T")


class PeerError(PhmctlError):
    """Another process of the training died, hangs, or failed."""


class GivenUpError(PhmctlError):
    """A validation was given up: the training was asked to stop."""


class Processes(Share):
    """This process and the others; on its own it is all there is. Of what is shared each does every W-th part."""

    stop: StopRequest | None = None  # by which a validation is given up

    def __init__(self, where: World | None = None) -> None:
        self._world = where or World()
        self.rank, self.count = self._world.rank, self._world.size
        self.leads, self.many = self.rank == 0, self.count > 1

    def device(self, name: str) -> torch.device:
        """Return the device for this process, of several on a machine each its own; RecipeError where there is none."""
        device, here = pick_device(name), self._world.local_size
        if device.type == "cpu" or not self.many:
            return device
        if ":" in name or here > torch.cuda.device_count():
            raise RecipeError(
                f"{here} processes on this machine need a device each, and it has {torch.cuda.device_count()}; "
                "start fewer, or set training.device=cuda or cpu"
            )
        torch.cuda.set_device(self._world.local_rank)
        return torch.device("cuda", self._world.local_rank)

    def data_parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return what is called to train a model: it averages gradients over processes while the backward pass runs.

        The model of every process becomes that of rank 0. Alone, it is the model itself.
        """
        if not self.many:
            return model
        # Nothing changes a buffer of ours, so none is sent. Newer versions of torch have another word for it.
        words = inspect.signature(DistributedDataParallel).parameters
        word = "forward_sync_buffers" if "forward_sync_buffers" in words else "broadcast_buffers"
        rest: dict[str, Any] = {"device_ids": [device.index] if device.type == "cuda" else None, word: False}
        return DistributedDataParallel(model, gradient_as_bucket_view=True, **rest)

    # ------------------------------------------------------------------------------------------------ exchanges

    def mine(self, parts: Sequence[T]) -> Iterator[T]:
        """Yield this process's parts. GivenUpError: one of the processes was asked to stop."""
        for start in range(0, len(parts), self.count):
            if self.largest((self.stop and self.stop.received) or 0):
                raise GivenUpError("the validation was given up: the training was asked to stop")
            if start + self.rank < len(parts):
                yield parts[start + self.rank]

    def merge(self, found: Mapping[int, Any]) -> dict[int, Any]:
        return {key: value for some in self.gather(dict(found)) for key, value in some.items()}

    def total(self, sums: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; it is changed in place. On a GPU the host does not wait."""
        if self.many:
            dist.all_reduce(sums)
        return sums

    def largest(self, number: int) -> int:
        """Return the largest of the processes' numbers, by way of the hosts; no device is waited for."""
        box = torch.tensor(number)
        if self.many:
            dist.all_reduce(box, op=dist.ReduceOp.MAX)
        return int(box)

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [value] * self.count
        if self.many:
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        box = [value]
        if self.many:
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Write rank 0's tensors into those of the others, which have the same shapes and order."""
        for tensor in tensors if self.many else ():
            dist.broadcast(tensor.detach(), src=0)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Fail everywhere where the block fails anywhere: with the error in rank 0, by a silent exit in the others."""
        failure: PhmctlError | None = None
        try:
            yield
        except PhmctlError as error:
            failure = error
        told = self.gather(None if failure is None else (type(failure), str(failure), failure.exit_code))
        failures = [(rank, *what) for rank, what in enumerate(told) if what is not None]
        if not failures:
            return
        rank, kind, message, code = failures[0]
        if not self.leads:
            raise SystemExit(code)
        raise failure if failure is not None else kind(f"rank {rank}: {message}")


@contextmanager
def joined(timeout: float) -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started with this one, if it did; leave them at the end.

    PeerError: another process does not come, ended, or did not answer within `timeout` seconds.
    """
    where = world()
    if where.size == 1:
        yield Processes()
        return
    import torch.distributed.nn  # imported later, its functions' defaults keep the group's threads until Python ends

    if "TORCHELASTIC_RUN_ID" in os.environ:
        follow(os.getppid())  # a torchrun that is killed ends nobody
    # Host tensors go by gloo, so that what hosts tell each other waits for no device.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    limit = timedelta(seconds=timeout)
    try:
        # torchrun keeps one store for all restarts, where gloo would find the addresses of processes that are dead.
        store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        store = dist.PrefixStore(f"start-{restarts()}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        with silence(where.rank > 0):
            yield Processes(where)
            dist.barrier()  # rank 0 may keep the store where the others meet
        dist.destroy_process_group()
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = " ".join(str(error).split()).rpartition("] ")[2].partition(". ")[0]
        raise PeerError(
            f"rank {where.rank}: another process of this training ended, or did not answer within {timeout:g} s "
            f"({reason})\nwhat is saved is whole: the same command with --resume goes on from the last checkpoint"
        ) from error


def is_loss(error: BaseException) -> bool:
    """Whether an error of torch says that another process does not answer. gloo's have no class of their own."""
    signs = ("/gloo/", "caused pair closure")  # the file that raised it; what follows a time-out
    told = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    return told or (isinstance(error, dist.DistError) and "ncclUnhandledCudaError" not in str(error))  # a GPU's own


def restarts() -> int:
    """Return how often ``torchrun --max-restarts`` has started the processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch(arguments: Sequence[str], processes: int) -> int:
    """Start `python -m phmctl` in several processes of this machine, wait for them, and return the exit code.

    It is the first failing process's code, 1 if a signal killed it; 0 where none failed. When this process is asked to
    stop, so are the others, and the code is theirs: 130 or 143. Without ``OMP_NUM_THREADS`` in the environment the
    machine's cores are divided among them. UserError: ``torchrun`` started this process, or they are far too many.
    """
    if world().size > 1:
        raise UserError("--processes: torchrun has started several processes already; leave the option out")
    check_jobs(processes, "--processes")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // processes, 1)))
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the processes speak for themselves
    with TemporaryDirectory(prefix="phmctl-") as logs:  # torch would leave one of its own
        options = ["--standalone", f"--nproc-per-node={processes}", f"--log-dir={logs}"]
        try:
            run(parse_args([*options, "-m", "--", "phmctl", *arguments]))  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            rank, first = error.get_first_failure()
            if first.exitcode > 0:
                return first.exitcode  # the process has said why
            note(f"error: rank {rank} was ended by {signal.Signals(-first.exitcode).name}")
            return 1
        except SignalException as caught:
            return 128 + int(caught.sigval)
    return 0


def without_option(arguments: Sequence[str], name: str) -> list[str]:
    """Return a command line without an option that has a value: ``--processes 2`` or ``--processes=2``."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [each for before, each in pairs if name not in (before, each) and not each.startswith(f"{name}=")]
