"""``make faults``: disturb every write of every scenario, go on, and compare with what an undisturbed run leaves.

python -m tests.faults.sweep [--every K | --points K] [--kinds kill,full] [--only train] [--jobs 2] [--json FILE]
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from tests.faults.harness import KINDS, OTHER, Ended, compiler, import_all, preloaded, run
from tests.faults.scenarios import Command, Scenario, contents, differences, make_state, scenarios, whole_checkpoints

PART = 20  # points between two lines of progress


@dataclass
class Found:
    """What a sweep of one scenario by one kind came to."""

    scenario: str
    kind: str
    points: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: "Found") -> None:
        """Take in another part of the same sweep."""
        self.points += other.points
        self.ended += other.ended
        self.wrong += other.wrong

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {word}" for word, count in sorted(self.ended.items()))
        return f"{self.scenario}, {self.kind}: {self.points} points ({ends}), {len(self.wrong)} wrong"


@dataclass(frozen=True)
class Undisturbed:
    """A scenario's start, kept in a folder, what it leaves where nothing disturbs it, and the names of its calls."""

    state: Path
    wanted: dict[str, str]
    calls: Sequence[str]


class Sweeper:
    """Sweeps in a folder of its own; makes each start, and each undisturbed run, once."""

    def __init__(self, folder: Path) -> None:
        """Sweep in `folder`, which is made."""
        self.work, self.log = folder / "work", folder / "log"
        self.work.mkdir(parents=True)
        self.scenarios = {scenario.name: scenario for scenario in scenarios(self.work)}
        self._states: dict[tuple[Command, ...], Path] = {}
        self._undisturbed: dict[str, Undisturbed] = {}

    def undisturbed(self, name: str) -> Undisturbed:
        """Run a scenario undisturbed. RuntimeError: it fails, or going on after it changes something."""
        if name not in self._undisturbed:
            scenario = self.scenarios[name]
            state = self._state(scenario)
            _restore(state, self.work)
            ended = run([scenario.command], self.work, self.log, processes=scenario.processes)
            wanted = contents(self.work)
            again = run(scenario.again(self.work), self.work, self.log, processes=scenario.processes)
            wrong = differences(wanted, contents(self.work))
            wrong += ["the second writes"] if ended.second is not None and ended.second.names else []
            if ended.code or again.code or wrong:
                raise RuntimeError(f"{name}: {ended.said}; again: {again.said} {wrong}")
            self._undisturbed[name] = Undisturbed(state, wanted, ended.names)
        return self._undisturbed[name]

    def _state(self, scenario: Scenario) -> Path:
        key = tuple(scenario.prepare)
        if key not in self._states:
            make_state(scenario, self.work, self.log)
            self._states[key] = self.work.with_name(f"state-{len(self._states)}")
            shutil.copytree(self.work, self._states[key])
        return self._states[key]

    def sweep(self, name: str, kind: str, points: Iterable[int]) -> Found:
        """Disturb these calls of a scenario's command, one at a time, and judge what is left after going on."""
        begin, scenario = self.undisturbed(name), self.scenarios[name]
        found = Found(name, kind)
        for at in points:
            ended, problems = self._disturb(scenario, begin, kind, at)
            found.points += 1
            found.ended["killed" if ended.code == -9 else f"exit {ended.code}"] += 1
            if problems:
                found.wrong.append(f"{name}, {kind} at {at} ({begin.calls[at - 1]}): {'; '.join(problems)}")
        return found

    def _disturb(self, scenario: Scenario, begin: Undisturbed, kind: str, at: int) -> tuple[Ended, list[str]]:
        _restore(begin.state, self.work)
        before = whole_checkpoints(self.work)
        ended = run([scenario.command], self.work, self.log, at, kind, scenario.processes)
        problems = _judge(ended, kind)
        if scenario.checkpoints and before and not whole_checkpoints(self.work):
            problems.append("no checkpoint is left")
        _date_back_temporaries(self.work)
        again = run(scenario.again(self.work), self.work, self.log, processes=scenario.processes)
        if again.code or (again.second is not None and again.second.code):
            problems.append(f"going on ended with {again.code}: {again.said[-300:]}")
        return ended, problems + differences(begin.wanted, contents(self.work))


def _date_back_temporaries(work: Path) -> None:
    """Let two days pass, after which the next writer removes the temporaries of a killed process."""
    two_days_ago = time.time() - 2 * 86_400
    for path in work.rglob(".*.tmp"):
        os.utime(path, (two_days_ago, two_days_ago))


