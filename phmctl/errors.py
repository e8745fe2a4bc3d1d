"""The exceptions of phmctl. A mistake of the user raises a :class:`UserError`."""

import difflib
import errno
import importlib
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

_LONGEST_NAME = 100  # characters; longer names get no suggestion, because the comparison is quadratic
_MOST_NAMES = 1000  # known names that are compared

_OUT_OF_MEMORY = re.compile(r"out of memory|(can't|cannot|failed to) allocate memory|bad_alloc", re.IGNORECASE)


class PhmctlError(Exception):
    """Base class of phmctl's errors; `exit_code` is the command's exit status."""

    exit_code = 1


class UserError(PhmctlError):
    """A mistake that the user can correct. The message names the problem, its place and the remedy."""

    exit_code = 2


class RecipeError(UserError):
    """A recipe, or an option that sets one of its keys, is invalid."""


class DimensionError(UserError, ValueError):
    """n does not divide a layer's dimension, or a shape is wrong."""


class DataError(UserError):
    """Data is missing, malformed or not prepared."""


class DownloadError(DataError):
    """A file that a card names could not be downloaded."""


class RunError(UserError):
    """A run or a checkpoint is missing, damaged or unsuitable."""


class MissingExtraError(UserError):
    """An optional library is not installed."""


class RequestError(UserError):
    """A request to the server is invalid; `status` is the HTTP status, 400 to 499."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class OutputError(UserError):
    """An output file or folder cannot be written."""


class WriteFailedError(OutputError):
    """Writing failed during the work, for example because the disk is full."""

    exit_code = 1


class NonFiniteError(PhmctlError):
    """A loss or a gradient became NaN or infinite."""


def lack_of_memory(error: Exception) -> str | None:
    """Return the reason of an error if it is that the memory of the machine or of a device is exhausted, else None."""
    text = str(error)
    is_lack = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not is_lack and not _OUT_OF_MEMORY.search(text):  # the libraries have no common type
        return None
    text = text.rpartition("err == 0. ")[2]  # a failed check precedes torch's message
    return text.partition(". ")[0].strip() or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the clause `` (did you mean 'x'?)`` for the known name most like `name`, or an empty string."""
    if len(name) > _LONGEST_NAME:
        return ""
    candidates = (candidate for candidate in known if len(candidate) <= _LONGEST_NAME)
    matches = difflib.get_close_matches(name, islice(candidates, _MOST_NAMES), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def check_known(noun: str, name: str, known: Collection[str]) -> None:
    """Raise UserError, with the nearest known name, if `name` is unknown; the message calls it a `noun`."""
    if name not in known:
        raise UserError(f"no {noun} {name!r}{nearest(str(name), known)}; choose from {', '.join(known)}")


def require(module: str, extra: str) -> Any:
    """Return an optional module, which `extra` of phmctl installs; raise MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, extra) from error


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error that names the pip command for an optional module."""
    package = module.partition(".")[0]
    return MissingExtraError(f"{package} is not installed; install it with: pip install 'phmctl[{extra}]'")
