"""Write an HTML page about several runs that needs no network: scores, curves, samples, parameters and rules."""

import io
import math
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from phmctl import __version__
from phmctl.algebra.kronecker import LEARNED
from phmctl.checkpoints import read_checkpoint
from phmctl.console import Table
from phmctl.errors import OutputError, require
from phmctl.files import write_atomic, writing
from phmctl.metrics.classification import part_name, parts
from phmctl.nn.structures import PARAMETER_NAMES, KroneckerSum, structure_of
from phmctl.recipe.loading import dump_recipe
from phmctl.results.compare import Comparison
from phmctl.results.ledger import ledger_for_recipe
from phmctl.results.style import COLORS, DARK, LIGHT, MATPLOTLIB_STYLE, css_variables
from phmctl.results.variants import ComparedRun, Variant, mean_and_spread
from phmctl.runs.results import read_metrics, series
from phmctl.tasks.registry import trained_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Content of a section: pairs of a type and a value, which ``page.html`` shows with all text escaped. Types are
# ``table``, ``text``, ``heading``, ``code``, ``lines``, ``pictures``, and ``details`` (a summary and its blocks).
Blocks = list[tuple[str, Any]]

Points = Sequence[tuple[float, float]]
_PAGE = Path(__file__).with_name("page.html")
_MARK, _MARK_WITHIN = b'<meta name="generator" content="phmctl ', 1000  # a page has the mark within these bytes
_LINE_STYLES = ("-", "--", ":", "-.")
_LABEL_LENGTH = 44  # characters
_LOG_SCALE_RATIO = 1000  # ratio of values above which an axis is logarithmic
_POINTS = 240  # largest number of points of a line
_MATRICES_IN_A_ROW = 8  # of the picture of a rule
_SAMPLES = 5  # samples in favour of either model
_VALIDATIONS = {"loss": "validation loss", "bleu": "validation BLEU (greedy)", "accuracy": "validation accuracy"}


def write_report(make_comparisons: Callable[[], list[Comparison]], output: Path) -> list[Comparison]:
    """Make the comparisons, write their page, and return them. Raises OutputError if it would replace another file."""
    if output.is_dir():
        raise OutputError(f"{output} is a folder; name a file: --output {output / 'report.html'}")
    with writing(output):
        before = output.read_bytes()[:_MARK_WITHIN] if output.is_file() else b""
    if before and _MARK not in before:
        raise OutputError(f"{output} is not replaced, because phmctl report did not write it; name another file")
    with style():  # fails before the comparison if matplotlib is missing
        comparisons = make_comparisons()
        write_atomic(output, render(*comparisons), follow=True)
    return comparisons


def render(comparison: Comparison, *additional: Comparison) -> str:
    """Return the page of a comparison, with the scores of the comparisons on other test sets."""
    variants = comparison.variants
    runs = [member.run for variant in variants for member in variant.runs]
    sections = [("Scores", "scores", _scores(comparison))]
    for number, addition in enumerate(additional):
        sections.append((f"Scores on {addition.split}", f"scores-{number}", _scores(addition)))
    sections += [
        ("What differs", "differences", _differences(comparison)),
        ("Samples", "samples", _samples(comparison)),
        ("Learning curves", "curves", _curves(comparison)),
        ("Parts of the test set", "parts", _breakdowns(comparison)),
        ("Parameters", "parameters", _parameters(comparison)),
        ("Learned rules", "rules", _rules(comparison)),
        ("Runs and recipes", "runs", _runs(comparison)),
    ]
    lead = f"{_count(len(runs), 'run')} of {_count(len(variants), 'model')}, {comparison.split} set"
    if len(variants) > 1:
        lead += f"; baseline {comparison.baseline.label}"
    page = require("jinja2", "report").Environment(autoescape=True).from_string(_PAGE.read_text(encoding="utf-8"))
    rendered: str = page.render(
        title=", ".join(dict.fromkeys(run.recipe.name for run in runs)),
        lead=lead,
        sections=[section for section in sections if section[2]],
        column_class=lambda table, column: "text" if column in (0, *table.text) else "number",
        version=__version__,
        light=css_variables(LIGHT),
        dark=css_variables(DARK),
    )
    return rendered


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _scores(comparison: Comparison) -> Blocks:
    lines = [*comparison.notes(), *(f"no result yet: {command}" for command in comparison.missing())]
    return [*(("table", table) for table in comparison.tables()), ("lines", lines)]


