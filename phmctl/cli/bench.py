"""``phmctl bench``: speed as a ratio, measured in turns in one run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli import options
from phmctl.console import emit_json, print_table

if TYPE_CHECKING:
    from phmctl.benchmarks.timing import Spread
    from phmctl.recipe.schema import Recipe

bench = typer.Typer(help="Measure speed as a ratio to the dense twin, in turns, with the spread.", no_args_is_help=True)

Rounds = Annotated[int, typer.Option(min=1, help="Samples of each candidate.")]
Output = Annotated[Path | None, typer.Option(help="Write all figures here too, as JSON.")]
AnyDevice = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AnyAlgebra = Annotated[str, typer.Option(help="phm or a fixed algebra.")]
Ns = Annotated[str, typer.Option("--n", help="PHM hyperparameters, separated by commas.")]


@bench.command("layer")
def bench_layer(
    in_features: Annotated[int, typer.Option("-d", "--in-features", min=1, help="d, the layer's input width.")] = 512,
    out_features: Annotated[int, typer.Option("-k", "--out-features", min=1, help="k, its output width.")] = 512,
    n: Ns = "4",
    tokens: Annotated[str, typer.Option(help="Numbers of input rows, separated by commas.")] = "16,512,4096",
    algebra: AnyAlgebra = "phm",
    execution: Annotated[
        str, typer.Option(help="auto, dense, factored, rank, or several of them, separated by commas.")
    ] = "auto",
    parametrization: Annotated[
        str, typer.Option(help="How a learned rule is held: as A (rule), or as its factors; rank wants factors.")
    ] = "rule",
    rank: Annotated[int | None, typer.Option(min=1, help="R of the factors (default: that of a random rule).")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    device: AnyDevice = "auto",
    rounds: Rounds = 20,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """A PHM layer against ``nn.Linear``: forward, forward and backward, and evaluation with H kept."""
    from phmctl.benchmarks.layer import bench_layer as measure
    from phmctl.devices import pick_device, set_threads

    set_threads(threads)
    rows = [
        row
        for each in _integers("--n", n)
        for row in measure(
            in_features,
            out_features,
            each,
            _integers("--tokens", tokens),
            algebra=algebra,
            dtype=dtype,
            device=str(pick_device(device)),
            rounds=rounds,
            executions=[name.strip() for name in execution.split(",")],
            parametrization=parametrization,
            rank=rank,
        )
    ]
    if _shown([row.as_json() for row in rows], json=json):
        return
    cells = [
        (f"{r.n}", r.tokens, r.mode, r.execution, _milliseconds(r.dense), _milliseconds(r.phm), _ratio(r.ratio))
        for r in rows
    ]
    title = f"{in_features} → {out_features}, {algebra}, {dtype} (median, quartiles)"
    print_table(title, ("n", "tokens", "mode", "execution", "nn.Linear ms", "PHM ms", "PHM / nn.Linear"), cells)


@bench.command("lstm")
def bench_lstm(
    in_features: Annotated[int, typer.Option("-d", "--in-features", min=1, help="d, the input's width.")] = 300,
    hidden: Annotated[int, typer.Option("-k", "--hidden", min=1, help="The state's width.")] = 300,
    n: Ns = "5",
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each sequence.")] = 40,
    algebra: AnyAlgebra = "phm",
    gates: Annotated[str, typer.Option(help="separate or fused.")] = "separate",
    device: AnyDevice = "auto",
    rounds: Rounds = 20,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """A PHM-LSTM against the same time loop with dense maps, and against ``nn.LSTM``; by default in Table 1's shape."""
    from phmctl.benchmarks.lstm import bench_lstm as measure
    from phmctl.devices import set_threads

    set_threads(threads)
    common = {"batch": batch, "steps": steps, "algebra": algebra, "gates": gates, "device": device, "rounds": rounds}
    rows = [row for each in _integers("--n", n) for row in measure(in_features, hidden, each, **common)]  # type: ignore[arg-type]
    if _shown([row.as_json() for row in rows], json=json):
        return
    cells = [
        (
            f"{r.n}",
            r.mode,
            *map(_milliseconds, (r.dense, r.phm, r.torch)),
            _ratio(r.phm_to_dense),
            f"{r.best_phm_to_dense:.2f}",
            f"{r.phm_to_torch:.2f}",
        )
        for r in rows
    ]
    title = f"LSTM {in_features} → {hidden}, {algebra}, {gates} gates, batch {batch}, {steps} steps (median, quartiles)"
    columns = ("n", "mode", "dense ms", "PHM ms", "nn.LSTM ms", "PHM / dense", "best", "PHM / nn.LSTM")
    print_table(title, columns, cells)


