from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.errors import OutputError
from phmctl.inference.lines import open_answers

LINES = [f"line {number}" for number in range(1, 10)]


def answers_to(lines: Sequence[str], n_best: int | None = None) -> str:
    if n_best is None:
        return "".join(f"{line.upper()}ß\n" for line in lines)
    ranks = range(1, n_best + 1)
    return "".join(f"{line.removeprefix('line ')}\t{rank}\t{line}ß\n" for line in lines for rank in ranks)


def write(
    path: Path,
    groups: Iterable[Sequence[str]],
    *,
    stop_after: int | None = None,
    resume: bool = False,
    n_best: int | None = None,
) -> None:
    """Answer groups of lines; raise ZeroDivisionError after `stop_after` groups."""
    with open_answers(path, resume=resume, numbered=n_best is not None) as output:
        answered = output.answered
        for number, group in enumerate(output.unanswered(groups)):
            if number == stop_after:
                raise ZeroDivisionError
            answered += len(group)
            output.add(answers_to(group, n_best), answered)
        output.finish()


def test_answers_are_written_as_they_come_and_a_complete_file_is_resumed_without_change(tmp_path: Path) -> None:
    path = tmp_path / "new" / ("o" * 255)  # no longer name is made from it
    with open_answers(path) as output:
        output.add(answers_to(LINES[:2]), 2)
        assert path.read_text() == answers_to(LINES[:2])
        output.add(answers_to(LINES[2:]), 9)
        output.finish()
    write(path, [LINES[:4], LINES[4:]], resume=True)
    assert path.read_text() == answers_to(LINES)
    assert list(path.parent.iterdir()) == [path]


@given(
    stop_after=st.integers(0, 9),
    first_size=st.integers(1, 4),
    second_size=st.integers(1, 4),
    lost=st.integers(0, 40),
    n_best=st.none() | st.integers(1, 3),
)
def test_a_resumed_file_has_the_answers_to_all_lines_wherever_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory,
    stop_after: int,
    first_size: int,
    second_size: int,
    lost: int,
    n_best: int | None,
) -> None:
    path = tmp_path_factory.mktemp("answers") / "out"
    first, second = ([LINES[start : start + size] for start in range(0, 9, size)] for size in (first_size, second_size))
    try:
        write(path, first, stop_after=stop_after, n_best=n_best)
    except ZeroDivisionError:
        if path.exists():
            content = path.read_bytes()
            path.write_bytes(content[: max(len(content) - lost, 0)])  # as after a power cut
    write(path, second, resume=True, n_best=n_best)
    assert path.read_text() == answers_to(LINES, n_best)


def test_a_second_process_cannot_write_the_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open_answers(path) as first:
        with pytest.raises(OutputError), open_answers(path):
            pass
        first.add(answers_to(LINES), 9)
    assert path.read_text() == answers_to(LINES)


def test_other_files_and_other_inputs_are_refused_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for other in (tmp_path, Path("/dev/null")):
        with pytest.raises(OutputError), open_answers(other):
            pass
    with pytest.raises(OutputError, match=r"b{256}"), open_answers(tmp_path / ("b" * 256)):
        pass
    assert list(tmp_path.iterdir()) == []
    write(path, [LINES])
    with pytest.raises(OutputError, match="9 lines, and the input has 4"):
        write(path, [LINES[:4]], resume=True)
    with pytest.raises(OutputError, match="n-best"):
        write(path, [LINES], resume=True, n_best=2)
    assert path.read_text() == answers_to(LINES)


def test_an_older_file_stays_until_the_first_answer_and_an_early_failure_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("older and longer than the answers\n")
    for output in (path, tmp_path / "new"):
        with pytest.raises(ZeroDivisionError):
            write(output, [LINES], stop_after=0)
    assert path.read_text() == "older and longer than the answers\n"
    assert list(tmp_path.iterdir()) == [path]
    write(path, [])
    assert path.read_text() == ""
