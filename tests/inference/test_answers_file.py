from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.errors import OutputError
from phmctl.inference.lines import AnswersFile

ORIGIN = {"run": "a/b/v001", "beam": 5}
LINES = [f"line {number}" for number in range(9)]


def answer(lines: list[str]) -> str:
    return "".join(f"{line.upper()}ß\n" for line in lines)


def write(path: Path, groups: Iterable[list[str]], *, stop_after: int | None = None, resume: bool = False) -> None:
    """Answer groups of lines; die, without an end, after so many of them."""
    with AnswersFile(path, ORIGIN, resume=resume) as file:
        for number, group in enumerate(file.unanswered(groups)):
            if number == stop_after:
                file._handle.close()
                return
            file.add(group, answer(group))
        file.finish()


def test_answers_are_there_as_they_come_and_the_record_goes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out"
    with AnswersFile(path, ORIGIN) as file:
        file.add(LINES[:2], answer(LINES[:2]))
        assert path.read_text() == answer(LINES[:2])
        assert file.lines == 2
        assert file.record.exists()
        file.add(LINES[2:], answer(LINES[2:]))
        file.finish()
    for _ in range(2):
        assert path.read_text() == answer(LINES)
        assert list(path.parent.iterdir()) == [path]
        write(path, [LINES[:4], LINES[4:]], resume=True)  # what is complete is resumed by doing nothing
    for other in (LINES[:4], [*LINES, "one more"]):
        with pytest.raises(OutputError):
            write(path, [other], resume=True)
    assert path.read_text() == answer(LINES)


@given(
    cut=st.integers(0, 9),
    first=st.integers(1, 4),
    second=st.integers(1, 4),
    garbage=st.binary(max_size=20),
    lost=st.integers(0, 30),
)
def test_wherever_it_stops_n_lines_out_are_n_lines_in(tmp_path_factory, cut, first, second, garbage, lost) -> None:
    path = tmp_path_factory.mktemp("answers") / "out"
    groups = [[LINES[start : start + size] for start in range(0, 9, size)] for size in (first, second)]
    write(path, groups[0], stop_after=cut)
    record = path.with_name("out.resume.jsonl")
    if record.exists():
        with path.open("ab") as handle:
            handle.write(garbage)  # half of an answer
        content = record.read_bytes()
        record.write_bytes(content[: max(content.index(b"\n") + 1, len(content) - lost)])  # half of a record
        write(path, groups[1], stop_after=1, resume=True)
        write(path, groups[1], resume=True)
    elif cut == 0:
        write(path, groups[1], resume=True)
    assert path.read_text() == answer(LINES)
    assert not record.exists()


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with AnswersFile(path, ORIGIN) as first:
        with pytest.raises(OutputError, match="another process writes"):
            AnswersFile(path, ORIGIN)
        first.add(LINES, answer(LINES))
        first.finish()
    assert path.read_text() == answer(LINES)


def test_a_power_cut_takes_answers_that_the_record_has(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, [LINES[:3], LINES[3:6], LINES[6:]], stop_after=2)
    content = path.read_bytes()
    path.write_bytes(content[: len(answer(LINES[:3]).encode()) + 4])
    with AnswersFile(path, ORIGIN, resume=True) as file:
        assert file.lines == 3
    write(path, [LINES], resume=True)
    assert path.read_text() == answer(LINES)


def test_what_is_not_ours_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for other in (tmp_path, Path("/dev/null")):
        with pytest.raises(OutputError, match="no plain file"):
            AnswersFile(other, ORIGIN)
    write(path, [LINES[:4], LINES[4:]], stop_after=1)
    before = path.read_bytes()
    with pytest.raises(OutputError, match=r"has the answers to 4 lines .* add --resume"):
        AnswersFile(path, ORIGIN)
    with pytest.raises(OutputError, match=r"was not made like this: beam \(5 there, 6 now\)"):
        AnswersFile(path, {**ORIGIN, "beam": 6}, resume=True)
    for other in (["x", *LINES], LINES[:3]):
        with pytest.raises(OutputError, match="answers 4 lines, and they are not those that the input begins with"):
            write(path, [other], resume=True)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(OutputError, match="is shorter than it was"):
        AnswersFile(path, ORIGIN, resume=True)


def test_an_older_file_stays_until_the_first_answer_and_a_failure_before_it_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("older and longer than what comes\n")
    for each in (path, tmp_path / "new"):
        with pytest.raises(ZeroDivisionError), AnswersFile(each, ORIGIN):
            raise ZeroDivisionError
    assert path.read_text() == "older and longer than what comes\n"
    assert list(tmp_path.iterdir()) == [path]
    write(path, [])
    assert path.read_text() == ""


MARKS = [b'{"lines": 1}', b'{"lines": 2, "input_sha256": "", "bytes": "9"}', b"[" * 100_000]
MARKS += [b'{"lines": -3, "input_sha256": "", "bytes": 1}']


@pytest.mark.parametrize(
    "record", [b"nothing\n", b"[]\n", b"\xff\n", *(b'{"format": 2}\n' + mark + b"\n" for mark in MARKS)]
)
def test_a_damaged_record_is_told_and_the_answers_stay(tmp_path: Path, record: bytes) -> None:
    path = tmp_path / "out"
    path.write_text("a\n")
    path.with_name("out.resume.jsonl").write_bytes(record)
    with pytest.raises(OutputError, match=r"(?s)cannot be read .* to begin anew"):
        AnswersFile(path, ORIGIN, resume=True)
    assert path.read_text() == "a\n"
