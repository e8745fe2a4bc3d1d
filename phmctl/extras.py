"""Optional libraries: each comes with an extra of this package, and is imported where it is wanted."""

import importlib
from typing import Any

from phmctl.errors import MissingExtraError


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


def too_old(library: str, extra: str, lacks: object) -> MissingExtraError:
    """Return the error that says how to get a version that has what is wanted of it."""
    first = str(lacks).partition("\n")[0]
    return MissingExtraError(
        f"the {library} that is installed lacks something that is wanted of it ({first}); "
        f"get a later one with: pip install --upgrade 'phmctl[{extra}]'"
    )


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error that says how to install an optional library."""
    return MissingExtraError(
        f"{module.split('.', maxsplit=1)[0]} is not installed; install it with: pip install 'phmctl[{extra}]'"
    )
