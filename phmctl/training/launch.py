"""``train --processes``: ``torchrun`` on this machine, from within."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from phmctl.console import note
from phmctl.devices import world
from phmctl.errors import UserError

_A_CORE = 8  # processes: more only wait for one another, and 1,000 bring a machine down


def launch(arguments: Sequence[str], processes: int) -> int:
    """Start `python -m phmctl` in several processes of this machine, wait for them, and return the exit code.

    Without ``OMP_NUM_THREADS`` in the environment the machine's cores are divided among them.

    Args:
        arguments: of the command line, without ``--processes``.
        processes: how many; more than one.

    Returns:
        the first failing process's code, 1 if a signal killed it; 0 where none failed. When this process is asked to
        stop, so are the others, and the code is theirs: 130 or 143.

    Raises:
        UserError: ``torchrun`` started this process already, or the machine is far too small for so many.
    """
    if world().size > 1:
        raise UserError("--processes: torchrun has started several processes already; leave the option out")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > _A_CORE * cores:
        raise UserError(
            f"--processes {processes}: this machine has {cores} cores for them, and each wants the memory of a whole "
            f"program; take {_A_CORE * cores} at most"
        )
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // processes, 1)))
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the processes speak for themselves
    with TemporaryDirectory(prefix="phmctl-") as logs:  # torch would leave one of its own
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "phmctl", *arguments)
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
    left, skip = [], False
    for argument in arguments:
        if skip or argument == name:
            skip = not skip
        elif not argument.startswith(f"{name}="):
            left.append(argument)
    return left
