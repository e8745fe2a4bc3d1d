"""The ``phmctl`` command: registers the subcommands and turns errors into exit codes.

Exit codes: 0 done, 1 the work failed, 2 the user's input is wrong, 130 interrupted, 128 + n ended by signal n.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from phmctl import __version__
from phmctl.cli import commands, comparing, listing  # noqa: F401 (register their commands)
from phmctl.cli.bench import SUMMARY, bench
from phmctl.cli.build import app
from phmctl.console import note, stdout_refused
from phmctl.devices import world
from phmctl.errors import PhmctlError, UserError, lack_of_memory
from phmctl.training.signals import follow_named

_DEBUG = "PHMCTL_DEBUG"
_MAX_LINE = 4000  # characters of a line of an error, which may quote a file


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"phmctl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train and evaluate sequence models whose linear layers are parameterized hypercomplex multiplications."""
    if debug:
        os.environ[_DEBUG] = "1"
    if context.invoked_subcommand != "train" and world().size > 1:
        raise UserError(f"{context.invoked_subcommand} works in one process; start it without torchrun")


app.add_typer(bench, name="bench", short_help=SUMMARY)


def run() -> None:
    # Without this, pydantic reads the metadata of every installed package to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_closed_streams()
    _install_signal_handlers()
    follow_named()
    try:
        app()
    except PhmctlError as error:
        if isinstance(error, UserError) and world().rank > 0:
            sys.exit(error.exit_code)  # rank 0 reports the error of all processes
        _fail(str(error), error.exit_code)
    except Exception as error:
        _fail_unexpected(error)


def _open_closed_streams() -> None:
    """Open the null device for a closed stdout or stderr (``>&-``); otherwise the next file would get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _install_signal_handlers() -> None:
    """Turn SIGTERM, SIGHUP and SIGUSR1 into an exception, so that cleanup code runs. Ignored signals stay ignored.

    A second signal ends the process at once. Training installs its own handlers, which save first.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        note(f"ended by {signal.Signals(number).name}")
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(number, end)


def _fail_unexpected(error: Exception) -> None:
    place = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, OSError) and place.name == "echo":  # Typer's own output: help, the version, completion
        refused = stdout_refused(error)
        _fail(str(refused), refused.exit_code)
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
        note("error: " + "\n".join(line[:_MAX_LINE] for line in message.split("\n")))
    sys.exit(code)
