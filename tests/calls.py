"""The command line, called in this process or started in its own."""

import os
import re
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from phmctl.cli.main import app


def call(*arguments: object, stdin: bytes | str = "") -> Result:
    """Call ``phmctl`` with these arguments; its errors are raised."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin, catch_exceptions=False)


def start(*arguments: object, **options: Any) -> subprocess.Popen[Any]:
    """Start ``phmctl`` in a process with one thread; `options` are those of Popen."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "phmctl", *map(str, arguments)]
    return subprocess.Popen(command, **{"env": environment, **pipes, **options})


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the other cells of each row of the printed tables, by its first cell."""
    return {cells[0]: cells[1:] for line in text.splitlines() if (cells := re.split(" {2,}", line.strip()))}
