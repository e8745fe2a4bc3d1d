"""Tables 1 and 5: every figure is explained, to the unit, and only by the arrangement that is said to."""

import pytest

from phmctl.accounting.published_classifiers import table_1, table_5

D, WIDTH, INNER = 300, 128, 512
BIASES = 2 * (3 * WIDTH + WIDTH + INNER + WIDTH)  # of two encoder layers


@pytest.fixture(scope="module")
def tables():
    return {"table1": table_1(), "table5": table_5()}


def counts(table):
    """The count of each row's first arrangement: the one that is ours."""
    return [row.candidates[0].count for row in table.rows]


def test_table_1_to_the_unit(tables):
    assert counts(tables["table1"]) == [721_200, 180_000, 361_264, 146_200, 81_200]
    assert [row.figure for row in tables["table1"].rows] == ["721K", "180K", "361K", "146K", "81K"]


def test_table_5_to_the_unit(tables):
    assert counts(tables["table5"]) == [395_520, 98_304, 198_976, 101_120, 55_552]
    assert [row.figure for row in tables["table5"].rows] == ["400K", "100K", "200K", "101K", "56K"]


def test_the_identities_of_table_1(tables):
    weights = 4 * D * (D + D)
    assert counts(tables["table1"]) == [
        weights + 4 * D,
        weights // 4,
        *(weights // n + 8 * n**3 + 4 * D for n in (2, 5, 10)),
    ]


def test_the_identities_of_table_5(tables):
    weights = 2 * (3 * WIDTH * WIDTH + WIDTH * WIDTH + 2 * WIDTH * INNER)
    assert BIASES == 2_304
    assert counts(tables["table5"]) == [
        weights + BIASES,
        weights // 4,
        *(weights // n + 8 * n**3 + BIASES for n in (2, 4, 8)),
    ]


@pytest.mark.parametrize("key", ["table1", "table5"])
def test_the_first_arrangement_of_each_row_is_the_figure(tables, key):
    assert [row.candidates[0].holds for row in tables[key].rows] == [True] * 5


@pytest.mark.parametrize(("n", "count"), [(5, 145_450), (10, 75_200)])
def test_the_gates_as_printed_give_neither_figure(tables, n, count):
    row = next(row for row in tables["table1"].rows if row.label.endswith(f"n={n}"))
    separate, fused = row.candidates
    assert (fused.count, fused.holds) == (count, False)
    assert "K = 8" in separate.arrangement
    assert "K = 2" in fused.arrangement


def test_the_quaternion_lstm_is_counted_without_bias(tables):
    row = tables["table1"].rows[1]
    assert [(candidate.count, candidate.holds) for candidate in row.candidates] == [(180_000, True), (181_200, False)]


def test_n_8_tells_the_arrangement_of_the_encoder(tables):
    row = tables["table5"].rows[-1]
    assert [(candidate.count, candidate.holds) for candidate in row.candidates] == [
        (55_552, True),
        (57_600, False),  # Q, K and V separate
        (56_576, False),  # layer norms
        (53_248, False),  # no biases
    ]


@pytest.mark.parametrize("key", ["table1", "table5"])
def test_a_table_says_what_it_counts(tables, key):
    table = tables[key]
    assert "no embeddings" in table.notes[0]
    assert table.as_json()["counted"].startswith("maps, rules and biases of the")
