"""Pure tensor maths: rules, Kronecker sums, bilinear rank, executions, initialisation.

What people want of it stands here, imported on first use: ``from phmctl.algebra import decompose``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Decomposition",
    "Factors",
    "align_rules",
    "bilinear_rank",
    "decompose",
    "fixed_rule",
    "generic_rank",
    "learned_rule",
    "materialise",
    "multiply",
    "nearest_components",
    "nearest_kronecker_sum",
    "recompose",
]

if TYPE_CHECKING:
    from phmctl.algebra.alignment import align_rules
    from phmctl.algebra.bilinear import Decomposition, Factors, bilinear_rank, decompose, generic_rank, recompose
    from phmctl.algebra.initialisation import learned_rule
    from phmctl.algebra.kronecker import materialise
    from phmctl.algebra.nearest import nearest_components, nearest_kronecker_sum
    from phmctl.algebra.rules import fixed_rule, multiply

_HOMES = {
    "align_rules": "alignment",
    "materialise": "kronecker",
    "nearest_components": "nearest",
    "nearest_kronecker_sum": "nearest",
    "fixed_rule": "rules",
    "learned_rule": "initialisation",
    "multiply": "rules",
}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): ``import phmctl.algebra`` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'phmctl.algebra' has no attribute {name!r}")
    return getattr(import_module(f"phmctl.algebra.{_HOMES.get(name, 'bilinear')}"), name)
