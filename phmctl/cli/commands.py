"""The commands that ask the library one thing and show what it found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from phmctl.console import Shown, Table, once
from phmctl.errors import UserError, check_known
from phmctl.options import EVAL, EVAL_AXES, read_axes


def recipes(name: str | None) -> Shown:
    """List the shipped recipes, or print one with its comments."""
    from phmctl.console import Table
    from phmctl.recipe.loading import find_recipe, list_recipes, load_recipe

    if name is not None:
        path, recipe = find_recipe(name), load_recipe(name).model_dump()
        text = path.read_text(encoding="utf-8")
        return Shown({"name": recipe["name"], "path": str(path), "text": text, "recipe": recipe}, text=text)
    found = list_recipes()
    rows = [(recipe["name"], recipe["task"], recipe["description"]) for recipe in found]
    return Shown(found, [Table("recipes", ("name", "task", "what it is"), rows, text=(1, 2), plain=True)])


def runs(names: Sequence[str] | None, runs: Path | None) -> Shown:
    """List runs: changed keys, seed, steps, state, best score, parameters, minutes."""
    from phmctl.runs.find import runs_root
    from phmctl.runs.summary import list_runs, remarks, run_tables

    found = list_runs(names or (), runs)
    none = f"no runs in {runs or runs_root()}; train one with: phmctl train RECIPE"
    notes = remarks(found) if found else [none]
    return Shown([run.as_json() for run in found], run_tables(found), notes=notes)


def count_params(
    recipe: str | None, n: str | None, algebra: str | None, *, paper: bool, settings: Sequence[str] | None
) -> Shown:
    """Count a recipe's parameters by component, beside its dense twin's; nothing is allocated."""
    from phmctl.accounting.counting import count_parameters, parse_ns, print_count, split_list

    ns, algebras = parse_ns(n), split_list(algebra)
    count = count_parameters(recipe, ns=ns, algebras=algebras, overrides=settings or [], paper=paper)
    return Shown(count.as_json(), draw=lambda: print_count(count))


def distil(teacher: str, recipe: str | None, settings: Sequence[str] | None, **given: Any) -> Shown:
    """Train a small model on a trained model's answers; print the student's run directory at the end.

    A translator translates its training text by beam search, once for all its students; a classifier's probabilities
    are learned beside the labels.
    """
    from phmctl.distillation import distil as run_distil

    result = run_distil(teacher, recipe, settings=settings or (), **given, quiet=False)
    folder = str(result.run.folder)
    document = {"run": folder, "steps": result.steps, "best_score": result.best_score}
    return Shown(document, text=folder, code=result.exit_code)


def export(run: Path, to: str, output: Path, threads: int, **given: Any) -> Shown:
    """Export a run's model with its tokenizer, settings and model card; decode and eval take the folder as a run.

    The export is compared with the run on the run's validation text.
    """
    from phmctl.devices import set_threads
    from phmctl.export.verb import export as export_run
    from phmctl.runs import Run

    set_threads(threads)
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
    form: str | None,
    paper: str | None,
    json: bool,
    **given: Any,
) -> None:
    """Compare runs over seeds, or with a published table.

    Prints means, tested differences, sizes, speeds and other differences between the runs.
    """
    if json and form not in (None, "json"):
        raise UserError(f"--json and --format {form} are two forms: leave one out")
    form = "json" if json else form or "table"
    check_known("format", form, ("table", "csv", "latex", "json"))
    asked: dict[str, Any] = {"recipe": recipe, "root": runs, "checkpoint": checkpoint}
    if paper is None:
        shown = _compared(names or (), form, **asked, **given)
    elif any(value for name, value in given.items() if name != "split") or given["split"] != "test":
        raise UserError("--baseline, --best-of, --budget, --eval and --split have no part in --paper: leave them out")
    else:
        shown = _compared_papers(paper, names or (), form, **asked)
    for each in shown:
        each.show(as_json=form == "json")


def _compared(names: Sequence[str], form: str, **asked: Any) -> list[Shown]:
    from phmctl.comparison.compare import compare_splits
    from phmctl.comparison.formats import comparison_csv, comparison_latex, comparison_tables

    several = compare_splits(names, **asked)
    if form == "json":
        told = [found.as_json() for found in several]
        return [Shown(told[0] if len(told) == 1 else {"comparisons": told})]
    shown = []
    for found in several:
        if form == "table":
            said = [*found.differences(), *found.notes()]
            shown.append(Shown(tables=comparison_tables(found), notes=[f"· {line}" for line in said]))
        else:
            shown.append(Shown(text=comparison_csv(found) if form == "csv" else comparison_latex(found)))
    missing = [line for found in several for line in found.missing()]
    return [*shown, Shown(notes=_missing("without a result yet (or add --eval):", missing))]


def _compared_papers(paper: str, names: Sequence[str], form: str, **asked: Any) -> list[Shown]:
    from phmctl.comparison.papers import compare_papers

    tables = compare_papers(paper, names, **asked)
    if form == "json":
        return [Shown({"tables": [table.as_json() for table in tables]})]
    shown = []
    for found in tables:
        missing = _missing("commands that fill empty cells (then score each run by phmctl eval):", found.missing())
        if form == "table":
            shown.append(Shown(tables=found.tables(), notes=[*(f"· {line}" for line in found.notes()), *missing]))
        else:
            shown.append(Shown(text=found.as_csv() if form == "csv" else found.as_latex(), notes=missing))
    return shown


def _missing(words: str, commands: Sequence[str]) -> list[str]:
    """Return commands, each a line of its own, to be copied, below words."""
    return [words, *commands] if commands else []


def evaluate(
    names: list[Path], *, probing: bool, every: bool, jobs: int | None, list_: bool, threads: int, **given: Any
) -> Shown:
    """Score a run on a split of its text: translators by BLEU, chrF and TER, classifiers by accuracy.

    Translations are kept in the run. --beam, --alpha, --batch-tokens, --precision, --lowercase, --tokenize, --source
    and --reference are for translators.

    Several runs or values (--beam 1,4 --checkpoint best,average) are scored one by one.

    --probing trains a probe for each probing task prepared in --data, each once: its answers are kept there.
    """
    probed = {name: given.pop(name) for name in ("settings", "data")}
    if not probing:
        _refuse({"set": probed["settings"], "data": probed["data"]}, "belongs to --probing")
    if not probing and given["source"] is None and given["table"] is None:
        given["split"] = _splits(names, every, given["split"])
    parted = any("," in given[name] for name in EVAL_AXES if given[name])
    if len(names) > 1 or every or jobs or list_ or parted:
        from phmctl.sweeps.evaluate import EvalSweep

        if probing:
            raise UserError("--probing is for one run: its probes are many already; leave it out, or name one run")
        sweep = EvalSweep.of(names, every, given | {"threads": threads})
        return sweep.listed() if list_ else sweep.evaluate(jobs or 1)
    from phmctl.devices import set_threads

    set_threads(threads)
    given = read_axes(EVAL, EVAL_AXES, given)
    against: Sequence[Path] | None = given.pop("against")
    return _scored(names[0], against, given, probed | {"settings": probed["settings"] or ()} if probing else None)


def _scored(run: Path, against: Sequence[Path] | None, given: dict[str, Any], probed: dict[str, Any] | None) -> Shown:
    """Score a run, against each baseline in turn."""
    from phmctl import verbs

    common: dict[str, Any] = {"checkpoint": given.pop("checkpoint"), "device": given.pop("device") or "auto"}
    split = given.pop("split")
    if probed is not None:
        _refuse({**given, "split": None if split == "test" else split}, "has no part in --probing")
    rivals: Sequence[Path | None] = against or [None]
    with once():
        if probed is None:
            reports = [verbs.evaluate(run, split, against=each, **common, quiet=False, **given) for each in rivals]
        else:
            from phmctl.probes import probe

            reports = [probe(run, against=each, **common, **probed) for each in rivals]
    told, tables, notes = [], list[Table](), list[str]()
    for report, rival in zip(reports, rivals, strict=True):
        found = [] if rival is None else verbs.differences(run, rival)
        told.append(report.as_json() | ({"differences": found} if against else {}))
        tables += [table for table in report.tables() if table not in tables]  # the run's own scores once
        notes += [*getattr(report, "notes", tuple)(), *(f"· {text}" for text in found)]
    return Shown(told[0] if len(told) == 1 else {"comparisons": told}, tables, notes=notes)


def _splits(names: Sequence[Path], every: bool, split: str) -> str:
    """The splits that are meant, parted by commas: where the runs have only named test sets, these are ``test``."""
    from phmctl.exports import open_model
    from phmctl.runs import splits_asked
    from phmctl.runs.find import select_runs

    if split not in ("test", "all"):
        return split
    return ",".join(splits_asked([open_model(run) for run in (select_runs(names) if every else names)], split))


def _refuse(options: dict[str, Any], why: str) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{', '.join(wrong)} {why}: leave it out")


def serve(
    run: Path, host: str, port: int, allow_host: Sequence[str] | None, *, json: bool, grace: float, **given: Any
) -> None:
    """Answer over HTTP: /translate and /score, or /classify; /health; and a page to type into.

    Prints the address. On Ctrl-C or SIGTERM it answers waiting texts, then stops (exit code 130 or 143).
    """
    from phmctl.errors import require

    for library in ("starlette", "uvicorn"):
        require(library, "serve")
    from phmctl.console import Shown, note
    from phmctl.devices import set_threads
    from phmctl.export.verb import with_engine
    from phmctl.exports import open_model
    from phmctl.inference.loading import load
    from phmctl.serving.batching import BatchLimits, Service
    from phmctl.serving.requests import Limits
    from phmctl.serving.server import listen, names_of, url_of
    from phmctl.serving.server import serve as run_server

    checkpoint, precision, most = (
        given["checkpoint"],
        given["precision"],
        {name.removeprefix("max_"): value for name, value in given.items() if name.startswith("max_")},
    )
    with listen(host, port) as sock:
        set_threads(given["threads"])
        opened = with_engine(open_model(run), given["engine"], checkpoint, given["quantize"], precision)
        model = load(opened.folder, checkpoint=checkpoint, device=given["device"] or "auto", precision=precision)
        batching = BatchLimits(most["batch"], most["batch_tokens"], most["queue"], most["wait"] / 1000)
        limits = Limits(most["body"], most["texts"], most["characters"], most["beam"], connections=most["connections"])
        service = Service(model, limits, batching, workers=given["workers"], cut=given["cut"])
        url, names = url_of(sock), names_of(sock, allow_host or ())

        def ready() -> None:
            note(f"serving {model.name}; Ctrl-C stops")
            Shown({"url": url, "model": model.name, "task": model.task}, text=f"{url}\n").show(as_json=json)

        raise typer.Exit(run_server(service, sock, names=names, grace=grace, ready=ready))