@bench.command("encoder")
def bench_encoder(
    n: options.N = 8,
    algebra: options.Algebra = None,
    width: Annotated[int, typer.Option(min=2, help="d; the feed-forward is four times as wide.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Encoder layers.")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="Texts a step, of 5 to 30 tokens.")] = 64,
    device: AnyDevice = "auto",
    rounds: Rounds = 10,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """Training steps of an encoder classifier against its dense twin and ``nn.TransformerEncoder``, on random texts."""
    from phmctl.benchmarks.encoder import bench_encoder as measure
    from phmctl.benchmarks.encoder import section
    from phmctl.devices import set_threads

    set_threads(threads)
    rows = measure(section(n, algebra, width, heads, layers), batch=batch, device=device, rounds=rounds)
    if _shown([row.as_json() for row in rows], json=json):
        return
    cells = [
        (
            r.candidate,
            f"{r.parameters:,}",
            _milliseconds(r.step_seconds),
            f"{r.steps_per_second:.1f}",
            _ratio(r.speed),
            f"{r.best_speed:.2f}",
        )
        for r in rows
    ]
    title = f"encoder classifier, {width} wide, {layers} layers, {batch} texts a step (median, quartiles)"
    print_table(title, ("model", "parameters", "ms a step", "steps/s", "speed / dense", "best"), cells)


