"""NaN and infinity: noticed without waiting for the device, then traced to the first module.

Each step's loss and gradient norm are folded into flags that stay on the device. From the first bad step on the flag
also tells the fused optimiser to skip its update, so the weights stay those from before it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Guard:
    """Flags on the device: whether a step was bad, and which was the first."""

    def __init__(self, device: torch.device) -> None:
        self.found = torch.zeros((), dtype=torch.float32, device=device)  # 1 from the first bad step on
        self._first = torch.zeros((), dtype=torch.float64, device=device)

    def note(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Fold one step's loss and gradient norm, both scalars on the device, into the flags. No host sync."""
        bad = (~(torch.isfinite(loss) & torch.isfinite(norm))).to(torch.float32)
        self._first += bad * (1 - self.found) * step
        self.found.copy_(torch.maximum(self.found, bad))

    def first_bad_step(self) -> int | None:
        """Return the first bad step, or None. Waits for the device."""
        return int(self._first.item()) if self.found.item() else None


def trace(model: nn.Module, replay: Callable[[], Tensor]) -> str:
    """Return, in words, where the first value that is not finite arises while `replay` runs a step again."""
    order: list[tuple[str, bool]] = []  # of modules as they return, inner before outer: name, output is finite

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: order.append((name, _is_finite(output)))

    handles = [m.register_forward_hook(watch(name or type(m).__name__)) for name, m in model.named_modules()]
    try:
        loss = replay()
    finally:
        for handle in handles:
            handle.remove()
    for name, finite in order:
        if not finite:
            return f"the output of {name}"
    if not bool(torch.isfinite(loss).all()):
        return "the loss; every module's output is finite"
    last_run = {name: position for position, (name, _) in enumerate(order)}
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(parameter.grad)]
    if not bad:
        return "a value that was finite when the step was run again"
    # The backward pass goes upwards: the gradient of the module that runs last went bad first.
    return f"the gradient of {max(bad, key=lambda name: last_run.get(name.rpartition('.')[0], -1))}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_finite, value))
    return not (isinstance(value, Tensor) and value.is_floating_point()) or bool(torch.isfinite(value).all())
