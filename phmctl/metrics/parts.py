"""Items divided by a whole number that each of them has: the parts by which a score is broken down."""

from bisect import bisect_right
from collections.abc import Sequence

_MOST = 12  # values that have a part each
_RANGES = 10  # parts of more values

Value = int | str | None  # that of all of a part's items, or the range of theirs; None: not known


def parts(values: Sequence[int]) -> list[tuple[Value, list[int]]]:
    """Return the rows of each value, ascending, those of an unknown one (below 0) last.

    More than twelve values make ten ranges, or fewer, of about as many items each.
    """
    known = sorted(value for value in values if value >= 0)
    cuts = sorted(set(known))
    if len(cuts) > _MOST:
        cuts = sorted({known[len(known) * place // _RANGES] for place in range(_RANGES)})
    rows: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for row, value in enumerate(values):
        rows[bisect_right(cuts, value) - 1].append(row)  # below the first cut: the last list
    found: list[tuple[Value, list[int]]] = []
    for members in filter(None, rows[:-1]):
        low, high = min(values[row] for row in members), max(values[row] for row in members)
        found.append((low if low == high else f"{low}–{high}", members))
    return [*found, (None, rows[-1])] if rows[-1] else found


def part_name(value: Value) -> str:
    return "unknown" if value is None else str(value)
