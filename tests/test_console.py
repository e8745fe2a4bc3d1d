"""Output: what goes where, and that text is shown as it is."""

import errno
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from phmctl.console import Shown, Table, emit, note, printable, progress, warn
from phmctl.errors import WriteFailedError

MARKUP = "[x] [/red] :smile:"


def test_a_table_shows_text_as_it_is_to_the_left_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("[bold]", 3, "a"), (MARKUP, 1234, "b")]
    emit(Table(f"runs of {MARKUP}", ("[name]", "[/n]", "why"), rows, text=(2,), below=["BLEU: " + "x" * 200]).drawn())
    wide = len(MARKUP)
    assert capsys.readouterr() == (
        f"runs of {MARKUP}\n{'[name]':{wide}}  [/n]  why\n{'[bold]':{wide}}     3  a\n{MARKUP}  1234  b\n"
        f"BLEU: {'x' * 200}\n",  # whole, to be copied
        "",
    )


@pytest.mark.parametrize(("plain", "said"), [(True, "reading ...\n"), (False, "")])
def test_progress_off_a_terminal_is_one_line_or_none(
    capsys: pytest.CaptureFixture[str], plain: bool, said: str
) -> None:
    with progress("reading", 3, plain=plain) as advance:
        advance(2)
    assert capsys.readouterr() == ("", said)


class Refusing(io.RawIOBase):
    """A stdout that takes nothing."""

    def __init__(self, reason: int) -> None:
        self.reason = reason

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(self.reason, os.strerror(self.reason))


def refuse(monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(Refusing(reason), write_through=True))


@pytest.mark.parametrize("shown", [Shown("x"), Shown(tables=[Table("x", ("a",), [("b",)])])])
def test_a_full_stdout_is_an_error_and_a_closed_pipe_ends_as_a_shell_reports_it(
    monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    refuse(monkeypatch, errno.ENOSPC)
    with pytest.raises(WriteFailedError, match="cannot write to stdout: No space left on device") as caught:
        shown.show("table" if shown.json is None else "json")
    assert caught.value.exit_code == 1
    refuse(monkeypatch, errno.EPIPE)
    with pytest.raises(SystemExit) as ended:
        shown.show("table" if shown.json is None else "json")
    assert ended.value.code == 141


def test_a_stdout_without_bytes_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())  # as in a notebook
    emit("ß\n")
    assert sys.stdout.getvalue() == "ß\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("phmctl.console._REDRAW", 0)
    with progress("reading [x]", 3) as advance:
        advance(2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "reading [x]" in captured.err
    assert "2/3" in captured.err


HOSTILE = "a\x1b[31mb\rc\x9bd\u202ee\udc80f\x7fg"
TAMED = r"a\x1b[31mb\rc\x9bd\u202ee\udc80f\x7fg"


def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"{HOSTILE}\n\tß→你😀 {MARKUP}")
    warn(HOSTILE)
    with progress(HOSTILE, None):
        pass
    assert capsys.readouterr() == ("", f"{TAMED}\n\tß→你😀 {MARKUP}\nwarning: {TAMED}\n{TAMED} ...\n")
    emit(Table(HOSTILE, (HOSTILE,), [(HOSTILE,)]).drawn())
    captured = capsys.readouterr()
    assert captured.out.count(TAMED) == 3
    assert not set(captured.out) & set("\x1b\r\x9b\u202e\udc80\x7f")


def test_a_reader_of_stderr_that_goes_away_stops_no_work() -> None:
    """``2>&1 | head -1``: the rest is done all the same, and what is said goes nowhere."""
    work = "from phmctl.console import note, people\nfor n in range(5000): note(str(n))\npeople().print('x')\n"
    work += "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done"
        command = [sys.executable, "-c", work, str(done)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == b"0\n"
            process.stderr.close()
            assert process.wait(timeout=60) == 0
        assert done.exists()


def test_a_note_in_a_signal_s_handler_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def write(self, text: str = "") -> int:
            raise RuntimeError("reentrant call inside")

        flush = write

    monkeypatch.setattr(sys, "stderr", Busy())
    note("heard")


def test_a_name_is_never_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal of 80 columns cells are broken between words, and a table of long words is wider."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    names = ["runs/iwslt14-de-en/phm-n16/v001" + letter * 20 for letter in "ab"]
    emit(Table("t", ("name", "other", "words"), [(names[0], names[1], "some words " * 9)], text=(1, 2)).drawn())
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert max(map(len, shown.splitlines())) > 80
    emit(Table("t", ("name", "words"), [(names[0], "some words " * 9)], text=(1,)).drawn())
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # bold, italic
    assert names[0] in shown
    assert max(map(len, shown.splitlines())) == 80


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_no_escapes_and_a_pipe_the_text_as_it_is(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    text = "\x1b[2J\u202e\x9bm\tä\n"
    emit(text)
    found = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert found == ("\\x1b[2J\\u202e\\x9bm\tä\n" if terminal else text)


def test_json_has_nothing_in_it_that_a_terminal_should_not_see(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    value = {"a": "\x1b[2J\u202e\x7f\x9bä\ud800"}
    Shown(value).show("json")
    said = capfdbinary.readouterr().out.decode()
    assert json.loads(said) == value
    assert printable(said) == said
    assert "ä" in said
