"""``decode``: what is said of all answers together; the same answers by several processes, and one that dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.errors import WorkerError
from phmctl.inference.answering import answer, dealt, with_workers
from phmctl.runs import Run
from tests.tasks.translation.runs import SOURCES


@given(st.lists(st.text(max_size=20)), st.integers(1, 6))
def test_lines_are_dealt_evenly(lines: list[str], count: int) -> None:
    found = dealt(lines, count)
    assert sorted(chain(*found)) == list(range(len(lines)))
    assert len(found) == max(1, min(count, len(lines)))
    assert all(part == sorted(part) for part in found)
    assert max(map(len, found)) - min(map(len, found)) <= 1
    if len(lines) >= count:
        characters = [sum(len(lines[place]) for place in part) for part in found]
        assert max(characters) - min(characters) <= max(map(len, lines))


def test_the_answers_are_those_of_one_process(run: Run) -> None:
    """And a worker counts its lines as the whole text does, in its messages."""
    text = "\n".join([*SOURCES, *["the bird sees the garden " * 100] * 2])

    def decode(workers: int) -> tuple[str, list[str]]:
        command = [sys.executable, "-m", "phmctl", "decode", str(run.folder), "--beam", "1", f"--workers={workers}"]
        found = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return found.stdout, sorted(found.stderr.splitlines())

    answers, warnings = decode(2)
    assert (answers, warnings) == decode(1)
    assert any(f"line {len(SOURCES) + 2} has" in line for line in warnings)


class _Mortal:
    """A predictor that says what it was given; in a worker the line `die` ends it."""

    def predict(self, lines: Sequence[str], *, numbers: Any = None, advance: Any) -> list[Any]:
        if "die" in lines:
            os.kill(os.getpid(), signal.SIGKILL)
        advance(len(lines))
        return list(zip(numbers, lines, strict=True))


def test_a_worker_that_dies_is_an_error() -> None:
    told: list[int] = []
    with with_workers(_Mortal(), _Mortal, 2) as predict:
        lines = ["a", "bb", "cc", "ddd"]
        assert predict(lines, numbers=[5, 6, 7, 9], advance=told.append) == [
            (5, "a"), (6, "bb"), (7, "cc"), (9, "ddd")
        ]  # fmt: skip
        assert sum(told) == 4
        with pytest.raises(WorkerError, match="--workers"):
            predict(["long", "die"], numbers=[1, 2], advance=told.append)


def test_workers_end_with_a_process_that_is_killed() -> None:
    code = """
import multiprocessing, os, signal
from tests.inference.test_answering import _Mortal
from phmctl.inference.answering import with_workers
if __name__ == "__main__":
    with with_workers(_Mortal(), _Mortal, 2) as predict:
        predict(["a", "b"], numbers=[1, 2], advance=print)
        print(*[each.pid for each in multiprocessing.active_children()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    worker = int(found.stdout.split()[-1])
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


class Mute:
    """Answers nothing, or the same."""

    def __init__(self, said: str) -> None:
        self.said = said

    def predict(self, lines: Sequence[str], *, numbers: Any = None, advance: Callable[[int], None]) -> list[str]:
        return [self.said for _ in lines]

    def lines(self, found: Sequence[str], *, first_line: int = 1) -> Iterator[str]:
        return iter(found)

    def as_json(self, found: Sequence[str]) -> Iterator[dict[str, Any]]:
        return ({"text": each} for each in found)


@pytest.mark.parametrize(
    ("said", "remark"),
    [("", "warning: 12 of 12 answers are empty\n"), ("yes", "warning: 12 of 12 answers are the same: 'yes'\n")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_degenerate_answers_are_said(said: str, remark: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    answer(Mute(said), [[f"line {number}" for number in range(7)], ["a", "", "b", "c", "d", "e"]], as_json=as_json)
    captured = capsys.readouterr()
    assert captured.err == remark
    assert len(captured.out.splitlines()) == 13
