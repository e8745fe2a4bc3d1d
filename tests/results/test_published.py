"""The published parameter figures: the counts in ``published.yaml`` are exact counts of models.

The exception is 64d², whose model the paper does not describe. K is the number of distinct rules.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from phmctl.recipe.loading import load_recipe
from phmctl.recipe.models import TransformerSection
from phmctl.results.counting import agrees, published_tables, table_names, value_of
from phmctl.results.ledger import Ledger, ModuleCounts, ledger_for_recipe
from phmctl.tasks import task_of
from phmctl.tasks.base import Sizes
from tests.references import ledger_for_settings

TABLES = {table.key: table for table in published_tables()}
ROWS = [pytest.param(key, row, id=f"{key} {row.label}") for key, table in TABLES.items() for row in table.rows]
D, ATTENTIONS = 512, 18  # of the base Transformer, six and six layers
CLASSIFIERS = {"table1": "table1-snli", "table5": "table5-agreement"}


def chosen(row: Any) -> dict[str, Any]:
    """The keys of the model that a row sets."""
    choice = {"algebra": "real", "n": 1}
    for setting in row.settings.split():
        key, _, value = setting.partition("=")
        choice[key.removeprefix("model.")] = int(value) if value.isdigit() else value
    return choice


def base(layers: int = 6, **changes: Any) -> Ledger:
    shape = {"encoder_layers": layers, "decoder_layers": layers, "width": D, "feed_forward": 4 * D, "heads": 8}
    return ledger_for_settings(TransformerSection(**(shape | changes)), 8, 8)


def of_recipe(name: str, settings: Sequence[str], vocabulary: int = 8) -> Ledger:
    """The ledger of a recipe's model for a vocabulary size."""
    recipe = load_recipe(name, settings)
    sizes = dict.fromkeys(task_of(recipe).sizes(recipe, None).values, vocabulary)
    if "classes" in sizes:
        sizes["classes"] = 2
    return ledger_for_recipe(recipe, Sizes(sizes))


@cache
def phm_plus(table: str, n: int, vocabulary: int) -> Ledger:
    """CENG501's model, whose embeddings and generator are PHM."""
    return of_recipe(table, [f"model.algebra={'real' if n == 1 else 'phm'}", f"model.n={n}"], vocabulary)


VOCABULARY = {name: load_recipe(name).data.vocabulary for name in ("ceng501-shakespeare", "ceng501-de-en")}


@cache
def composed(row: int = 1, width: int = D, algebra: str = "real", n: int = 1) -> Ledger:
    """The model of a row of Li et al., Table 1."""
    options = TABLES["ni"].rows[row - 1].settings.split()
    name = "ni-wmt14-en-de" if width == D else "ni-wmt14-en-de-big"
    return of_recipe(name, [*options, f"model.algebra={algebra}", f"model.n={n}"])


def added(row: int, width: int = D, **choice: Any) -> int:
    """The parameters that a row's compositions add, minus the output maps that they replace."""
    return composed(row, width, **choice).totals.parameters - composed(1, width, **choice).totals.parameters


def compositions(row: int) -> list[ModuleCounts]:
    parts = []
    for part in composed(row).rows:
        in_output = ".output." in part.component and not part.component.endswith("attention.output")
        if ".composition." in part.component or in_output:
            parts.append(part)
    return parts


def weights(row: int) -> int:
    """The weights of compositions, without biases and norms; output maps are not subtracted."""
    return sum(part.components for part in compositions(row))


def with_tables(rows: int, width: int) -> int:
    """The parameters of the base model with three tables of `rows` rows."""
    return composed(1, width).without_embeddings.parameters + 3 * rows * width


def of_the_paper(key: str, row: Any) -> list[int]:
    """Tables 2 to 4."""
    choice = chosen(row)
    ours = base(**choice).map_weights
    if choice["algebra"] == "real":
        return [ours, base(4).map_weights]
    return [base(**choice, rules="sublayer").map_weights, ours] if choice["n"] == 16 else [ours]


def of_classifiers(key: str, row: Any) -> list[int]:
    """Tables 1 and 5."""
    ledger = of_recipe(CLASSIFIERS[key], row.settings.split())
    count = TABLES[key].measure(ledger)
    biases = sum(part.bias for part in ledger.rows if part.component.startswith(TABLES[key].maps))
    return [count - biases, count] if "quaternion" in row.settings else [count]


