"""A command of its options (:mod:`phmctl.options`), what does it, and how what it found is shown."""

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from phmctl.console import Shown
from phmctl.devices import set_threads
from phmctl.errors import UserError, check_known
from phmctl.options import FILES, RUNS, Option

NEWEST = "newest"  # what --resume means on its own
TOGETHER = "\0"  # between the files of one --train, which the command line cannot have


class Group(TyperGroup):
    """Builds a command when it is asked for: all of them would be a quarter of the time that ``--help`` takes."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        return command if command is None or isinstance(command, TyperGroup) else command.callback()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.short_help) for name, command in self.commands.items()])


class _Command(TyperCommand):
    """Takes ``--resume`` of ``train`` with and without a value, and ``--train`` and the like with one file or two."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; raises UserError for an option that is given twice and means one thing: the last would win."""
        valued = {param.opts[0] for param in self.params if not getattr(param, "is_flag", False)}
        several = valued & {option.written[0] for option in FILES}
        waiting, found = list(args), list[str]()
        while waiting:
            found.append(waiting.pop(0))
            values = [waiting.pop(0)] if waiting and found[-1] in several else []
            values += [waiting.pop(0)] if values and waiting and not waiting[0].startswith("-") else []
            found += [TOGETHER.join(values)] if values else []
            if found[-1] == "--resume" in valued and (not waiting or waiting[0].startswith("-")):
                found.append(NEWEST)
        order = self.make_parser(ctx).parse_args(args=list(found))[2]
        for param, times in Counter(order).items():
            if times > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                raise UserError(f"{param.opts[0]} is given {times} times, and means one thing; leave one out")
        return super().parse_args(ctx, found)


def add_command(app: typer.Typer, name: str, options: Sequence[Option], run: Callable[..., Shown | None]) -> None:
    """Give an app a command: `run` gets what was given, and returns what is to be shown; its docstring is the help.

    Where there is ``--jobs``, several values, parted by commas, mean several such commands.
    """
    summary = " ".join((run.__doc__ or "").split("\n\n")[0].split())

    @app.command(name, short_help=summary)
    def build() -> Any:
        own, sweep = inspect.signature(run).parameters, any(each.name == "jobs" for each in options)

        def work(**given: Any) -> Shown | None:
            if "threads" not in own:
                set_threads(given.pop("threads", 0))
            return run(**given)

        def call(**given: Any) -> None:
            form = given.pop("format", "table")
            check_known("format", form, ("table", "csv", "latex", "json"))
            form = "json" if "json" not in own and given.pop("json") else form
            if sweep:
                from phmctl.sweeps import sweep as swept

                shown = swept(name, given, work)
            else:
                shown = work(**given)
            if shown is not None:
                shown.show(form)
                if shown.code:
                    raise typer.Exit(shown.code)

        parameters = [_parameter(each, str if each.axis and sweep else each.type) for each in options]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, cls=_Command, help=run.__doc__, short_help=summary)(call)
        return typer.main.get_command(alone)


def _parameter(option: Option, kind: Any) -> inspect.Parameter:
    default = False if kind is bool and option.default is None and "/" not in option.flags else option.default
    how: dict[str, Any] = {"help": option.help, "metavar": option.argument or option.metavar}
    how |= {"min": option.least, "max": option.most}
    if option.argument:
        told = typer.Argument(**how)
    else:
        how["help"] += " Repeatable." * option.many
        told = typer.Option(*option.written, callback=_look_there if option is RUNS else None, **how)
    kind = list[kind] if option.many else kind
    annotation: Any = Annotated[kind | None if default is None else kind, told]
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _look_there(context: typer.Context, runs: Path | None) -> Path | None:
    """Let the names of runs that a command is given, `--init` too, mean runs below `--runs`."""
    if runs is not None:
        from phmctl.runs.find import runs_in

        context.with_resource(runs_in(runs))
    return runs
