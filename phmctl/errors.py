"""The exception tree. All that a user can cause is a :class:`UserError`; everything else may end in a traceback."""

import difflib
import importlib
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

_LONGEST_NAME, _NAMES = 100, 1000  # of names that are compared: their characters, and how many


class PhmctlError(Exception):
    """Base of all errors that phmctl raises on purpose."""

    exit_code = 1


class UserError(PhmctlError):
    """Something the user can put right. The message says what is wrong, where, and what to do."""

    exit_code = 2


class RecipeError(UserError):
    """A recipe does not say what it must."""


class DimensionError(UserError, ValueError):
    """n does not divide a dimension that a layer must split in n parts."""


class RankError(UserError, ValueError):
    """A rule cannot be written with this number of products, or is none."""


class DataError(UserError):
    """Data that is missing, malformed or not prepared."""


class DownloadError(DataError):
    """A hub or a server does not give what a card names."""


class RunError(UserError):
    """A run directory or a checkpoint cannot be used."""


class MissingExtraError(UserError):
    """An optional library is not installed."""


class RequestError(UserError):
    """A request to a server cannot be answered as it is.

    Attributes:
        status: the HTTP status that says so, 400 to 499.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class OutputError(UserError):
    """An output folder cannot be written."""


class WriteFailedError(OutputError):
    """A disk became full or broke while the work went on."""

    exit_code = 1


class BusyError(PhmctlError):
    """A server takes no more work now: its queue is full, or it is stopping.

    Attributes:
        retry_after: seconds after which to try again.
    """

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoppedError(PhmctlError):
    """The user pressed Ctrl-C."""

    exit_code = 130


class NonFiniteError(PhmctlError):
    """A loss or a gradient became NaN or infinite."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the clause `` (did you mean 'x'?)`` for the known name nearest to `word`, or an empty string."""
    if len(word) > _LONGEST_NAME:  # nobody mistyped that, and looking takes the square of its length
        return ""
    short = (name for name in known if len(name) <= _LONGEST_NAME)
    matches = difflib.get_close_matches(word, islice(short, _NAMES), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def check_known(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse (UserError) a name that is none of those known; names the nearest."""
    if name not in known:
        raise UserError(f"no {kind} {name!r}{nearest(name, known)}; there are {', '.join(known)}")


def require(module: str, extra: str) -> Any:
    """Import an optional library.

    Args:
        module: what to import, ``onnxruntime``.
        extra: the extra of phmctl that brings it.

    Raises:
        MissingExtraError: it is not installed; the message is the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, extra) from error


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error that says how to install an optional library."""
    return MissingExtraError(
        f"{module.split('.', maxsplit=1)[0]} is not installed; install it with: pip install 'phmctl[{extra}]'"
    )
