"""``report``: all about several runs on one page that needs no network."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from phmctl import __version__
from phmctl.accounting.ledger import Totals, ledger_for_recipe
from phmctl.comparison.compare import Comparison, compare_runs
from phmctl.comparison.formats import comparison_tables, methods
from phmctl.comparison.variants import Variant, mean_and_spread
from phmctl.console import Table
from phmctl.errors import OutputError
from phmctl.files import write_atomic
from phmctl.recipe.loading import dump_recipe
from phmctl.reports import plots
from phmctl.reports.drawing import style, to_svg
from phmctl.reports.html import Markup, Part, element, join, listing, picture, plural, section, table
from phmctl.reports.rules import rules_part
from phmctl.runs.metrics import read_metrics, series
from phmctl.tasks.answers import Answers, Breakdown
from phmctl.tasks.registry import kind_of

_PAGE = Path(__file__).with_name("page.html")
_SAMPLES = 5  # of each kind
_VALIDATIONS = {"loss": "validation loss", "bleu": "validation BLEU (greedy)", "accuracy": "validation accuracy"}


def write_report(names: Sequence[str | Path], output: Path, **options: Any) -> Comparison:
    """Write a page about runs.

    Args:
        names: runs, folders of runs, or tags.
        output: the file, which is replaced.
        options: of :func:`~phmctl.comparison.compare.compare_runs`.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RunError: a name means no run, or the runs do not compare.
        OutputError: the file cannot be written.
    """
    if output.is_dir():
        raise OutputError(f"{output} is a folder; name a file: --output {output / 'report.html'}")
    with style():  # first of all: is matplotlib there?
        found = compare_runs(names, **options)
        write_atomic(output, render(found))
    return found


def render(found: Comparison) -> str:
    """Return the page."""
    runs = [one.run for variant in found.variants for one in variant.runs]
    title = ", ".join(dict.fromkeys(run.recipe.name for run in runs))
    parts = [(name, key, part) for name, key, part in _parts(found) if part is not None]
    links = element("nav", *(element("a", name, href=f"#{key}") for name, key, _ in parts), aria_label="sections")
    lead = f"{plural(len(runs), 'run')} of {plural(len(found.variants), 'model')}, {found.split} set"
    lead += f"; baseline {found.baseline.label}" if len(found.variants) > 1 else ""
    footer = element("footer", f"phmctl {__version__}. Everything on this page is in this file.")
    head = element("header", element("h1", title), element("p", lead, class_="lead"), links)
    body = join([head, element("main", *(section(name, key, part) for name, key, part in parts)), footer])
    page = _PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition("{title}")
    middle, _, after = rest.partition("{body}")
    return f"{before}{escape(title)}{middle}{body}{after}"


def _parts(found: Comparison) -> Iterator[tuple[str, str, Markup | None]]:
    yield "Scores", "scores", _scores(found)
    yield "What differs", "differences", _differences(found)
    yield "Learning curves", "curves", _curves(found)
    yield "Parts of the test set", "parts", _breakdowns(found)
    yield "Parameters", "parameters", _ledger(found)
    yield "Learned rules", "rules", _rules(found)
    yield "Samples", "samples", _samples(found)
    yield "Runs and recipes", "runs", _recipes(found)


def _scores(found: Comparison) -> Markup:
    scores, *others = (_as_html(each) for each in comparison_tables(found))
    tables = [scores, *_intervals(found), *others]
    lines = [*(f"Tested by: {method}." for method in methods(found)), *found.notes()]
    missing = [f"no result yet: {command}" for command in found.missing()]
    return join([*tables, listing([*lines, *missing])])


def _intervals(found: Comparison) -> Iterator[Markup]:
    """Yield the 95 % intervals of what was tested, which are wider than the deviation over seeds."""
    tested = {label: [(test.metric, test.found.system) for test in tests] for label, tests in found.tests.items()}
    first = next(iter(found.tests.values()), ())
    tested[found.baseline.label] = [(test.metric, test.found.baseline) for test in first]
    rows = [
        [
            variant.label,
            metric,
            f"{each.value:.2f}",
            f"{each.low:.2f} to {each.high:.2f}",
            "items and seeds" if len(variant.answered) > 1 else "items, of this training only",
        ]
        for variant in found.variants
        for metric, each in tested.get(variant.label, ())
    ]
    if rows:
        yield table("95 % intervals", ["model", "metric", "mean", "interval", "over"], rows, text=(0, 1, 4))


def _as_html(shown: Table) -> Markup:
    rows = [[str(cell) for cell in row] for row in shown.rows]
    return table(shown.title, list(shown.columns), rows, text=(0, *shown.text))


def _differences(found: Comparison) -> Markup | None:
    lines = list(found.differences())
    if len(found.variants) == 1:
        return None
    if lines:
        return join([element("p", f"Besides n and the seed, from {found.baseline.label}:"), listing(lines)])
    return element("p", "Nothing but n, the algebra and the seed.")


# ------------------------------------------------------------------------------------------------------------- plots


def _curves(found: Comparison) -> Markup | None:
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
            caption = f"{words.capitalize()}. A colour is a model, a style of line a seed."
            pictures.append(picture(svg, f"{words} over the steps: {ends}", caption))
    return element("div", *pictures, class_="grid") if pictures else None


def _end(seeds: Sequence[Sequence[tuple[float, float]]]) -> str:
    return mean_and_spread([points[-1][1] for points in seeds if points])


def _breakdowns(found: Comparison) -> Markup | None:
    comparer = kind_of(found.baseline.first.run.recipe).comparer
    if comparer is None:
        return None
    by_title: dict[str, dict[str, Breakdown]] = {}
    for variant in found.variants:
        for each in comparer.breakdowns(variant.answered) if variant.answered else ():
            by_title.setdefault(each.title, {})[variant.label] = each
    pictures = []
    for index, (title, parts) in enumerate(by_title.items()):
        words = "; ".join(f"{label}: {_part_words(each)}" for label, each in parts.items())
        caption = f"{title[0].upper()}{title[1:]}. Whiskers: standard deviation over seeds, where there are several."
        pictures.append(picture(to_svg(plots.breakdown(parts), f"part-{index}"), f"{title}. {words}", caption))
    return element("div", *pictures, class_="grid") if pictures else None


def _part_words(one: Breakdown) -> str:
    return ", ".join(f"{name} {mean_and_spread(scores)}" for name, _, scores in one.parts)


def _ledger(found: Comparison) -> Markup | None:
    rows = {variant.label: counts for variant in found.variants if (counts := _counts(variant))}
    if not rows:
        return None
    words = "; ".join(
        f"{label}: " + ", ".join(f"{name} {count:,}" for name, count in each.items() if count)
        for label, each in rows.items()
    )
    shown = picture(
        to_svg(plots.ledger(rows), "ledger"), f"Parameters. {words}", "What the parameters of each model are of."
    )
    names = list(dict.fromkeys(name for each in rows.values() for name in each))
    cells = [
        [label, *(f"{each.get(name, 0):,}" for name in names), f"{sum(each.values()):,}"]
        for label, each in rows.items()
    ]
    return join([element("div", shown, class_="grid"), table("parameters", ["model", *names, "all"], cells)])


def _counts(variant: Variant) -> dict[str, int]:
    """Return what a model's parameters are of: inside by its ledger, and the vocabulary's part as it was stored."""
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


def _rules(found: Comparison) -> Markup | None:
    parts = [rules_part(variant, f"rule-{index}") for index, variant in enumerate(found.variants)]
    shown = [part for part in parts if part is not None]
    if not shown:
        return None
    words = (
        "A layer's matrix H stays as it is when its terms are mixed by an invertible matrix P, so a rule is known "
        "up to P only. It is compared with known algebras in the basis that is nearest to each: the distance is "
        "‖P·A − A*‖ / ‖A*‖, 0 where the algebra lies in the span of the learned matrices, 1 where orthogonal to it."
    )
    return join([element("p", words), *shown])


# ----------------------------------------------------------------------------------------------- samples and recipes


def _samples(found: Comparison) -> Markup | None:
    others = [variant for variant in found.variants if variant is not found.baseline and variant.answered]
    comparer = kind_of(found.baseline.first.run.recipe).comparer
    if comparer is None or not found.baseline.answered or not others:
        return None
    base, parts = found.baseline.answered[0], []
    scores = comparer.item_scores(base)
    for variant in others:
        own = variant.answered[0]
        gains = [mine - theirs for mine, theirs in zip(comparer.item_scores(own), scores, strict=True)]
        order = sorted(range(len(gains)), key=lambda row: gains[row])
        better = [row for row in reversed(order) if gains[row] > 0][:_SAMPLES]
        worse = [row for row in order if gains[row] < 0][:_SAMPLES]
        names = (found.baseline.label, variant.label)
        parts.append(element("h3", f"{variant.label} beside {found.baseline.label}"))
        for caption, rows in ((f"most in favour of {names[1]}", better), (f"most in favour of {names[0]}", worse)):
            if rows:
                parts.append(_sample_table(caption, names, rows, (base, own), gains))
    return join(parts)


def _sample_table(
    caption: str, names: tuple[str, str], rows: Sequence[int], answers: tuple[Answers, Answers], gains: Sequence[float]
) -> Markup:
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
    head = ["line", "source", "reference", *names, "difference"]
    return table(caption, head, cells, text=(0, 1, 2, 3, 4), prose=True)


def _recipes(found: Comparison) -> Markup:
    rows: list[list[Part]] = []
    for variant in found.variants:
        for one in variant.runs:
            environment: Mapping[str, Any] = one.run.environment()
            where = environment.get("processor") or environment.get("device_name") or ""
            commit = str(environment.get("git") or "")[:7]
            rows.append(
                [
                    one.run.name,
                    variant.label,
                    str(one.seed),
                    one.summary.state,
                    f"{one.summary.step:,}",
                    commit,
                    str(where),
                ]
            )
    head = ["run", "model", "seed", "state", "step", "commit", "processor"]
    recipes = [
        element(
            "details",
            element("summary", f"recipe of {variant.label}"),
            element("pre", dump_recipe(variant.first.run.recipe)),
        )
        for variant in found.variants
    ]
    return join([table("runs", head, rows, text=(0, 1, 3, 5, 6)), *recipes])
