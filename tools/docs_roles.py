"""Extension for the API reference: docstrings have Sphinx's roles, which editors know; the pages are Markdown."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?(?:phmctl\.(?:\w+\.)*)?([^`]+)`")
_BLOCK = re.compile(r"::(?=\n\s*\n)")


class Roles(griffe.Extension):
    """Turns :class:`~x.y` into `y`, and the double colon before an indented block into a single one."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute as it is collected."""
        if obj.docstring is not None:
            obj.docstring.value = _BLOCK.sub(":", _ROLE.sub(r"`\1`", obj.docstring.value))
