"""``make faults``: disturb every write of every scenario, go on, and compare with what an undisturbed run leaves.

python -m tests.faults.sweep [--every K] [--kinds kill,full] [--only train] [--jobs 2] [--json FILE]
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

from tests.faults.harness import DISTURBANCES, OTHER, Ended, compiler, import_all, preloaded, run
from tests.faults.scenarios import Command, Scenario, contents, differences, make_state, scenarios, whole_checkpoints

PART = 20  # points between two lines of progress


@dataclass
class Outcome:
    """The result of sweeping a scenario with one kind of disturbance."""

    scenario: str
    disturbance: str
    points: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, part: "Outcome") -> None:
        """Add another part of the same sweep."""
        self.points += part.points
        self.ended += part.ended
        self.wrong += part.wrong

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {word}" for word, count in sorted(self.ended.items()))
        return f"{self.scenario}, {self.disturbance}: {self.points} points ({ends}), {len(self.wrong)} wrong"


@dataclass(frozen=True)
class Undisturbed:
    """A scenario's initial files, the files after an undisturbed run, and the names of its calls."""

    state: Path
    expected: dict[str, str]
    calls: Sequence[str]


class Sweeper:
    """Sweeps in a folder; makes the initial files and the undisturbed run of a scenario once."""

    def __init__(self, folder: Path) -> None:
        """Create `folder` and sweep in it."""
        self.work, self.log = folder / "work", folder / "log"
        self.work.mkdir(parents=True)
        self.scenarios = {scenario.name: scenario for scenario in scenarios(self.work)}
        self._states: dict[tuple[Command, ...], Path] = {}
        self._undisturbed: dict[str, Undisturbed] = {}

    def undisturbed(self, name: str) -> Undisturbed:
        """Run a scenario undisturbed. Raises RuntimeError if it fails, or if continuing after it changes a file."""
        if name not in self._undisturbed:
            scenario = self.scenarios[name]
            state = self._state(scenario)
            _restore(state, self.work)
            ended = run([scenario.command], self.work, self.log, processes=scenario.processes)
            expected = contents(self.work)
            repeat = run(scenario.repeat(self.work), self.work, self.log, processes=scenario.processes)
            wrong = differences(expected, contents(self.work))
            wrong += ["the second writes"] if ended.second is not None and ended.second.names else []
            if ended.code or repeat.code or wrong:
                raise RuntimeError(f"{name}: {ended.output}; again: {repeat.output} {wrong}")
            self._undisturbed[name] = Undisturbed(state, expected, ended.names)
        return self._undisturbed[name]

    def _state(self, scenario: Scenario) -> Path:
        key = tuple(scenario.prepare)
        if key not in self._states:
            make_state(scenario, self.work, self.log)
            self._states[key] = self.work.with_name(f"state-{len(self._states)}")
            shutil.copytree(self.work, self._states[key])
        return self._states[key]

    def sweep(self, name: str, disturbance: str, points: Iterable[int]) -> Outcome:
        """Disturb these calls of a scenario's command, one at a time, and judge the files after continuing."""
        begin, scenario = self.undisturbed(name), self.scenarios[name]
        outcome = Outcome(name, disturbance)
        for at in points:
            ended, problems = self._disturb(scenario, begin, disturbance, at)
            outcome.points += 1
            outcome.ended["killed" if ended.code == -9 else f"exit {ended.code}"] += 1
            if problems:
                outcome.wrong.append(f"{name}, {disturbance} at {at} ({begin.calls[at - 1]}): {'; '.join(problems)}")
        return outcome

    def _disturb(self, scenario: Scenario, begin: Undisturbed, disturbance: str, at: int) -> tuple[Ended, list[str]]:
        _restore(begin.state, self.work)
        before = whole_checkpoints(self.work)
        ended = run([scenario.command], self.work, self.log, at, disturbance, scenario.processes)
        problems = _judge(ended, disturbance)
        if scenario.checkpoints and before and not whole_checkpoints(self.work):
            problems.append("no checkpoint is left")
        repeat = run(scenario.repeat(self.work), self.work, self.log, processes=scenario.processes)
        if repeat.code or (repeat.second is not None and repeat.second.code):
            problems.append(f"going on ended with {repeat.code}: {repeat.output[-300:]}")
        return ended, problems + differences(begin.expected, contents(self.work))


def _restore(state: Path, work: Path) -> None:
    shutil.rmtree(work)
    shutil.copytree(state, work)


