"""How many multiplications a computation takes: the speed that a model could have, beside what is measured.

Products of matrices are counted where torch runs them, forward and backward, whichever module they are of: maps by
any execution, attention, the vocabulary. Norms, softmax, sums and the optimiser are no products and not counted.
"""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

_ATEN = torch.ops.aten
for _operator, _like in (  # those that torch has no count for, and those that take as many
    (_ATEN.addmm_, _ATEN.addmm),
    (_ATEN.baddbmm_, _ATEN.baddbmm),
    (_ATEN._scaled_dot_product_flash_attention_for_cpu, _ATEN._scaled_dot_product_flash_attention),
    (_ATEN._scaled_dot_product_flash_attention_for_cpu_backward, _ATEN._scaled_dot_product_flash_attention_backward),
):
    flop_registry.setdefault(_operator, flop_registry[_like])


def multiplications(call: Callable[[], object]) -> int:
    """Return the multiplications of a call, which is made once."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops()) // 2  # torch counts a multiplication and an addition as two
