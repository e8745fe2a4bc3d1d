import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import Result

from phmctl.decoding.loading import load_translator
from phmctl.decoding.translator import Translator
from phmctl.errors import DataError, OutputError
from phmctl.runs import Run
from tests.calls import call
from tests.decoding.conftest import TEXT
from tests.tasks.translation.runs import SOURCES, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def expected(run: Run) -> list[str]:
    return [found[0].text for found in load_translator(run, "best", "cpu").translate(SOURCES)]


def decode(*arguments: object, stdin: bytes = b"") -> Result:
    return call("decode", *arguments, stdin=stdin)


def lines(text: str) -> list[str]:
    return text.split("\n")[:-1]


def test_stdin_to_stdout_one_line_for_one(run: Run, expected: list[str]) -> None:
    found = decode(run.folder, stdin="".join(f"{line}\n" for line in SOURCES).encode())
    assert lines(found.stdout) == expected


def test_checkpoint_and_beam_reach_the_search(run: Run) -> None:
    found = lines(decode(run.folder, "--split", "test", "--checkpoint", "last", "--beam", 1).stdout)
    greedy = load_translator(run, "last", "cpu", run.recipe.decoding.model_copy(update={"beam": 1}))
    assert found == [one[0].text for one in greedy.translate(SOURCES)]


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(text)]


@pytest.mark.parametrize("options", [(), ("--n-best", 2)])
def test_json_and_a_file_give_both(run: Run, tmp_path: Path, options: tuple[object, ...]) -> None:
    path = tmp_path / "out"
    plain = decode(run.folder, "--split", "test", *options).stdout
    found = objects(decode(run.folder, "--split", "test", *options, "--json", "--output", path).stdout)
    assert path.read_text(encoding="utf-8") == plain
    assert [each["line"] for each in found] == list(range(1, len(SOURCES) + 1))
    assert [best["text"] for each in found for best in each["translations"]] == [
        line.split("\t")[-1] for line in lines(plain)
    ]


def test_a_failure_keeps_what_there_is_and_another_goes_on(run: Run, expected: list[str], tmp_path: Path) -> None:
    path, text = tmp_path / "out", [f"{line}\n".encode() for line in SOURCES]
    with pytest.raises(DataError):
        decode(run.folder, "--output", path, stdin=b"".join([*text[:2], b"\xff\n", *text[3:]]))
    assert lines(path.read_text(encoding="utf-8")) == expected[:2]
    decode(run.folder, "--output", path, "--resume", stdin=b"".join(text))
    assert lines(path.read_text(encoding="utf-8")) == expected
    assert list(tmp_path.iterdir()) == [path]


def test_the_text_that_is_read_is_not_written_over(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("A\n")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OutputError, match="is the text that is read"):
        decode(run.folder, "--input", path, "--output", link)
    with path.open("rb") as handle:
        command = [sys.executable, "-c", "from phmctl.cli.main import run; run()", "decode", run.folder]
        done = subprocess.run([*command, "--output", path], stdin=handle, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert path.read_text() == "A\n"


def test_a_wait_for_a_file_shows_a_bar_on_a_terminal_only(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (run.folder, "--split", "test", "--output", tmp_path / "out")
    assert all(line.startswith("warning: ") for line in decode(*arguments).stderr.splitlines())
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    monkeypatch.setattr("phmctl.console._REDRAW_SECONDS", 0)
    assert f"{len(SOURCES)}/{len(SOURCES)}" in decode(*arguments).stderr
    assert "━" not in decode(run.folder, "--split", "test").stderr


def phmctl(*arguments: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from phmctl.cli.main import run; run()", *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def test_a_killed_run_keeps_what_it_has(run: Run, expected: list[str], tmp_path: Path) -> None:
    path, whole = tmp_path / "out", "".join(f"{line}\n" for line in SOURCES).encode()
    with phmctl("decode", run.folder, "--json", "--output", path) as process:
        for line in SOURCES[:3]:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            process.stdout.readline()
        process.kill()
    with path.open("ab") as handle:
        handle.write(expected[3].encode() + b"half a li")  # as if it had died while it wrote
    decode(run.folder, "--output", path, "--resume", "--batch-tokens", 64, stdin=whole)
    assert lines(path.read_text(encoding="utf-8")) == expected


def test_a_reader_that_has_enough_is_no_fault(run: Run) -> None:
    with phmctl("decode", run.folder) as process:
        process.stdin.write(f"{TEXT[0]}\n".encode())
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(f"{TEXT[0]}\n".encode() * 3)
        process.stdin.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""


def test_a_terminal_is_answered_line_by_line(run: Run, expected: list[str]) -> None:
    master, terminal = pty.openpty()
    command = [sys.executable, "-c", "from phmctl.cli.main import run; run()", "decode", str(run.folder)]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        for line, answer in list(zip(SOURCES, expected, strict=True))[:2]:
            os.write(master, f"{line}\n".encode())
            assert process.stdout.readline().decode() == f"{answer}\n"
        os.write(master, b"\x04")  # Ctrl-D
        assert process.wait(timeout=60) == 0
        assert b"Ctrl-D" in process.stderr.read()  # what is waited for, and how to end it
    os.close(master)


def test_lines_that_are_there_are_answered_together(
    run: Run, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = []
    whole = Translator.answer

    def note_lines(self, lines, **settings):
        together.append((len(lines), settings["first"]))
        return whole(self, lines, **settings)

    monkeypatch.setattr(Translator, "answer", note_lines)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    decode(run.folder, *files)
    decode(run.folder, *files, "--window", 4)
    assert together == [(7, 1), (4, 1), (3, 5)]
    assert lines((tmp_path / "out").read_text(encoding="utf-8")) == expected
