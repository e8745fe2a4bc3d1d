"""Make an HTML page about several runs that needs no network: scores, curves, samples and recipes."""

import io
import math
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phmctl.console import Table
from phmctl.errors import require
from phmctl.metrics.classification import part_name, parts
from phmctl.recipe.loading import dump_recipe
from phmctl.results.compare import Comparison
from phmctl.results.variants import mean_and_spread
from phmctl.runs.results import read_metrics, series
from phmctl.tasks import trains
from phmctl.version import __version__

# Content of a section: pairs of a type and a value, which ``page.html`` shows with all text escaped. Types are
# ``table``, ``text``, ``heading``, ``code``, ``lines``, ``pictures``, and ``details`` (a summary and blocks).
Blocks = list[tuple[str, object]]

COLORS = ("#1f5fa6", "#c2571a", "#2f7d4f", "#8a4d9e", "#a3313f", "#5d6b78", "#8a7a16", "#1a8288")
MATPLOTLIB_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "phmctl",  # equal figures have equal ids
    "text.parse_math": False,
    "font.size": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.35,
    "legend.frameon": False,
}
_PAGE = Path(__file__).with_name("page.html")
_LINE_STYLES = ("-", "--", ":", "-.")
_LOG_SCALE_RATIO = 1000  # ratio of values above which an axis is logarithmic
_POINTS = 240  # largest number of points of a line
_SAMPLES = 5  # samples in favour of either model
_CURVES = (
    ("train", "loss", "training loss"),
    ("validation", "loss", "validation loss"),
    ("validation", "bleu", "validation BLEU (greedy)"),
    ("validation", "accuracy", "validation accuracy"),
)


def render(comparison: Comparison, *additional: Comparison) -> str:
    """Return the page of a comparison, with the scores of the comparisons on other test sets.

    Raises MissingExtraError if matplotlib or jinja2 is not installed.
    """
    names = dict.fromkeys(variant.first.run.recipe.name for variant in comparison.variants)
    sections: list[tuple[str, str, Blocks]] = []
    for scored in (comparison, *additional):
        tables: Blocks = [("table", table) for table in scored.tables()]
        lines = [*scored.notes(), *(f"no result yet: {command}" for command in scored.missing())]
        sections.append((f"Scores on {scored.split}", f"scores-{scored.split}", [*tables, ("lines", lines)]))
    sections += [
        ("What differs", "differences", [("lines", list(comparison.differences()))]),
        ("Samples", "samples", _samples(comparison)),
        ("Learning curves", "curves", _curves(comparison)),
        ("Parts of the test set", "parts", _breakdowns(comparison)),
        ("Runs and recipes", "runs", _runs(comparison)),
    ]
    page = require("jinja2", "report").Environment(autoescape=True).from_string(_PAGE.read_text(encoding="utf-8"))
    rendered: str = page.render(
        title=", ".join(names),
        lead=f"{len(comparison.variants):,} models on {comparison.split}; baseline {comparison.baseline.label}",
        sections=[(name, key, blocks) for name, key, blocks in sections if any(value for _, value in blocks)],
        column_class=lambda table, column: "text" if column in (0, *table.text) else "number",
        version=__version__,
    )
    return rendered


def _samples(comparison: Comparison) -> Blocks:
    """Return the items on which each model differs most from the baseline, in either direction."""
    baseline = comparison.baseline
    comparer = trains(baseline.first.run.recipe).comparer
    if comparer is None or not baseline.answers:
        return []
    base, blocks = baseline.answers[0], Blocks()
    base_scores = comparer.item_scores(base)
    for variant in comparison.variants:
        if variant is baseline or not variant.answers:
            continue
        answers = variant.answers[0]
        gains = [score - other for score, other in zip(comparer.item_scores(answers), base_scores, strict=True)]
        order = sorted(range(len(gains)), key=gains.__getitem__)
        better = [row for row in reversed(order) if gains[row] > 0][:_SAMPLES]
        worse = [row for row in order if gains[row] < 0][:_SAMPLES]
        head = ["line", "source", "reference", baseline.label, variant.label, "difference"]
        blocks.append(("heading", f"{variant.label} compared with {baseline.label}"))
        for label, rows in ((variant.label, better), (baseline.label, worse)):
            cells = []
            for row in rows:
                texts = [base.texts[row], base.references[row], base.outputs[row], answers.outputs[row]]
                cells.append([str(row + 1), *texts, f"{gains[row]:+.1f}".replace("-", "−")])
            if cells:
                blocks.append(("table", Table(f"most in favour of {label}", head, cells, text=(1, 2, 3, 4))))
    return blocks


