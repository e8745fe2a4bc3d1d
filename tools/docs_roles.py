"""Extension for the API reference that translates Sphinx roles in docstrings to Markdown."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?(?:phmctl\.(?:\w+\.)*)?([^`]+)`")
_BLOCK = re.compile(r"::(?=\n\s*\n)")


class Roles(griffe.Extension):
    """Replace :class:`~x.y` by `y`, and the double colon before an indented block by a single colon."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a collected module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _BLOCK.sub(":", _ROLE.sub(r"`\1`", obj.docstring.value))
