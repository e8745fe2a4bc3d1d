"""The command line as a process: exit codes, error lines, stdout and stderr."""

import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from phmctl.cli.main import run
from phmctl.runs import Run
from tests.calls import start

Captured = pytest.CaptureFixture[str]


def test_every_option_has_help_and_help_does_not_import_torch() -> None:
    code = """
import sys, typer
from phmctl.cli.main import app
command = typer.main.get_command(app)
commands = [*command.commands.values(), *command.commands["bench"].commands.values()]
for each in commands:
    context = typer.Context(each)
    assert "Usage" in each.get_help(context)
    assert all(param.help for param in each.get_params(context)), each.name
assert "torch" not in sys.modules
assert len(commands) > 12
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("words", [("train", "x"), ("--debug", "bench", "layer")])
def test_a_repeated_option_is_refused(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through a group, and in both ways to give a value."""
    monkeypatch.setattr(sys, "argv", ["phmctl", *words, "--n", "2", "--n=4"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2


@pytest.mark.parametrize("command", ["eval", "recipes"])
def test_an_argument_that_is_not_utf_8_is_refused(command: str) -> None:
    with start(command, os.fsdecode(b"\xff")) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "Traceback" not in errors


def fail_unexpectedly(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise error or ZeroDivisionError("a fault")

    monkeypatch.setattr("phmctl.runs.Run.open", broken)
    monkeypatch.setattr(sys, "argv", ["phmctl", "decode", "miniature"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1


def test_an_unexpected_error_is_reported_with_its_place(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.delenv("PHMCTL_DEBUG", raising=False)
    fail_unexpectedly(monkeypatch)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(rf"error: ZeroDivisionError: a fault \(at {re.escape(__file__)}:\d+\)\n.*PHMCTL_DEBUG=1", err)
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: 4 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_a_lack_of_memory_is_an_error_with_advice(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.delenv("PHMCTL_DEBUG", raising=False)
    fail_unexpectedly(monkeypatch, error)
    message = capsys.readouterr().err
    assert "--batch-tokens" in message
    assert "error in phmctl" not in message


def test_the_environment_asks_for_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("PHMCTL_DEBUG", "1")
    fail_unexpectedly(monkeypatch)
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert "phmctl/cli/answering.py" in err
    assert err.endswith("ZeroDivisionError: a fault\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "command",
    [
        "decode RUN --beam 1 --input TEXT",
        "eval RUN --beam 1 --split valid --json",
        "count-params miniature",
        "train hamilton --steps 2 --runs RUNS",
    ],
)
def test_a_full_stdout_is_one_line_and_exit_code_1(
    command: str, tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.delenv("PHMCTL_DEBUG", raising=False)
    places = {"RUN": str(tiny_run.folder), "TEXT": str(tiny_run.text_folder / "valid.source"), "RUNS": str(tmp_path)}
    monkeypatch.setattr(sys, "argv", ["phmctl", *(places.get(word, word) for word in command.split())])
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(SystemExit) as ended:
        run()
    with suppress(OSError):
        full.close()
    errors = capsys.readouterr().err
    assert ended.value.code == 1, errors
    assert "stdout: No space left on device" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert errors.count("error:") == 1
    if "train" in command:
        assert (tmp_path / "hamilton/phm-n4/v001/checkpoints/last").read_text() == "step-000002\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_temporary_folder(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", _MAKING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "making\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert number.name in errors
    assert list(tmp_path.iterdir()) == []


_MAKING = """
import sys, time
from pathlib import Path
import phmctl.cli.main as main
from phmctl.storage import temporary_folder

folder = Path(sys.argv[1])

def make():
    with temporary_folder(folder / "new"):
        print("making", flush=True)
        [time.sleep(0.1) for _ in range(600)]  # a signal just before one long sleep would wait for its end

main.app.command("make")(make)
sys.argv[1:] = ["make"]
main.run()
"""
