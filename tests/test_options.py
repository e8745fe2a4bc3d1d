"""Reading options from signatures and docstrings, and writing calls as command lines."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import phmctl
from phmctl.cli.main import app
from phmctl.errors import UserError
from phmctl.options import (
    LIBRARY_ONLY,
    Call,
    argument_help,
    check_types,
    combinations,
    declared_parameters,
    is_repeatable,
    split_values,
    value_type,
)
from phmctl.recipe.documents import compose


def call_of(name: str, function: Any, arguments: Mapping[str, Any]) -> Call[Any]:
    commands = typer.main.get_command(app)
    return Call(function, commands.get_command(typer.Context(commands), name), arguments)  # type: ignore[attr-defined]


def documented(
    texts: Annotated[str | Sequence[str], "marker"],
    path: str | Path | None = None,
    number: float | None = None,
    columns: str | tuple[str, str] | None = None,
    flag: bool = False,
    quiet: Annotated[bool, LIBRARY_ONLY] = True,
) -> int:
    """Do nothing.

    Args:
        texts: Some texts,
            in two lines.
        path: A ``path``: see :class:`~pathlib.Path`.

    Returns:
        one: not an argument.
    """
    return 1


def test_options_come_from_annotations_and_the_docstring() -> None:
    parameters = declared_parameters(documented)
    assert list(parameters) == ["texts", "path", "number", "columns", "flag"]
    types = [(value_type(value.annotation), is_repeatable(value.annotation)) for value in parameters.values()]
    assert types == [(str, True), (str, False), (float, False), (str, False), (bool, False)]
    assert argument_help(documented) == {"texts": "Some texts, in two lines.", "path": "A path: see pathlib.Path."}


@pytest.mark.parametrize(
    "arguments", [{"texts": 5}, {"path": True}, {"number": "1"}, {"number": True}, {"columns": 5}, {"flag": 1}]
)
def test_an_argument_of_a_wrong_type_is_refused(arguments: dict[str, Any]) -> None:
    checked = check_types(documented)
    assert checked(["a"], path=Path(), number=1, columns=["a", "b"], flag=True) == 1
    with pytest.raises(UserError, match=rf"^{next(iter(arguments))}="):
        checked(**{"texts": "a", **arguments})


@pytest.mark.parametrize("name", ["prepare-data", "train", "eval", "compare", "distil", "serve", "bench"])
def test_every_option_has_help_and_no_command_has_a_flag_twice(name: str) -> None:
    commands = typer.main.get_command(app)
    command = commands.get_command(typer.Context(commands), name)  # type: ignore[attr-defined]
    members = [command.get_command(None, member) for member in command.commands] if name == "bench" else [command]
    for member in members:
        assert all(param.help for param in member.params), member.name
        flags = [flag for param in member.params for flag in (*param.opts, *param.secondary_opts)]
        assert len({*flags}) == len(flags)


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("lowercase", False, ["--cased"]),
        ("lowercase", True, ["--lowercase"]),
        ("lowercase", None, []),
        ("threads", 2, ["--threads", "2"]),
        ("alpha", 0.0, ["--alpha", "0.0"]),
        ("reference", ["a", "b"], ["--reference", "a", "--reference", "b"]),
        ("run", ["a", "b"], ["a", "b"]),
        ("every", False, []),
        ("every", True, ["--all"]),
    ],
)
def test_a_call_as_a_command_line(name: str, value: object, arguments: list[str]) -> None:
    assert call_of("eval", phmctl.evaluate, {}).command_line(**{name: value}) == ["eval", *arguments]


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
        ("don't,x", ["don't", "x"]),  # a quote within a word
        ("[1,2", ["[1,2"]),  # never closed
        ('"a,b', ['"a,b']),
        ("1]", ["1]"]),
        ("1,,2", ["1,,2"]),
        ("a #b", ["a #b"]),
    ],
)
def test_commas_separate_values_outside_quotes_and_brackets(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@given(st.lists(st.text("ab, '\"[]{}", max_size=6), min_size=1, max_size=4))
def test_quoted_values_come_back_as_they_were(values: list[str]) -> None:
    single = ["'" + value.replace("'", "''") + "'" for value in values]
    for quoted in (single, [json.dumps(value) for value in values]):
        assert [compose(part)[1] for part in split_values(",".join(quoted))] == values


def test_the_last_axis_changes_fastest_and_repeated_values_count_once() -> None:
    given = {"n": "2,4,2", "seed": "1", "settings": ["model.dropout=0.1,0.3", "training.clip=1"], "tag": "a,b"}
    calls = combinations(call_of("train", phmctl.train, given))
    assert [call.label for call in calls] == [
        "n=2 dropout=0.1",
        "n=2 dropout=0.3",
        "n=4 dropout=0.1",
        "n=4 dropout=0.3",
    ]
    settings = ["model.dropout=0.3", "training.clip=1"]
    assert calls[1].arguments == {"n": 2, "seed": 1, "settings": settings, "tag": "a,b"}
    assert calls[1].command_line() == [
        *("train", "--n", "2", "--seed", "1", "--set", "model.dropout=0.3", "--set", "training.clip=1", "--tag", "a,b")
    ]
    assert [call.arguments for call in combinations(call_of("train", phmctl.train, {}))] == [{}]