def _differences(comparison: Comparison) -> Blocks:
    if len(comparison.variants) < 2:
        return []
    lines = list(comparison.differences()) or ["nothing"]
    return [("text", f"From {comparison.baseline.label}, besides n, the algebra and the seed:"), ("lines", lines)]


def _curves(comparison: Comparison) -> Blocks:
    logs = {}
    for variant in comparison.variants:
        logs[variant.label] = [read_metrics(member.run.metrics_path) for member in variant.runs]
    validations = [("validation", name, title) for name, title in _VALIDATIONS.items()]
    pictures = []
    for event, name, title in [("train", "loss", "training loss"), *validations]:
        curves = {label: [series(entries, event, name) for entries in seeds] for label, seeds in logs.items()}
        if not any(points for seeds in curves.values() for points in seeds):
            continue
        ends = []
        for label, seeds in curves.items():
            ends.append(f"{label} ends at {mean_and_spread([points[-1][1] for points in seeds if points])}")
        description = f"{title} over the steps: {'; '.join(ends)}"
        caption = f"{title.capitalize()}. Each colour is a model, each line style a seed."
        pictures.append(picture(draw_curves(curves, title), description, caption))
    return [("pictures", pictures)] if pictures else []


def _breakdowns(comparison: Comparison) -> Blocks:
    """Return tables of the scores of parts of the test set: the task's division, and one for each stored number."""
    comparer = trained_kind(comparison.baseline.first.run.recipe).comparer
    models = {variant.label: variant.answers for variant in comparison.variants if variant.answers}
    if comparer is None or not models:
        return []
    first = next(iter(models.values()))[0]
    divisions = {comparer.part_name: comparer.parts(first)}
    for name, numbers in first.groups.items():
        divisions[name] = parts(numbers)
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


def _parameters(comparison: Comparison) -> Blocks:
    """Return a table of parameter counts: from the ledger inside the model, from the checkpoint in total."""
    rows = []
    for variant in comparison.variants:
        if variant.parameters is not None:
            inner = ledger_for_recipe(variant.first.run.recipe).without_embeddings
            counts = [inner.components, inner.rule, inner.bias, inner.norm, inner.embedding + inner.other]
            embeddings = variant.parameters - sum(counts)
            rows.append([variant.label, *(f"{count:,}" for count in (*counts, embeddings, variant.parameters))])
    head = ["model", "weights of maps (S)", "rules (A)", "biases", "norms", "other", "embeddings, generator", "all"]
    return [("table", Table("parameters", head, rows))] if rows else []


def _rules(comparison: Comparison) -> Blocks:
    blocks = [block for variant in comparison.variants for block in _rules_of(variant)]
    text = (
        "A layer's matrix H stays the same when its terms are mixed by an invertible matrix P, so a rule is known "
        "up to P only. Each picture shows the learned matrices A₁ … Aₙ. Blue is positive, red is negative; the colour "
        "is relative to the largest entry."
    )
    return [("text", text), *blocks] if blocks else []


@dataclass(frozen=True)
class LearnedRule:
    name: str  # of the first map with this rule
    A: Tensor  # (n, n, n)
    shape: str  # k×d of the map


def learned_rules(member: ComparedRun) -> list[LearnedRule]:
    """Return the rules in the scored checkpoint of a run, else in its best or last; factors are multiplied out."""
    preferred = [member.result.checkpoint] if member.result is not None else []
    names = [name for name in (*preferred, "best", "last") if name in member.run.checkpoint_names()]
    if not names:
        return []
    saved = read_checkpoint(member.run.checkpoint(names[0]), ["model"]).tensors["model"]
    rules = []
    for name in saved:
        prefix = name.removesuffix("S")
        tensors = {part: saved[f"{prefix}{part}"] for part in PARAMETER_NAMES if f"{prefix}{part}" in saved}
        structure = structure_of(tensors, LEARNED) if prefix != name else None
        if isinstance(structure, KroneckerSum):
            A = structure.rule(tensors)
            shape = "×".join(str(size * len(A)) for size in tensors["S"].shape[1:])
            rules.append(LearnedRule(prefix.removesuffix(".") or "the map", A, shape))
    return rules


def _rules_of(variant: Variant) -> Blocks:
    member = (variant.scored or variant.runs)[0]
    rules = learned_rules(member)
    if not rules:
        return []
    pictures = []
    for rule in rules:
        description = f"The {len(rule.A)} matrices of {rule.name}; largest entry {float(rule.A.abs().max()):.2f}"
        pictures.append(picture(draw_rule(rule.A), description, f"{rule.name} ({rule.shape})"))
    orders = ", ".join(map(str, sorted({len(rule.A) for rule in rules})))
    return [
        ("heading", f"{variant.label}, seed {member.seed}: {_count(len(rules), 'rule')}, n = {orders}"),
        ("details", ("the matrices A₁ … Aₙ of each rule", [("pictures", pictures)])),
    ]


