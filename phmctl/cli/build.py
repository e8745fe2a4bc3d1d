"""Build a Typer command from a function (see :mod:`phmctl.options`)."""

import copy
import inspect
import json as json_module
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, ParameterInfo

import phmctl
from phmctl.console import Shown
from phmctl.errors import StoppedError, UserError
from phmctl.options import (
    AXIS,
    Call,
    Json,
    allowed_types,
    argument_help,
    declared_parameters,
    is_repeatable,
    markers,
    value_type,
)

F = TypeVar("F", bound=Callable[..., Shown | None])

NEWEST = "newest"  # the value of --resume without a value


def read_files(text: str) -> tuple[str, ...]:
    """Read the files of ``--train SRC TGT``, which the parser passes on as a JSON list."""
    return tuple(json_module.loads(text))


FileGroups = list[tuple[str, ...]] | None
Files = Annotated[FileGroups, typer.Option(metavar="SRC TGT", parser=read_files)]
NamedFiles = Annotated[FileGroups, typer.Option(metavar="[NAME=]SRC TGT", parser=read_files)]


class Group(TyperGroup):
    """A group that builds a command when it is asked for: building all takes a quarter of the time of ``--help``."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is None or isinstance(command, TyperGroup):
            return command
        return command.callback()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.short_help) for name, command in self.commands.items()])


class _Commands(Group):
    """The group of all commands. It handles Ctrl-C, because Typer would end the process without a message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise StoppedError("interrupted") from interrupt


app = typer.Typer(
    name="phmctl",
    cls=_Commands,
    help="Train and evaluate sequence models whose linear layers are parameterized hypercomplex multiplications.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich's formatter would cost a third of the start-up
)


class _Command(TyperCommand):
    """A command that refuses repeated options and reads options with a variable number of values."""

    pairs: frozenset[str] = frozenset()  # options that take one or two values
    optional: frozenset[str] = frozenset()  # options that may be given without a value

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments. Raises UserError if an option with a single value is repeated: the last would win."""
        arguments = self._with_single_values(args)
        order = self.make_parser(ctx).parse_args(args=list(arguments))[2]
        for param, times in Counter(order).items():
            if times > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                raise UserError(f"{param.opts[0]} is given {times} times but takes one value; leave one out")
        return super().parse_args(ctx, arguments)

    def _with_single_values(self, args: list[str]) -> list[str]:
        """Return arguments in which each option has one value: the files of a pair become a JSON list."""
        waiting, arguments = list(args), list[str]()
        while waiting:
            argument = waiting.pop(0)
            arguments.append(argument)
            if argument in self.pairs and waiting:
                files = [waiting.pop(0)]
                if waiting and not waiting[0].startswith("-"):
                    files.append(waiting.pop(0))
                arguments.append(json_module.dumps(files))
            elif argument in self.optional and (not waiting or waiting[0].startswith("-")):
                arguments.append(NEWEST)
        return arguments


def command(
    app: typer.Typer, name: str, *, target: str | Callable[..., Any] | None = None, sweeps: bool = False
) -> Callable[[F], F]:
    """Register a function as a command: its docstring is the help, its parameters are the options.

    With `target`, a function or the name of a function of ``phmctl``, the command also has the options of that
    function, and the registered function gets a :class:`~phmctl.options.Call` of it, in the parameter with this
    annotation. With `sweeps` an axis takes several values, which arrive as text.

    The function returns its output. ``--json`` is added unless the function has a parameter of that name.
    """

    def register(function: F) -> F:
        summary = " ".join((function.__doc__ or "").split("\n\n")[0].split())

        @app.command(name, short_help=summary)
        def build() -> Any:
            return _build(name, function, getattr(phmctl, target) if isinstance(target, str) else target, sweeps)

        return function

    return register


def _build(name: str, function: Callable[..., Shown | None], target: Callable[..., Any] | None, sweeps: bool) -> Any:
    """Build the command of a function; the options of `target` replace the parameter that gets its call."""
    declared = declared_parameters(function)
    descriptions = argument_help(function)
    library = {}
    if target is not None:
        library = declared_parameters(target)
        descriptions |= argument_help(target)
    options: list[inspect.Parameter] = []
    receiver = ""
    for key, parameter in declared.items():
        if get_origin(parameter.annotation) is Call:
            receiver = key
            options += library.values()
        else:
            options.append(parameter)
    if "json" not in declared:
        options.append(_JSON)
    parameters = [_parameter(option, descriptions, sweeps) for option in options]
    optional = {key for key, parameter in library.items() if {bool, str} <= {*allowed_types(parameter.annotation)}}

    def callback(context: typer.Context, **values: Any) -> None:
        arguments = {key: value for key, value in values.items() if _was_set(context, key)}
        arguments |= {key: True for key in optional if arguments.get(key) == NEWEST}
        own_arguments = {key: value for key, value in arguments.items() if key in declared}
        if target is not None:
            library_arguments = {key: value for key, value in arguments.items() if key in library}
            own_arguments[receiver] = Call(target, context.command, library_arguments)
        output = function(**own_arguments)
        if output is not None:
            output.show("json" if values["json"] else "table")
            if output.code:
                raise typer.Exit(output.code)

    context = inspect.Parameter("context", _KEYWORD, annotation=typer.Context)
    callback.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    help_text = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")[0]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=_Command, help=help_text, short_help=help_text.split("\n\n")[0])(callback)
    built: Any = typer.main.get_command(app)
    built.optional = frozenset(f"--{key}" for key in optional)
    built.pairs = frozenset(f"--{key}" for key, value in declared.items() if value.annotation in (Files, NamedFiles))
    return built


_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_JSON = inspect.Parameter("json", _KEYWORD, default=False, annotation=Json)


def _parameter(parameter: inspect.Parameter, descriptions: dict[str, str], sweeps: bool) -> inspect.Parameter:
    """Return a parameter as Typer reads it: with one type, and an option that holds the description."""
    annotation = parameter.annotation
    options = [marker for marker in markers(annotation) if isinstance(marker, ParameterInfo)]
    option: Any = copy.copy(options[0]) if options else typer.Option()
    option.help = descriptions.get(parameter.name, option.help)
    positional = isinstance(option, ArgumentInfo)
    if not positional and option.default is ...:  # Typer keeps the first flag of an annotated option as its default
        flag = parameter.name.rstrip("_").replace("_", "-")
        has_two_flags = set(allowed_types(annotation)) == {bool, NoneType}
        option.param_decls = (f"--{flag}/--no-{flag}" if has_two_flags else f"--{flag}",)
    is_axis = sweeps and AXIS in markers(annotation)
    value: Any = str if is_axis else value_type(annotation)
    if is_repeatable(annotation) or (is_axis and positional):
        if not positional:
            option.help += " Repeatable."
        value = list[value]
    default = parameter.default
    if default is inspect.Parameter.empty or type(default) is value or isinstance(default, Path):
        return parameter.replace(kind=_KEYWORD, annotation=Annotated[value, option])
    return parameter.replace(kind=_KEYWORD, default=None, annotation=Annotated[value | None, option])


def _was_set(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
