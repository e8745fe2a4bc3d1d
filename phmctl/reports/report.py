"""``report``: all about several runs on one page that needs no network. In its pictures text stays text."""

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from phmctl import __version__
from phmctl.accounting.ledger import Totals, ledger_for_recipe
from phmctl.algebra.alignment import NearestAlgebra, chance_distance, nearest_known
from phmctl.algebra.bilinear import Factors, recompose
from phmctl.checkpoints import read_checkpoint
from phmctl.comparison.compare import Comparison, compare
from phmctl.comparison.variants import ComparedRun, Variant, mean_and_spread
from phmctl.console import Table
from phmctl.errors import OutputError, require
from phmctl.files import write_atomic
from phmctl.metrics.classification import part_name, parts
from phmctl.recipe.loading import dump_recipe
from phmctl.runs.results import read_metrics, series
from phmctl.tasks.registry import kind_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a page is made of: pairs of a kind and its value, which ``page.html`` shows; text is escaped there. Kinds are
# ``table``, ``text``, ``heading``, ``code``, ``lines``, ``details`` (a summary and its blocks), and rows of pictures:
# ``grid``, ``tiles`` and ``tiles wide``.
Blocks = list[tuple[str, Any]]

Points = Sequence[tuple[float, float]]
_SERIES = ("#1f5fa6", "#c2571a", "#2f7d4f", "#8a4d9e", "#a3313f", "#5d6b78", "#8a7a16", "#1a8288")
_STYLES = ("-", "--", ":", "-.")
_LONGEST = 44  # characters of a label
_DECADES = 1000  # a ratio of values from which an axis is logarithmic
_MOST = 240  # points of a line
_SQUARE = 8  # rules of this order and below are shown with their nearest algebra, larger ones by themselves
_STYLE = {
    "svg.fonttype": "none",
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
_SAMPLES = 5  # of each kind
_NARROW = 5  # matrices that a narrow tile shows well
_VALIDATIONS = {"loss": "validation loss", "bleu": "validation BLEU (greedy)", "accuracy": "validation accuracy"}


def write_report(names: Sequence[str | Path], output: Path, **options: Any) -> list[Comparison]:
    if output.is_dir():
        raise OutputError(f"{output} is a folder; name a file: --output {output / 'report.html'}")
    with style():  # first of all: is matplotlib there?
        found, *others = compare(names, **options)
        write_atomic(output, render(found, *others))
    return [found, *others]


def render(found: Comparison, *others: Comparison) -> str:
    """The page of a comparison; of those on other test sets it has the scores."""
    runs = [one.run for variant in found.variants for one in variant.runs]
    sections = [("Scores", "scores", _scores(found))]
    sections += [
        (f"Scores on {other.split}", f"scores-{number}", _scores(other)) for number, other in enumerate(others)
    ]
    sections += [
        ("What differs", "differences", _differences(found)),
        ("Samples", "samples", _samples(found)),
        ("Learning curves", "curves", _curves(found)),
        ("Parts of the test set", "parts", _breakdowns(found)),
        ("Parameters", "parameters", _ledger(found)),
        ("Learned rules", "rules", _rules(found)),
        ("Runs and recipes", "runs", _recipes(found)),
    ]
    lead = f"{_plural(len(runs), 'run')} of {_plural(len(found.variants), 'model')}, {found.split} set"
    lead += f"; baseline {found.baseline.label}" if len(found.variants) > 1 else ""
    page = require("jinja2", "report").Environment(autoescape=True).from_string(_PAGE.read_text(encoding="utf-8"))
    rendered: str = page.render(
        title=", ".join(dict.fromkeys(run.recipe.name for run in runs)),
        lead=lead,
        sections=[section for section in sections if section[2]],
        kind=lambda table, column: "text" if column in (0, *table.text) else "number",
        version=__version__,
    )
    return rendered


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _scores(found: Comparison) -> Blocks:
    lines = [*found.notes(), *(f"no result yet: {command}" for command in found.missing())]
    return [*(("table", each) for each in found.tables()), ("lines", lines)]


def _differences(found: Comparison) -> Blocks:
    lines = list(found.differences()) or ["nothing"]
    told: Blocks = [("text", f"From {found.baseline.label}, besides n, the algebra and the seed:"), ("lines", lines)]
    return told if len(found.variants) > 1 else []


def _curves(found: Comparison) -> Blocks:
    logs = {variant.label: [read_metrics(one.run.metrics_path) for one in variant.runs] for variant in found.variants}
    validations = [("validation", name, words) for name, words in _VALIDATIONS.items()]
    pictures = []
    for event, name, words in (("train", "loss", "training loss"), *validations):
        lines = {label: [series(entries, event, name) for entries in seeds] for label, seeds in logs.items()}
        if any(points for seeds in lines.values() for points in seeds):
            last = {label: [points[-1][1] for points in seeds if points] for label, seeds in lines.items()}
            ends = "; ".join(f"{label} ends at {mean_and_spread(values)}" for label, values in last.items())
            caption = f"{words.capitalize()}. Each colour is a model, each line style a seed."
            drawn = draw_curves(lines, words)
            pictures.append(picture(drawn, f"curve-{event}-{name}", f"{words} over the steps: {ends}", caption))
    return [("grid", pictures)] if pictures else []


def _breakdowns(found: Comparison) -> Blocks:
    """Scores of parts of the items: as the task divides them, and by each number that they have."""
    by = kind_of(found.baseline.first.run.recipe).comparer
    models = {each.label: each.answers for each in found.variants if each.answers}
    if by is None or not models:
        return []
    first, blocks = next(iter(models.values()))[0], Blocks()
    for name, each in {by.own: by.divided(first), **{key: parts(of) for key, of in first.groups.items()}}.items():
        columns = [zip(*(by.scores(run, each) for run in runs), strict=True) for runs in models.values()]
        rows = [
            (part_name(value), f"{len(rows):,}", *map(mean_and_spread, scores))
            for (value, rows), *scores in zip(each, *columns, strict=True)
        ]
        blocks.append(("table", Table(f"{by.figure} by {name}", [name, "items", *models], rows)))
    return blocks


def _ledger(found: Comparison) -> Blocks:
    """What each model's parameters are of: inside by its ledger, and the vocabulary's part as it was stored."""
    rows = []
    for variant in found.variants:
        if variant.parameters is not None:
            inner: Totals = ledger_for_recipe(variant.first.run.recipe).without_embeddings
            counts = [inner.components, inner.rule, inner.bias, inner.norm, inner.embedding + inner.other]
            total = variant.parameters.total
            rows.append([variant.label, *(f"{count:,}" for count in (*counts, total - sum(counts), total))])
    head = ["model", "weights of maps (S)", "rules (A)", "biases", "norms", "other", "embeddings, generator", "all"]
    return [("table", Table("parameters", head, rows))] if rows else []


def _rules(found: Comparison) -> Blocks:
    shown = [block for index, variant in enumerate(found.variants) for block in _rules_of(variant, f"rule-{index}")]
    words = (
        "A layer's matrix H stays as it is when its terms are mixed by an invertible matrix P, so a rule is known "
        "up to P only. It is compared with known algebras in the basis that is nearest to each: the distance is "
        "‖P·A − A*‖ / ‖A*‖, 0 where the algebra lies in the span of the learned matrices, 1 where orthogonal to it."
    )
    return [("text", words), *shown] if shown else []


@dataclass(frozen=True)
class Learned:
    name: str  # of the first map that holds it
    A: Tensor  # (n, n, n)
    width: str  # k×d of the map
    nearest: NearestAlgebra  # the known algebra nearest to A


def learned_rules(one: ComparedRun) -> list[Learned]:
    """The rules in a run's checkpoint: that which was scored, else the best, else the last. Factors are multiplied."""
    names = one.run.checkpoint_names()
    wanted = one.result.checkpoint if one.result is not None else ""
    checkpoint = next((each for each in (wanted, "best", "last") if each in names), None)
    if checkpoint is None:
        return []
    tensors, found = read_checkpoint(one.run.checkpoint(checkpoint), ["model"]).tensors["model"], []
    for name, S in tensors.items():
        place, dot, last = name.rpartition(".")
        if last != "S":
            continue
        factors = [tensors[f"{place}{dot}{each}"] for each in "WUV" if f"{place}{dot}{each}" in tensors]
        A = tensors.get(f"{place}{dot}A")
        if A is None and len(factors) == 3:
            A = recompose(Factors(*factors))
        if A is not None and len(A) > 1:
            width = "×".join(str(size * len(A)) for size in S.shape[1:])
            found.append(Learned(place or "the map", A, width, nearest_known(A)))
    return found


def _rules_of(variant: Variant, key: str) -> Blocks:
    one = next(iter(variant.scored or variant.runs))
    found = learned_rules(one)
    if not found:
        return []
    orders = {len(each.A) for each in found}
    n = max(orders, key=lambda order: sum(len(each.A) == order for each in found))
    chance, count = chance_distance(n), sum(len(each.A) == n for each in found)
    near = sum(each.nearest.distance < chance for each in found if len(each.A) == n)
    summary = (
        f"Nearer to a known algebra than 19 of 20 random rules are (distance below {chance:.2f}): {near} of "
        f"{_plural(count, 'rule')}; one in twenty would be by chance."
    )
    head = ["map", "k×d", "nearest algebra", "distance"]
    rows = [[each.name, each.width, each.nearest.name, f"{each.nearest.distance:.3f}"] for each in found]
    table = Table("learned rules", head, rows, text=(2,))
    return [
        ("heading", f"{variant.label}, seed {one.seed}: {_plural(len(found), 'rule')}, n = {n}"),
        ("text", summary),
        ("table", table),
        ("details", ("the matrices A₁ … Aₙ of each rule", _tiles(found, key))),
    ]


def _tiles(found: list[Learned], key: str) -> Blocks:
    tiles = []
    for index, each in enumerate(found):
        near, largest = each.nearest, float(each.A.abs().max())
        drawn = draw_rule(each.A, near.aligned, near.rule)
        words = f"The {len(each.A)} matrices of {each.name}; largest entry {largest:.2f}; nearest algebra {near.name}"
        tiles.append(picture(drawn, f"{key}-{index}", words, f"{each.name}: {near.name} at {near.distance:.2f}"))
    words = (
        "Each tile: the matrices as they were learned (A), in the basis nearest to the known algebra (P·A), and that "
        "algebra (A*); of more than eight matrices, A alone. Blue is positive, red negative; the stronger, the larger "
        "beside the largest of its line."
    )
    kind = "tiles wide" if any(len(each.A) > _NARROW for each in found) else "tiles"
    return [("text", words), (kind, tiles)]


def _samples(found: Comparison) -> Blocks:
    comparer, base = kind_of(found.baseline.first.run.recipe).comparer, next(iter(found.baseline.answers), None)
    if comparer is None or base is None:
        return []
    blocks, scores = Blocks(), comparer.item_scores(base)
    for variant in found.variants:
        if variant is found.baseline or not variant.answers:
            continue
        own = variant.answers[0]
        gains = [mine - theirs for mine, theirs in zip(comparer.item_scores(own), scores, strict=True)]
        order = sorted(range(len(gains)), key=lambda row: gains[row])
        better = [row for row in reversed(order) if gains[row] > 0][:_SAMPLES]
        worse = [row for row in order if gains[row] < 0][:_SAMPLES]
        names = (found.baseline.label, variant.label)
        head = ["line", "source", "reference", *names, "difference"]
        blocks.append(("heading", f"{variant.label} beside {found.baseline.label}"))
        for favoured, rows in ((names[1], better), (names[0], worse)):
            cells = []
            for row in rows:
                texts = [base.asked[row], base.right[row], base.given[row], own.given[row]]
                cells.append([str(row + 1), *texts, f"{gains[row]:+.1f}".replace("-", "−")])
            if rows:
                blocks.append(("table", Table(f"most in favour of {favoured}", head, cells, text=(1, 2, 3, 4))))
    return blocks


def _recipes(found: Comparison) -> Blocks:
    rows: list[list[str]] = []
    for variant in found.variants:
        for one in variant.runs:
            commit, where = str(one.run.environment().get("git") or "")[:7], "; ".join(sorted(one.machines))
            seed, step = str(one.seed), f"{one.summary.step:,}"
            rows.append([one.run.name, variant.label, seed, one.summary.state, step, commit, where])
    head = ["run", "model", "seed", "state", "step", "commit", "trained on"]
    recipes = [
        ("details", (f"recipe of {variant.label}", [("code", dump_recipe(variant.first.run.recipe))]))
        for variant in found.variants
    ]
    return [("table", Table("runs", head, rows, text=(1, 3, 5, 6))), *recipes]


def style() -> Any:
    """The context in which a picture is made and written. Raises MissingExtraError without matplotlib."""
    return require("matplotlib", "report").rc_context(_STYLE)


def picture(figure: "Figure", key: str, words: str, caption: str) -> dict[str, str]:
    """A picture as SVG, with what it shows in words, for those who do not see it, and a caption for all."""
    from matplotlib import rc_context

    text = io.StringIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": key}):
        warnings.simplefilter("ignore")  # about letters that matplotlib's type lacks: the page's has them
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::xlink)?|version)="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = svg.replace('id="', f'id="{key}-').replace('href="#', f'href="#{key}-').replace("url(#", f"url(#{key}-")
    return {"svg": svg, "words": words, "caption": caption}


