"""What the page's pictures show: each function draws one figure, :func:`picture` writes it. Text stays text."""

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phmctl.errors import require
from phmctl.tasks.answers import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from phmctl.tasks.answers import Breakdown

Points = Sequence[tuple[float, float]]
_INK, _FAINT = "#1c2127", "#6b7480"
_SERIES = ("#1f5fa6", "#c2571a", "#2f7d4f", "#8a4d9e", "#a3313f", "#5d6b78", "#8a7a16", "#1a8288")
_STYLES = ("-", "--", ":", "-.")
_LONGEST = 44  # characters of a label
_DECADES = 1000  # a ratio of values from which an axis is logarithmic
_MOST = 240  # points of a line
_POSITIVE, _NEGATIVE = (0.20, 0.47, 0.74), (0.80, 0.33, 0.25)
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


def _label(text: str) -> str:
    """A label as matplotlib shows it: short, on one line, and not hidden for its first character."""
    plain = " ".join(text.split())
    short = plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
    return f" {short}" if short.startswith("_") else short


def series(index: int) -> str:
    """The colour of a series, from 0 on; after eight they begin again."""
    return _SERIES[index % len(_SERIES)]


def curves(lines: Mapping[str, Sequence[Points]], title: str) -> "Figure":
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
                color=series(index),
                marker="o" if len(parts) < 12 else None,
                markersize=3,
                label=_label(label) if number == 0 else "_",
            )
    heights = [value for seeds in lines.values() for points in seeds for _, value in points]
    if min(heights) > 0 and max(heights) > _DECADES * min(heights):
        axes.set_yscale("log")
    axes.legend(fontsize=7.5)
    return figure


def breakdown(found: Mapping[str, "Breakdown"], models: Sequence[str]) -> "Figure":
    """Draw the scores of parts of the items as bars, each model in its colour; whiskers: the deviation over seeds."""
    first = next(iter(found.values()))
    names = [(name, count) for name, count, _ in first.parts]
    figure = _figure(max(4.4, min(0.6 * len(names), 8)))
    axes = figure.add_subplot(title=first.title)
    wide = 0.8 / len(found)
    for index, (label, one) in enumerate(found.items()):
        rows = {name: scores for name, _, scores in one.parts}
        places = [place - 0.4 + wide * (index + 0.5) for place in range(len(names))]
        scores = [rows.get(name, ()) for name, _ in names]
        heights = [math.fsum(each) / len(each) if each else math.nan for each in scores]
        errors = [spread(each) or 0.0 for each in scores]
        look: dict[str, Any] = {"color": series(models.index(label)), "ecolor": _INK, "label": _label(label)}
        axes.bar(places, heights, wide * 0.92, yerr=errors, **look)
    axes.set_xticks(range(len(names)), [f"{_label(name)[:12]}\n{count:,}" for name, count in names])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("below each part, how many items it has")
    figure.legend(loc="outside lower center", ncols=3, fontsize=7.5)
    return figure


def heat(rule: "Tensor", aligned: "Tensor", known: "Tensor") -> "Figure":
    """Draw the matrices of a rule as they were learned, in the basis nearest to a known algebra, and that algebra.

    Blue is positive, red negative; a cell is the stronger coloured the larger its number beside the largest of its row.
    """
    import numpy as np

    n = len(rule)
    columns, lines = min(n, _SQUARE), math.ceil(n / min(n, _SQUARE))
    shown = [(rule, "A"), (aligned, "P·A"), (known, "A*")][: 3 if n <= _SQUARE else 1]
    height, bands = lines * (n + 1) - 1, []
    for matrices, _ in shown:
        values = matrices.detach().double().numpy()
        band = np.zeros((height, columns * (n + 1) - 1, 4))
        largest = float(np.abs(values).max()) or 1.0
        for index, matrix in enumerate(values):  # eight a line
            top, left = (n + 1) * (index // columns), (n + 1) * (index % columns)
            cells = band[top : top + n, left : left + n]
            cells[..., :3] = np.where(matrix[..., None] >= 0, _POSITIVE, _NEGATIVE)
            cells[..., 3] = 0.06 + 0.94 * np.abs(matrix) / largest
        bands += [band, np.zeros((1, band.shape[1], 4))]
    figure = _figure(0.6 + 0.62 * columns, 0.1 + 0.62 * (3 if n <= _SQUARE else lines))
    axes = figure.add_subplot()
    axes.imshow(np.concatenate(bands[:-1]), interpolation="none", aspect="equal")
    ticks = [(height + 1) * place + (height - 1) / 2 for place in range(len(shown))]
    axes.set_yticks(ticks, [label for _, label in shown])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure
