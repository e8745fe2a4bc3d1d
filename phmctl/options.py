"""Read a command's options from the signature and the docstring of its function.

A command is a typed function. Annotations give the types of its options, and ``Args:`` in its docstring gives their
help. Markers in ``Annotated`` give the rest: :data:`AXIS` and ``typer.Option`` or ``typer.Argument``. Options that
several commands have are declared and described here; the docstrings of their functions do not repeat them.
"""

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ForwardRef, Generic, ParamSpec, TypeVar, Union, get_args, get_origin

import typer

from phmctl.errors import RecipeError, UserError

P = ParamSpec("P")
R = TypeVar("R")

AXIS = "axis"  # marks an option of which several values make a sweep
LIBRARY_ONLY = "library only"  # marks an argument that the command line does not have
_SIMILAR = {float: int, tuple: list}  # a further type that is accepted for a type

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe: a path or a shipped name.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Run, folder of versions (its newest run is used) or export.")
]
N = Annotated[
    int | None,
    AXIS,
    typer.Option(
        help="PHM hyperparameter: about 1/n of the parameters; 1 is dense. Without --algebra n > 1 means phm."
    ),
]
Algebra = Annotated[
    str | None,
    AXIS,
    typer.Option(help="real, complex, quaternion, octonion, sedenion, phm (a learned rule); to compare: low-rank."),
]
_DEVICE = typer.Option(help="auto, cpu, cuda or cuda:N.")
Device = Annotated[str | None, _DEVICE]  # None: the recipe's
AnyDevice = Annotated[str, _DEVICE]
Precision = Annotated[str | None, AXIS, typer.Option(help="Translation: compute in float32 or bfloat16.")]
Settings = Annotated[
    Mapping[str, Any] | Sequence[str],
    AXIS,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any recipe key: training.clip=1.0."),
]
Data = Annotated[str | Path | None, typer.Option(help="Data folder (default: $PHMCTL_DATA or ./data).")]
Runs = Annotated[str | Path | None, typer.Option(help="Folder of runs (default: $PHMCTL_RUNS or ./runs).")]
Checkpoint = Annotated[
    str,
    AXIS,
    typer.Option(help="best, last, average or step-N; auto: the average if the recipe asks for one, else best."),
]
Split = Annotated[str, AXIS, typer.Option(help="test, valid, test_NAME (a named test set) or all (all test sets).")]
Beam = Annotated[int | None, AXIS, typer.Option(help="Beam size; 1 is greedy (default: the recipe's).")]
Alpha = Annotated[float | None, AXIS, typer.Option(help="Exponent of the length penalty (default: the recipe's).")]
BatchTokens = Annotated[int | None, typer.Option(help="Number of source tokens in a batch, including padding.")]
Threads = Annotated[int, typer.Option(min=0, help="Number of CPU threads; 0 keeps torch's default.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of processes of a sweep that run at once.")]
Json = Annotated[bool, typer.Option(help="Print one JSON document on stdout and nothing else there.")]


def declared_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that are options of its command, by name."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in parameters.items() if LIBRARY_ONLY not in markers(value.annotation)}


def markers(annotation: Any) -> tuple[Any, ...]:
    """Return the markers of an ``Annotated`` annotation."""
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def allowed_types(annotation: Any) -> tuple[type, ...]:
    """Return the types that an annotation allows; ``int | None`` gives int and NoneType."""
    if get_origin(annotation) is Annotated:
        return allowed_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for alternative in get_args(annotation) for member in allowed_types(alternative))
    if isinstance(annotation, str | ForwardRef):  # a type whose module is imported only for type checking
        return (str,)
    return (get_origin(annotation) or annotation,)


def value_type(annotation: Any) -> type:
    """Return the type of one value on the command line: text if the annotation allows text."""
    allowed = allowed_types(annotation)
    if str in allowed or is_repeatable(annotation):
        return str
    return next(member for member in allowed if member is not types.NoneType)


def is_repeatable(annotation: Any) -> bool:
    return bool({Sequence, list} & {*allowed_types(annotation)})


