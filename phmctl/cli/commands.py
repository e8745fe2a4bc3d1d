"""The commands that ask the library one thing and show what it found, and those that serve or measure a model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phmctl.console import Shown, Table, note
from phmctl.errors import UserError, require
from phmctl.options import N

if TYPE_CHECKING:
    from phmctl.benchmarks.ratios import Bench
    from phmctl.recipe.schema import Recipe


def recipes(name: str | None) -> Shown:
    """List the shipped recipes, or print one with its comments."""
    from phmctl.recipe.loading import find_recipe, list_recipes, load_recipe

    if name is not None:
        path, recipe = find_recipe(name), load_recipe(name).model_dump()
        text = path.read_text(encoding="utf-8")
        return Shown({"name": recipe["name"], "path": str(path), "text": text, "recipe": recipe}, text=text)
    found = list_recipes()
    rows = [(recipe["name"], recipe["task"], recipe["description"]) for recipe in found]
    return Shown(found, [Table("recipes", ("name", "task", "what it is"), rows, text=(1, 2))])


def runs(names: Sequence[str] | None, runs: Path | None) -> Shown:
    """List runs: changed keys, seed, steps, state, best score, parameters, minutes."""
    from phmctl.runs.find import runs_root
    from phmctl.runs.summary import list_runs, run_tables

    found = list_runs(names or (), runs)
    none = f"no runs in {runs or runs_root()}; train one with: phmctl train RECIPE"
    notes = [f"{run.run.name} failed: {run.reason}" for run in found if run.reason is not None]
    return Shown([run.as_json() for run in found], run_tables(found), notes=notes if found else [none])


def count_params(
    recipe: str | None, n: str | None, algebra: str | None, *, paper: bool, settings: Sequence[str] | None
) -> Shown:
    """Count a recipe's parameters by component, beside its dense twin's; nothing is allocated."""
    from phmctl.accounting.counting import count_parameters, count_tables

    ns, algebras = _integers("n", n) if n else [], _names(algebra)
    count = count_parameters(recipe, ns=ns, algebras=algebras, overrides=settings or [], paper=paper)
    return Shown(count.as_json(), count_tables(count))


def distil(teacher: str, recipe: str | None, settings: Sequence[str] | None, **given: Any) -> Shown:
    """Train a small model on a trained model's answers; print the student's run directory at the end.

    A translator translates its training text by beam search, once for all its students; a classifier's probabilities
    are learned beside the labels.
    """
    from phmctl.distillation import distil as run_distil

    result = run_distil(teacher, recipe, settings=settings or (), **given, quiet=False)
    folder = str(result.run.folder)
    document = {"run": folder, "steps": result.steps, "best_score": result.best_score}
    return Shown(document, text=f"{folder}\n", code=result.exit_code)


def export(run: Path, to: str, output: Path, **given: Any) -> Shown:
    """Export a run's model with its tokenizer, settings and model card.

    decode and eval take the folder as a run, but for huggingface's.

    The export is compared with the run on the run's validation text.
    """
    from phmctl.export.verb import export as export_run
    from phmctl.runs import Run

    made = export_run(Run.open(run), to, output, **given)
    return Shown(made.as_json(), made.tables())


def report(names: Sequence[str] | None, output: Path, runs: Path | None, **given: Any) -> Shown:
    """Write one HTML page about runs and the rules they learned.

    The page has scores, curves, parameters, samples, rules and differences; its path is printed. Needs phmctl[report].
    """
    from phmctl.reports.report import write_report

    found = write_report(names or (), output, root=runs, **given)
    return Shown({"report": str(output), **found.as_json()}, text=f"{output}\n")


def compare(
    names: Sequence[str] | None,
    recipe: str | None,
    checkpoint: str | None,
    runs: Path | None,
    *,
    paper: str | None,
    **given: Any,
) -> Shown:
    """Compare runs over seeds, or with a published table.

    Prints means, tested differences, sizes, speeds and other differences between the runs.
    """
    from phmctl.comparison.compare import compare_splits
    from phmctl.comparison.papers import compare_papers

    asked: dict[str, Any] = {"recipe": recipe, "root": runs, "checkpoint": checkpoint}
    found: Sequence[Any]
    document: dict[str, Any]
    if paper is None:
        found, words = compare_splits(names or (), **asked, **given), "without a result yet (or add --eval):"
        told = [each.as_json() for each in found]
        records = [{"split": each["split"], **one} for each in told for one in each["variants"]]
        document = told[0] if len(told) == 1 else {"comparisons": told}
    elif any(value for name, value in given.items() if name != "split") or given["split"] != "test":
        raise UserError("--baseline, --best-of, --budget, --eval and --split have no part in --paper: leave them out")
    else:
        found, words = compare_papers(paper, names or (), **asked), "commands that fill empty cells, then phmctl eval:"
        document = {"tables": [each.as_json() for each in found]}
        records = [{"table": each["key"], **one} for each in document["tables"] for one in each["cells"]]
    commands = [line for each in found for line in each.missing()]
    notes = [f"· {line}" for each in found for line in each.said()]
    tables = [table for each in found for table in each.tables()]
    return Shown(document, tables, records, notes=[*notes, *[words] * bool(commands), *commands])


def serve(
    run: Path, host: str, port: int, allow_host: Sequence[str] | None, *, json: bool, grace: float, **given: Any
) -> None:
    """Answer over HTTP: /translate and /score, or /classify; /health; and a page to type into.

    Prints the address. On Ctrl-C or SIGTERM it answers waiting texts, then stops (exit code 130 or 143).
    """
    for library in ("starlette", "uvicorn"):
        require(library, "serve")
    from phmctl.export import with_engine
    from phmctl.exports import open_model
    from phmctl.serving.batching import Service
    from phmctl.serving.requests import Limits
    from phmctl.serving.server import listen, names_of, url_of
    from phmctl.serving.server import serve as run_server
    from phmctl.verbs import load

    checkpoint, precision = given["checkpoint"], given["precision"]
    limits = Limits(**{name.removeprefix("max_"): given[name] for name in given if name.startswith("max_")})
    with listen(host, port) as sock:
        opened = with_engine(open_model(run), given["engine"], checkpoint, given["quantize"], precision)
        model = load(opened.folder, checkpoint=checkpoint, device=given["device"] or "auto", precision=precision)
        service = Service(model, limits, workers=given["workers"], cut=given["cut"])
        url, names = url_of(sock), names_of(sock, allow_host or ())

        def ready() -> None:
            note(f"serving {model.name}; Ctrl-C stops")
            about = {"url": url, "model": model.name, "task": model.task}
            Shown(about, text=f"{url}\n").show("json" if json else "table")

        raise typer.Exit(run_server(service, sock, names=names, grace=grace, ready=ready))


def bench_layer(in_features: int, out_features: int, **given: Any) -> Shown:
    """A PHM layer against nn.Linear: forward and backward, and forward in training; evaluation is nn.Linear's own."""
    from phmctl.benchmarks.layers import bench_layer

    ns, tokens = (_integers(name, given.pop(name)) for name in ("n", "tokens"))
    executions = _names(given.pop("execution"))
    return _shown(bench_layer(in_features, out_features, ns, tokens, executions=executions, **given))


