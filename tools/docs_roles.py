"""Extension for the API reference: translates Sphinx roles, and adds the descriptions of shared options."""

import re
from typing import Any

import griffe

from phmctl import options

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?(?:phmctl\.(?:\w+\.)*)?([^`]+)`")
_BLOCK = re.compile(r"::(?=\n\s*\n)")


class Roles(griffe.Extension):
    """Replace :class:`~x.y` by `y`, and the double colon before an indented block by a single colon."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a collected module, class, function or attribute."""
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if isinstance(obj, griffe.Function):
            text = text.replace("\nArgs:\n", "\nArgs:\n" + shared_options(obj, text))
        obj.docstring.value = plain_text(text)


def plain_text(text: str) -> str:
    """Return a docstring without Sphinx roles and without double colons."""
    return _BLOCK.sub(":", _ROLE.sub(r"`\1`", text))


def shared_options(function: griffe.Function, docstring: str) -> str:
    """Return the lines of ``Args:`` for arguments that only :mod:`phmctl.options` describes."""
    lines = ""
    for parameter in function.parameters:
        for marker in options.markers(getattr(options, str(parameter.annotation), None)):
            description = getattr(marker, "help", None)
            if description and f"\n    {parameter.name}: " not in docstring:
                lines += f"    {parameter.name}: {description}\n"
    return lines
