"""``make faults``: disturb every write of every scenario, go on, and compare with what an undisturbed run leaves.

python -m tests.faults.sweep [--every K | --points K] [--kinds kill,full] [--only train] [--json FILE]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.harness import KINDS, Ended, compiler, import_all, preloaded, run
from tests.faults.scenarios import Scenario, contents, differences, make_state, scenarios, whole_checkpoints


@dataclass
class Found:
    """What a sweep of one scenario by one kind came to."""

    scenario: str
    kind: str
    points: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def sweep(scenario: Scenario, kind: str, folder: Path, *, every: int = 1, points: int = 0) -> Found:
    """Disturb each `every`-th call of a scenario's command, or so many `points`, evenly spread."""
    work, state, log = folder / "work", folder / "state", folder / "log"
    make_state(scenario, work, log)
    shutil.rmtree(state, ignore_errors=True)
    shutil.copytree(work, state)
    wanted, calls = _undisturbed(scenario, work, log)
    found = Found(scenario.name, kind)
    spread = [1 + (2 * number + 1) * calls // (2 * points + 1) for number in range(points)]
    for at in spread or range(1, calls + 1, every):
        _restore(state, work)
        before = whole_checkpoints(work)
        ended = run([scenario.command], work, log, at, kind)
        found.points += 1
        found.ended[_word(ended)] += 1
        problems = _judge(ended, kind)
        if scenario.checkpoints and before and not whole_checkpoints(work):
            problems.append("no checkpoint is left")
        again = run(scenario.again(work), work, log)
        if again.code:
            problems.append(f"going on ended with {again.code}: {again.said[-300:]}")
        problems += differences(wanted, contents(work))
        if problems:
            found.wrong.append(f"{scenario.name}, {kind} at {at} ({ended.name or '?'}): {'; '.join(problems)}")
    return found


def _undisturbed(scenario: Scenario, work: Path, log: Path) -> tuple[dict[str, str], int]:
    """Return what a scenario leaves, and how many calls it makes. Going on after it changes nothing."""
    ended = run([scenario.command], work, log)
    if ended.code:
        raise RuntimeError(f"{scenario.name}: {ended.said}")
    wanted = contents(work)
    again = run(scenario.again(work), work, log)
    wrong = differences(wanted, contents(work))
    if again.code or wrong:
        raise RuntimeError(f"{scenario.name}, again: {again.said} {wrong}")
    return wanted, ended.calls


def _restore(state: Path, work: Path) -> None:
    shutil.rmtree(work)
    shutil.copytree(state, work)


def _word(ended: Ended) -> str:
    return "killed" if ended.code == -9 else f"exit {ended.code}"


def _judge(ended: Ended, kind: str) -> list[str]:
    """Return what is wrong with how a disturbed command ended."""
    if kind in ("kill", "torn"):
        return [] if ended.code == -9 else [f"not killed but {ended.code}: {ended.said[-300:]}"]
    problems = []
    if "Traceback" in ended.said or "fault of phmctl" in ended.said:
        problems.append(f"unforeseen: {ended.said[-400:]}")
    allowed = (0,) if kind == "short" else (0, 1)
    if ended.code not in allowed:
        problems.append(f"exit code {ended.code}: {ended.said[-300:]}")
    if ended.code == 1 and "error: cannot " not in ended.said:
        problems.append(f"message: {ended.said[-300:]}")
    return problems


def main() -> int:
    """Sweep as the arguments say; print the counts; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if compiler() is None:
        print("no C compiler: nothing can be disturbed", file=sys.stderr)  # noqa: T201
        return 0
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            again = [sys.executable, "-m", "tests.faults.sweep", *sys.argv[1:]]
            return subprocess.run(again, env=preloaded(Path(folder)), check=False).returncode
    import_all()
    found = []
    root = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for scenario in scenarios(Path(folder) / "work"):
            if asked.only and scenario.name not in asked.only.split(","):
                continue
            for kind in asked.kinds.split(","):
                found.append(_timed(scenario, kind, Path(folder), asked))
    if asked.json:
        asked.json.write_text(json.dumps([vars(one) for one in found], indent=1))
    wrong = [each for one in found for each in one.wrong]
    print(f"{sum(one.points for one in found)} points, {len(wrong)} wrong")  # noqa: T201
    return 1 if wrong else 0


def _timed(scenario: Scenario, kind: str, folder: Path, asked: argparse.Namespace) -> Found:
    began = time.perf_counter()
    one = sweep(scenario, kind, folder, every=asked.every, points=asked.points)
    ends = ", ".join(f"{count} {word}" for word, count in sorted(one.ended.items()))
    seconds = time.perf_counter() - began
    print(f"{one.scenario}, {kind}: {one.points} points ({ends}), {len(one.wrong)} wrong, {seconds:.0f} s", flush=True)  # noqa: T201
    for each in one.wrong[:20]:
        print(f"  {each}", flush=True)  # noqa: T201
    return one


if __name__ == "__main__":
    sys.exit(main())
