"""``phmctl bench``: speed as a ratio, measured in turns in one run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli import options
from phmctl.console import emit_json

if TYPE_CHECKING:
    from phmctl.benchmarks.ratios import Bench
    from phmctl.recipe.schema import Recipe

bench = typer.Typer(
    cls=options.Summaries,
    help="Measure speed as a ratio to the dense twin, in turns, with the spread.",
    no_args_is_help=True,
)

Against = Annotated[
    str, typer.Option(help="Model that speeds are ratios to: dense (the dense twin) or base (without compositions).")
]
Rounds = Annotated[int, typer.Option(min=1, help="Number of samples of each candidate.")]
AnyDevice = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AnyAlgebra = Annotated[str, typer.Option(help="phm or a fixed algebra.")]
Ns = Annotated[str, typer.Option("--n", help="Values of n, separated by commas.")]


@bench.command("layer")
def bench_layer(
    in_features: Annotated[int, typer.Option("-d", "--in-features", min=1, help="d, width of the input.")] = 512,
    out_features: Annotated[int, typer.Option("-k", "--out-features", min=1, help="k, width of the output.")] = 512,
    n: Ns = "4",
    tokens: Annotated[str, typer.Option(help="Numbers of tokens, separated by commas.")] = "16,512,4096",
    algebra: AnyAlgebra = "phm",
    execution: Annotated[
        str | None, typer.Option(help="dense, rank or dense,rank (default: dense, with factors also rank).")
    ] = None,
    parametrization: Annotated[
        str, typer.Option(help="How a learned rule is stored: as A (rule) or as its factors; --rank implies factors.")
    ] = "rule",
    rank: Annotated[
        int | None, typer.Option(min=1, help="Number of factors R (default: that of a random rule).")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: AnyDevice = "auto",
    rounds: Rounds = 20,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """A PHM layer against nn.Linear: forward and backward, and forward in training; evaluation is nn.Linear's own."""
    from phmctl.benchmarks.layers import bench_layer
    from phmctl.devices import set_threads

    set_threads(threads)
    result = bench_layer(
        in_features,
        out_features,
        _integers("--n", n),
        _integers("--tokens", tokens),
        algebra=algebra,
        parametrization=parametrization,
        rank=rank,
        executions=[name.strip() for name in execution.split(",")] if execution else (),
        dtype=dtype,
        device=device,
        rounds=rounds,
    )
    _show(result, json=json)


@bench.command("lstm")
def bench_lstm(
    in_features: Annotated[int, typer.Option("-d", "--in-features", min=1, help="d, width of the input.")] = 300,
    hidden: Annotated[int, typer.Option("-k", "--hidden", min=1, help="Width of the state.")] = 300,
    n: Ns = "5",
    batch: Annotated[int, typer.Option(min=1, help="Number of sequences.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Number of steps of each sequence.")] = 40,
    algebra: AnyAlgebra = "phm",
    gates: Annotated[str, typer.Option(help="separate or fused maps of the gates.")] = "separate",
    device: AnyDevice = "auto",
    rounds: Rounds = 20,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """A PHM-LSTM against nn.LSTM; by default in the shape of the sentence-pair classifiers of Table 1."""
    from phmctl.benchmarks.layers import bench_lstm
    from phmctl.devices import set_threads

    set_threads(threads)
    common = {"batch": batch, "steps": steps, "algebra": algebra, "gates": gates, "device": device, "rounds": rounds}
    _show(bench_lstm(in_features, hidden, _integers("--n", n), **common), json=json)  # type: ignore[arg-type]


@bench.command("train")
def bench_train(
    recipe: options.RecipeArgument,
    n: options.N = None,
    algebra: options.Algebra = None,
    device: options.Device = None,
    settings: options.Settings = None,
    data: options.DataRoot = None,
    batches: Annotated[int, typer.Option(min=1, help="Number of different batches in a sample.")] = 4,
    against: Against = "dense",
    rounds: Rounds = 10,
    json: options.Json = False,
) -> None:
    """Training steps against the dense twin and torch's own model, if it has one, on the recipe's prepared data.

    A composed model is measured beside its base too. "products allow" is the speed that multiplications alone give.
    """
    from phmctl.benchmarks.training import bench_training

    resolved = _recipe(recipe, n, algebra, device, settings)
    _show(bench_training(resolved, data, batches=batches, rounds=rounds, baseline=against), json=json)


@bench.command("rates")
def bench_rates(
    recipe: options.RecipeArgument,
    n: options.N = None,
    algebra: options.Algebra = None,
    device: options.Device = None,
    settings: options.Settings = None,
    data: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """Learning rates of each map's factors, and how far a step of each moves the output, beside a dense weight."""
    from phmctl.benchmarks.rates import bench_rates, rates_table

    resolved = _recipe(recipe, n, algebra, device, settings)
    rows = bench_rates(resolved, data)
    if json:
        emit_json({"recipe": resolved.name, "learning_rate": resolved.training.learning_rate, "rows": rows})
    else:
        rates_table(resolved, rows).show()


@bench.command("decode")
def bench_decode(
    recipe: options.RecipeArgument,
    n: options.N = None,
    algebra: options.Algebra = None,
    device: options.Device = None,
    settings: options.Settings = None,
    data: options.DataRoot = None,
    split: Annotated[str, typer.Option(help="Split whose sentences are translated.")] = "test",
    sentences: Annotated[int, typer.Option(min=1, help="Number of sentences.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of samples of each candidate.")] = 5,
    against: Against = "dense",
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine of a run: torch, onnx, ctranslate2, ctranslate2:int8. Repeatable; the first is 1."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Beam search against the dense twin; both translate by their dense copies.

    A composed model is measured beside its base too. "products allow" is the speed that multiplications alone give.
    With --engine, RECIPE is a trained run; its engines are compared on its own text.
    """
    from phmctl.recipe.loading import expect
    from phmctl.recipe.schema import TranslationRecipe
    from phmctl.tasks.registry import kind_of

    if engine:
        from phmctl.benchmarks.engines import bench_engines
        from phmctl.runs import Run

        result = bench_engines(Run.open(Path(recipe)), engine, split=split, sentences=sentences, rounds=rounds)
    else:
        from phmctl.benchmarks.decoding import bench_decoding

        given = _recipe(recipe, n, algebra, device, settings)
        kind_of(given).require("bench decode")
        resolved = expect(given, TranslationRecipe)
        result = bench_decoding(resolved, data, split=split, sentences=sentences, rounds=rounds, baseline=against)
    _show(result, json=json)


def _show(result: "Bench", *, json: bool) -> None:
    """Print the figures as one JSON document, or as a table."""
    if json:
        emit_json(result.as_json())
    else:
        result.table().show()


def _recipe(name: str, n: int | None, algebra: str | None, device: str | None, settings: list[str] | None) -> "Recipe":
    from phmctl.recipe.loading import common_overrides, resolve

    return resolve(name, common_overrides(n=n, algebra=algebra, device=device), settings or [])


def _integers(option: str, text: str) -> list[int]:
    from phmctl.errors import UserError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {text}: expected whole numbers, as in {option} 4,8") from error