@bench.command("targets")
def bench_targets(
    execution: Annotated[str, typer.Option(help="auto, dense, factored or rank.")] = "auto",
    output: Output = None,
    rounds: Rounds = 9,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """A table in markdown: the layer against ``nn.Linear`` where it is to be faster; what misses its target is bold."""
    from phmctl.benchmarks.targets import as_markdown
    from phmctl.benchmarks.targets import bench_targets as measure
    from phmctl.console import emit
    from phmctl.devices import set_threads

    set_threads(threads)
    outcomes = measure(execution=execution, rounds=rounds)
    document = [outcome.as_json() for outcome in outcomes]
    if not _shown(document, json=json, output=output):
        emit(as_markdown(outcomes))


@bench.command("grid")
def bench_grid(
    fit: Annotated[bool, typer.Option("--fit", help="Print the constants that the figures ask for, too.")] = False,
    output: Output = None,
    tokens: Annotated[str, typer.Option(help="Numbers of input rows, separated by commas.")] = "1,16,64,256,1024",
    rounds: Rounds = 7,
    threads: options.Threads = 0,
    library: Annotated[
        list[str] | None, typer.Option(help="mkl or onednn, for the large products; repeatable. [default: the faster]")
    ] = None,
    json: options.Json = False,
) -> None:
    """The three executions over shapes and numbers of tokens, and in how many cells auto is within 10 % of the best."""
    from phmctl.algebra.cost import Constants
    from phmctl.benchmarks import grid
    from phmctl.console import note
    from phmctl.devices import set_threads

    set_threads(threads)
    cells = grid.measure(rounds=rounds, tokens=_integers("--tokens", tokens), libraries=library or ())
    constants = {
        f"{name}, {'training' if trains else 'eval'}": found for (trains, name), found in grid.fit(cells).items()
    }
    document = {
        "cells": [cell.as_json() for cell in cells],
        "within_a_tenth": grid.share_within(cells),
        "constants": {name: found._asdict() for name, found in constants.items()},
    }
    if _shown(document, json=json, output=output):
        return
    rows = [
        (
            f"{c.in_features} → {c.out_features}",
            c.n,
            c.tokens,
            c.mode,
            *(f"{c.seconds[name] / c.seconds['nn.Linear']:.2f}" for name in grid.NAMES),
            c.auto,
            f"{c.excess:+.0%}",
        )
        for c in cells
    ]
    print_table("ratios to nn.Linear", ("d → k", "n", "tokens", "mode", *grid.NAMES, "auto", "over the best"), rows)
    note(f"auto is within 10 % of the best in {grid.share_within(cells):.1%} of {len(cells)} cells")
    if fit:
        columns = ("ns of", *Constants._fields)
        print_table("constants", columns, [(name, *(f"{x:.3g}" for x in found)) for name, found in constants.items()])


@bench.command("train")
def bench_train(
    recipe: options.RecipeArgument,
    n: options.N = None,
    algebra: options.Algebra = None,
    device: options.Device = None,
    settings: options.Settings = None,
    data: options.DataRoot = None,
    batches: Annotated[int, typer.Option(min=1, help="Different batches in a sample.")] = 4,
    rounds: Rounds = 10,
    json: options.Json = False,
) -> None:
    """Training steps against the dense twin and torch's own model, if it has one, on the recipe's prepared data."""
    from phmctl.benchmarks.training import bench_training
    from phmctl.data.store import data_root

    result = bench_training(
        _recipe(recipe, n, algebra, device, settings), data or data_root(), batches=batches, rounds=rounds
    )
    if _shown(result.as_json(), json=json):
        return
    cells = [
        (
            r.candidate,
            f"{r.parameters:,}",
            _milliseconds(r.step_seconds),
            f"{r.target_tokens_per_second:,.0f}",
            _ratio(r.speed),
        )
        for r in result.rows
    ]
    title = (
        f"{result.recipe} on {result.device}, {result.threads} threads, {result.precision}; "
        f"{result.real_share:.1%} of the positions are real tokens"
    )
    columns = ("model", "parameters", "ms a step", "target tokens/s", f"speed / {result.baseline}")
    print_table(title, columns, cells)


@bench.command("decode")
def bench_decode(
    recipe: options.RecipeArgument,
    n: options.N = None,
    algebra: options.Algebra = None,
    device: options.Device = None,
    settings: options.Settings = None,
    data: options.DataRoot = None,
    split: Annotated[str, typer.Option(help="The split whose sentences are translated.")] = "test",
    sentences: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1000,
    uncached: Annotated[int, typer.Option(min=1, help="How many of them without cache and batches.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each candidate.")] = 5,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Of a run: torch, onnx, ctranslate2 or ctranslate2:int8; repeatable, the first is 1."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Beam search against the dense twin, against no cache and no batches, and against the machine's sgemm.

    With --engine, RECIPE is a trained run, whose engines are measured side by side on its own text.
    """
    if engine:
        _bench_engines(Path(recipe), engine, split=split, sentences=sentences, rounds=rounds, json=json)
        return
    from phmctl.benchmarks.decoding import bench_decoding
    from phmctl.data.store import data_root
    from phmctl.recipe.loading import expect
    from phmctl.recipe.schema import TranslationRecipe
    from phmctl.tasks.registry import kind_of

    given = _recipe(recipe, n, algebra, device, settings)
    kind_of(given).require("bench decode")
    resolved = expect(given, TranslationRecipe)
    result = bench_decoding(
        resolved, data or data_root(), split=split, sentences=sentences, uncached=uncached, rounds=rounds
    )
    if _shown(result.as_json(), json=json):
        return
    cells = [
        (
            r.candidate,
            f"{r.seconds.median:.2f}",
            f"{r.sentences_per_second:.0f}",
            _ratio(r.speed),
            f"{r.sgemm_share:.0%}",
            *(f"{alone.speedup:.1f}×" for alone in r.uncached.values()),
        )
        for r in result.rows
    ]
    title = (
        f"{result.recipe}: {result.sentences} sentences, beam {result.beam}, {result.device}, "
        f"{result.threads} threads; sgemm {result.sgemm_rate / 1e9:.0f} GFLOP/s"
    )
    columns = ("model", "seconds", "sentences/s", "speed / dense", "of sgemm", "over forward anew", "over decoder anew")
    print_table(title, columns, cells)
    steps = [(f"{length}", _milliseconds(seconds)) for length, seconds in result.step_seconds.items()]
    print_table("a step at growing output lengths", ("length", "ms a step"), steps)


def _bench_engines(run: Path, engines: list[str], *, split: str, sentences: int, rounds: int, json: bool) -> None:
    from phmctl.benchmarks.engines import bench_engines
    from phmctl.runs import Run

    result = bench_engines(Run.open(run), engines, split=split, sentences=sentences, rounds=rounds)
    if _shown(result.as_json(), json=json):
        return
    cells = [
        (
            row.engine,
            f"{row.seconds.median:.2f}",
            f"{row.sentences_per_second:.0f}",
            _ratio(row.speed),
            f"{row.same:,}",
            f"{row.bleu:.2f}",
        )
        for row in result.rows
    ]
    title = (
        f"{result.run}: {result.sentences} sentences of {result.split}, beam {result.decoding.beam}, "
        f"{result.threads} threads; BLEU {result.signature}"
    )
    columns = ("engine", "seconds", "sentences/s", f"speed / {result.rows[0].engine}", "same outputs", "BLEU")
    print_table(title, columns, cells)


def _shown(document: object, *, json: bool, output: Path | None = None) -> bool:
    """Write the figures into a file, if one is named, and to stdout, if JSON is asked for; return whether it is."""
    from phmctl.files import write_json

    if output is not None:
        write_json(output, document)
    if json:
        emit_json(document)
    return json


def _recipe(name: str, n: int | None, algebra: str | None, device: str | None, settings: list[str] | None) -> "Recipe":
    from phmctl.recipe.loading import common_overrides, load_recipe

    return load_recipe(name, [*common_overrides(n=n, algebra=algebra, device=device), *(settings or [])])


def _integers(option: str, text: str) -> list[int]:
    from phmctl.errors import UserError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {text}: want whole numbers separated by commas, for example {option} 4,8") from error


def _milliseconds(spread: "Spread") -> str:
    return f"{1e3 * spread.median:.2f}"


def _ratio(spread: "Spread") -> str:
    return f"{spread.median:.2f} ({spread.lower:.2f}–{spread.upper:.2f})"
