"""Draw ``docs/img/*.svg`` and write the numbers of README and docs/ from docs/lab/results.csv.

The files are the same for the same table and version of matplotlib.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from phmctl.results.report import COLORS, MATPLOTLIB_STYLE
from tools import blocks, results
from tools.results import EIGHTH, EMBEDDED, NARROW, ROOT, WIDE, Sample

IMAGES = ROOT / "docs" / "img"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DARK_COLORS = ("#6ea8e8", "#f09a5e", "#6cc08e", "#c592d6", "#e57f8b", "#a3afbb", "#cfbc4f", "#5cc4ca")
LIGHT = {"paper": "#fff", "ink": "#1c2127", "faint": "#6b7480"}
DARK = {"paper": "#14171b", "ink": "#e4e7eb", "faint": "#98a1ac"}
WIDTH = 5.6  # inches of 72 points: figures are about 400 pixels wide
PHM, DISTILLED, WIDER, OTHER, _, DENSE = range(6)  # the colour of each kind of model
FILE_COLORS = (DENSE, PHM, WIDER, 6, OTHER, DISTILLED, 4, 7)  # of models in the order of their files
MARKS = dict(zip(results.FORMS, "os^", strict=True))
RULE = np.random.default_rng(4).normal(size=(4, 4, 4))  # the matrices A of the first picture
BLOCK = np.random.default_rng(3).normal(size=(4, 3, 3))  # its matrices S


def color_of(model: str) -> int:
    """Return the colour of a model: the number of an entry of COLORS."""
    if model.startswith("dense"):
        return DENSE
    if "distilled" in model:
        return DISTILLED
    if model == WIDE or "PHM embeddings" in model:
        return WIDER
    return PHM if model.startswith("PHM") else OTHER


def look(*, dark: bool = False, size: float = 10) -> AbstractContextManager[Any]:
    """Return the context in which figures are drawn and saved."""
    page = DARK if dark else LIGHT
    own = {
        "svg.fonttype": "path",  # the same letters for every reader
        "font.size": size,
        "text.color": page["ink"],
        "axes.labelcolor": page["ink"],
        "axes.edgecolor": page["faint"],
        "xtick.color": page["ink"],
        "ytick.color": page["ink"],
        "grid.color": page["faint"],
        "grid.alpha": 0.25,
        "figure.facecolor": "none" if dark else page["paper"],
        "axes.facecolor": "none",
    }
    return mpl.rc_context({**MATPLOTLIB_STYLE, **own})


def figure(height: float, width: float = WIDTH) -> Figure:
    return Figure(figsize=(width, height), dpi=72, layout="constrained")


def draw_sample(axes: Axes, at: float, sample: Sample, color: str, *, upright: bool = True, mark: str = "D") -> None:
    """Draw the seeds as points, and their mean with its 95 % interval as a bar; `at` is the place on the other axis."""
    draw_seeds(axes, at, sample.seeds, color, upright=upright)
    interval = sample.interval
    if interval is not None:
        draw_bar(axes, at, interval.low, interval.high, color, upright=upright)
    mean = (at, sample.mean) if upright else (sample.mean, at)
    axes.plot(*mean, mark, color=color, markersize=5.5)


def draw_seeds(axes: Axes, at: float, seeds: Sequence[float], color: str, *, upright: bool = True) -> None:
    points = [at] * len(seeds), seeds
    axes.plot(*(points if upright else points[::-1]), "o", color=color, alpha=0.45, markersize=4, markeredgewidth=0)


def draw_bar(
    axes: Axes, at: float, low: float, high: float, color: str, *, upright: bool = True, pale: bool = False
) -> None:
    """Draw an interval, a pale one wide and behind the others."""
    ends = ([at, at], [low, high])
    style = {"linewidth": 7, "alpha": 0.4, "zorder": 1} if pale else {"linewidth": 2}
    axes.plot(*(ends if upright else ends[::-1]), color=color, solid_capstyle="butt", **style)


def draw_name(
    axes: Axes, point: tuple[float, float], name: str, side: str, shift: tuple[float, float], color: str
) -> None:
    """Write a name beside a point, `shift` points from it; `side` is the end of the name that is there."""
    axes.annotate(name, point, shift, color=color, textcoords="offset points", ha=side, va="center")


def draw_scale(axes: Axes, ticks: Sequence[float], name: str) -> None:
    """Make the horizontal axis logarithmic with the given ticks."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(name)


