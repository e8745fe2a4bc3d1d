from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from phmctl.metrics.parts import parts


@given(st.lists(st.integers(-1, 40), max_size=200))
def test_every_row_is_in_one_part_and_parts_ascend(values: list[int]) -> None:
    found = parts(values)
    assert sorted(row for _, rows in found for row in rows) == list(range(len(values)))
    ranges = [{values[row] for row in rows} for value, rows in found if value is not None]
    assert all(max(one) < min(other) for one, other in pairwise(ranges))
    assert [value for value, _ in found if value is not None] == [
        next(iter(each)) if len(each) == 1 else f"{min(each)}–{max(each)}" for each in ranges
    ]
    assert len(found) <= 13
    if len({value for value in values if value >= 0}) <= 12:
        assert all(len(each) == 1 for each in ranges)
    if any(value < 0 for value in values):
        assert found[-1] == (None, [row for row, value in enumerate(values) if value < 0])
