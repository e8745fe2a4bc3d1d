"""The miniature: a German–English corpus that a small grammar writes, the same for everyone.

It is not translation data from the wild. It is small, correct and rich enough in agreement, word order and subordinate
clauses that a model must learn grammar to translate it.
"""

from phmctl.miniature.corpus import generate

__all__ = ["generate"]
