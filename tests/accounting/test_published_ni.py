"""Li et al. 2020: what compositions add is a polynomial in d, and every published figure is one of them."""

import pytest

from phmctl.accounting.figures import agrees
from phmctl.accounting.published import published_tables
from phmctl.accounting.published_ni import (
    FIGURES,
    ROWS,
    added,
    composition_weights,
    fitting_rows,
    ni_table_1,
    ni_table_2,
    whole,
)

D, HEAD = 512, 64


@pytest.mark.parametrize(
    ("row", "weights"),
    [
        (2, 12 * D**2),
        (3, 88 * D**2),
        (4, 18 * 184 * HEAD**2),
        (6, 26 * D**2),
        (7, 18 * 3 * D**2),
        (8, 26 * D**2 + 18 * 3 * D**2),
    ],
)
def test_identities(row: int, weights: int) -> None:
    assert composition_weights(ROWS[row][1]) == weights


def test_the_identities_of_the_tree() -> None:
    """Nodes of 2, 3 and 3 parts; hidden 4d over layers; hidden 8·64 over heads, whose last node goes out to 8·64."""
    assert 2 * ((2 + 3 + 3) * 4 + 3 * 4) == 88
    assert (2 + 3 + 3 + 3) * 8 + (1 + 1 + 1 + 8) * 8 + 8 == 184


def test_what_is_added_takes_the_output_maps_off() -> None:
    biases = 18 * (2 * D - D)  # u and v come, the output map's goes
    assert added(ROWS[7][1]) == 18 * (3 - 1) * D**2 + biases
    assert added(ROWS[7][1]) == whole(ROWS[7][1]) - 18 * (D**2 + D)
    assert added(ROWS[8][1]) == added(ROWS[6][1]) + added(ROWS[7][1])


@pytest.mark.parametrize("n", [2, 4, 8])
def test_phm_takes_one_nth_and_its_rules(n: int) -> None:
    """Two stacks of 13 maps with a rule each; u and v stay."""
    biases = 2 * 2 * D
    assert added(ROWS[6][1]) - biases == 26 * D**2
    assert added(ROWS[6][1], algebra="phm", n=n) == 26 * D**2 // n + biases + 2 * 13 * n**3


def test_every_row_of_table_1_is_explained() -> None:
    table = ni_table_1()
    assert [row.figure for row in table.rows] == ["88.0M", *FIGURES.values()]
    assert all(row.holds for row in table.rows)


def test_multi_layer_ni_is_not_what_the_equations_give() -> None:
    row = next(row for row in ni_table_1().rows if row.figure == "16.8M")
    *readings, as_printed = row.candidates
    assert [reading.holds for reading in readings] == [True, True, True, True, False]
    assert {reading.count for reading in readings if reading.holds} == {64 * D**2}
    assert as_printed.count == 26 * D**2 + 2 * 2 * D
    assert not as_printed.holds
    assert (64 - 26) // 2 == 19


def test_every_row_of_table_2_is_explained() -> None:
    rows = ni_table_2().rows
    assert [row.figure for row in rows] == ["88M", "118M", "95M", "125M", "264M", "387M", "278M", "401M"]
    assert all(row.candidates[0].holds for row in rows)
    assert not any(candidate.holds for row in rows for candidate in row.candidates[1:])


def test_base_and_big_have_the_same_tables() -> None:
    """Within what rounding leaves open: half of the last digit, over three tables' width."""
    for base, big in (("88.0M", "264M"), ("95M", "278M")):
        apart = abs(fitting_rows(base, 512, 8) - fitting_rows(big, 1024, 16))
        assert apart <= 500_000 / (3 * 1024)


def test_a_figure_whose_digits_were_cut_off() -> None:
    assert agrees("14.1M", 14_155_776, cut=True)
    assert not agrees("14.1M", 14_155_776)
    assert not agrees("14.1M", 14_200_000, cut=True)
    assert not agrees("14.1M", 14_099_999, cut=True)


def test_the_name_ni_means_both_tables_and_so_do_its_recipes() -> None:
    assert [table.key for table in published_tables("ni")] == ["ni", "ni-table2"]
    assert [table.key for table in published_tables("ni-wmt14-en-de")] == ["ni", "ni-table2"]
