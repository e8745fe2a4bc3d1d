"""A fork server for faults: a child a point, whose N-th write is disturbed at the C library's edge.

Run it with :file:`shim.c`, compiled, in ``LD_PRELOAD`` (:func:`preloaded`). The parent imports all that is slow and
never computes, so a child starts in a few milliseconds and no thread is lost by the fork.
"""

import ctypes
import gc
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

SHIM = Path(__file__).with_name("shim.c")
DISTURBANCES = ("kill", "torn", "full", "broken", "short")  # in the order of shim.c's `enum kind`, and then:
OTHER = "other"  # kills the second of two processes, which does not write, when the first writes
LIMIT = 300  # seconds after which a child is killed


def compiler() -> str | None:
    """Return a C compiler of this machine, or None."""
    return shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")


def preloaded(folder: Path) -> dict[str, str]:
    """Compile the shim into `folder`; return the environment that loads it."""
    library = folder / "shim.so"
    subprocess.run([compiler() or "cc", "-O1", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    root = str(Path(__file__).parents[2])
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": root, "COLUMNS": "200"}
    return os.environ | fixed | {"LD_PRELOAD": str(library)}


@dataclass(frozen=True)
class Ended:
    """The end of a child: exit code (-9: killed), output, the names of its calls; and the end of a second child."""

    code: int
    output: str
    names: tuple[str, ...] = ()
    second: "Ended | None" = None


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.fault_name.restype = ctypes.c_char_p
    library.fault_disarm.restype = ctypes.c_long
    library.fault_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
    library.fault_name.argtypes = (ctypes.c_long,)
    return library


def import_all() -> None:
    """Import the modules of all commands, so that no child must; :func:`run` adds modules that a child imports."""
    import datasets  # noqa: F401
    import numpy.random  # noqa: F401
    import pyarrow.ipc  # noqa: F401
    import rich.progress
    import rich.table  # noqa: F401
    import sacrebleu  # noqa: F401
    import tokenizers  # noqa: F401
    import torch
    import torch._dynamo

    torch.set_num_threads(1)


@dataclass(frozen=True)
class Fault:
    """Disturb the `at`-th write below a folder; 0: none."""

    below: Path
    at: int = 0
    disturbance: str = DISTURBANCES[0]
    second_process: int = 0  # killed by disturbance OTHER


@dataclass(frozen=True)
class _Child:
    process: int
    pipe: int
    log: Path


def run(
    commands: Sequence[Sequence[str]],
    below: Path,
    log: Path,
    at: int = 0,
    disturbance: str = "kill",
    processes: int = 1,
) -> Ended:
    """Run commands of phmctl, one after the other, in one child; the `at`-th write below `below` is disturbed.

    With two processes a second child runs them too, as torchrun starts it.
    """
    gc.freeze()  # children then collect only their own garbage
    if processes == 1:
        return _ended(_start(commands, Fault(below, at, disturbance), log, {}))
    together = _together()
    second = _start(commands, Fault(below), log.with_name("log-1"), together | {"RANK": "1", "LOCAL_RANK": "1"})
    fault = Fault(below, at, disturbance, second.process)
    first = _ended(_start(commands, fault, log, together | {"RANK": "0", "LOCAL_RANK": "0"}))
    return replace(first, second=_ended(second))


def _together() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}


def _start(commands: Sequence[Sequence[str]], fault: Fault, log: Path, environment: Mapping[str, str]) -> _Child:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.environ.update(environment)
        _be_child(commands, fault, log, writing)
    os.close(writing)
    return _Child(child, reading, log)


def _ended(child: _Child) -> Ended:
    with os.fdopen(child.pipe, "rb") as pipe:
        names, _, modules = pipe.read().decode().partition("\n")
    _, status = os.waitpid(child.process, 0)
    _import_too(modules.split())
    return Ended(os.waitstatus_to_exitcode(status), child.log.read_text(errors="replace"), tuple(names.split()))


def _import_too(modules: Iterable[str]) -> None:
    """Import the modules that a child imported, so that the next child need not."""
    for name in modules:
        with suppress(Exception):  # names in `sys.modules` that are no modules
            importlib.import_module(name)


def _be_child(commands: Sequence[Sequence[str]], fault: Fault, log: Path, report: int) -> None:
    code, known = 70, set(sys.modules)
    try:
        signal.alarm(LIMIT)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        library = _library()
        library.fault_other(fault.second_process)
        library.fault_arm(str(fault.below).encode(), fault.at, (*DISTURBANCES, OTHER).index(fault.disturbance))
        code = _run_all(commands)
        calls = library.fault_disarm()
        names = [library.fault_name(number).decode() for number in range(1, calls + 1)]
        with os.fdopen(report, "w") as pipe:
            pipe.write(" ".join(names) + "\n" + " ".join(sys.modules.keys() - known))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_all(commands: Sequence[Sequence[str]]) -> int:
    from phmctl.cli.main import run as phmctl

    for command in commands:
        sys.argv = ["phmctl", *command]
        try:
            phmctl()
        except SystemExit as ended:
            if ended.code:
                return int(ended.code)
    return 0
