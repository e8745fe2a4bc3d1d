"""The options that several subcommands share, each declared once."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from phmctl.errors import UserError


class Summaries(TyperGroup):
    """Lists commands with the whole first sentence of their help, which would be cut off at the line's end."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the section of commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, " ".join((found.help or "").split("\n\n")[0].split())) for name, found in commands if found]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Once(TyperCommand):
    """Refuses an option that is given twice and has one meaning: the last would win without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; raises UserError."""
        order = self.make_parser(ctx).parse_args(args=list(args))[2]
        for param, times in Counter(order).items():
            if times > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                join = "; join the files first (cat A B > C)" if param.nargs > 1 else "; leave one out"
                raise UserError(f"{param.opts[0]} is given {times} times, and means one thing{join}")
        return super().parse_args(ctx, args)


def _complete(kind: str, incomplete: str) -> list[str]:
    from phmctl.shipped import shipped_names

    return [name for name in shipped_names(kind) if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Complete a shipped recipe's name."""
    return _complete("recipes", incomplete)


def complete_card(incomplete: str) -> list[str]:
    """Complete a shipped card's name."""
    return _complete("cards", incomplete)


RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Recipe: a path or a shipped name.", autocompletion=complete_recipe)
]
OptionalRecipe = Annotated[
    str | None,
    typer.Argument(metavar="RECIPE", help="Recipe: a path or a shipped name.", autocompletion=complete_recipe),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Run, folder of versions (its newest run is used) or export."),
]
Engine = Annotated[
    str | None, typer.Option(help="torch, ctranslate2 or onnx; the run is exported once and keeps the export.")
]
Quantize = Annotated[str | None, typer.Option(help="Type of --engine ctranslate2: float32, int8, bfloat16, …")]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run, or folder of versions (its newest run is used).")
]
N = Annotated[int | None, typer.Option("--n", help="Kronecker products: about 1/n of the parameters; 1 is dense.")]
Algebra = Annotated[
    str | None,
    typer.Option(
        help="real, complex, quaternion, octonion, sedenion, phm (a learned rule); to compare: low-rank, monarch."
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Execution = Annotated[
    str | None,
    typer.Option(help="How PHM maps are applied: dense (also auto), or rank if they hold factors."),
]
Precision = Annotated[str | None, typer.Option(help="Translation: compute in float32 or bfloat16.")]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any recipe key: training.clip=1.0. Repeatable."),
]
Reverse = Annotated[
    bool, typer.Option("--reverse", help="Translation: from the corpus' target language to its source language.")
]
Copies = Annotated[
    bool, typer.Option("--copies", help="Translation: train on each target as its own source too (style transfer).")
]
DataRoot = Annotated[
    Path | None, typer.Option("--data", help="Data folder (default: $PHMCTL_DATA or ./data).", show_default=False)
]


def _look_there(context: typer.Context, runs: Path | None) -> Path | None:
    """Let the names of runs that a command is given, `--init` too, mean runs below `--runs`."""
    if runs is not None:
        from phmctl.runs.find import runs_in

        context.with_resource(runs_in(runs))
    return runs


RunsRoot = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        help="Folder of runs (default: $PHMCTL_RUNS or ./runs).",
        show_default=False,
        callback=_look_there,
    ),
]
Checkpoint = Annotated[
    str, typer.Option(help="best, last, average or step-N; auto: the average if the recipe asks for one, else best.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Threads = Annotated[int, typer.Option(min=0, help="Number of CPU threads; 0 leaves torch's own choice.")]