def of_the_reproduction(key: str, row: Any) -> list[int]:
    """CENG501: for n = 2, 4, 8 the figure is that of a model with a d×d map in each layer at n = 16."""
    vocabulary, n = VOCABULARY[key], chosen(row)["n"]
    ours, at_16 = phm_plus(key, n, vocabulary), phm_plus(key, 16, vocabulary)
    mixed = [
        (row_at_16 if row.component.endswith(".feed_forward.contract") else row).parameters
        for row, row_at_16 in zip(ours.rows, at_16.rows, strict=True)
    ]
    return [*([] if n in (1, 16) else [sum(mixed)]), ours.totals.parameters]


def of_neuron_interaction(number: int) -> list[int]:
    """Li et al., Table 1, rows 1 to 8."""
    identities = {
        1: [with_tables(28_556, D)],
        2: [weights(2)],
        3: [weights(3), added(3)],
        4: [weights(4), added(4)],
        5: [sum(part.parameters for part in compositions(5)), added(5)],
        6: [64 * D**2, added(6)],
        7: [weights(7), added(7)],
        8: [64 * D**2 + weights(7), added(8)],
    }
    return identities[number]


def of_its_second_table(label: str) -> list[int]:
    width, rows = (1024, (28_530, 33_087)) if label.startswith("Big") else (512, (28_556, 33_113))
    plain = [with_tables(count, width) for count in rows]
    if not label.endswith("NI"):
        return plain
    return [total for base in plain for total in (base + (64 + 54) * width**2, base + added(8, width))]


@pytest.mark.parametrize(("key", "row"), ROWS)
def test_each_count_is_exact_and_the_first_agrees_with_the_figure(key: str, row: Any) -> None:
    if key == "ni":
        expected = of_neuron_interaction(1 + TABLES[key].rows.index(row))
    elif key == "ni-table2":
        expected = of_its_second_table(row.label)
    else:
        counters = dict.fromkeys(CLASSIFIERS, of_classifiers) | dict.fromkeys(VOCABULARY, of_the_reproduction)
        expected = counters.get(key, of_the_paper)(key, row)
    assert [each.parameters for each in row.counts] == expected
    assert row.holds(row.counts[0])


@pytest.mark.parametrize(
    ("changes", "rules", "count"),
    [({"rules": "sublayer"}, 30, 2_875_392), ({"projections": "separate"}, 96, 3_145_728), ({}, 66, 3_022_848)],
)
def test_at_16_the_arrangement_of_the_rules_decides(changes: dict[str, str], rules: int, count: int) -> None:
    ledger = base(algebra="phm", n=16, **changes)
    assert (ledger.rules, ledger.map_weights) == (rules, count)
    components = ledger.without_embeddings.components
    assert [K for K in range(200) if agrees("2.9M", components + K * 16**3)] == [*range(24, 49)]
    assert agrees("2.9M", count) is (24 <= rules <= 48)


@pytest.mark.parametrize(("key", "rules"), [("ceng501-shakespeare", 43), ("ceng501-de-en", 23)])
def test_the_reproduction_fits_no_single_vocabulary(key: str, rules: int) -> None:
    vocabulary = VOCABULARY[key]
    assert phm_plus(key, 16, vocabulary).rules == rules
    needed = []
    for row, n in zip(TABLES[key].rows[1:4], (2, 4, 8), strict=True):
        count, larger = (phm_plus(key, n, types).totals.parameters for types in (vocabulary, vocabulary + 16))
        needed.append(f"{vocabulary + 16 * (value_of(row.figure) - count) / (larger - count):,.1f} at n = {n}")
    assert ", ".join(needed) in TABLES[key].notes[-1]
    assert not any(".0 " in size for size in needed)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("table4-shakespeare", ["table4"]),
        ("ceng501", ["ceng501-shakespeare", "ceng501-de-en"]),
        ("table5", ["table5"]),
        ("ni-wmt14-en-de", ["ni", "ni-table2"]),
        ("", list(TABLES)),
        ("nist-mine", []),
    ],
)
def test_the_tables_of_a_name(name: str, keys: list[str]) -> None:
    assert [table.key for table in published_tables(name)] == keys
    assert set(keys) <= {*table_names(), "ni-table2"}


@pytest.mark.parametrize(
    ("figure", "unit", "cut", "least", "most"),
    [
        ("44M", None, False, 43_500_000, 44_499_999),
        ("29,421,568", None, False, 29_421_568, 29_421_568),
        ("400K", 10_000, False, 395_000, 404_999),
        ("14.1M", None, True, 14_100_000, 14_199_999),
    ],
)
def test_agreement_is_rounding_to_the_printed_digits(
    figure: str, unit: int | None, cut: bool, least: int, most: int
) -> None:
    agreements = [agrees(figure, count, unit, cut=cut) for count in (least - 1, least, most, most + 1)]
    assert agreements == [False, True, True, False]
