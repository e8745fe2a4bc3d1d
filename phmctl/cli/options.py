"""Options that several commands have."""

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from phmctl.errors import UserError

as_json: ContextVar[bool] = ContextVar("as_json", default=False)  # whether the command was called with --json


def _remember(requested: bool) -> bool:
    as_json.set(requested)
    return requested


Flag = bool | None
Number = int | None
Text = str | None
Texts = list[str] | None
File = Path | None

RecipeName = Annotated[str, Argument(metavar="RECIPE", help="Recipe: a path or a shipped name.")]
RunName = Annotated[str, Argument(metavar="RUN", help="Run, or folder of versions (its newest run is used).")]
ModelName = Annotated[str, Argument(metavar="RUN", help="Run, folder of versions (its newest run is used) or export.")]
N_HELP = "PHM hyperparameter: about 1/n of the parameters; 1 is dense. Without --algebra n > 1 means phm."
N = Annotated[int | None, Option(help=N_HELP)]
Algebra = Annotated[
    str | None,
    Option(help="real, complex, quaternion, octonion, sedenion, phm (a learned rule); to compare: low-rank."),
]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:N.")]
RecipeDevice = Annotated[str | None, Option(help="auto, cpu, cuda or cuda:N (default: the recipe's).")]
Precision = Annotated[str | None, Option(help="Translation: compute in float32 or bfloat16.")]
Settings = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Set any recipe key: training.clip=1.0. Repeatable.")
]
Data = Annotated[Path | None, Option(help="Data folder (default: $PHMCTL_DATA or ./data).")]
Runs = Annotated[Path | None, Option(help="Folder of runs (default: $PHMCTL_RUNS or ./runs).")]
Checkpoint = Annotated[
    str, Option(help="best, last, average or step-N; auto: the average if the recipe asks for one, else best.")
]
Split = Annotated[str, Option(help="test, valid, test_NAME (a named test set) or all (all test sets).")]
Beam = Annotated[int | None, Option(help="Beam size; 1 is greedy (default: the recipe's).")]
Alpha = Annotated[float | None, Option(help="Exponent of the length penalty (default: the recipe's).")]
BatchTokens = Annotated[int | None, Option(help="Number of source tokens in a batch, including padding.")]
Threads = Annotated[int, Option(min=0, help="Number of CPU threads; 0: as many as cores.")]
Json = Annotated[bool, Option("--json", callback=_remember, help="Print JSON on stdout and nothing else there.")]


def names(option: str, text: str | None) -> list[str]:
    """Return the different names in an option's comma-separated text. Raises UserError if one is empty."""
    different = [] if text is None else list(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in different:
        raise UserError(f"--{option} {text!r}: a value is empty. Separate values by single commas")
    return different


def integers(option: str, text: str | None) -> list[int]:
    """Return the different numbers in an option's comma-separated text. Raises UserError."""
    numbers = names(option, text)
    for number in numbers:
        if not number.isdecimal():
            raise UserError(f"--{option} {number}: expected a whole number without a sign, or several between commas")
    return [int(number) for number in numbers]


def split_setting(setting: str) -> list[str]:
    """Return ``key=value`` for each value of ``key=value,value``, whose commas separate as in a YAML list."""
    import yaml

    key, equals, text = setting.partition("=")
    try:
        node = yaml.compose(f"[{text}]")
    except yaml.YAMLError:
        return [setting]
    if not isinstance(node, yaml.SequenceNode) or node.end_mark.index != len(text) + 2 or not node.value:
        return [setting]
    return [f"{key}{equals}{text[item.start_mark.index - 1 : item.end_mark.index - 1]}" for item in node.value]