def _samples(comparison: Comparison) -> Blocks:
    """Return the items on which each model differs most from the baseline, in either direction."""
    baseline = comparison.baseline
    comparer = trained_kind(baseline.first.run.recipe).comparer
    if comparer is None or not baseline.answers:
        return []
    base = baseline.answers[0]
    base_scores = comparer.item_scores(base)
    blocks: Blocks = []
    for variant in comparison.variants:
        if variant is baseline or not variant.answers:
            continue
        answers = variant.answers[0]
        scores = comparer.item_scores(answers)
        gains = [score - base_score for score, base_score in zip(scores, base_scores, strict=True)]
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


def _runs(comparison: Comparison) -> Blocks:
    rows: list[list[str]] = []
    recipes: Blocks = []
    for variant in comparison.variants:
        for member in variant.runs:
            state, step = member.summary.state, f"{member.summary.step:,}"
            commit = str(member.run.environment().get("git") or "")[:7]
            machines = "; ".join(sorted(member.machines))
            rows.append([member.run.name, variant.label, str(member.seed), state, step, commit, machines])
        code = ("code", dump_recipe(variant.first.run.recipe))
        recipes.append(("details", (f"recipe of {variant.label}", [code])))
    head = ["run", "model", "seed", "state", "step", "commit", "trained on"]
    return [("table", Table("runs", head, rows, text=(1, 3, 5, 6))), *recipes]


def style() -> Any:
    """Return the context in which pictures are drawn and saved. Raises MissingExtraError without matplotlib."""
    return require("matplotlib", "report").rc_context(MATPLOTLIB_STYLE)


def picture(figure: "Figure", description: str, caption: str) -> dict[str, str]:
    """Return a figure as the URI of an SVG image, with a description for screen readers and a caption."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matplotlib's font lacks some letters; the browser has other fonts
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    uri = f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}"
    return {"uri": uri, "description": description, "caption": caption}


def _figure(width: float = 4.4, height: float = 2.75) -> "Figure":
    """Return an empty figure, by default as wide as a phone; sizes are inches of 72 CSS pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=72, layout="constrained")


def draw_curves(curves: Mapping[str, Sequence[Points]], title: str) -> "Figure":
    """Draw curves over the steps, with a colour for each model and a line style for each seed."""
    figure = _figure()
    axes = figure.add_subplot(xlabel="step", title=title)
    for index, (label, seeds) in enumerate(curves.items()):
        for number, points in enumerate(seeds):
            size = math.ceil(len(points) / _POINTS) or 1  # neighbouring points are averaged to keep the file small
            groups = [points[start : start + size] for start in range(0, len(points), size)]
            axes.plot(
                [group[-1][0] for group in groups],
                [fmean(value for _, value in group) for group in groups],
                _LINE_STYLES[number % len(_LINE_STYLES)],
                color=COLORS[index % len(COLORS)],
                marker="o" if len(groups) < 12 else None,
                markersize=3,
                label=label[:_LABEL_LENGTH] if number == 0 else "_",
            )
    values = [value for seeds in curves.values() for points in seeds for _, value in points]
    if min(values) > 0 and max(values) > _LOG_SCALE_RATIO * min(values):
        axes.set_yscale("log")
    axes.legend(fontsize=7.5)
    return figure


def draw_rule(rule: Tensor) -> "Figure":
    """Draw the matrices of a rule; colours are relative to the largest absolute entry."""
    n, width = len(rule), min(len(rule), _MATRICES_IN_A_ROW)
    height = math.ceil(n / width)
    values = rule.detach().double().numpy()
    image = np.full((height * (n + 1) - 1, width * (n + 1) - 1), np.nan)
    for index, matrix in enumerate(values / (np.abs(values).max() or 1.0)):
        row, column = (n + 1) * (index // width), (n + 1) * (index % width)
        image[row : row + n, column : column + n] = matrix
    figure = _figure(0.6 + 0.62 * width, 0.1 + 0.62 * height)
    axes = figure.add_subplot()
    axes.imshow(image, cmap="RdBu", vmin=-1, vmax=1, interpolation="none")
    axes.set_axis_off()
    return figure
