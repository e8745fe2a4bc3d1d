"""The ``bench`` commands: speed as a ratio to the dense twin."""

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from phmctl.cli import options
from phmctl.cli.options import Number
from phmctl.console import Shown
from phmctl.threads import set_threads

if TYPE_CHECKING:
    from phmctl.benchmarks import Bench

bench = typer.Typer(help="Measure speed as a ratio to the dense twin, in turns, with the spread.", no_args_is_help=True)

Rounds = Annotated[int, Option(min=1, help="Number of samples of each candidate.")]


@bench.command("layer")
def bench_layer(
    in_features: Annotated[int, Option("-d", "--in-features", min=1, help="d, width of the input.")] = 512,
    out_features: Annotated[int, Option("-k", "--out-features", min=1, help="k, width of the output.")] = 512,
    n: Annotated[str, Option(help="Values of n, separated by commas.")] = "4",
    tokens: Annotated[str, Option(help="Numbers of tokens, separated by commas.")] = "16,512,4096",
    algebra: Annotated[str, Option(help="phm or a fixed algebra.")] = "phm",
    rank: Annotated[Number, Option(min=1, help="Store a learned rule as R factors, executed both ways.")] = None,
    dtype: Annotated[str, Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: options.Device = "auto",
    rounds: Rounds = 20,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> Shown:
    """A PHM layer against nn.Linear: forward and backward, and forward in training."""
    from phmctl.benchmarks import bench_layer

    set_threads(threads)
    result = bench_layer(
        in_features,
        out_features,
        options.integers("n", n),
        options.integers("tokens", tokens),
        algebra=algebra,
        rank=rank,
        dtype=dtype,
        device=device,
        rounds=rounds,
    )
    return _shown(result)


@bench.command("train")
def bench_train(
    recipe: options.RecipeName,
    n: options.N = None,
    algebra: options.Algebra = None,
    device: options.RecipeDevice = None,
    settings: options.Settings = None,
    data: options.Data = None,
    batches: Annotated[int, Option(min=1, help="Number of different batches in a sample.")] = 4,
    rounds: Rounds = 10,
    json: options.Json = False,
) -> Shown:
    """Training steps against the dense twin, on the recipe's prepared data."""
    from phmctl.benchmarks import bench_training
    from phmctl.recipe.loading import common_overrides, resolve

    resolved = resolve(recipe, common_overrides(n=n, algebra=algebra, device=device), settings or ())
    return _shown(bench_training(resolved, data, batches=batches, rounds=rounds))


def _shown(result: "Bench") -> Shown:
    return Shown(result.as_json(), [result.table()])
