"""Extension for the API reference: translates Sphinx roles."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?(?:phmctl\.(?:\w+\.)*)?([^`]+)`")
_BLOCK = re.compile(r"::(?=\n\s*\n)")


class Roles(griffe.Extension):
    """Replace :class:`~x.y` by `y`, and the double colon before an indented block by a single colon."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a collected module, class, function or attribute."""
        if obj.docstring is None:
            return
        obj.docstring.value = plain_text(obj.docstring.value)


def plain_text(text: str) -> str:
    """Return a docstring without Sphinx roles and without double colons."""
    return _BLOCK.sub(":", _ROLE.sub(r"`\1`", text))