def bench_lstm(in_features: int, hidden: int, *, n: str, **given: Any) -> Shown:
    """A PHM-LSTM against nn.LSTM; by default in the shape of the sentence-pair classifiers of Table 1."""
    from phmctl.benchmarks.layers import bench_lstm

    return _shown(bench_lstm(in_features, hidden, _integers("n", n), **given))


def bench_train(*, data: Path | None, batches: int, rounds: int, against: str, **given: Any) -> Shown:
    """Training steps against the dense twin and torch's own model, if it has one, on the recipe's prepared data.

    A composed model is measured beside its base too.
    """
    from phmctl.benchmarks.models import bench_training

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

    A composed model is measured beside its base too.
    With --engine, RECIPE is a trained run; its engines are compared on its own text.
    """
    if engine:
        from phmctl.benchmarks.models import bench_engines
        from phmctl.runs import Run

        return _shown(bench_engines(Run.open(Path(recipe)), engine, split=split, sentences=sentences, rounds=rounds))
    from phmctl.benchmarks.models import bench_decoding
    from phmctl.tasks.registry import kind_of

    found: Any = _recipe(recipe, **given)
    kind_of(found).require("bench decode")
    return _shown(bench_decoding(found, data, split=split, sentences=sentences, rounds=rounds, baseline=against))


def _shown(result: "Bench") -> Shown:
    return Shown(result.as_json(), [result.table()])


def _recipe(recipe: str, settings: list[str] | None, **given: Any) -> "Recipe":
    from phmctl.recipe.loading import common_overrides, resolve

    return resolve(recipe, common_overrides(**given), settings or [])


def _names(text: str | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def _integers(name: str, text: str) -> list[int]:
    return [replace(N, name=name).read(part) for part in _names(text)]
