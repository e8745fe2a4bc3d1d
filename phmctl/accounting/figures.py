"""Published figures and how a count of ours is compared with them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from phmctl.accounting.ledger import Ledger

_UNITS = {"K": 1_000, "M": 1_000_000}


@dataclass(frozen=True)
class Candidate:
    """One way in which a published figure could have come about.

    Attributes:
        arrangement: in words.
        count: our exact count of it.
        holds: whether the count is the figure, rounded as the figure is.
        off: how much larger the count is, as a share of the figure.
    """

    arrangement: str
    count: int
    holds: bool
    off: float

    @classmethod
    def of(
        cls, arrangement: str, count: int, figure: str, step: int | None = None, *, cut: bool = False
    ) -> "Candidate":
        """Compare a count with a published figure; `step` and `cut` as in :func:`agrees`."""
        return cls(arrangement, count, agrees(figure, count, step, cut=cut), count / value_of(figure) - 1)


@dataclass(frozen=True)
class PublishedRow:
    """A row of a published table: its label, its figure as printed, and what we make of it."""

    label: str
    figure: str
    candidates: tuple[Candidate, ...]

    @property
    def holds(self) -> bool:
        """Whether some arrangement gives the figure."""
        return any(candidate.holds for candidate in self.candidates)


@dataclass(frozen=True)
class PublishedTable:
    """A published table of parameter counts.

    Attributes:
        key: its name in JSON.
        title: what it is.
        rows: in the published order.
        notes: what the rows show together.
        counted: what its figures count, in words.
        measure: counts the same of a recipe's ledger; None where that is everything, which the ledger shows anyway.
    """

    key: str
    title: str
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...]
    counted: str = "everything"
    measure: Callable[[Ledger], int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        rows = [asdict(row) | {"holds": row.holds} for row in self.rows]
        head = {"key": self.key, "title": self.title, "counted": self.counted}
        return {**head, "rows": rows, "notes": list(self.notes)}


def agrees(figure: str, count: int, step: int | None = None, *, cut: bool = False) -> bool:
    """Say whether a count, rounded as the figure is (``5.5M``, ``721K``, ``29,421,568``), is the figure.

    Args:
        figure: as printed.
        count: ours.
        step: what the figure is rounded to, where that is more than its last digit: 10,000 for a ``400K``.
        cut: the digits that the figure does not print were cut off.
    """
    if step is not None:
        return round(count / step) * step == value_of(figure)
    number, unit = _read(figure)
    digits = len(number.partition(".")[2])
    if cut:
        scale = int(10**digits)
        return count * scale // unit == round(float(number) * scale)
    return f"{count / unit:.{digits}f}" == number


def value_of(figure: str) -> float:
    """Return the number that a figure prints: 5.5e6 for ``5.5M``."""
    number, unit = _read(figure)
    return float(number) * unit


def _read(figure: str) -> tuple[str, int]:
    return figure.rstrip("KM").replace(",", ""), _UNITS.get(figure[-1], 1)
