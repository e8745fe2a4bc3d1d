"""The commands: each asks the library one thing and returns what is shown."""

import gc
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import phmctl
from phmctl import verbs
from phmctl.cli.build import NEWEST, TOGETHER
from phmctl.console import Shown, Table, note, progress
from phmctl.devices import world
from phmctl.errors import DataError, UserError, require
from phmctl.options import Limits, N

if TYPE_CHECKING:
    from phmctl.benchmarks.ratios import Bench
    from phmctl.recipe.schema import Recipe

SPLITS = ("train", "valid", "test")


def prepare_data(name: str | None, data: Path | None, *, list_: bool, **given: Any) -> Shown:
    """Clean and tokenize a corpus, once for all runs that use it."""
    if list_:
        return _listed_cards(name, data)
    from phmctl.data.prepared.folder import prepared_table

    if name is None:
        raise DataError(
            "no corpus is named: phmctl prepare-data NAME\nphmctl prepare-data --list shows the dataset cards"
        )
    files: dict[str, list[tuple[str, ...]]] = {}
    for split in SPLITS:
        for value in given.pop(split) or ():
            first, *rest = value.split(TOGETHER)
            own, equals, path = first.partition("=")
            named = equals and "/" not in own and not Path(first).exists()  # `--test news=FILE` is of `test_news`
            files.setdefault(f"{split}_{own}" if named else split, []).append((path if named else first, *rest))
    prepared = verbs.prepare(name, data=data, files=files, quiet=False, **given)
    document = {"folder": str(prepared.folder), **prepared.manifest}
    notes = [prepared.coverage] if prepared.coverage else []
    return Shown(document, [prepared_table(prepared.manifest)], notes=notes)


def _listed_cards(name: str | None, data: Path | None) -> Shown:
    from phmctl.data.card import list_cards
    from phmctl.data.prepared.folder import data_root

    def cells(card: dict[str, Any]) -> list[str]:
        labelled = f"{'pair' if card['texts'] == 2 else 'text'} → {len(card['labels']) or '?'}"
        known = (split for split in SPLITS if split in card["sizes"])
        sizes = (f"{card['sizes'][split]:,}{'*' * (split in card['divided'])}" for split in known)
        licence = card["licence"].partition(" (")[0].partition(",")[0].removesuffix(" by the publishers")
        columns = [card["name"], " → ".join(card["languages"]) or labelled, " / ".join(sizes) or "not known"]
        here = "prepared" if card["prepared"] else "fetched" if card["fetched"] else "never tried"
        local = not {"hub", "urls"} & {*card["origins"]}
        return [*columns, licence, ", ".join(card["origins"]), "–" if local and here == "never tried" else here]

    root = data or data_root()
    cards = list_cards(root, name)
    titles = ["name", "what", "train / valid / test", "licence", "from", "here"]
    grouped = groupby(cards, key=itemgetter("task"))
    tables = [Table(task, titles, [*map(cells, group)], text=(1, 3, 4, 5)) for task, group in grouped]
    held = "* held out of train, as the publishers have none; " * any(card["divided"] for card in cards)
    document = {"data": str(root), "cards": cards}
    return Shown(document, tables, notes=[f"{held}prepared data is in {root}"])


def train(
    recipe: str | None, *, resume: str | None, checkpoint: str | None, processes: int, dry_run: bool, **given: Any
) -> Shown:
    """Train a recipe's model on its prepared data; print the run directory at the end.

    Several values train every combination: --n 1,4 --seed 1,2,3 --set model.dropout=0.1,0.3. Finished trainings are
    skipped, stopped ones continue. Quotes keep a comma in a value: --set 'description="one, two"'.
    """
    if checkpoint is not None and resume is None:
        raise UserError(f"--checkpoint {checkpoint} says where to continue from; add --resume, or leave it out")
    how = True if resume == NEWEST else False if resume is None else resume
    given["settings"] = given["settings"] or ()
    if dry_run:
        if world().size > 1:
            raise UserError("--dry-run works in one process; start it without torchrun")
        return _planned(verbs.recipe_to_train(recipe, how, given["tag"])[0], **given)
    if processes > 1:
        from phmctl.training.processes import launch, without_option

        raise typer.Exit(launch(without_option(sys.argv[1:], "--processes"), processes))
    result = verbs.train(recipe, **given, resume=how, checkpoint=checkpoint or "last", quiet=False)
    if world().rank > 0:
        raise typer.Exit(result.exit_code)
    if result.exit_code:
        return Shown(result.as_json(), code=result.exit_code)
    before = f" ({result.steps} in all)" if result.steps_now < result.steps else ""
    line = f"{result.steps_now} steps in {result.seconds:.1f} s{before}; the run is in:"
    return Shown(result.as_json(), notes=[line], text=f"{result.run.folder}\n")


