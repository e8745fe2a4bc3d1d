"""``report``: all about several runs on one page that needs no network."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phmctl import __version__
from phmctl.accounting.ledger import Totals, ledger_for_recipe
from phmctl.comparison.compare import Comparison, compare_splits
from phmctl.comparison.formats import comparison_tables
from phmctl.comparison.variants import Variant, mean_and_spread
from phmctl.console import Table
from phmctl.errors import OutputError, require
from phmctl.files import write_atomic
from phmctl.recipe.loading import dump_recipe
from phmctl.reports import plots
from phmctl.reports.plots import Blocks, Picture, plural, style, to_svg
from phmctl.reports.rules import rules_part
from phmctl.runs.metrics import read_metrics, series
from phmctl.tasks.answers import Answers, Breakdown, within
from phmctl.tasks.registry import kind_of

_PAGE = Path(__file__).with_name("page.html")
_SAMPLES = 5  # of each kind
_FAVOUR = "most in favour of"
_VALIDATIONS = {"loss": "validation loss", "bleu": "validation BLEU (greedy)", "accuracy": "validation accuracy"}


def write_report(names: Sequence[str | Path], output: Path, **options: Any) -> Comparison:
    if output.is_dir():
        raise OutputError(f"{output} is a folder; name a file: --output {output / 'report.html'}")
    with style():  # first of all: is matplotlib there?
        found, *others = compare_splits(names, **options)
        write_atomic(output, render(found, *others))
    return found


def render(found: Comparison, *others: Comparison) -> str:
    """The page of a comparison; of those on other test sets it has the scores."""
    runs = [one.run for variant in found.variants for one in variant.runs]
    lead = f"{plural(len(runs), 'run')} of {plural(len(found.variants), 'model')}, {found.split} set"
    lead += f"; baseline {found.baseline.label}" if len(found.variants) > 1 else ""
    page = require("jinja2", "report").Environment(autoescape=True).from_string(_PAGE.read_text(encoding="utf-8"))
    rendered: str = page.render(
        title=", ".join(dict.fromkeys(run.recipe.name for run in runs)),
        lead=lead,
        sections=[section for section in _sections(found, others) if section[2]],
        kind=_kind,
        version=__version__,
    )
    return rendered


def _kind(table: Table, column: int) -> str:
    """The class of a column's cells: sentences wrap, other text and numbers do not."""
    if column and column in table.text and table.title.startswith(_FAVOUR):
        return "prose"
    return "text" if column == 0 or column in table.text else "number"


def _sections(found: Comparison, others: Sequence[Comparison]) -> Iterator[tuple[str, str, Blocks]]:
    yield "Scores", "scores", _scores(found)
    for number, other in enumerate(others):
        yield f"Scores on {other.split}", f"scores-{number}", _scores(other)
    yield "What differs", "differences", _differences(found)
    yield "Samples", "samples", _samples(found)
    yield "Learning curves", "curves", _curves(found)
    yield "Parts of the test set", "parts", _breakdowns(found)
    yield "Parameters", "parameters", _ledger(found)
    yield "Learned rules", "rules", _rules(found)
    yield "Runs and recipes", "runs", _recipes(found)


def _scores(found: Comparison) -> Blocks:
    scores, *others = comparison_tables(found)
    lines = [*found.notes(), *(f"no result yet: {command}" for command in found.missing())]
    return [*(("table", each) for each in (scores, *_intervals(found), *others)), ("lines", lines)]


def _intervals(found: Comparison) -> Iterator[Table]:
    """The 95 % intervals of what was tested, which are wider than the deviation over seeds."""
    tested = {label: [(test.metric, test.found.system) for test in tests] for label, tests in found.tests.items()}
    first = next(iter(found.tests.values()), ())
    tested[found.baseline.label] = [(test.metric, test.found.baseline) for test in first]
    rows = [
        [
            variant.label,
            metric,
            within(each.value, each.low, each.high),
            "items and seeds" if len(variant.answered) > 1 else "items, of this training only",
        ]
        for variant in found.variants
        for metric, each in tested.get(variant.label, ())
    ]
    if rows:
        yield Table("95 % intervals", ["model", "metric", "mean (interval)", "over"], rows, text=(1, 3))


def _differences(found: Comparison) -> Blocks:
    lines = list(found.differences())
    if len(found.variants) == 1:
        return []
    if lines:
        return [("text", f"Besides n and the seed, from {found.baseline.label}:"), ("lines", lines)]
    return [("text", "Nothing but n, the algebra and the seed.")]


# ------------------------------------------------------------------------------------------------------------- plots


def _curves(found: Comparison) -> Blocks:
    logs = {variant.label: [read_metrics(one.run.metrics_path) for one in variant.runs] for variant in found.variants}
    pictures = []
    wanted = [
        ("train", "loss", "training loss"),
        *(("validation", name, words) for name, words in _VALIDATIONS.items()),
    ]
    for event, name, words in wanted:
        lines = {label: [series(entries, event, name) for entries in seeds] for label, seeds in logs.items()}
        if any(points for seeds in lines.values() for points in seeds):
            svg = to_svg(plots.curves(lines, words), f"curve-{event}-{name}")
            ends = "; ".join(f"{label} ends at {_end(seeds)}" for label, seeds in lines.items())
            caption = f"{words.capitalize()}. Each colour is a model, each line style a seed."
            pictures.append(Picture(svg, f"{words} over the steps: {ends}", caption))
    return [("grid", pictures)] if pictures else []


def _end(seeds: Sequence[Sequence[tuple[float, float]]]) -> str:
    return mean_and_spread([points[-1][1] for points in seeds if points])


