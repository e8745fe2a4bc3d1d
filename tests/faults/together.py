"""Two processes that train together, one disturbed at a write: ``python -m tests.faults.together [POINTS [OPTION…]]``.

All writes are the first process's: at so many of them, evenly spread, it is killed, or finds the disk full or broken.
The second writes nothing below the folder, which is checked, so it is killed beside it, when the first does its N-th
write. Further options go to ``train``: ``--set training.sharding=full``.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.harness import KINDS, compiler, preloaded
from tests.faults.scenarios import RECIPE, contents, differences, scenarios, write_inputs
from tests.faults.sweep import spread

Environment = dict[str, str]
WAYS = (("kill", 0), ("kill", 1), ("full", 0), ("broken", 0))  # what happens, and to which rank
ONE_A_SIDE = "{steps: 6, accumulate: 2, batch_tokens: 64"


def main() -> int:
    """Kill, go on, compare; return 1 if anything was wrong."""
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    if compiler() is None:
        print("no C compiler: nothing can be disturbed", file=sys.stderr)  # noqa: T201
        return 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        work = Path(folder) / "work"
        work.mkdir()
        environment = preloaded(Path(folder)) | {"FAULT_BELOW": str(work)}
        write_inputs(work)
        (work / "recipe.yaml").write_text(RECIPE.replace("{steps: 6, batch_tokens: 128", ONE_A_SIDE))
        commands = {each.name: tuple(each.command) for each in scenarios(work)}
        _phmctl(commands["prepare-data"], environment)
        wrong = _sweep(work, (*commands["train"], "--processes", "2", *sys.argv[2:]), environment, points)
    print(f"{len(WAYS) * points} points, {wrong} wrong")  # noqa: T201
    return int(wrong > 0)


def _sweep(work: Path, command: tuple[str, ...], environment: Environment, points: int) -> int:
    calls = [_undisturbed(work, command, environment, rank) for rank in (0, 1)]
    print(f"writes of the first process: {calls[0]}, of the second: {calls[1]}", flush=True)  # noqa: T201
    wanted = contents(work)
    wrong = int(calls[1] > 0)
    for at in spread(calls[0], points):
        for way in WAYS:
            wrong += _point(work, command, environment, (*way, at), wanted)
    return wrong


def _undisturbed(work: Path, command: tuple[str, ...], environment: Environment, rank: int) -> int:
    """Train undisturbed; return how many calls a rank made."""
    shutil.rmtree(work / "runs", ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=work.parent) as told:
        whole = _phmctl(
            command, environment | {"FAULT_RANK": str(rank), "FAULT_AT": "0", "FAULT_KIND": "0", "FAULT_TOLD": told}
        )
        if whole.returncode:
            raise RuntimeError(whole.stderr)
        return sum(map(int, (Path(told) / "calls").read_text().split()))


def _point(
    work: Path, command: tuple[str, ...], environment: Environment, who: tuple[str, int, int], wanted: dict[str, str]
) -> int:
    kind, rank, at = who
    shutil.rmtree(work / "runs", ignore_errors=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=work.parent) as told:
        faults = {"FAULT_RANK": "0", "FAULT_AT": str(at), "FAULT_VICTIM": str(rank), "FAULT_TOLD": told}
        ended = _phmctl(command, environment | faults | {"FAULT_KIND": str(KINDS.index(kind))})
    begun = any((work / "runs").glob("*/*/v*"))
    again = _phmctl((*command, "--resume") if begun else command, environment)
    problems = differences(wanted, contents(work))
    problems += _judge(kind, ended)
    problems += [f"again: {again.returncode} {again.stderr[-500:]}"] if again.returncode else []
    said = re.sub(r"\s+", " ", ended.stderr)[-300:]
    seconds = time.monotonic() - began
    ends = f"exit {ended.returncode}, then {again.returncode}"
    print(f"rank {rank}, {kind} at {at}: {ends}; {problems or 'the same'}; {seconds:.0f} s; {said}", flush=True)  # noqa: T201
    return int(bool(problems))


def _judge(kind: str, ended: subprocess.CompletedProcess[str]) -> list[str]:
    """A death ends both with 1; so does a disk that refuses, in words, unless what it refused was not needed."""
    problems = (
        [] if ended.returncode == 1 or (kind != "kill" and ended.returncode == 0) else [f"exit {ended.returncode}"]
    )
    if "Traceback" in ended.stderr:
        problems.append("unforeseen")
    if kind != "kill" and ended.returncode == 1 and "error: cannot " not in ended.stderr:
        problems.append("message")
    return problems


def _phmctl(command: tuple[str, ...], environment: Environment) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from phmctl.cli.main import run; run()", *command]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=300)


if __name__ == "__main__":
    sys.exit(main())