def _curves(comparison: Comparison) -> Blocks:
    logs = {}
    for variant in comparison.variants:
        logs[variant.label] = [read_metrics(member.run.metrics_path) for member in variant.runs]
    pictures = []
    for event, name, title in _CURVES:
        curves = {label: [series(entries, event, name) for entries in seeds] for label, seeds in logs.items()}
        ends = []
        for label, seeds in curves.items():
            ends.append(f"{label} ends at {mean_and_spread([points[-1][1] for points in seeds if points])}")
        if any(points for seeds in curves.values() for points in seeds):
            description = f"{title} over the steps: {'; '.join(ends)}"
            caption = f"{title.capitalize()}. Each colour is a model, each line style a seed."
            pictures.append({"uri": _draw(curves, title), "description": description, "caption": caption})
    return [("pictures", pictures)]


def _draw(curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]], title: str) -> str:
    """Draw curves over the steps: a colour for each model, a line style for each seed. Return the URI of an SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=(4.4, 2.75), dpi=72, layout="constrained")  # as wide as a phone
        axes = figure.add_subplot(xlabel="step", title=title)
        for index, (label, seeds) in enumerate(curves.items()):
            for number, points in enumerate(filter(None, seeds)):
                shown = points[:: -math.ceil(len(points) / _POINTS)]
                axes.plot(
                    *zip(*shown, strict=True),
                    _LINE_STYLES[number % len(_LINE_STYLES)],
                    color=COLORS[index % len(COLORS)],
                    marker="o" if len(shown) < 12 else None,
                    markersize=3,
                    label=label if number == 0 else "_",
                )
        values = [value for seeds in curves.values() for points in seeds for _, value in points]
        if min(values) > 0 and max(values) > _LOG_SCALE_RATIO * min(values):
            axes.set_yscale("log")
        axes.legend(fontsize=7.5)
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matplotlib's font lacks some letters, but the browser has other fonts
            figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}"


def _breakdowns(comparison: Comparison) -> Blocks:
    """Return tables of the scores of parts of the test set: the task's division, and one for each stored number."""
    comparer = trains(comparison.baseline.first.run.recipe).comparer
    models = {variant.label: variant.answers for variant in comparison.variants if variant.answers}
    if comparer is None or not models:
        return []
    first = next(iter(models.values()))[0]
    divisions = {comparer.part_name: comparer.parts(first)}
    divisions |= {name: parts(numbers) for name, numbers in first.groups.items()}
    blocks: Blocks = []
    for name, division in divisions.items():
        columns = []
        for seeds in models.values():
            scores = [comparer.scores(answers, division) for answers in seeds]
            columns.append([mean_and_spread(values) for values in zip(*scores, strict=True)])
        rows = []
        for (value, items), *cells in zip(division, *columns, strict=True):
            rows.append((part_name(value), f"{len(items):,}", *cells))
        blocks.append(("table", Table(f"{comparer.score_name} by {name}", [name, "items", *models], rows)))
    return blocks


def _runs(comparison: Comparison) -> Blocks:
    rows, recipes = [], Blocks()
    for variant in comparison.variants:
        for member in variant.runs:
            figures = [str(member.seed), member.summary.state, f"{member.summary.step:,}"]
            rows.append([member.run.name, variant.label, *figures, "; ".join(sorted(member.machines))])
        recipes.append(("details", (f"recipe of {variant.label}", [("code", dump_recipe(variant.first.run.recipe))])))
    head = ["run", "model", "seed", "state", "step", "trained on"]
    return [("table", Table("runs", head, rows, text=(1, 3, 5))), *recipes]