def _breakdowns(found: Comparison) -> Blocks:
    comparer = kind_of(found.baseline.first.run.recipe).comparer
    by_title: dict[str, dict[str, Breakdown]] = {}
    labels = [variant.label for variant in found.variants]
    for variant in found.variants if comparer is not None else ():
        for each in comparer.breakdowns(variant.answered) if comparer and variant.answered else ():
            by_title.setdefault(each.title, {})[variant.label] = each
    pictures = []
    for index, (title, parts) in enumerate(by_title.items()):
        words = "; ".join(f"{label}: {_part_words(each)}" for label, each in parts.items())
        caption = f"{title[0].upper()}{title[1:]}. Whiskers: standard deviation over seeds, where there are several."
        pictures.append(Picture(to_svg(plots.breakdown(parts, labels), f"part-{index}"), f"{title}. {words}", caption))
    return [("grid", pictures)] if pictures else []


def _part_words(one: Breakdown) -> str:
    return ", ".join(f"{name} {mean_and_spread(scores)}" for name, _, scores in one.parts)


def _ledger(found: Comparison) -> Blocks:
    rows = {variant.label: counts for variant in found.variants if (counts := _counts(variant))}
    if not rows:
        return []
    words = "; ".join(
        f"{label}: " + ", ".join(f"{name} {count:,}" for name, count in each.items() if count)
        for label, each in rows.items()
    )
    shown = Picture(
        to_svg(plots.ledger(rows), "ledger"), f"Parameters. {words}", "What the parameters of each model are of."
    )
    names = list(dict.fromkeys(name for each in rows.values() for name in each))
    cells = [
        [label, *(f"{each.get(name, 0):,}" for name in names), f"{sum(each.values()):,}"]
        for label, each in rows.items()
    ]
    return [("grid", [shown]), ("table", Table("parameters", ["model", *names, "all"], cells))]


def _counts(variant: Variant) -> dict[str, int]:
    """What a model's parameters are of: inside by its ledger, and the vocabulary's part as it was stored."""
    sizes = variant.parameters
    if sizes is None:
        return {}
    inner: Totals = ledger_for_recipe(variant.first.run.recipe).without_embeddings
    counts = {
        "weights of maps (S)": inner.components,
        "rules (A)": inner.rule,
        "biases": inner.bias,
        "norms": inner.norm,
        "other": inner.embedding + inner.other,
    }
    return {**counts, "embeddings, generator": sizes.total - sum(counts.values())}


def _rules(found: Comparison) -> Blocks:
    shown = [block for index, variant in enumerate(found.variants) for block in rules_part(variant, f"rule-{index}")]
    words = (
        "A layer's matrix H stays as it is when its terms are mixed by an invertible matrix P, so a rule is known "
        "up to P only. It is compared with known algebras in the basis that is nearest to each: the distance is "
        "‖P·A − A*‖ / ‖A*‖, 0 where the algebra lies in the span of the learned matrices, 1 where orthogonal to it."
    )
    return [("text", words), *shown] if shown else []


# ----------------------------------------------------------------------------------------------- samples and recipes


def _samples(found: Comparison) -> Blocks:
    others = [variant for variant in found.variants if variant is not found.baseline and variant.answered]
    comparer = kind_of(found.baseline.first.run.recipe).comparer
    if comparer is None or not found.baseline.answered or not others:
        return []
    base, blocks = found.baseline.answered[0], Blocks()
    scores = comparer.item_scores(base)
    for variant in others:
        own = variant.answered[0]
        gains = [mine - theirs for mine, theirs in zip(comparer.item_scores(own), scores, strict=True)]
        order = sorted(range(len(gains)), key=lambda row: gains[row])
        better = [row for row in reversed(order) if gains[row] > 0][:_SAMPLES]
        worse = [row for row in order if gains[row] < 0][:_SAMPLES]
        names = (found.baseline.label, variant.label)
        blocks.append(("heading", f"{variant.label} beside {found.baseline.label}"))
        for favoured, rows in ((names[1], better), (names[0], worse)):
            if rows:
                blocks.append(("table", _sample_table(f"{_FAVOUR} {favoured}", names, rows, (base, own), gains)))
    return blocks


def _sample_table(
    caption: str, names: tuple[str, str], rows: Sequence[int], answers: tuple[Answers, Answers], gains: Sequence[float]
) -> Table:
    base, own = answers
    cells = [
        [
            str(row + 1),
            base.asked[row],
            base.right[row],
            base.given[row],
            own.given[row],
            f"{gains[row]:+.1f}".replace("-", "−"),
        ]
        for row in rows
    ]
    return Table(caption, ["line", "source", "reference", *names, "difference"], cells, text=(1, 2, 3, 4))


def _recipes(found: Comparison) -> Blocks:
    rows: list[list[str]] = []
    for variant in found.variants:
        for one in variant.runs:
            environment: Mapping[str, Any] = one.run.environment()
            where = environment.get("processor") or environment.get("device_name") or ""
            commit = str(environment.get("git") or "")[:7]
            seed, step = str(one.seed), f"{one.summary.step:,}"
            rows.append([one.run.name, variant.label, seed, one.summary.state, step, commit, str(where)])
    head = ["run", "model", "seed", "state", "step", "commit", "processor"]
    recipes = [
        ("details", (f"recipe of {variant.label}", [("code", dump_recipe(variant.first.run.recipe))]))
        for variant in found.variants
    ]
    return [("table", Table("runs", head, rows, text=(1, 3, 5, 6))), *recipes]
