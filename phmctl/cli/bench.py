"""The ``bench`` commands: speed as a ratio to the dense twin."""

from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli.build import Group, command
from phmctl.console import Shown
from phmctl.devices import set_threads
from phmctl.errors import UserError
from phmctl.options import Algebra, AnyDevice, Call, Data, Device, N, RecipeName, Settings, Threads, parse_number

if TYPE_CHECKING:
    from phmctl.benchmarks import Bench
    from phmctl.recipe.schema import Recipe

SUMMARY = "Measure speed as a ratio to the dense twin, in turns, with the spread."
bench = typer.Typer(cls=Group, help=SUMMARY, no_args_is_help=True)

_AT_LEAST_ONE = typer.Option(min=1)
Positive = Annotated[int, _AT_LEAST_ONE]
Rounds = Annotated[int, typer.Option(min=1, help="Number of samples of each candidate.")]
Against = Annotated[str, typer.Option(help="Speeds are ratios to dense (the dense twin) or base (no compositions).")]
NValues = Annotated[str, typer.Option(help="Values of n, separated by commas.")]
AnyAlgebra = Annotated[str, typer.Option(help="phm or a fixed algebra.")]
InFeatures = Annotated[int, typer.Option("-d", "--in-features", min=1, help="d, width of the input.")]


@command(bench, "layer")
def bench_layer(
    in_features: InFeatures = 512,
    out_features: Annotated[int, typer.Option("-k", "--out-features", min=1)] = 512,
    n: NValues = "4",
    tokens: str = "16,512,4096",
    algebra: AnyAlgebra = "phm",
    execution: str | None = None,
    rank: Annotated[int | None, _AT_LEAST_ONE] = None,
    dtype: str = "float32",
    device: AnyDevice = "auto",
    rounds: Rounds = 20,
    threads: Threads = 0,
) -> Shown:
    """A PHM layer against nn.Linear: forward and backward, and forward in training; evaluation is nn.Linear's own.

    Args:
        out_features: k, width of the output.
        tokens: Numbers of tokens, separated by commas.
        execution: dense, rank or dense,rank (default: dense, with --rank also rank).
        rank: Store a learned rule as this number of factors R (default: as A).
        dtype: float32, float64, bfloat16 or float16.
    """
    from phmctl.benchmarks import bench_layer

    set_threads(threads)
    result = bench_layer(
        in_features,
        out_features,
        integers("n", n),
        integers("tokens", tokens),
        algebra=algebra,
        rank=rank,
        executions=names("execution", execution),
        dtype=dtype,
        device=device,
        rounds=rounds,
    )
    return _shown(result)


def resolved_recipe(
    recipe: RecipeName, n: N = None, algebra: Algebra = None, device: Device = None, settings: Settings = ()
) -> "Recipe":
    """Return the recipe that is measured."""
    from phmctl.recipe.loading import common_overrides, resolve

    return resolve(recipe, common_overrides(n=n, algebra=algebra, device=device), settings)


@command(bench, "train", target=resolved_recipe)
def bench_train(
    call: Call["Recipe"],
    data: Data = None,
    batches: Positive = 4,
    against: Against = "dense",
    rounds: Rounds = 10,
) -> Shown:
    """Training steps against the dense twin, on the recipe's prepared data.

    A composed model is also measured without its compositions.

    Args:
        batches: Number of different batches in a sample.
    """
    from phmctl.benchmarks import bench_training

    return _shown(bench_training(call(), data, batches=batches, rounds=rounds, baseline=against))


@command(bench, "decode", target=resolved_recipe)
def bench_decode(
    call: Call["Recipe"],
    data: Data = None,
    split: str = "test",
    sentences: Positive = 1000,
    rounds: Rounds = 5,
    against: Against = "dense",
) -> Shown:
    """Beam search against the dense twin; both translate by their dense copies.

    A composed model is also measured without its compositions.

    Args:
        split: Split whose sentences are translated.
        sentences: Number of sentences.
    """
    from phmctl.benchmarks import bench_decoding

    return _shown(bench_decoding(call(), data, split=split, sentences=sentences, rounds=rounds, baseline=against))


def _shown(result: "Bench") -> Shown:
    return Shown(result.as_json(), [result.table()])


def names(option: str, text: str | None) -> list[str]:
    """Return the different names in an option's comma-separated text. Raises UserError if one is empty."""
    different = [] if text is None else list(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in different:
        raise UserError(f"--{option} {text!r}: a value is empty; separate values by single commas")
    return different


def integers(option: str, text: str | None) -> list[int]:
    """Return the different numbers in an option's comma-separated text. Raises UserError."""
    return [parse_number(option, part, int) for part in names(option, text)]