def _judge(ended: Ended, disturbance: str) -> list[str]:
    """Return the problems with the end of a disturbed command or of its second process."""
    if disturbance == OTHER:
        first = replace(ended, second=None)
        return [*_judge_survivor(first), *_judge_killed(ended.second or first, (-9, 0))]
    if disturbance in ("kill", "torn"):
        return [*_judge_killed(ended), *([] if ended.second is None else _judge_survivor(ended.second))]
    allowed = (0,) if disturbance == "short" else (0, 1)
    problems = [*_unforeseen(ended)]
    if ended.code not in allowed:
        problems.append(f"exit code {ended.code}: {ended.output[-300:]}")
    if ended.code == 1 and "error: cannot " not in ended.output:
        problems.append(f"message: {ended.output[-300:]}")
    if ended.second is not None and ended.second.code != ended.code:
        problems.append(f"the second ended with {ended.second.code}: {ended.second.output[-300:]}")
    return problems


def _judge_killed(ended: Ended, codes: Sequence[int] = (-9,)) -> list[str]:
    return [] if ended.code in codes else [f"not killed but {ended.code}: {ended.output[-300:]}"]


def _judge_survivor(ended: Ended) -> list[str]:
    """The survivor ends with 1 and reports a lost process, or with 0 if it needed nothing more from it."""
    good = ended.code == 0 or (ended.code == 1 and "another process of this training" in ended.output)
    return _unforeseen(ended) + ([] if good else [f"the survivor ended with {ended.code}: {ended.output[-400:]}"])


def _unforeseen(ended: Ended) -> list[str]:
    bad = "Traceback" in ended.output or "fault of phmctl" in ended.output
    return [f"unforeseen: {ended.output[-400:]}"] if bad else []


Task = tuple[str, str, Sequence[int]]  # a scenario, a kind, points


@cache
def _sweeper(root: Path, process: int) -> Sweeper:
    return Sweeper(root / str(process))


def _count(root: Path, name: str) -> int:
    return len(_sweeper(root, os.getpid()).undisturbed(name).calls)


def _part(root: Path, task: Task) -> Outcome:
    return _sweeper(root, os.getpid()).sweep(*task)


def _tasks(arguments: argparse.Namespace, swept: Sequence[Scenario], calls: dict[str, int]) -> list[Task]:
    tasks: list[Task] = []
    for disturbance in arguments.kinds.split(","):  # kills first, as they find most
        for scenario in [scenario for scenario in swept if disturbance in scenario.disturbances]:
            count = calls[scenario.name]
            points = range(1, count + 1, arguments.every)
            parts = [points[begin : begin + PART] for begin in range(0, len(points), PART)]
            tasks += [(scenario.name, disturbance, part) for part in parts]
    return tasks


def _sweep_all(arguments: argparse.Namespace, root: Path) -> list[Outcome]:
    swept = [
        scenario for scenario in scenarios(root) if not arguments.only or scenario.name in arguments.only.split(",")
    ]
    names = [scenario.name for scenario in swept]
    outcomes: dict[tuple[str, str], Outcome] = {}
    began = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        calls = dict(zip(names, pool.map(partial(_count, root), names, chunksize=1), strict=True))
        tasks = _tasks(arguments, swept, calls)
        total, done = sum(len(points) for _, _, points in tasks), 0
        _say(f"{total} points: " + ", ".join(f"{name} {count} writes" for name, count in calls.items()))
        for part in pool.imap_unordered(partial(_part, root), tasks):
            outcomes.setdefault((part.scenario, part.disturbance), Outcome(part.scenario, part.disturbance)).add(part)
            done += part.points
            _say(f"{done}/{total}, {time.perf_counter() - began:.0f} s: {part}")
            for problem in part.wrong:
                _say(f"  {problem}")
            if arguments.json:
                arguments.json.write_text(json.dumps([vars(outcome) for outcome in outcomes.values()], indent=1))
    return [*outcomes.values()]


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> int:
    """Sweep as the arguments say; print the counts; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--kinds", default=",".join((*DISTURBANCES, OTHER)))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if compiler() is None:
        print("no C compiler: nothing can be disturbed", file=sys.stderr)  # noqa: T201
        return 0
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            repeat = [sys.executable, "-m", "tests.faults.sweep", *sys.argv[1:]]
            return subprocess.run(repeat, env=preloaded(Path(folder)), check=False).returncode
    import_all()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as root:
        outcomes = _sweep_all(arguments, Path(root))
    _say("")
    for outcome in outcomes:
        _say(str(outcome))
    wrong = sum(len(outcome.wrong) for outcome in outcomes)
    _say(f"{sum(outcome.points for outcome in outcomes)} points, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