def _figure(width: float = 4.4, height: float = 2.75) -> "Figure":
    """An empty figure, by default as wide as a telephone's page; sizes in inches of 72 CSS pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=72, layout="constrained")


def draw_curves(lines: Mapping[str, Sequence[Points]], title: str) -> "Figure":
    """Draw curves over the steps: a colour a model, a style of line a seed."""
    figure = _figure()
    axes = figure.add_subplot(xlabel="step", title=title)
    for index, (label, seeds) in enumerate(lines.items()):
        for number, points in enumerate(seeds):
            size = math.ceil(len(points) / _MOST)  # so few points that the file stays small: means of neighbours
            parts = [points[start : start + size] for start in range(0, len(points), size or 1)]
            axes.plot(
                [part[-1][0] for part in parts],
                [math.fsum(value for _, value in part) / len(part) for part in parts],
                _STYLES[number % len(_STYLES)],
                color=_SERIES[index % len(_SERIES)],
                marker="o" if len(parts) < 12 else None,
                markersize=3,
                label=label[:_LONGEST] if number == 0 else "_",
            )
    heights = [value for seeds in lines.values() for points in seeds for _, value in points]
    if min(heights) > 0 and max(heights) > _DECADES * min(heights):
        axes.set_yscale("log")
    axes.legend(fontsize=7.5)
    return figure


def draw_rule(rule: Tensor, aligned: Tensor, known: Tensor) -> "Figure":
    """Draw the matrices of a rule as they were learned, in the basis nearest to a known algebra, and that algebra.

    Blue is positive, red negative, the stronger the larger beside the largest number of the same tensor.
    """
    n, width = len(rule), min(len(rule), _SQUARE)
    height = math.ceil(n / width)
    shown = [(rule, "A"), (aligned, "P·A"), (known, "A*")][: 3 if n <= _SQUARE else 1]
    bands = []
    for matrices, _ in shown:
        values = matrices.detach().double().numpy()
        band = np.full((height * (n + 1), width * (n + 1)), np.nan)
        for index, matrix in enumerate(values / (np.abs(values).max() or 1.0)):
            top, left = (n + 1) * (index // width), (n + 1) * (index % width)
            band[top : top + n, left : left + n] = matrix
        bands.append(band)
    figure = _figure(0.6 + 0.62 * width, 0.1 + 0.62 * height * len(shown))
    axes = figure.add_subplot()
    axes.imshow(np.concatenate(bands)[:-1, :-1], cmap="RdBu", vmin=-1, vmax=1, interpolation="none")
    ticks = [len(bands[0]) * (place + 0.5) - 1 for place in range(len(shown))]
    axes.set_yticks(ticks, [label for _, label in shown])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure
