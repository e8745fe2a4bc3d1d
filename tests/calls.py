"""The command line, called in this process or started in its own."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from phmctl.cli.main import app
from phmctl.runs.results import read_metrics
from phmctl.signals import StopRequest


def call(*arguments: object, stdin: bytes | str = "") -> Result:
    """Call ``phmctl`` with these arguments; its errors are raised."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin, catch_exceptions=False)


def stop_training(number: signal.Signals, run: Path, *arguments: object) -> Result:
    """Call ``phmctl``, and send this process a signal when the training in the folder `run` has logged a step."""

    def send() -> None:
        for _ in range(2400):
            if read_metrics(run / "metrics.jsonl"):
                os.kill(os.getpid(), number)
                return
            time.sleep(0.05)

    sending = threading.Thread(target=send)
    with StopRequest():  # a late signal does not end the tests
        sending.start()
        result = call(*arguments)
        sending.join()
    return result


def start(*arguments: object, **options: Any) -> subprocess.Popen[Any]:
    """Start ``phmctl`` in a process with one thread; `options` are those of Popen."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "phmctl", *map(str, arguments)]
    return subprocess.Popen(command, **{"env": environment, **pipes, **options})


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the other cells of each row of the printed tables, by its first cell."""
    return {cells[0]: cells[1:] for line in text.splitlines() if (cells := re.split(" {2,}", line.strip()))}
