"""``train --processes``: ``torchrun`` on this machine, from within."""

import logging
import os
import signal
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from phmctl.console import note
from phmctl.devices import world
from phmctl.errors import UserError

_A_CORE = 8  # processes: more only wait for one another, and 1,000 bring a machine down


def launch(arguments: Sequence[str], processes: int) -> int:
    """Start `python -m phmctl` in several processes of this machine, wait for them, and return the exit code.

    It is the first failing process's code, 1 if a signal killed it; 0 where none failed. When this process is asked to
    stop, so are the others, and the code is theirs: 130 or 143. Without ``OMP_NUM_THREADS`` in the environment the
    machine's cores are divided among them. UserError: ``torchrun`` started this process, or they are far too many.
    """
    if world().size > 1:
        raise UserError("--processes: torchrun has started several processes already; leave the option out")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > _A_CORE * cores:
        raise UserError(
            f"--processes {processes}: this machine has {cores} cores for them, and each wants the memory of a whole "
            f"program; at most {_A_CORE * cores} are started"
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // processes, 1)))
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the processes speak for themselves
    with TemporaryDirectory(prefix="phmctl-") as logs:  # torch would leave one of its own
        options = ["--standalone", f"--nproc-per-node={processes}", f"--log-dir={logs}"]
        try:
            run(parse_args([*options, "-m", "phmctl", *arguments]))  # type: ignore[no-untyped-call]
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
