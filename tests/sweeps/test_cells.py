"""The grid: what commas part, and which cells there are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.errors import RecipeError, UserError
from phmctl.recipe.documents import parse_value
from phmctl.sweeps.cells import axis, cells_of, setting_axes, split_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("1,2, 4", ["1", "2", "4"]),
        ("", [""]),
        ("a b,c", ["a b", "c"]),
        ('"one, two"', ['"one, two"']),
        ("'a,b',c", ["'a,b'", "c"]),
        ("[1, 2], [3]", ["[1, 2]", "[3]"]),
        ('{a: "x,]", b: 2},null', ['{a: "x,]", b: 2}', "null"]),
        ("don't,x", ["don't", "x"]),  # a quote within a word is none
        ("[1,2", ["[1,2"]),  # never closed: the recipe's reader says so
        ('"a,b', ['"a,b']),
    ],
)
def test_commas_part_values_outside_of_quotes_and_brackets(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@given(st.lists(st.text("ab, '\"[]{}", max_size=6), min_size=1, max_size=4))
def test_quoted_values_come_back_as_they_were(values: list[str]) -> None:
    single = ["'" + value.replace("'", "''") + "'" for value in values]
    for quoted in (single, [json.dumps(value) for value in values]):
        assert [parse_value(part) for part in split_values(",".join(quoted))] == values


def test_the_last_axis_changes_fastest_and_a_value_that_is_given_twice_is_one() -> None:
    axes = [*setting_axes(["model.dropout=0.1,0.3", "training.clip=1"]), *axis("n", "2,4,2"), *axis("seed", "1")]
    cells = cells_of(axes)
    labels = ["dropout=0.1 n=2", "dropout=0.1 n=4", "dropout=0.3 n=2", "dropout=0.3 n=4"]
    assert [cell.label for cell in cells] == labels
    assert list(cells[1].arguments[:4]) == ["--set", "model.dropout=0.1", "--set", "training.clip=1"]
    assert list(cells[1].arguments[4:]) == ["--n", "4", "--seed", "1"]
    assert axis("n", None) == []  # an option that is not given is no axis
    assert [cell.arguments for cell in cells_of([])] == [()]


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(UserError, match="--n 1,,2: "):
        axis("n", "1,,2")
    with pytest.raises(RecipeError, match=r"--set training\.clip: "):
        setting_axes(["training.clip"])
