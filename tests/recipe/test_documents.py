"""YAML documents with a schema: values, and the place of each problem."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, model_validator

from phmctl.errors import DataError, RecipeError
from phmctl.recipe.documents import change, parse_document, read_document


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: int = 1
    rate: float = 0.5

    @model_validator(mode="after")
    def _consistent(self) -> "Part":
        if self.size == 13:
            raise ValueError("rate = 0.5 does not go with size = 13")
        return self


class Example(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = {}
    one: Part | None = None
    card: str = ""


def refusal(text: str, options: dict[tuple[str, ...], str] | None = None) -> str:
    document = parse_document(text, "w.yaml", DataError)
    document.options = options or {}
    with pytest.raises(DataError) as caught:
        document.validate(Example, DataError)
    return str(caught.value)


def test_lists_and_floats() -> None:
    example = parse_document("parts: [{rate: 1e-3}, {rate: .5e2}]", "w.yaml", DataError).validate(Example, DataError)
    assert example.parts == (Part(rate=0.001), Part(rate=50.0))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("parts:\n  - size: 2\n  - sise: 3\n", "w.yaml:3: .*'parts.1.sise' .*'size'"),
        ("named:\n  a:\n    size: x\n", "w.yaml:3: named.a.size .*'x'$"),
        ("one:\n  raet: 1.0\n", "w.yaml:2: .*'one.raet' .*'rate'"),
        ("one:\n  rate: 1.0\n  size: 13\n", "w.yaml:2: one: rate = 0.5"),
        ("parts: [1, 2]\n", "w.yaml:1: parts.0 "),
        ("card: 2024\n", 'w.yaml:1: card .* 2024: .*"2024"'),
    ],
)
def test_the_place_of_a_problem(text: str, place: str) -> None:
    assert re.match(place, refusal(text))


def test_an_option_takes_precedence_over_a_line() -> None:
    text = "one:\n  rate: 1.0\n  size: 13\n"
    assert refusal(text, {("one", "size"): "--size 13"}).startswith("--size 13: one: rate = 0.5")
    assert refusal(text + "  x: 1\n", {("one", "rate"): "--rate 1"}).startswith("w.yaml:4: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.yaml"):
        read_document(tmp_path / "absent.yaml", DataError)


def test_change_sets_fields_and_names_their_options() -> None:
    assert change(Part(rate=2.0), {"size": 5}, RecipeError) == Part(size=5, rate=2.0)
    with pytest.raises(RecipeError, match=r"^size=x: size "):
        change(Part(), {"size": "x"}, RecipeError)