def _planned(
    recipe: Any, *, settings: Sequence[str], data: Path | None, runs: Path | None, tag: str | None, **common: Any
) -> Shown:
    """Show what a training would be: its recipe and its parameters.

    The sizes are those of the prepared data, if there is any, otherwise what the recipe asks for.
    """
    from phmctl.accounting.counting import ledger_table
    from phmctl.accounting.ledger import ledger_for_recipe
    from phmctl.data.prepared.folder import data_root
    from phmctl.recipe.loading import common_overrides, dump_recipe, resolve
    from phmctl.tasks.registry import kind_of
    from phmctl.training.initial import find_start

    resolved, root = resolve(recipe, common_overrides(**common), settings), data or data_root()
    kind, task = kind_of(resolved), None
    with suppress(DataError):  # not prepared
        task = kind.open(resolved, root) if resolved.training.initialise_from else None
    start, sizes = find_start(resolved, task), kind.sizes(resolved, root)
    ledger = ledger_for_recipe(resolved, sizes)
    source = "prepared data" if sizes.trained else "recipe"
    document = {"recipe": resolved.model_dump(), "parameters": ledger.as_json(), "vocabularies_from": source}
    notes = [*[sizes.note] * sizes.trained, *([] if start is None else [start.summary()])]
    return Shown(document, text=f"{dump_recipe(resolved)}\n{ledger_table(ledger).drawn()}", notes=notes)


def decode(
    run: Path,
    input_: Path | None,
    output: Path | None,
    split: str | None,
    checkpoint: str,
    device: str | None,
    *,
    resume: bool,
    window: int,
    pause: float,
    json: bool,
    **given: Any,
) -> None:
    """Translate or label text: one line out for each line in, in order.

    --beam, --alpha, --n-best, --batch-tokens, --precision and --strict are for translators.
    """
    from phmctl.export import with_engine
    from phmctl.exports import open_model
    from phmctl.inference import AnswersFile, answer, arriving_lines, in_groups, refuse_same_file
    from phmctl.tasks.base import Asked
    from phmctl.tasks.registry import kind_of

    if input_ is not None and split is not None:
        raise UserError("--input and --split exclude each other; leave one out")
    if resume and output is None:
        raise UserError("--resume continues a file; add --output FILE")
    if output is not None and split is None:
        refuse_same_file(input_, output)
    opened, engine, quantize = open_model(run), given.pop("engine"), given.pop("quantize")
    kind = kind_of(opened.recipe)
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    kind.require("decode", options)
    opened = with_engine(opened, engine, checkpoint, quantize, given["precision"])
    own = None if split is None else kind.split_lines(opened, split)

    def load(name: str) -> Any:
        asked = Asked(opened, name, device or "auto", options, own_text=own is not None)
        return kind.load(asked), opened.weights(name)

    gc.disable()  # to look through what is loaded again and again would be a sixth of the start
    model, weights = opened.use(checkpoint, load)
    gc.freeze()
    gc.enable()
    groups = in_groups(own, window) if own is not None else arriving_lines(input_, pause=pause, limit=window)
    typed = own is None and input_ is None and sys.stdin is not None and sys.stdin.isatty()
    bar: AbstractContextManager[Any] = nullcontext(lambda amount: None)
    if output is not None and not json and not typed:  # elsewhere a person sees the answers
        bar = progress(model.verb, None if own is None else len(own), plain=False)
    if typed:
        note("reading lines from the terminal; Ctrl-D ends them")
    origin = {"run": opened.name, "checkpoint": weights.name, "weights": weights.sha256, **model.origin()}
    file = nullcontext() if output is None else AnswersFile(output, origin, resume=resume)
    with file as answers, bar as advance:
        answer(model, groups, output=answers, as_json=json, advance=advance)


def evaluate(
    names: list[str],
    split: str,
    against: Path | None,
    *,
    probing: bool,
    settings: list[str] | None,
    data: Path | None,
    device: str | None,
    checkpoint: str,
    every: bool,
    **given: Any,
) -> Shown:
    """Score a run on a split of its text: translators by BLEU, chrF and TER, classifiers by accuracy.

    Translations are kept in the run. --beam, --alpha, --batch-tokens, --precision, --lowercase, --tokenize, --source
    and --reference are for translators.

    Several runs or values (--beam 1,4 --checkpoint best,average) are scored one by one.

    --probing trains a probe for each probing task prepared in --data, each once: its answers are kept there.
    """
    from phmctl.exports import open_model
    from phmctl.runs.summary import difference_lines, run_differences

    other = given | {"split": None if split == "test" else split} if probing else {"set": settings, "data": data}
    if wrong := [f"--{name.replace('_', '-')}" for name, value in other.items() if value is not None]:
        raise UserError(f"{', '.join(wrong)}: {'has no part in' if probing else 'belongs to'} --probing: leave it out")
    common: dict[str, Any] = {"against": against, "checkpoint": checkpoint, "device": device or "auto"}
    if probing:
        from phmctl.probes import probe

        found: Any = probe(names[0], settings=settings or (), data=data, **common)
    else:
        found = verbs.evaluate(names[0], split, **common, quiet=False, **given)
    apart = []
    if against is not None:
        baseline = open_model(against)
        apart = difference_lines(run_differences(baseline, open_model(names[0])), baseline.name)
    document = found.as_json() | ({} if against is None else {"differences": apart})
    notes = [*getattr(found, "notes", tuple)(), *(f"· {text}" for text in apart)]
    return Shown(document, found.tables(), notes=notes)


