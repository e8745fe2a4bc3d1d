"""Pictures for the page: drawn by matplotlib, and made to follow the page's colours and type.

A picture is drawn in colours that stand for the page's own (:data:`INK`, :func:`series`), which are then replaced by
CSS variables: the same SVG is right in a light and in a dark page. Text stays text, in the page's type.
"""

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from phmctl.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#010101", "#020202"
_SERIES = 8
_LONGEST = 44  # characters of a label
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 8.5,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.4,
    "axes.axisbelow": True,
}


def series(index: int) -> str:
    """Return the colour that stands for that of a series of the page, from 0 on; after eight they begin again."""
    return f"#0400{index % _SERIES:02x}"


def style() -> Any:
    """Return the context in which a picture is made and written. Raises MissingExtraError without matplotlib."""
    return require("matplotlib", "report").rc_context(_STYLE)


def new_figure(width: float = 4.4, height: float = 2.75) -> "Figure":
    """Return an empty figure, by default as wide as a telephone's page; sizes in inches of 72 CSS pixels."""
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=72, layout="constrained")


def legend_label(text: str) -> str:
    """Return a label as matplotlib shows it: short, on one line, and not hidden for its first character."""
    plain = " ".join(text.split())
    short = plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
    return f" {short}" if short.startswith("_") else short


def to_svg(figure: "Figure", key: str) -> str:
    """Return a figure as an inline SVG.

    Args:
        figure: what was drawn.
        key: begins the names in it, so that those of several pictures of a page differ; letters, digits and ``-``.
    """
    from matplotlib import rc_context

    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": key}):
        warnings.simplefilter("ignore")  # about letters that matplotlib's type lacks: the page's has them
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"|(<svg[^>]*?) height="[^"]*" width="[^"]*"', r"\1\2", svg)
    svg = re.sub(r' (?:xmlns(?::xlink)?|version)="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = svg.replace('id="', f'id="{key}-').replace('href="#', f'href="#{key}-').replace("url(#", f"url(#{key}-")
    svg = re.sub(r"font: (?:\w+ )*([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = svg.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    svg = re.sub(r"#0400(\d\d)", lambda found: f"var(--s{int(found[1])})", svg)
    return re.sub(r"\n\s*", "\n", svg).strip()
