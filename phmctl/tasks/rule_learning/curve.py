"""The loss curve of a run as a picture: Figure 2 of the PHM paper."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from phmctl.console import warn
from phmctl.files import write_atomic

CURVE = "loss.png"
_INCHES = (6.0, 4.0)
_DOTS = 120  # an inch


def draw_curve(path: Path, title: str, entries: Iterable[Mapping[str, Any]]) -> bool:
    """Draw the training and the validation loss over the steps, on a logarithmic axis.

    Without matplotlib nothing is drawn and a warning says how to get it.

    Args:
        path: the PNG to write.
        title: of the picture.
        entries: those of the run's metrics.

    Returns:
        whether it was drawn.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        warn(
            f"no {path.name}: matplotlib is not installed; pip install 'phmctl[report]', then train with --resume to "
            "draw it"
        )
        return False
    figure = Figure(figsize=_INCHES, dpi=_DOTS, layout="constrained")  # no pyplot: nothing global, no window
    axes = figure.add_subplot(xlabel="step", ylabel="mean squared error", yscale="log", title=title)
    entries = list(entries)
    for event, style in (("train", "-"), ("validation", "o")):
        points = [(entry["step"], entry["loss"]) for entry in entries if _is_point(entry, event)]
        axes.plot([step for step, _ in points], [loss for _, loss in points], style, label=event, markersize=4)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    FigureCanvasAgg(figure)  # the figure's from here on
    figure.savefig(picture, format="png", metadata={"Software": None})  # the same bytes for the same run
    write_atomic(path, picture.getvalue())
    return True


def _is_point(entry: Mapping[str, Any], event: str) -> bool:
    """Whether an entry has a place on a logarithmic axis."""
    return entry.get("event") == event and isinstance(entry.get("loss"), float) and entry["loss"] > 0
