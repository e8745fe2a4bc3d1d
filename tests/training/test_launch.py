"""``torchrun``, from the command line to the exit code; Ctrl-C and its like."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from phmctl.console import silence
from phmctl.errors import UserError
from phmctl.runs import Run
from phmctl.signals import StopRequest
from tests.calls import call
from tests.training.jobs import ROOT

PLACE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "phmctl", "train"]
RULE = ["hamilton", "--set", "training.accumulate=2"]


def _command(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], env=environment, text=True, cwd=ROOT, **pipe)


LONG = [*TORCHRUN, *RULE, "--steps", "1000000", "--set", "training.log_every=5"]


def _begun(runs: Path, command: Sequence[str], mark: str = "metrics.jsonl") -> tuple[subprocess.Popen[str], list[int]]:
    """Start a training; return it and the ids of its processes once it has written a file into its run."""
    process, until = _command(*command, "--runs", str(runs)), time.monotonic() + 120
    while not any(path.stat().st_size for path in runs.glob(f"*/*/*/{mark}")):
        assert time.monotonic() < until
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return process, [int(child) for child in children.split()]


def test_sigterm_to_all_saves_once(tmp_path: Path) -> None:
    """torchrun and both processes get it from a scheduler, and torchrun sends it on once more."""
    process, children = _begun(tmp_path, LONG)
    for pid in (*children, process.pid):
        os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert err.count("stopped and saved at step") == 1
    (folder,) = tmp_path.glob("*/*/*")
    assert f"step {Run.open(folder).checkpoint('last').name.removeprefix('step-').lstrip('0')};" in err


@pytest.mark.slow
def test_torchrun_starts_again_and_the_run_is_gone_on_with(tmp_path: Path) -> None:
    """``--max-restarts``: a process is killed; all are started again and continue the run that they had begun."""
    settings = [part for key in ("log_every=20", "save_every=50", "timeout=8") for part in ("--set", f"training.{key}")]
    command = [*TORCHRUN[:2], "--max-restarts", "1", *TORCHRUN[2:], *RULE, *settings, "--steps", "1500", "--json"]
    process, children = _begun(tmp_path, command, "checkpoints/last")
    os.kill(children[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "resuming " in err
    report = json.loads(out[out.index("{") :])
    assert report["steps"] == 1500 > report["steps_now"]
    assert len(list(tmp_path.glob("*/*/v*"))) == 1


def test_other_commands_are_refused_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    for command in ("count-params", "decode"):
        with pytest.raises(UserError, match=f"^{command} .*torchrun"):
            call(command, "miniature")
    with pytest.raises(UserError, match="--dry-run"):
        call("train", "miniature", "--dry-run")


# ---------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)]
)
def test_the_first_signal_asks_and_the_second_insists(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.exit_code is None
        os.kill(os.getpid(), number)
        assert stop.received is number
        assert stop.exit_code == code
        with pytest.raises(SystemExit, match="130"):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.received is number
    assert signal.getsignal(number) is before


def test_it_is_said_where_what_it_interrupts_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with StopRequest(), silence():
        os.kill(os.getpid(), signal.SIGTERM)
    assert "SIGTERM" in capsys.readouterr().err
    with silence(), StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
    assert capsys.readouterr().err == ""


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGINT, before)
