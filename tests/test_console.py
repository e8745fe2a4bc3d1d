"""Output: which stream gets it, and that text is shown literally."""

import errno
import io
import json
import os
import re
import sys

import pytest

from phmctl.console import Shown, Table, emit, note, people, printable, progress, warn

MARKUP = "[x] [/red] :smile:"
HOSTILE = "a\x1b[31mb\rc\x9bd\u202ee\udc80f\x7fg"
ESCAPED = r"a\x1b[31mb\rc\x9bd\u202ee\udc80f\x7fg"


def test_a_table_shows_text_literally_to_the_left_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("[bold]", 3, "a"), (MARKUP, 1234, "b")]
    emit(Table(f"runs of {MARKUP}", ("[name]", "[/n]", "why"), rows, text=(2,), below=["BLEU: " + "x" * 200]).drawn())
    width = len(MARKUP)
    assert capsys.readouterr() == (
        f"runs of {MARKUP}\n{'[name]':{width}}  [/n]  why\n{'[bold]':{width}}     3  a\n{MARKUP}  1234  b\n"
        f"BLEU: {'x' * 200}\n",  # not wrapped, so that it can be copied
        "",
    )


@pytest.mark.parametrize(("plain", "line"), [(True, "reading ...\n"), (False, "")])
def test_progress_off_a_terminal_is_at_most_one_line(
    capsys: pytest.CaptureFixture[str], plain: bool, line: str
) -> None:
    with progress("reading", 3, plain=plain) as advance:
        advance(2)
    assert capsys.readouterr() == ("", line)


class Refusing(io.RawIOBase):
    """A stream that fails at every write."""

    def __init__(self, reason: int) -> None:
        self.reason = reason

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(self.reason, os.strerror(self.reason))


def refusing(reason: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(Refusing(reason), write_through=True)


def test_a_stdout_without_bytes_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())  # as in a notebook
    emit("ß\n")
    assert sys.stdout.getvalue() == "ß\n"


def test_progress_on_a_terminal_is_a_bar_below_the_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("phmctl.console._REDRAW_SECONDS", 0)
    with progress("reading [x]", 3) as advance:
        advance(2)
        note("a note")
        people().print("a line of another console")
    captured = capsys.readouterr()
    assert captured.out == ""
    for text in ("reading [x]", "2/3", "a note", "a line of another console"):
        assert text in captured.err


def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"{HOSTILE}\n\tß→你😀 {MARKUP}")
    warn(HOSTILE)
    with progress(HOSTILE, None):
        pass
    assert capsys.readouterr() == ("", f"{ESCAPED}\n\tß→你😀 {MARKUP}\nwarning: {ESCAPED}\n{ESCAPED} ...\n")
    emit(Table(HOSTILE, (HOSTILE,), [(HOSTILE,)]).drawn())
    captured = capsys.readouterr()
    assert captured.out.count(ESCAPED) == 3
    assert not set(captured.out) & set("\x1b\r\x9b\u202e\udc80\x7f")


class Busy(io.StringIO):
    """A stderr whose other write a signal has interrupted."""

    def write(self, text: str = "") -> int:
        raise RuntimeError("reentrant call inside")


@pytest.mark.parametrize("stream", [Busy(), refusing(errno.EIO), None], ids=["busy", "lost terminal", "none"])
def test_an_unusable_stderr_stops_no_work(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    note("heard")
    with progress("reading", 3) as advance:
        advance(1)


def test_columns_are_as_wide_as_their_characters() -> None:
    rows = [("phm–n4", "größe 漢字", number) for number in (3, 12_000)]
    table = Table("t", ("model", "text", "n"), rows, text=(1,), below=("end",))
    lines = ["model   text            n", "phm–n4  größe 漢字      3", "phm–n4  größe 漢字  12000"]
    assert table.drawn().splitlines() == ["t", *lines, "end"]


def test_a_name_is_never_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal of 80 columns cells are broken between words, and long words make the table wider."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    names = ["runs/iwslt14-de-en/phm-n16/v001" + letter * 20 for letter in "ab"]
    emit(Table("t", ("name", "other", "words"), [(names[0], names[1], "some words " * 9)], text=(1, 2)).drawn())
    output = capsys.readouterr().out
    assert all(name in output for name in names)
    assert max(map(len, output.splitlines())) > 80
    emit(Table("t", ("name", "words"), [(names[0], "some words " * 9)], text=(1,)).drawn())
    output = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # bold, italic
    assert names[0] in output
    assert max(map(len, output.splitlines())) == 80


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_escapes_and_a_pipe_the_exact_text(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    text = "\x1b[2J\u202e\x9bm\tä\n"
    emit(text)
    output = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert output == ("\\x1b[2J\\u202e\\x9bm\tä\n" if terminal else text)


def test_json_escapes_unprintable_characters(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    value = {"a": "\x1b[2J\u202e\x7f\x9bä\ud800"}
    Shown(value).show(as_json=True)
    output = capfdbinary.readouterr().out.decode()
    assert json.loads(output) == value
    assert printable(output) == output
    assert "ä" in output
