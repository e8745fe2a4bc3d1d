"""What the page's pictures show: each function draws one figure, :func:`picture` writes it. Text stays text."""

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phmctl.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

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
                color=_SERIES[index % len(_SERIES)],
                marker="o" if len(parts) < 12 else None,
                markersize=3,
                label=_label(label) if number == 0 else "_",
            )
    heights = [value for seeds in lines.values() for points in seeds for _, value in points]
    if min(heights) > 0 and max(heights) > _DECADES * min(heights):
        axes.set_yscale("log")
    axes.legend(fontsize=7.5)
    return figure


def heat(rule: "Tensor", aligned: "Tensor", known: "Tensor") -> "Figure":
    """Draw the matrices of a rule as they were learned, in the basis nearest to a known algebra, and that algebra.

    Blue is positive, red negative, the stronger the larger beside the largest number of the same tensor.
    """
    import numpy as np

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
