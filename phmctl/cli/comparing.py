"""The commands ``compare`` and ``report``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli.build import app, command
from phmctl.console import Shown
from phmctl.errors import UserError
from phmctl.options import Call

if TYPE_CHECKING:
    from phmctl.comparison.compare import Comparison

_COMMANDS = 20  # commands that are printed


@command(app, "compare", target="compare")
def compare(
    call: Call[list["Comparison"]],
    paper: Annotated[str | None, typer.Option(metavar="TABLE")] = None,
) -> Shown:
    """Compare runs over seeds, or with a published table.

    Prints means, tested differences, sizes, speeds and other differences between the runs.

    Args:
        paper: Compare our runs with a published table: table1 to table5, ceng501, ni.
    """
    return _compared_with_paper(call, paper) if paper else _compared(call)


def _compared(call: Call[list["Comparison"]]) -> Shown:
    comparisons = call()
    return _comparison_output(comparisons, _document(comparisons), "without a result yet (or add --eval):")


def _compared_with_paper(call: Call[list["Comparison"]], paper: str) -> Shown:
    from phmctl.comparison.papers import compare_papers

    if call.arguments.keys() - {"names", "recipe", "checkpoint", "runs"}:
        raise UserError("--baseline, --eval and --split cannot be given with --paper")
    runs = None if call["runs"] is None else Path(call["runs"])
    papers = compare_papers(paper, call["names"], root=runs, recipe=call["recipe"], checkpoint=call["checkpoint"])
    document = {"tables": [table.as_json() for table in papers]}
    return _comparison_output(papers, document, "commands that fill empty cells, then phmctl eval:")


def _comparison_output(comparisons: list[Any], document: Any, missing: str) -> Shown:
    tables, notes, commands = [], [], []
    for comparison in comparisons:
        tables += comparison.tables()
        notes += [f"· {line}" for line in comparison.remarks()]
        commands += comparison.missing()
    if commands:
        notes += [missing, *commands[:_COMMANDS]]
    if len(commands) > _COMMANDS:
        notes.append(f"... and {len(commands) - _COMMANDS:,} more commands; --json lists all")
    return Shown(document, tables, notes=notes)


@command(app, "report", target="compare")
def report(
    call: Call[list["Comparison"]], output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html")
) -> Shown:
    """Write one HTML page about runs and the rules they learned.

    The page has scores, curves, parameters, samples, rules and differences; its path is printed. Needs phmctl[report].

    Args:
        output: HTML file to write.
    """
    from phmctl.reports.report import write_report

    document = _document(write_report(call, output))
    return Shown({"report": str(output), **document}, text=f"{output}\n")


def _document(comparisons: list["Comparison"]) -> dict[str, Any]:
    documents = [comparison.as_json() for comparison in comparisons]
    return documents[0] if len(documents) == 1 else {"comparisons": documents}
