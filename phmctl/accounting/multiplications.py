"""How many multiplications a computation takes: the speed that a model could have, beside what is measured.

Products of matrices are counted where torch runs them, forward and backward, whichever module they are of: maps by
any execution, attention, the vocabulary. Norms, softmax, sums and the optimiser are no products and not counted.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from phmctl.algebra import kronecker, rank_product  # they register the operators that are counted here

_OPERATORS = (kronecker, rank_product)
Shape = Sequence[int]

_ATEN = torch.ops.aten
for _operator, _like in (  # those that torch has no count for, and those that take as many
    (_ATEN.addmm_, _ATEN.addmm),
    (_ATEN.baddbmm_, _ATEN.baddbmm),
    (_ATEN._scaled_dot_product_flash_attention_for_cpu, _ATEN._scaled_dot_product_flash_attention),
    (_ATEN._scaled_dot_product_flash_attention_for_cpu_backward, _ATEN._scaled_dot_product_flash_attention_backward),
):
    flop_registry.setdefault(_operator, flop_registry[_like])


def multiplications(call: Callable[[], object]) -> int:
    """Return the multiplications of a call. It is made twice: in the first, ``auto`` measures what it has not yet."""
    call()
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops()) // 2  # torch counts a multiplication and an addition as two


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def _linear_pointwise(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(x) * weight[0]


@register_flop_formula(torch.ops.phmctl.rank_product)
def _rank_product(x: Shape, T: Shape, U: Shape, V: Shape, *_: Any, **__: Any) -> int:
    (tokens, d), (rank, rows, columns) = x, T
    return 2 * tokens * rank * (rows * columns + d + U[0] * rows)  # block products; mixing by V and by U


@register_flop_formula(torch.ops.phmctl.rank_product_backward)
def _rank_product_backward(gradient: Shape, x: Shape, T: Shape, U: Shape, V: Shape, *_: Any, **__: Any) -> int:
    (tokens, d), (rank, rows, columns), k = x, T, gradient[1]
    return 2 * tokens * rank * (2 * rows * columns + 3 * d + 2 * k)  # gradients of x, T, U and V; the mixing of x


@register_flop_formula(torch.ops.phmctl.kronecker_sum)
def _kronecker_sum(A: Shape, S: Shape, **_: Any) -> int:
    return 2 * A[0] ** 2 * prod(S)
