"""NaN and infinity: noticed without waiting for the device, then traced to the first module.

Each step's loss and gradient norm are folded into flags that stay on the device. From the first bad step on the flag
also tells the fused optimiser to skip its update, so the weights stay those from before it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def trace(model: nn.Module, replay: Callable[[], Any]) -> str:
    """Return, in words, where the first value that is not finite arises while `replay` runs the step again.

    Args:
        model: its modules are watched in the order in which they run.
        replay: runs forward and backward of the step.
    """
    with _watched(model) as order:
        loss = replay()
    for name, finite in order:
        if not finite:
            return f"the output of {name}"
    if isinstance(loss, Tensor) and not bool(torch.isfinite(loss).all()):
        return "the loss; every module's output is finite"
    return _bad_gradient(model, [name for name, _ in order])


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[tuple[str, bool]]]:
    """Yield a list that fills with (module name, output is finite) as the modules return; inner before outer."""
    order: list[tuple[str, bool]] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: order.append((name, _is_finite(output)))

    handles = [
        module.register_forward_hook(watch(name or type(module).__name__)) for name, module in model.named_modules()
    ]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, (tuple, list)):
        return all(_is_finite(each) for each in value)
    return True


def _bad_gradient(model: nn.Module, order: list[str]) -> str:
    """Return which gradient went bad first: that of the module which runs last, as the backward pass goes upwards."""
    last_run = {name: position for position, name in enumerate(order)}
    bad = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
    ]
    if not bad:
        return "a value that was finite when the step was run again"
    first = max(bad, key=lambda name: last_run.get(name.rpartition(".")[0], -1))
    return f"the gradient of {first}"
