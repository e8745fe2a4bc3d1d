"""How many multiplications a computation takes: the speed that a model could have, beside what is measured.

Products of matrices are counted where torch runs them, forward and backward, whichever module they are of: maps by
any execution, attention, the vocabulary. Norms, softmax, sums and the optimiser are no products and not counted.

Whoever imports this module has torch's own ``FlopCounterMode`` count phmctl's operators too. The layers alone do not
see to that: the counter imports triton where there is one.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from phmctl.algebra import kronecker, rank_product  # they register the operators that are counted here

_OPERATORS = (kronecker, rank_product)

Shape = Sequence[int]


def multiplications(call: Callable[[], object]) -> int:
    """Return the multiplications of a call. It is made twice: in the first, ``auto`` measures what it has not yet."""
    call()
    with FlopCounterMode(display=False, custom_mapping=_counts()) as counter:
        call()
    return int(counter.get_total_flops()) // 2  # torch counts a multiplication and an addition as two


def _counts() -> dict[Any, Callable[..., int]]:
    """Return torch's own operators that it has no count for, each with a function of the shapes of its arguments."""
    aten = torch.ops.aten
    return {
        torch.ops.mkldnn._linear_pointwise: lambda x, weight, *_, **__: 2 * prod(x) * weight[0],
        aten.addmm_: lambda total, left, right, **_: 2 * prod(left) * right[1],
        aten.baddbmm_: lambda total, left, right, **_: 2 * prod(left) * right[2],
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: 2 * _pairs(q, k) * (q[3] + v[3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    }


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


def _pairs(query: Shape, key: Shape) -> int:
    return query[0] * query[1] * query[2] * key[2]


def _attention_backward(gradient: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return 2 * _pairs(q, k) * (3 * q[3] + 2 * v[3])  # the weights again; gradients of q, k, v and of the weights
