"""Pure tensor maths: rules, Kronecker sums, bilinear rank, initialisation. Names are imported on first use."""

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
    "kronecker_sum",
    "learned_rule",
    "multiply",
    "nearest_components",
    "nearest_sum",
    "rank_linear",
    "recompose",
]

if TYPE_CHECKING:
    from phmctl.algebra.alignment import align_rules
    from phmctl.algebra.bilinear import Decomposition, Factors, bilinear_rank, decompose, generic_rank, recompose
    from phmctl.algebra.initialisation import learned_rule
    from phmctl.algebra.kronecker import kronecker_sum, nearest_components, nearest_sum
    from phmctl.algebra.rank_product import rank_linear
    from phmctl.algebra.rules import fixed_rule, multiply

_HOMES = {
    "align_rules": "alignment",
    "kronecker_sum": "kronecker",
    "nearest_components": "kronecker",
    "nearest_sum": "kronecker",
    "fixed_rule": "rules",
    "learned_rule": "initialisation",
    "multiply": "rules",
    "rank_linear": "rank_product",
}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): ``import phmctl.algebra`` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'phmctl.algebra' has no attribute {name!r}")
    return getattr(import_module(f"phmctl.algebra.{_HOMES.get(name, 'bilinear')}"), name)