def argument_help(function: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument: from ``Args:`` in the docstring, otherwise from its marker."""
    descriptions: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        for marker in markers(parameter.annotation):
            descriptions[name] = getattr(marker, "help", None) or ""
    _, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    for line in section.split("\n"):
        if line and not line.startswith(" "):  # the next section
            break
        if line.startswith("    ") and not line.startswith("     "):
            name, _, descriptions[name] = line.strip().partition(": ")
        elif line:
            descriptions[name] += f" {line.strip()}"
    return {name: re.sub(r":\w+:`~?|`", "", text) for name, text in descriptions.items() if text}


def check_types(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise UserError for an argument whose type its annotation does not allow."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            allowed = allowed_types(signature.parameters[name].annotation)
            accepted = (*allowed, *(_SIMILAR[member] for member in allowed if member in _SIMILAR))
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in allowed):
                expected = " or ".join(member.__name__ for member in allowed if member is not types.NoneType)
                raise UserError(f"{name}={value!r}: expected {expected}")
        return function(*args, **kwargs)

    return checked


@dataclass(frozen=True)
class Call(Generic[R]):
    """A call of a library function with the arguments given on the command line."""

    function: Callable[..., R]
    command: Any  # the command of the command line: a TyperCommand
    arguments: Mapping[str, Any]  # by name; without the options that the user omitted
    label: str = "all values"  # the values that distinguish a call of a sweep

    def __call__(self, **arguments: Any) -> R:
        return self.function(**{**self.arguments, **arguments})

    def __getitem__(self, name: str) -> Any:
        """Return an argument, or the function's default."""
        return self.arguments.get(name, inspect.signature(self.function).parameters[name].default)

    def select(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the arguments with these names that the user gave."""
        return {name: self.arguments[name] for name in names if name in self.arguments}

    def with_arguments(self, **arguments: Any) -> "Call[R]":
        return replace(self, arguments={**self.arguments, **arguments})

    def command_line(self, **options: Any) -> list[str]:
        """Return the arguments of ``phmctl`` that make this call, with further options of the command."""
        values = {**self.arguments, **options}
        words = [self.command.name]
        for parameter in self.command.params:
            words += _words(parameter, values.get(parameter.name))
        return words


def _words(parameter: Any, value: Any) -> list[str]:
    if value is None:
        return []
    if getattr(parameter, "is_flag", False):
        flags = parameter.opts if value else parameter.secondary_opts
        return list(flags[:1])
    values = [str(item) for item in (value if isinstance(value, list) else [value])]
    if parameter.param_type_name == "argument":
        return values
    return [word for item in values for word in (parameter.opts[0], item)]


def combinations(call: Call[R]) -> list[Call[R]]:
    """Return a call for each combination of the values of the axes; the last axis changes fastest.

    Raises RecipeError if a value is not a number although its option needs one.
    """
    axes = []
    for name, parameter in inspect.signature(call.function).parameters.items():
        if AXIS in markers(parameter.annotation) and name in call.arguments:
            axes += _axes(name, parameter.annotation, call.arguments[name])
    calls = []
    for values in product(*(axis.items() for axis in axes)):
        arguments = {**call.arguments, **dict(argument for _, argument in values)}
        settings = [value for _, (name, value) in values if name == "settings"]
        if settings:
            arguments["settings"] = settings
        label = " ".join(label for axis, (label, _) in zip(axes, values, strict=True) if len(axis) > 1)
        calls.append(replace(call, arguments=arguments, label=label or call.label))
    return calls


def _axes(name: str, annotation: Any, argument: Any) -> list[dict[str, tuple[str, Any]]]:
    """Return the axes of an option: the argument's name and each of its values, by label."""
    if name == "settings":
        axes = []
        for setting in argument:
            key, equals, text = setting.partition("=")
            short = key.strip().rpartition(".")[2]
            axes.append({f"{short}={value}": (name, f"{key}{equals}{value}") for value in split_values(text)})
        return axes
    if isinstance(argument, list):  # positional
        return [{str(value): (name, value) for value in argument}]
    read = value_type(annotation)
    return [{f"{name}={text}": (name, parse_number(name, text, read)) for text in split_values(argument)}]


def split_values(text: str) -> list[str]:
    """Split a text at its top-level commas, as in a YAML list; a text that is not a list is one value."""
    import yaml

    try:
        node = yaml.compose(f"[{text}]")
    except yaml.YAMLError:
        return [text]
    if not isinstance(node, yaml.SequenceNode) or node.end_mark.index != len(text) + 2:
        return [text]
    return [text[item.start_mark.index - 1 : item.end_mark.index - 1] for item in node.value] or [text]


def parse_number(name: str, text: str, number: type) -> Any:
    """Return an option's value as `number` (int, float, or str for any text). Raises RecipeError."""
    try:
        if number is int and not text.strip().isdecimal():
            raise ValueError
        return number(text)
    except ValueError as error:
        expected = "a whole number without a sign" if number is int else "a number"
        flag = name.replace("_", "-")
        raise RecipeError(f"--{flag} {text}: expected {expected}, or several separated by commas") from error
