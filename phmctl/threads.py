"""The CPU threads of a process: chosen by the load of the machine before torch is loaded.

OpenMP's threads wait for each other at the end of every small operation. By default they spin, which is quickest on an
idle machine. On a busy machine a thread spins while another has no core. The load decides how
threads wait, and not how many there are, because the number of threads decides the last digits of a training.
"""

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phmctl.console import warn
from phmctl.errors import UserError

BUSY = 0.4  # processes a core, besides this one, from which threads yield
_USERS = ("OMP_", "GOMP_", "KMP_", "MKL_")  # beginnings of variables by which a user chooses
_SAMPLES = 5
_chosen: dict[str, str] = {}  # the variables that choose_threads has set
_SHARE = "PHMCTL_CORES"  # the cores of each process of a sweep
_MOST_PER_CORE = 8  # more processes or threads only wait for each other, and 1,000 make a machine unusable


def choose_threads() -> None:
    """Let threads yield on a busy machine, and start no more than a container's quota of cores.

    The choice is in variables, which torch's libraries read when they are loaded. It is not made if torch is loaded
    already, or if the user has set one of the variables.
    """
    if "torch" in sys.modules or any(name.startswith(_USERS) for name in os.environ):
        return
    if cores() < visible_cores():
        _chosen["OMP_NUM_THREADS"] = str(cores())
    if load() >= BUSY:
        _chosen["OMP_WAIT_POLICY"] = "passive"
    os.environ.update(_chosen)


def set_threads(threads: int) -> None:
    """Set the CPU threads of torch and of other engines in this process. 0 keeps the defaults.

    Torch is not imported for this. Libraries that are imported later read the environment variable.
    """
    if not threads:
        return
    _check_count(f"threads = {threads}", threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def threads_of(environment: Mapping[str, Any]) -> int:
    """Return the threads that a resumed training takes over from the run's ``environment.json``, or 0.

    An equal number makes the resumed training equal an uninterrupted one to the last bit. The user's OMP_NUM_THREADS is
    kept, and a machine with fewer cores chooses anew.
    """
    resumed = environment.get("resumed")
    last = resumed[-1] if isinstance(resumed, list) and resumed else environment
    threads = last.get("threads") if isinstance(last, dict) else None
    users = "OMP_NUM_THREADS" in os.environ and "OMP_NUM_THREADS" not in _chosen
    if type(threads) is not int or threads < 1 or users:
        return 0
    if threads > visible_cores():
        warn(
            f"the training had {threads} threads, and this machine has {visible_cores()} cores: last digits will differ"
        )
        return 0
    return threads


def described() -> dict[str, str]:
    """Return the variables of OpenMP and MKL, for ``environment.json``."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_USERS)}


def visible_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Return the number of cores that this process may use. A container may see more than the quota allows."""
    share = os.environ.get(_SHARE, "")
    return max(1, int(min(visible_cores(), *_quotas(), int(share) if share.isdecimal() else math.inf)))


def shared(jobs: int) -> dict[str, str]:
    """Return the variables of each of several processes at once, which choose their threads within equal shares."""
    mine = {name: value for name, value in os.environ.items() if name not in _chosen}
    return {**mine, _SHARE: str(max(cores() // jobs, 1))}


def check_jobs(jobs: int) -> None:
    """Raise UserError if the number of processes is far above the number of cores."""
    _check_count(f"--jobs {jobs}", jobs)


def _check_count(setting: str, count: int) -> None:
    limit = _MOST_PER_CORE * cores()
    if count > limit:
        raise UserError(f"{setting}: this machine has {cores()} cores; use at most {limit}")


def load() -> float:
    """Return the number of other running processes per core of the machine.

    The mean of the last minute counts a training that has just ended, and a look at this moment one that pauses, so the
    smaller of the two is taken.
    """
    machine = os.cpu_count() or 1
    looks: list[int] = []
    try:
        mean = os.getloadavg()[0] / machine
        while mean >= BUSY and len(looks) < _SAMPLES:
            running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
            looks.append(int(running) - 1)  # without this process
            time.sleep(0.002)
    except (OSError, ValueError):  # another system than Linux
        return 0.0
    return min(mean, sum(looks) / len(looks) / machine) if looks else mean


def _quotas() -> Iterator[float]:
    """Yield the cores that each control group of this process allows (``docker --cpus``), and infinity."""
    yield math.inf
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            root = Path("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup")
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ArithmeticError, ValueError):
                    texts = [(folder / name).read_text(encoding="ascii") for name in names]
                    quota, period = map(float, " ".join(texts).split())
                    if quota > 0:
                        yield quota / period
