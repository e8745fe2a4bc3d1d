"""The commands ``compare`` and ``report``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli.build import app, command
from phmctl.console import Shown
from phmctl.options import Call

if TYPE_CHECKING:
    from phmctl.results.compare import Comparison

_COMMANDS = 20  # commands that are printed


@command(app, "compare", target="compare")
def compare(call: Call[list["Comparison"]]) -> Shown:
    """Compare runs over seeds.

    Prints means, tested differences, sizes, speeds and other differences between the runs.
    """
    comparisons = call()
    tables, notes, commands = [], [], []
    for comparison in comparisons:
        tables += comparison.tables()
        notes += [f"· {line}" for line in comparison.remarks()]
        commands += comparison.missing()
    if commands:
        notes += ["without a result yet (or add --eval):", *commands[:_COMMANDS]]
    if len(commands) > _COMMANDS:
        notes.append(f"... and {len(commands) - _COMMANDS:,} more commands; --json lists all")
    return Shown(_document(comparisons), tables, notes=notes)


@command(app, "report", target="compare")
def report(
    call: Call[list["Comparison"]], output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html")
) -> Shown:
    """Write one HTML page about runs.

    The page has scores, curves, samples and differences. Its path is printed. Needs phmctl[report].

    Args:
        output: HTML file to write.
    """
    from phmctl.results.report import write_report

    document = _document(write_report(call, output))
    return Shown({"report": str(output), **document}, text=f"{output}\n")


def _document(comparisons: list["Comparison"]) -> dict[str, Any]:
    documents = [comparison.as_json() for comparison in comparisons]
    return documents[0] if len(documents) == 1 else {"comparisons": documents}