def draw_strip(rows: Sequence[tuple[str, Sample]], name: str, reference: float | None = None) -> Figure:
    """Draw a model in each row; the first row is on top."""
    drawn = figure(0.62 + 0.34 * len(rows))
    axes = drawn.add_subplot(xlabel=name)
    for place, (label, sample) in enumerate(reversed(rows)):
        draw_sample(axes, place, sample, COLORS[color_of(label.partition(": ")[2] or label)], upright=False)
    axes.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(visible=False, axis="y")
    if reference is not None:
        axes.axvline(reference, color=COLORS[DENSE], linewidth=1, linestyle=":")
    return drawn


def parameters() -> Figure:
    """Draw BLEU over the number of all weights."""
    drawn = figure(3.3)
    axes = drawn.add_subplot(ylabel="BLEU")
    left = ("right", -8, 0)
    sides = {"dense": left, "PHM, n = 2": left, "PHM, n = 8": left, NARROW: ("left", 6, -14)}
    sides |= {"quaternion": ("left", 8, -6), EIGHTH: ("left", 4, 34), results.HALF: ("left", 8, 8), EMBEDDED: left}
    for model in ("dense", *results.STRUCTURES, *results.small_models()):
        count, sample = results.weights(model) / 1e6, results.plateau(model)
        draw_sample(axes, count, sample, COLORS[color_of(model)])
        side, right, up = sides.get(model, ("left", 8, 0))
        name = model.removeprefix("PHM, ").partition(", embeddings")[0].replace(", ", ",\n")
        draw_name(axes, (count, sample.mean), name, side, (right, up), COLORS[color_of(model)])
    draw_scale(axes, (0.7, 1, 1.5, 2, 3, 4, 6), "all weights, millions")
    axes.set_xlim(0.6, 7)
    return drawn


def steps() -> Figure:
    """Draw the difference of BLEU from dense over the number of steps."""
    drawn = figure(3.2)
    axes = drawn.add_subplot(ylabel="difference of BLEU")
    axes.axhline(0, color=COLORS[DENSE], linewidth=1.2)
    models = ("PHM, n = 2", "PHM, n = 4", "PHM, n = 8")
    for index, model in enumerate(models):
        color, line = (COLORS[WIDER], COLORS[PHM], COLORS[DISTILLED])[index], []
        for place, number in enumerate((800, 2000, 4000)):
            dense, sample = results.at_steps("dense", number), results.at_steps(model, number)
            at = place + 0.09 * (index - 1)
            draw_seeds(axes, at, [seed - dense.mean for seed in sample.seeds], color)
            if sample.deviation is not None:
                value = results.welch(dense, sample).value
                draw_bar(axes, at, value.low, value.high, color)
            line.append((at, sample.mean - dense.mean))
        axes.plot(
            *zip(*line, strict=True), "D-", color=color, markersize=5.5, linewidth=1, label=model.removeprefix("PHM, ")
        )
    axes.set_xticks(range(3), ["800 steps", "2,000", "4,000"])
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper right", ncols=3, handlelength=1.2, columnspacing=1)
    return drawn


def equal_parameters() -> Figure:
    """Draw BLEU of dense and PHM of one size."""
    rows = []
    for number in (800, 4000):
        for model in ("dense", WIDE):
            rows.append((f"{number:,} steps: {model}", results.equal_score(model, number)))
    return draw_strip(rows, "BLEU")


def teacher() -> Figure:
    """Draw BLEU with and without a teacher."""
    models = []
    for model in results.STUDENTS:
        untaught = model.removesuffix(results.DISTILLED)
        models += [model] if untaught == "dense, d = 128" else [untaught, model]
    rows = [(model, results.plateau(model)) for model in models]
    return draw_strip(rows, "BLEU", results.plateau("dense").mean)


