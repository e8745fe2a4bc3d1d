"""Slow reference implementations, and helpers that several tests use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from phmctl.recipe.models import TransformerSection
from phmctl.results.compare import Comparison, compare
from phmctl.results.ledger import Ledger, ledger_for
from phmctl.tasks import TASKS


class Watch(TorchDispatchMode):
    """Call `see` with every operation of torch and its result."""

    def __init__(self, see: Callable[[Any, Any], object]) -> None:
        super().__init__()
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(func, result)
        return result


def operations(call: Callable[[], object]) -> int:
    """Return how many operations of a call would reach a device: all but views, allocations and queries."""
    count = 0

    def see(operation: Any, _: Any) -> None:
        nonlocal count
        aliases = [argument.alias_info for argument in operation._schema.arguments]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        count += not is_view and not any(name in operation.name() for name in ("empty", "_view", "prim", "promote"))

    with Watch(see):
        call()
    return count


def kronecker_sum_reference(A: Tensor, S: Tensor) -> Tensor:
    """Return H (k, d) in float64 by its definition, the sum of ``torch.kron``."""
    return torch.stack([torch.kron(a, s) for a, s in zip(A.double(), S.double(), strict=True)]).sum(dim=0)


def multiply(rule: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return the product p·q of two hypercomplex numbers under a rule.

    Args:
        rule: A, (n, n, n).
        p: (..., n) components of the left factor.
        q: (..., n) components of the right factor.

    Returns:
        (..., n) components of the product.
    """
    return torch.einsum("iab,...i,...b->...a", rule, p, q)


def ledger_for_settings(settings: TransformerSection, source_vocabulary: int, target_vocabulary: int) -> Ledger:
    """Count a translator's model; see :func:`ledger_for`."""
    return ledger_for(TASKS["translation"], settings, {"source": source_vocabulary, "target": target_vocabulary})


def compare_runs(names: Sequence[str | Path] = (), **options: Any) -> Comparison:
    """Return the comparison of runs on the first split; see :func:`compare`."""
    return compare(names, **options)[0]


def convolution_reference(A: Tensor, S: Tensor, groups: int = 1) -> Tensor:
    """Return the weight of a convolution in float64, from a sum of ``torch.kron`` for each group and position."""
    components = S.double().unflatten(1, (groups, -1)).flatten(4)  # (n, g, s, t, positions)
    weights = [
        torch.stack([kronecker_sum_reference(A, part) for part in group.unbind(-1)], -1)  # (k/g, d/g, positions)
        for group in components.unbind(1)
    ]
    return torch.cat(weights).unflatten(2, S.shape[3:])
