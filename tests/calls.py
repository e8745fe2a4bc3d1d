"""The command line, called in this process."""

import re

from typer.testing import CliRunner, Result

from phmctl.cli.main import app


def call(*arguments: object, stdin: bytes | str = "") -> Result:
    """Call ``phmctl`` with these arguments; what it raises passes."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin, catch_exceptions=False)


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the other cells of each row of the tables that were printed, by the first."""
    return {cells[0]: cells[1:] for line in text.splitlines() if (cells := re.split(" {2,}", line.strip()))}
