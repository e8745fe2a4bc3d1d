"""The identities of the published tables, each against a real model on the meta device."""

import pytest

from phmctl.accounting.figures import agrees
from phmctl.accounting.ledger import ledger_for_settings
from phmctl.accounting.published import (
    base_model,
    ceng501_de_en,
    ceng501_shakespeare,
    fitting_vocabulary,
    phm_plus,
    published_tables,
    table_2,
    table_4,
)


def maps(layers=6, **changes):
    return ledger_for_settings(base_model(layers, **changes), 8, 8)


@pytest.fixture(scope="module")
def tables():
    return {table.key: table for table in (table_2(), table_4(), ceng501_shakespeare(), ceng501_de_en())}


def test_44m_is_six_and_six_layers():
    assert maps().map_weights == 44_040_192 == 6 * (12 + 16) * 512**2


def test_the_four_layers_of_the_text_are_not_44m():
    count = maps(4).map_weights
    assert count == 29_360_128
    assert not agrees("44M", count)


@pytest.mark.parametrize(("n", "figure"), [(2, "22M"), (4, "11M"), (8, "5.5M")])
def test_the_phm_rows_follow(n, figure):
    ledger = maps(algebra="phm", n=n)
    assert ledger.without_embeddings.components == 44_040_192 // n
    assert agrees(figure, ledger.map_weights)


@pytest.mark.parametrize(
    ("changes", "rules", "count", "holds"),
    [
        ({"rules": "sublayer"}, 30, 2_875_392, True),
        ({"projections": "separate"}, 96, 3_145_728, False),
        ({}, 66, 3_022_848, False),
    ],
)
def test_at_16_the_arrangement_of_the_rules_decides(changes, rules, count, holds):
    ledger = maps(algebra="phm", n=16, **changes)
    assert (ledger.rules, ledger.map_weights) == (rules, count)
    assert agrees("2.9M", count) is holds


def test_2_9m_needs_24_to_48_rules(tables):
    assert any("needs 24 to 48 rules" in text for text in tables["table2"].notes)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_dagger_row_has_exactly_twice_the_components(n):
    plain, doubled = (maps(algebra="phm", n=n, upsize=upsize).without_embeddings for upsize in (1, 2))
    assert doubled.components == 2 * plain.components
    assert doubled.rule == plain.rule


@pytest.mark.parametrize(("layers", "width", "heads", "vocabulary"), [(4, 512, 8, 8192), (2, 256, 4, 32768)])
def test_the_reproduction_has_43_and_23_rules(layers, width, heads, vocabulary):
    ledger = ledger_for_settings(phm_plus(layers, width, heads, 16), vocabulary, vocabulary)
    assert ledger.rules == {4: 43, 2: 23}[layers]


@pytest.mark.parametrize(
    ("layers", "width", "heads", "vocabulary", "n", "count"),
    [
        (4, 512, 8, 8192, 1, 29_421_568),
        (4, 512, 8, 8192, 16, 2_072_576),
        (2, 256, 4, 32768, 1, 27_309_056),
        (2, 256, 4, 32768, 16, 1_844_224),
    ],
)
def test_the_reproduction_s_rows_at_1_and_16_are_exact(layers, width, heads, vocabulary, n, count):
    ledger = ledger_for_settings(phm_plus(layers, width, heads, n), vocabulary, vocabulary)
    assert ledger.totals.parameters == count


@pytest.mark.parametrize("key", ["ceng501-shakespeare", "ceng501-de-en"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_other_rows_hold_only_with_a_map_left_at_16(tables, key, n):
    row = next(row for row in tables[key].rows if row.label == f"PHM+ n={n}")
    everywhere, left = row.candidates
    assert not everywhere.holds
    assert everywhere.off == pytest.approx(everywhere.count / left.count - 1)
    assert everywhere.off > 0
    assert left.holds
    assert f"{left.count:,}" == row.figure


def test_no_vocabulary_does_instead(tables):
    """Each n would want another one, and none is a whole number."""
    texts = [tables[key].notes[-1] for key in ("ceng501-shakespeare", "ceng501-de-en")]
    assert "7,041.4 at n = 2, 7,254.4 at n = 4, 7,661.4 at n = 8" in texts[0]
    assert "32,512.6 at n = 2, 32,596.9 at n = 4, 32,746.9 at n = 8" in texts[1]


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_the_fitting_vocabulary_is_found_where_there_is_one(n):
    settings = phm_plus(2, 32, 2, n)
    wanted = ledger_for_settings(settings, 160, 160).totals.parameters
    assert fitting_vocabulary(wanted, settings, 96) == 160


def test_every_row_of_every_table_is_explained(tables):
    assert {key: [row.label for row in table.rows if not row.holds] for key, table in tables.items()} == {
        "table2": [],
        "table4": [],
        "ceng501-shakespeare": [],
        "ceng501-de-en": [],
    }


def test_rows_stand_in_the_published_order(tables):
    figures = [row.figure for row in tables["table2"].rows]
    assert figures == ["44M", "11M", "22M", "11M", "5.5M", "2.9M", "44M", "22M", "11M"]
    assert [row.figure for row in tables["table4"].rows] == ["44M", "22M", "11M", "5.5M", "2.9M"]


@pytest.mark.parametrize(
    ("recipe", "keys"),
    [
        ("table4-shakespeare", ["table4"]),
        ("ceng501-de-en", ["ceng501-de-en"]),
        ("ceng501-shakespeare", ["ceng501-shakespeare"]),
        ("table1-snli", ["table1"]),
        ("table5-agreement", ["table5"]),
        ("table5", ["table5"]),
    ],
)
def test_a_recipe_gets_the_table_that_it_reproduces(recipe, keys):
    assert [table.key for table in published_tables(recipe)] == keys
