"""What a person sees, and how fast it goes."""

from io import StringIO

import pytest
from rich.console import Console

from phmctl.training.progress import ProgressLine, Throughput, clock

LINE = "loss 2.5000  12,346 tok/s"


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(200, 0) as progress:
        progress.step(50)
        progress.log(50, LINE)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "step 50/200  loss 2.5000  12,346 tok/s\n"


def test_one_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_terminal=True, width=120, record=True, file=_Null())
    monkeypatch.setattr("phmctl.training.progress.people", lambda: console)
    with ProgressLine(200, 40) as progress:
        progress.step(50)
        progress.log(50, LINE)
        progress.say("a line that stays")
    shown = console.export_text()
    assert "a line that stays" in shown
    assert "50/200" in shown
    assert "12,346 tok/s" in shown


def test_what_looks_like_markup_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with ProgressLine(200, 0) as progress:
        progress.say("training runs/[x]/real [/red] :smile:")
    assert "training runs/[x]/real [/red] :smile:" in capsys.readouterr().err


def test_a_command_is_not_broken_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    console = Console(force_terminal=True, width=80, file=shown)
    monkeypatch.setattr("phmctl.training.progress.people", lambda: console)
    command = "phmctl train --resume runs/" + "a-long-name/" * 9 + "v001"
    with ProgressLine(200, 40) as progress:
        progress.say(command)
    assert command in shown.getvalue()


class _Null:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(200, 0, quiet=True) as progress:
        progress.log(50, LINE)
        progress.say("nothing")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3600, "1:00:00"), (-3, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_rates_leave_out_what_was_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 100.0, 101.0, 104.0, 106.0, 106.0, 107.0])  # origin, start, pause, its end, now, elapsed, start
    monkeypatch.setattr("phmctl.training.progress.time.perf_counter", lambda: next(now))
    throughput = Throughput(seconds=10.0)
    throughput.count(targets=30, tokens=60)
    throughput.count(targets=30, tokens=60)
    with throughput.paused():
        pass
    assert throughput.rates() == {
        "target_tokens_per_second": 20.0,
        "tokens_per_second": 40.0,
        "seconds_per_step": 1.5,
        "seconds": 16.0,
    }
