"""``phmctl bench``: speed as a ratio, measured in turns in one run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phmctl import options
from phmctl.cli.build import Summaries, add_command
from phmctl.console import Shown

if TYPE_CHECKING:
    from phmctl.benchmarks.ratios import Bench
    from phmctl.recipe.schema import Recipe


def bench_layer(in_features: int, out_features: int, *, threads: int, **given: Any) -> Shown:
    """A PHM layer against nn.Linear: forward and backward, and forward in training; evaluation is nn.Linear's own."""
    from phmctl.benchmarks.layers import bench_layer
    from phmctl.devices import set_threads

    set_threads(threads)
    ns, tokens = (_integers(f"--{name}", given.pop(name)) for name in ("n", "tokens"))
    executions = [name.strip() for name in (given.pop("execution") or "").split(",") if name]
    return _shown(bench_layer(in_features, out_features, ns, tokens, executions=executions, **given))


def bench_lstm(in_features: int, hidden: int, *, n: str, threads: int, **given: Any) -> Shown:
    """A PHM-LSTM against nn.LSTM; by default in the shape of the sentence-pair classifiers of Table 1."""
    from phmctl.benchmarks.layers import bench_lstm
    from phmctl.devices import set_threads

    set_threads(threads)
    return _shown(bench_lstm(in_features, hidden, _integers("--n", n), **given))


def bench_train(*, data: Path | None, batches: int, rounds: int, against: str, **given: Any) -> Shown:
    """Training steps against the dense twin and torch's own model, if it has one, on the recipe's prepared data.

    A composed model is measured beside its base too. "products allow" is the speed that multiplications alone give.
    """
    from phmctl.benchmarks.training import bench_training

    return _shown(bench_training(_recipe(**given), data, batches=batches, rounds=rounds, baseline=against))


def bench_rates(*, data: Path | None, **given: Any) -> Shown:
    """Learning rates of each map's factors, and how far a step of each moves the output, beside a dense weight."""
    from phmctl.benchmarks.rates import bench_rates, rates_table

    recipe = _recipe(**given)
    rows = bench_rates(recipe, data)
    document = {"recipe": recipe.name, "learning_rate": recipe.training.learning_rate, "rows": rows}
    return Shown(document, [rates_table(recipe, rows)])


def bench_decode(
    recipe: str, *, data: Path | None, against: str, engine: list[str] | None, split: str, sentences: int, rounds: int,
    **given: Any,
) -> Shown:  # fmt: skip
    """Beam search against the dense twin; both translate by their dense copies.

    A composed model is measured beside its base too. "products allow" is the speed that multiplications alone give.
    With --engine, RECIPE is a trained run; its engines are compared on its own text.
    """
    if engine:
        from phmctl.benchmarks.decoding import bench_engines
        from phmctl.runs import Run

        return _shown(bench_engines(Run.open(Path(recipe)), engine, split=split, sentences=sentences, rounds=rounds))
    from phmctl.benchmarks.decoding import bench_decoding
    from phmctl.recipe.loading import expect
    from phmctl.recipe.schema import TranslationRecipe
    from phmctl.tasks.registry import kind_of

    found = _recipe(recipe, **given)
    kind_of(found).require("bench decode")
    resolved = expect(found, TranslationRecipe)
    return _shown(bench_decoding(resolved, data, split=split, sentences=sentences, rounds=rounds, baseline=against))


bench = typer.Typer(
    cls=Summaries, help="Measure speed as a ratio to the dense twin, in turns, with the spread.", no_args_is_help=True
)
add_command(bench, "layer", options.BENCH_LAYER, bench_layer)
add_command(bench, "lstm", options.BENCH_LSTM, bench_lstm)
add_command(bench, "train", options.BENCH_TRAIN, bench_train)
add_command(bench, "rates", options.BENCH_RATES, bench_rates)
add_command(bench, "decode", options.BENCH_DECODE, bench_decode)


def _shown(result: "Bench") -> Shown:
    return Shown(result.as_json(), [result.table()])


def _recipe(recipe: str, settings: list[str] | None, **given: Any) -> "Recipe":
    from phmctl.recipe.loading import common_overrides, resolve

    return resolve(recipe, common_overrides(**given), settings or [])


def _integers(option: str, text: str) -> list[int]:
    from phmctl.errors import UserError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {text}: expected whole numbers, as in {option} 4,8") from error
