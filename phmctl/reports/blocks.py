"""What a page is made of: pairs of a kind and its value, which ``page.html`` shows; text is escaped there.

Kinds are ``table`` (:class:`~phmctl.console.Table`), ``text``, ``heading``, ``code``, ``lines``, ``details`` (a summary
and its blocks), and rows of pictures: ``grid``, ``tiles`` and ``tiles wide``.
"""

from dataclasses import dataclass
from typing import Any

Blocks = list[tuple[str, Any]]


@dataclass(frozen=True)
class Picture:
    """A picture with what it shows in words, for those who do not see it, and a caption for all."""

    svg: str
    words: str
    caption: str


def plural(count: int, word: str) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")