def _restore(state: Path, work: Path) -> None:
    shutil.rmtree(work)
    shutil.copytree(state, work)


def _judge(ended: Ended, kind: str) -> list[str]:
    """Return what is wrong with how a disturbed command ended, or with how the process beside it did."""
    if kind == OTHER:
        first = replace(ended, second=None)
        return [*_judge_survivor(first), *_judge_killed(ended.second or first, (-9, 0))]
    if kind in ("kill", "torn"):
        return [*_judge_killed(ended), *([] if ended.second is None else _judge_survivor(ended.second))]
    allowed = (0,) if kind == "short" else (0, 1)
    problems = [*_unforeseen(ended)]
    if ended.code not in allowed:
        problems.append(f"exit code {ended.code}: {ended.said[-300:]}")
    if ended.code == 1 and "error: cannot " not in ended.said:
        problems.append(f"message: {ended.said[-300:]}")
    if ended.second is not None and ended.second.code != ended.code:
        problems.append(f"the second ended with {ended.second.code}: {ended.second.said[-300:]}")
    return problems


def _judge_killed(ended: Ended, codes: Sequence[int] = (-9,)) -> list[str]:
    return [] if ended.code in codes else [f"not killed but {ended.code}: {ended.said[-300:]}"]


def _judge_survivor(ended: Ended) -> list[str]:
    """It ends with 1 and says that another is lost; or with 0, where that one had nothing more to do for it."""
    good = ended.code == 0 or (ended.code == 1 and "another process of this training" in ended.said)
    return _unforeseen(ended) + ([] if good else [f"the survivor ended with {ended.code}: {ended.said[-400:]}"])


def _unforeseen(ended: Ended) -> list[str]:
    bad = "Traceback" in ended.said or "fault of phmctl" in ended.said
    return [f"unforeseen: {ended.said[-400:]}"] if bad else []


def spread(calls: int, points: int) -> list[int]:
    """Return so many calls, evenly spread."""
    return [1 + (2 * number + 1) * calls // (2 * points + 1) for number in range(points)]


Task = tuple[str, str, Sequence[int]]  # a scenario, a kind, points


@cache
def _sweeper(root: Path, process: int) -> Sweeper:
    return Sweeper(root / str(process))


def _count(root: Path, name: str) -> int:
    return len(_sweeper(root, os.getpid()).undisturbed(name).calls)


def _part(root: Path, task: Task) -> Found:
    return _sweeper(root, os.getpid()).sweep(*task)


def _tasks(asked: argparse.Namespace, swept: Sequence[Scenario], calls: dict[str, int]) -> list[Task]:
    found: list[Task] = []
    for kind in asked.kinds.split(","):  # all kills come first: a sweep that is cut off has the most telling part
        for each in [scenario for scenario in swept if kind in scenario.kinds]:
            count = calls[each.name]
            points = spread(count, asked.points) if asked.points else [*range(1, count + 1, asked.every)]
            found += [(each.name, kind, points[begin : begin + PART]) for begin in range(0, len(points), PART)]
    return found


def _sweep_all(asked: argparse.Namespace, root: Path) -> list[Found]:
    swept = [each for each in scenarios(root) if not asked.only or each.name in asked.only.split(",")]
    names = [each.name for each in swept]
    found: dict[tuple[str, str], Found] = {}
    began = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
        calls = dict(zip(names, pool.map(partial(_count, root), names, chunksize=1), strict=True))
        tasks = _tasks(asked, swept, calls)
        total, done = sum(len(points) for _, _, points in tasks), 0
        _say(f"{total} points: " + ", ".join(f"{name} {count} writes" for name, count in calls.items()))
        for part in pool.imap_unordered(partial(_part, root), tasks):
            found.setdefault((part.scenario, part.kind), Found(part.scenario, part.kind)).add(part)
            done += part.points
            _say(f"{done}/{total}, {time.perf_counter() - began:.0f} s: {part}")
            for each in part.wrong:
                _say(f"  {each}")
            if asked.json:
                asked.json.write_text(json.dumps([vars(one) for one in found.values()], indent=1))
    return [*found.values()]


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> int:
    """Sweep as the arguments say; print the counts; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--kinds", default=",".join((*KINDS, OTHER)))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
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
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as root:
        found = _sweep_all(asked, Path(root))
    _say("")
    for one in found:
        _say(str(one))
    wrong = sum(len(one.wrong) for one in found)
    _say(f"{sum(one.points for one in found)} points, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
