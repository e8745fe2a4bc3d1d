"""The ``phmctl`` command: registers the subcommands, prints results and turns errors into exit codes.

Exit codes: 0 done, 1 the work failed, 2 the user's input is wrong, 130 interrupted, 128 + n ended by signal n.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer import Option

from phmctl.cli.answering import decode, evaluate, export, probe, serve
from phmctl.cli.bench import bench
from phmctl.cli.listing import compare, count_params, recipes, report, show_runs
from phmctl.cli.options import as_json
from phmctl.cli.preparing import prepare_data
from phmctl.cli.training import distil, sweep, train
from phmctl.console import Shown, note
from phmctl.devices import world
from phmctl.errors import PhmctlError, UserError, lack_of_memory
from phmctl.signals import STOP_SIGNALS
from phmctl.threads import choose_threads
from phmctl.version import __version__

_DEBUG = "PHMCTL_DEBUG"

COMMANDS: dict[str, Callable[..., Shown | None]] = {
    "prepare-data": prepare_data,
    "train": train,
    "sweep": sweep,
    "decode": decode,
    "eval": evaluate,
    "probe": probe,
    "distil": distil,
    "serve": serve,
    "export": export,
    "compare": compare,
    "report": report,
    "recipes": recipes,
    "runs": show_runs,
    "count-params": count_params,
}


def _print(result: Shown | None, **_: object) -> None:
    """Print the result of a command as a table, or as JSON. Exit with the result's code."""
    if result is not None:
        result.show(as_json.get())
        if result.code:
            raise typer.Exit(result.code)


app = typer.Typer(
    name="phmctl",
    no_args_is_help=True,
    result_callback=_print,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich's formatter would cost a third of the start-up
)
for _name, _function in COMMANDS.items():
    app.command(_name)(_function)
app.add_typer(bench, name="bench")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"phmctl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train and evaluate sequence models whose linear layers are parameterized hypercomplex multiplications."""
    if debug:
        os.environ[_DEBUG] = "1"
    if context.invoked_subcommand != "train" and world().size > 1:
        raise UserError(f"{context.invoked_subcommand} works in one process. Start it without torchrun")
    choose_threads()


def run() -> None:
    # Without this, pydantic reads the metadata of every installed package to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _install_signal_handlers()
    command = typer.main.get_command(app)
    try:
        _refuse_repeated_options(command, sys.argv[1:])
        command()
    except PhmctlError as error:
        if isinstance(error, UserError) and world().rank > 0:
            sys.exit(error.exit_code)  # rank 0 reports the error of all processes
        _fail(str(error), error.exit_code)
    except Exception as error:
        _fail_unexpected(error)


def _refuse_repeated_options(command: Any, words: list[str]) -> None:
    """Raise UserError if an option with a single value is given twice: the last value would win silently."""
    commands = command.commands
    while words and (words[0] in commands or words[0] == "--debug"):
        command = commands.get(words[0], command)
        commands, words = getattr(command, "commands", {}), words[1:]
    given = command.make_parser(typer.Context(command, resilient_parsing=True)).parse_args(words)[2]
    for parameter, times in Counter(given).items():
        if times > 1 and parameter.param_type_name == "option" and not parameter.multiple:
            raise UserError(f"{parameter.opts[0]} is given {times} times but takes one value. Leave one out")


def _install_signal_handlers() -> None:
    """Turn Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 into an exception, so that cleanup code runs. Ignored ones stay ignored.

    A second signal ends the process at once. Training installs handlers that save first.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        note(f"ended by {signal.Signals(number).name}")
        raise SystemExit(128 + number)

    for number in STOP_SIGNALS:
        unhandled = signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
        if unhandled and threading.current_thread() is threading.main_thread():
            signal.signal(number, end)


def _fail_unexpected(error: Exception) -> None:
    place = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        _fail(f"{str(error.filename)[:100]}...: the file name is too long", 2)
    reason = lack_of_memory(error)
    if reason is not None:
        _fail(
            f"the memory is too small ({reason})\n"
            "use smaller batches (--batch-tokens, --beam; training.batch_tokens, training.batch_size), or a smaller "
            "model, or raise the limit (ulimit -v)",
            1,
        )
    _fail(
        f"{type(error).__name__}: {error} (at {place.filename}:{place.lineno})\n"
        f"this is an error in phmctl or of the machine; {_DEBUG}=1 in the environment shows the full traceback",
        1,
    )


def _fail(message: str, code: int) -> NoReturn:
    if os.environ.get(_DEBUG):
        traceback.print_exc()
    else:
        note(f"error: {message}")
    sys.exit(code)
