"""A command of its options (:mod:`phmctl.options`), what does it, and how what it found is shown."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from phmctl.console import Shown
from phmctl.errors import UserError
from phmctl.options import RUNS, Option

NEWEST = "newest"  # what --resume means on its own
TOGETHER = "\0"  # between the files of one --train, which the command line cannot have


class Summaries(TyperGroup):
    """Lists commands with the whole first sentence of their help, which would be cut off at the line's end."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the section of commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, " ".join((found.help or "").split("\n\n")[0].split())) for name, found in commands if found]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Once(TyperCommand):
    """Refuses an option that is given twice and has one meaning: the last would win without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; raises UserError."""
        order = self.make_parser(ctx).parse_args(args=list(args))[2]
        for param, times in Counter(order).items():
            if times > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                join = "; join the files first (cat A B > C)" if param.nargs > 1 else "; leave one out"
                raise UserError(f"{param.opts[0]} is given {times} times, and means one thing{join}")
        return super().parse_args(ctx, args)


class TrainCommand(Once):
    """Takes ``--resume`` with and without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--resume`` at the end, or before another option, as ``--resume newest``; raises UserError."""
        if any(argument.partition("=")[0] == "--run" for argument in args):
            raise UserError("train has no --run: --resume RUN continues a run, --tag NAME names a new one")
        found: list[str] = []
        for argument, following in zip(args, [*args[1:], "--"], strict=True):
            found += [argument, NEWEST] if argument == "--resume" and following.startswith("-") else [argument]
        return super().parse_args(ctx, found)


class PrepareCommand(Once):
    """Takes ``--train`` and the like with a source and a target file, or with one table of both."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--train SRC TGT`` as an option of one value; refuse (UserError) what has no part in ``--list``."""
        waiting, found = list(args), list[str]()
        while waiting:
            found.append(waiting.pop(0))
            if found[-1] in ("--train", "--valid", "--test") and waiting:
                value = [waiting.pop(0)]
                value += [waiting.pop(0)] if waiting and not waiting[0].startswith("-") else []
                found.append(TOGETHER.join(value))
        rest = super().parse_args(ctx, found)
        given = [each for each in self.params if ctx.get_parameter_source(each.name).name == "COMMANDLINE"]
        others = [each.opts[0] for each in given if each.name not in ("list_", "name", "data", "json")]
        if ctx.params["list_"] and others:
            raise UserError(f"{', '.join(others)} {'have' if others[1:] else 'has'} no part in --list: leave one out")
        return rest


def add_command(
    app: typer.Typer,
    name: str,
    options: Sequence[Option],
    run: Callable[..., Shown | None],
    *,
    axes: Collection[str] = (),
    cls: type[Once] = Once,
) -> None:
    """Give an app a command: `run` gets what was given, and returns what is to be shown; its docstring is the help.

    The options in `axes` may have several values, parted by commas: `run` gets their text.
    """
    own_json = "json" in inspect.signature(run).parameters

    def call(**given: Any) -> None:
        as_json = not own_json and given.pop("json")
        shown = run(**given)
        if shown is not None:
            shown.show(as_json=as_json)
            if shown.code:
                raise typer.Exit(shown.code)

    call.__doc__ = run.__doc__
    parameters = [_parameter(each, str if each.name in axes else each.type) for each in options]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(name, cls=cls)(call)


def _parameter(option: Option, kind: Any) -> inspect.Parameter:
    """Return an option as Typer reads it in a function's signature."""
    default = False if kind is bool and option.default is None and "/" not in option.flags else option.default
    how: dict[str, Any] = {"help": option.help, "metavar": option.argument or option.metavar}
    how |= {"min": option.least, "max": option.most}
    if option.complete:
        how["autocompletion"] = _completing(option.complete)
    if option.argument:
        told = typer.Argument(**how)
    else:
        how["help"] += " Repeatable." * option.many
        told = typer.Option(*option.written, callback=_look_there if option is RUNS else None, **how)
    kind = list[kind] if option.many else kind
    annotation: Any = Annotated[kind | None if default is None else kind, told]
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _completing(kind: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        from phmctl.shipped import shipped_names

        return [name for name in shipped_names(kind) if name.startswith(incomplete)]

    return complete


def _look_there(context: typer.Context, runs: Path | None) -> Path | None:
    """Let the names of runs that a command is given, `--init` too, mean runs below `--runs`."""
    if runs is not None:
        from phmctl.runs.find import runs_in

        context.with_resource(runs_in(runs))
    return runs