def by_bytes() -> Figure:
    """Draw BLEU over the size of the file."""
    files = results.files()
    drawn = figure(3.2 + 0.14 * (len(files) + len(results.FORMS)))
    axes = drawn.add_subplot(ylabel="BLEU")
    handles = []
    for color, (model, forms) in zip(FILE_COLORS, files.items(), strict=True):
        label = model.removeprefix("PHM, ").replace(", PHM embeddings", " everywhere")
        places = [(forms[form][0], forms[form][1].mean) for form in results.FORMS]
        handles += axes.plot(*zip(*places, strict=True), color=COLORS[color], linewidth=1.2, label=label)
        for form, mark in MARKS.items():
            megabytes, bleu, _ = forms[form]
            draw_sample(axes, megabytes, bleu, COLORS[color], mark=mark)
    draw_scale(axes, (0.5, 1, 2, 5, 10, 20), "MB")
    axes.set_xlim(0.45, 30)
    for form, mark in MARKS.items():
        handles += axes.plot([], [], mark, color=COLORS[DENSE], label=form)
    drawn.legend(handles=handles, loc="outside lower center", ncols=2, handlelength=1.4)
    return drawn


def minilm() -> Figure:
    """Draw the score of all-MiniLM-L6-v2 over the size of the file, after as many steps as any file has."""
    drawn = figure(3.2)
    axes = drawn.add_subplot(ylabel="Spearman × 100, STS-B dev")
    kinds = {"dense": DENSE, "low rank": PHM, "mixture": WIDER, "Kronecker sum": DISTILLED}
    points: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    models = results.sentence_models()
    for row, scores in models:
        points[row["model"].partition(" of ")[0]].append((int(row["bytes"]) / 1e6, scores.mean))
    for kind, color in kinds.items():
        if points[kind]:
            axes.plot(*zip(*sorted(points[kind]), strict=True), "o-", color=COLORS[color], label=kind, linewidth=1.2)
    for row, scores in models:
        if not row["steps"]:
            draw_name(axes, (int(row["bytes"]) / 1e6, scores.mean), row["form"], "center", (0, 9), COLORS[DENSE])
    draw_scale(axes, (1, 3, 10, 30, 90), "MB")
    axes.set_xlim(0.7, 130)
    axes.margins(y=0.15)
    axes.legend(loc="lower right")
    return drawn


def tasks() -> Figure:
    """Draw the difference from dense on other tasks."""
    rows = [(name, *each) for name in results.TASKS for each in results.task(name)]
    drawn = figure(0.7 + 0.34 * len(rows))
    axes = drawn.add_subplot(xlabel="difference from dense (points or BLEU)")
    axes.axvline(0, color=COLORS[DENSE], linewidth=1.2)
    for place, (_, model, dense, system) in enumerate(reversed(rows)):
        color = COLORS[color_of(model)]
        if dense.count > 1 and system.count > 1:
            value = results.welch(dense, system).value
            draw_bar(axes, place, value.low, value.high, color, upright=False)
            draw_seeds(axes, place, [seed - dense.mean for seed in system.seeds], color, upright=False)
        axes.plot(system.mean - dense.mean, place, "D", color=color, markersize=5.5)
    axes.set_yticks(range(len(rows)), [f"{name}, {model.removeprefix('PHM, ')}" for name, model, *_ in reversed(rows)])
    axes.grid(visible=False, axis="y")
    return drawn


def phm(*, dark: bool) -> Figure:
    """Draw README's picture: H as a sum of Aᵢ ⊗ Sᵢ, and BLEU over the number of all weights."""
    colors = DARK_COLORS if dark else COLORS
    drawn = figure(4.2, 8.2)
    left, right = drawn.add_gridspec(1, 2, width_ratios=(1, 1)).subplots()
    draw_sum(left, [colors[index] for index in (0, 1, 2, 3)], (DARK if dark else LIGHT)["paper"])
    draw_quality(right, colors)
    return drawn