def recipes(name: str | None) -> Shown:
    """List the shipped recipes, or print one with its comments."""
    from phmctl.recipe.loading import find_recipe, load_recipe
    from phmctl.shipped import shipped_names

    if name is not None:
        path, recipe = find_recipe(name), load_recipe(name).model_dump()
        text = path.read_text(encoding="utf-8")
        return Shown({"name": recipe["name"], "path": str(path), "text": text, "recipe": recipe}, text=text)
    found = [load_recipe(each).model_dump(include={"name", "task", "description"}) for each in shipped_names("recipes")]
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
    result = phmctl.distil(teacher, recipe, settings=settings or (), **given, quiet=False)
    return Shown(result.as_json(), text=f"{result.run.folder}\n", code=result.exit_code)


def export(run: Path, to: str, output: Path, **given: Any) -> Shown:
    """Export a run's model with its tokenizer, settings and model card.

    decode and eval take the folder as a run, but for huggingface's.

    The export is compared with the run on the run's validation text.
    """
    from phmctl.export.verb import export as export_run
    from phmctl.runs import Run

    made = export_run(Run.open(run), to, output, **given)
    return Shown(made.as_json(), made.tables())


def report(names: Sequence[str] | None, output: Path, **given: Any) -> Shown:
    """Write one HTML page about runs and the rules they learned.

    The page has scores, curves, parameters, samples, rules and differences; its path is printed. Needs phmctl[report].
    """
    from phmctl.reports.report import write_report

    told = [each.as_json() for each in write_report(names or (), output, **given)]
    return Shown({"report": str(output), **(told[0] if len(told) == 1 else {"comparisons": told})}, text=f"{output}\n")


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
    from phmctl.comparison.compare import compare as compare_runs
    from phmctl.comparison.papers import compare_papers

    asked: dict[str, Any] = {"recipe": recipe, "checkpoint": checkpoint}
    found: Sequence[Any]
    document: dict[str, Any]
    if paper is None:
        words, found = "without a result yet (or add --eval):", compare_runs(names or (), runs=runs, **asked, **given)
        told = [each.as_json() for each in found]
        records = [{"split": each["split"], **one} for each in told for one in each["variants"]]
        document = told[0] if len(told) == 1 else {"comparisons": told}
    elif given.pop("split") != "test" or any(value is not None and value is not False for value in given.values()):
        raise UserError("--baseline, --best-of, --budget, --eval, --margin and --split have no part in --paper")
    else:
        words = "commands that fill empty cells, then phmctl eval:"
        found = compare_papers(paper, names or (), root=runs, **asked)
        document = {"tables": [each.as_json() for each in found]}
        records = [{"table": each["key"], **one} for each in document["tables"] for one in each["cells"]]
    commands = [line for each in found for line in each.missing()]
    notes = [f"· {line}" for each in found for line in each.remarks()]
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
    from phmctl.serving.server import listen, names_of, url_of
    from phmctl.serving.server import serve as run_server
    from phmctl.tasks.base import Asked
    from phmctl.tasks.registry import kind_of

    checkpoint, precision = given["checkpoint"], given["precision"]
    limits = Limits(**{name.removeprefix("max_"): given[name] for name in given if name.startswith("max_")})
    with listen(host, port) as sock:
        opened, options = open_model(run), {} if precision is None else {"precision": precision}
        kind = kind_of(opened.recipe)
        kind.require("decode", options)
        opened = with_engine(opened, given["engine"], checkpoint, given["quantize"], precision)
        model = opened.use(checkpoint, lambda name: kind.load(Asked(opened, name, given["device"] or "auto", options)))
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

    n, tokens = (_integers(name, given.pop(name)) for name in ("n", "tokens"))
    return _shown(bench_layer(in_features, out_features, n, tokens, executions=_names(given.pop("execution")), **given))


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
    from phmctl.benchmarks.models import bench_rates, rates_table

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

        usual = {"device": ("auto", "cpu"), "against": ("dense",)}
        asked = {"set": given.pop("settings"), **given, "data": data, "against": against}
        if wrong := [f"--{name}" for name, value in asked.items() if value and value not in usual.get(name, ())]:
            raise UserError(f"{', '.join(wrong)} cannot be given with --engine: a run is measured as it is, on the CPU")
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
    return list(dict.fromkeys(name.strip() for name in text.split(","))) if text else []


def _integers(name: str, text: str) -> list[int]:
    return [replace(N, name=name).read(part) for part in _names(text) or [text]]
