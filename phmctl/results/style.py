"""The colours and fonts of figures: of the report's page, of ``docs/img/`` and of the documentation site."""

COLORS = ("#1f5fa6", "#c2571a", "#2f7d4f", "#8a4d9e", "#a3313f", "#5d6b78", "#8a7a16", "#1a8288")
DARK_COLORS = ("#6ea8e8", "#f09a5e", "#6cc08e", "#c592d6", "#e57f8b", "#a3afbb", "#cfbc4f", "#5cc4ca")
_NAMES = ("paper", "ink", "faint", "line", "band", "link")
LIGHT = dict(zip(_NAMES, ("#fff", "#1c2127", "#6b7480", "#d9dde2", "#f5f6f8", "#1d5fa8"), strict=True))
DARK = dict(zip(_NAMES, ("#14171b", "#e4e7eb", "#98a1ac", "#353b43", "#1c2026", "#8ab8ee"), strict=True))
MATPLOTLIB_STYLE = {
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


def css_variables(colors: dict[str, str]) -> str:
    """Return the declarations of a style sheet that name the colours of a page, such as ``--ink: #1c2127;``."""
    return " ".join(f"--{name}: {color};" for name, color in colors.items())