def draw_sum(axes: Axes, colors: Sequence[str], paper: str) -> None:
    """Draw H in the colours of its terms, and each term's A and S."""
    strength = (np.abs(RULE) / np.abs(RULE).max()) ** 1.3
    pattern = 0.45 + 0.55 * np.abs(BLOCK) / np.abs(BLOCK).max()
    hues = np.array([to_rgb(color) for color in colors])
    background = np.array(to_rgb(paper))
    terms = np.stack([np.kron(strength[index], pattern[index]) for index in range(4)])  # (4, 12, 12)
    share = terms**4 / (terms**4).sum(0)  # the strongest term of an entry has most of its colour
    depth = np.clip(terms.sum(0) / 0.9, 0.2, 1)[..., None]
    paint(axes, depth * np.einsum("ikd,ic->kdc", share, hues) + (1 - depth) * background, 0, 0.8, 4, 4)
    for line in range(1, 4):
        axes.plot([0, 4], [0.8 + line] * 2, color=paper, linewidth=2)
        axes.plot([line] * 2, [0.8, 4.8], color=paper, linewidth=2)
    for index in range(4):
        bottom = 4.5 - 1.5 * index
        for values, start, extent in ((strength[index], 5.3, 1.22), (pattern[index], 7.5, 0.92)):
            shades = values[..., None] * hues[index] + (1 - values[..., None]) * background
            paint(axes, shades, start, bottom + (1.22 - extent) / 2, extent, extent)
        axes.text(4.68, bottom + 0.61, "=" if index == 0 else "+", ha="center", va="center", fontsize=19)
        axes.text(7.06, bottom + 0.61, "⊗", ha="center", va="center", fontsize=17)
    for name, middle, height in (("H", 2, 5), ("Aᵢ", 5.96, 6), ("Sᵢ", 8, 6)):
        axes.text(middle, height, name, ha="center", va="bottom", fontsize=17)
    axes.set_xlim(-0.1, 8.7)
    axes.set_ylim(-0.1, 6.7)
    axes.set_aspect("equal")
    axes.axis("off")


def paint(axes: Axes, image: np.ndarray, x: float, y: float, width: float, height: float) -> None:
    """Paint an image as squares, so that no renderer blurs it."""
    rows, columns, _ = image.shape
    lines_x, lines_y = np.linspace(x, x + width, columns + 1), np.linspace(y + height, y, rows + 1)
    axes.pcolormesh(lines_x, lines_y, np.clip(image, 0, 1), shading="flat", edgecolors="face", linewidth=0.3)


def draw_quality(axes: Axes, colors: Sequence[str]) -> None:
    """Draw BLEU over the number of all weights with each model's name at its point."""
    places = {  # label, the end of the name that is at the point, and its shift in points
        "dense": ("dense", "center", (0, -34)),
        results.HALF: ("n = 2", "left", (9, 0)),
        EMBEDDED: ("n = 4", "left", (9, -6)),
        f"{EMBEDDED}{results.DISTILLED}": ("distilled", "left", (9, 5)),
        EIGHTH: ("n = 8", "left", (9, -6)),
        f"{EIGHTH}{results.DISTILLED}": ("distilled", "left", (9, 5)),
        WIDE: ("PHM, d = 512", "right", (-9, 0)),
    }
    for model, (label, side, shift) in places.items():
        count, sample = results.weights(model) / 1e6, results.plateau(model)
        color = colors[color_of(model)]
        interval = sample.interval
        if interval is not None:
            # On a student's pale bar the bar of the same model without a teacher is seen.
            draw_bar(axes, count, interval.low, interval.high, color, pale=model.endswith(results.DISTILLED))
        axes.plot(count, sample.mean, "o", color=color, markersize=8)
        draw_name(axes, (count, sample.mean), label, side, shift, color)
    draw_scale(axes, (0.7, 1, 1.5, 2, 3, 4, 6), "all weights, millions")
    axes.set_xlim(0.6, 6.8)
    axes.set_title("BLEU, Multi30k De–En", fontsize=14)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


FIGURES: dict[str, Callable[[], Figure]] = {
    "parameters": parameters,
    "steps": steps,
    "equal-parameters": equal_parameters,
    "teacher": teacher,
    "bytes": by_bytes,
    "tasks": tasks,
    "minilm": minilm,
}


def draw(folder: Path) -> None:
    """Draw every figure into a folder."""
    undated = {"Date": None}
    for name, make in FIGURES.items():
        with look():
            make().savefig(folder / f"{name}.svg", metadata=undated)
    for dark in (False, True):
        with look(dark=dark, size=14):
            phm(dark=dark).savefig(folder / f"phm-{'dark' if dark else 'light'}.svg", metadata=undated)


def main() -> None:
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if blocks.fill(page) != page:
            path.write_text(blocks.fill(page), encoding="utf-8")
    draw(IMAGES)


if __name__ == "__main__":
    main()
