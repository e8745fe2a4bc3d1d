"""The command line, called in this process."""

from typer.testing import CliRunner, Result

from phmctl.cli.main import app


def call(*arguments: object) -> Result:
    """Call ``phmctl`` with these arguments; what it raises passes."""
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
