"""Output: what goes where, and that text is shown as it is."""

import json

import pytest

from phmctl.console import emit_json, note, people, print_table, progress, warn

MARKUP = "[x] [/red] :smile:"


def test_notes_and_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    note(MARKUP)
    warn("slow")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{MARKUP}\nwarning: slow\n")


def test_json_is_all_that_stdout_gets(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"b": "ß", "a": 1})
    captured = capsys.readouterr()
    assert list(json.loads(captured.out).items()) == [("b", "ß"), ("a", 1)]
    assert "ß" in captured.out
    assert captured.err == ""


def test_people_read_stderr_as_it_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    people().print(MARKUP)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{MARKUP}\n")


@pytest.mark.parametrize("stdout", [True, False])
def test_a_table_shows_title_headings_and_cells_as_they_are(capsys: pytest.CaptureFixture[str], stdout: bool) -> None:
    print_table(f"runs of {MARKUP}", ("[name]", "[/n]"), [("[bold]", 3), (MARKUP, 1234)], stdout=stdout)
    captured = capsys.readouterr()
    shown, silent = (captured.out, captured.err) if stdout else (captured.err, captured.out)
    assert silent == ""
    title, *lines = shown.splitlines()
    assert title.rstrip() == f"runs of {MARKUP}"
    cells = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines if "m" in line]
    assert cells == [["[name]", "[/n]"], [MARKUP, "1234"]]
    assert any(line.startswith("│ [bold] ") and line.endswith("    3 │") for line in lines)


def test_progress_off_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("reading", 3) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "reading ...\n")


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("reading [x]", 3) as advance:
        advance(2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "reading [x]" in captured.err
    assert "2/3" in captured.err
