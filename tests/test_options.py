"""The options of commands: what the library has of them, and what a command line says for a value."""

import inspect

import pytest

from phmctl import options, verbs
from phmctl.distillation import distil

ONLY_HERE = {"jobs", "list_", "dry_run", "processes", "json"}  # of the command line


@pytest.mark.parametrize(("given", "verb"), [(options.TRAIN, verbs.train), (options.DISTIL, distil)])
def test_the_library_has_the_options_of_the_command(given: tuple[options.Option, ...], verb: object) -> None:
    known = inspect.signature(verb).parameters
    assert {each.name for each in given} - ONLY_HERE == known.keys() - {"quiet"}


@pytest.mark.parametrize("own", [value for name, value in vars(options).items() if isinstance(value, tuple)])
def test_no_command_has_an_option_twice(own: tuple[object, ...]) -> None:
    flags = [flag for each in own if isinstance(each, options.Option) and not each.argument for flag in each.written]
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("lowercase", False, ["--cased"]),
        ("lowercase", True, ["--lowercase"]),
        ("lowercase", None, []),
        ("threads", 0, []),
        ("threads", 2, ["--threads", "2"]),
        ("alpha", 0.0, ["--alpha", "0.0"]),
        ("reference", ["a", "b"], ["--reference", "a", "--reference", "b"]),
        ("names", ["a", "b"], ["a", "b"]),
        ("every", False, []),
        ("every", True, ["--all"]),
    ],
)
def test_what_a_command_line_says_for_a_value(name: str, value: object, arguments: list[str]) -> None:
    assert next(each for each in options.EVAL if each.name == name).arguments(value) == arguments
