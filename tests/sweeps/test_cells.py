"""The grid: what commas part, and which cells there are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.errors import RecipeError
from phmctl.options import TRAIN, command_line
from phmctl.recipe.documents import parse_value
from phmctl.sweeps.cells import cells_of, split_values


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
        ("1]", ["1]"]),
        ("1,,2", ["1,,2"]),
        ("a #b", ["a #b"]),
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
    asked = {"n": "2,4,2", "seed": "1", "settings": ["model.dropout=0.1,0.3", "training.clip=1"], "tag": "a,b"}
    cells = cells_of(TRAIN, asked)
    labels = ["n=2 dropout=0.1", "n=2 dropout=0.3", "n=4 dropout=0.1", "n=4 dropout=0.3"]
    assert [cell.label for cell in cells] == labels
    assert cells[1].given == {"n": 2, "seed": 1, "settings": ["model.dropout=0.3", "training.clip=1"], "tag": "a,b"}
    assert command_line(TRAIN, cells[1].given) == [
        *("--n", "2", "--seed", "1", "--set", "model.dropout=0.3", "--set", "training.clip=1", "--tag", "a,b")
    ]
    assert [cell.given for cell in cells_of(TRAIN, {"tag": None})] == [{"tag": None}]
    for wrong in ({"n": "1,,2"}, {"seed": "1,x"}):
        with pytest.raises(RecipeError, match=r"--(n|seed) (1,,2|x): "):
            cells_of(TRAIN, wrong)
