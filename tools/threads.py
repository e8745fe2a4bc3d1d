"""Measure training on a busy machine: tokens a second of a recipe with n = 4 and of its dense twin.

::

    phmctl prepare-data miniature
    python tools/threads.py miniature multi30k-de-en     # a table for docs/performance.md, on an idle machine

The script makes the load itself: no other process, one a core, five a core, and a control group with half of the cores,
if this user may make one. `spinning` is OpenMP's default, and `phmctl` is what the command chooses. Each row is
measured in a new process, and the shares are of the idle spinning one. At five a core a step of spinning threads can
take minutes, so only `phmctl` is measured there.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from phmctl.threads import BUSY, load, visible_cores

SETTLE = 90  # seconds in which the mean load of the last minute tells of a new one
SPINNING_UNTIL = 1  # busy processes a core
GROUPS = Path("/sys/fs/cgroup")
SPINNING = {"OMP_DYNAMIC": "false"}  # OpenMP's default. phmctl does not choose if a user has set a variable.


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep a number of processes busy in the block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def quota(share: float) -> Iterator[list[str] | None]:
    """Yield the beginning of a command that may use a share of the cores, or None if no control group can be made."""
    period = 100_000
    microseconds = str(int(period * share * visible_cores()))
    old = (GROUPS / "cpu").is_dir()
    group = (GROUPS / "cpu" if old else GROUPS) / f"phmctl-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        limit = group / ("cpu.cfs_quota_us" if old else "cpu.max")
        limit.write_text(microseconds if old else f"{microseconds} {period}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


def settle(processes: int) -> None:
    """Wait until phmctl would notice that a number of processes is busy, or that none is."""
    deadline = time.monotonic() + SETTLE
    while (load() >= BUSY) != (processes > 0) and time.monotonic() < deadline:
        time.sleep(1)


def speeds(recipe: str, environment: dict[str, str], beginning: list[str], rounds: int) -> dict[str, float]:
    """Return the tokens a second of each candidate of ``bench train``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))}
    command = [*beginning, sys.executable, "-P", "-m", "phmctl", "bench", "train", recipe, "--n", "4", "--json"]
    command += ["--batches", "2", "--rounds", str(rounds), "--device", "cpu"]
    done = subprocess.run(command, env=inherited | environment, stdout=subprocess.PIPE, text=True, check=True)
    return {row["candidate"]: row["tokens_per_second"] for row in json.loads(done.stdout)["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", type=int, nargs="*", default=[0, 1, 5], help="busy processes a core")
    options = parser.parse_args()
    started = time.monotonic()
    idle: dict[tuple[str, str], float] = {}
    print("| recipe | load | threads | candidate | tok/s | of idle |\n|---|---|---|---|---|---|")  # noqa: T201

    def show(place: str, policies: dict[str, dict[str, str]], beginning: list[str]) -> None:
        for recipe in options.recipes:
            for policy, environment in policies.items():
                for candidate, speed in speeds(recipe, environment, beginning, options.rounds).items():
                    share = speed / idle.setdefault((recipe, candidate), speed)
                    print(f"| {recipe} | {place} | {policy} | {candidate} | {speed:,.0f} | {share:.2f} |", flush=True)  # noqa: T201

    both: dict[str, dict[str, str]] = {"spinning": SPINNING, "phmctl": {}}
    for number in options.loads:
        with busy(number * visible_cores()):
            settle(number)
            show(f"{number} a core", both if number <= SPINNING_UNTIL else {"phmctl": {}}, [])
    with quota(0.5) as beginning:
        if beginning:
            show("half of the cores", both, beginning)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
