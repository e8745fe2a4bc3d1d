"""``phmctl decode``."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from phmctl.answering.opening import load_translator
from phmctl.answering.translator import Translator
from phmctl.errors import DataError, OutputError
from phmctl.runs import Run
from tests.answering.conftest import TEXT
from tests.calls import call, start
from tests.tasks.translation.runs import SOURCES

INPUT = "".join(f"{line}\n" for line in SOURCES).encode()


@pytest.fixture(scope="module")
def expected(run: Run) -> list[str]:
    return [hypotheses[0].text for hypotheses in load_translator(run, "best", "cpu").translate(SOURCES)]


def lines(text: str) -> list[str]:
    return text.split("\n")[:-1]


def test_each_line_of_stdin_is_answered_on_stdout(run: Run, expected: list[str]) -> None:
    assert lines(call("decode", run.folder, stdin=INPUT).stdout) == expected


def test_checkpoint_and_beam_reach_the_search(run: Run) -> None:
    answers = lines(call("decode", run.folder, "--checkpoint", "last", "--beam", 1, stdin=INPUT).stdout)
    greedy = load_translator(run, "last", "cpu", run.recipe.decoding.model_copy(update={"beam": 1}))
    assert answers == [hypotheses[0].text for hypotheses in greedy.translate(SOURCES)]


@pytest.mark.parametrize("options", [(), ("--n-best", 2)])
def test_json_is_printed_and_the_file_has_the_text(run: Run, tmp_path: Path, options: tuple[object, ...]) -> None:
    command = ("decode", run.folder, *options)
    text = call(*command, stdin=INPUT).stdout
    printed = call(*command, "--json", "--output", tmp_path / "out", stdin=INPUT).stdout
    documents = [json.loads(line) for line in lines(printed)]
    assert (tmp_path / "out").read_text(encoding="utf-8") == text
    assert [document["line"] for document in documents] == list(range(1, len(SOURCES) + 1))
    translations = [hypothesis["text"] for document in documents for hypothesis in document["translations"]]
    assert translations == [line.split("\t")[-1] for line in lines(text)]


def test_a_failure_keeps_the_answers_and_a_later_call_continues_as_documented(
    run: Run, expected: list[str], tmp_path: Path
) -> None:
    path, text = tmp_path / "out", INPUT.splitlines(keepends=True)
    with pytest.raises(DataError):
        call("decode", run.folder, "--output", path, stdin=b"".join([*text[:2], b"\xff\n", *text[3:]]))
    answers = path.read_text(encoding="utf-8")
    assert lines(answers) == expected[:2]
    assert list(tmp_path.iterdir()) == [path]
    continued = call("decode", run.folder, stdin=b"".join(text[len(lines(answers)) :])).stdout
    assert lines(answers + continued) == expected


def test_the_input_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("A\n")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OutputError, match=str(link)):
        call("decode", run.folder, "--input", path, "--output", link)
    with path.open("rb") as file, start("decode", run.folder, "--output", path, stdin=file) as process:
        assert process.wait(timeout=60) == 2
    assert path.read_text() == "A\n"


def test_a_bar_is_shown_for_a_file_on_a_terminal_only(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(INPUT)
    arguments = ("decode", run.folder, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert all(line.startswith("warning: ") for line in call(*arguments).stderr.splitlines())
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    monkeypatch.setattr("phmctl.console._REDRAW_SECONDS", 0)
    assert f"{len(SOURCES)}/?" in call(*arguments).stderr
    assert "━" not in call(*arguments[:-2]).stderr


def test_answers_are_in_the_file_at_once_and_sigint_ends_with_exit_code_130(
    run: Run, expected: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "out"
    with start("decode", run.folder, "--json", "--output", path, stdin=subprocess.PIPE) as process:
        for line in SOURCES[:2]:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            process.stdout.readline()
        assert lines(path.read_text(encoding="utf-8")) == expected[:2]  # a killed process has written them too
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == "ended by SIGINT\n"
    assert lines(path.read_text(encoding="utf-8")) == expected[:2]


def test_a_reader_that_leaves_ends_the_process_silently(run: Run) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    with start("decode", run.folder, stdin=subprocess.PIPE, env=environment) as process:
        process.stdin.write(f"{TEXT[0]}\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(f"{TEXT[0]}\n" * 3)
        process.stdin.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == ""


def test_a_terminal_is_answered_line_by_line(run: Run, expected: list[str]) -> None:
    master, terminal = pty.openpty()
    with start("decode", run.folder, stdin=terminal) as process:
        os.close(terminal)
        for line, answer in list(zip(SOURCES, expected, strict=True))[:2]:
            os.write(master, f"{line}\n".encode())
            assert process.stdout.readline() == f"{answer}\n"
        os.write(master, b"\x04")  # Ctrl-D
        assert process.wait(timeout=60) == 0
        assert "Ctrl-D" in process.stderr.read()  # how to end the input
    os.close(master)


def test_available_lines_are_answered_together(
    run: Run, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []
    answer = Translator.answer

    def record(self, lines, **settings):
        groups.append((len(lines), settings["first"]))
        return answer(self, lines, **settings)

    monkeypatch.setattr(Translator, "answer", record)
    (tmp_path / "in").write_bytes(INPUT)
    call("decode", run.folder, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert groups == [(7, 1)]
    assert lines((tmp_path / "out").read_text(encoding="utf-8")) == expected
