"""What is measured of one module, in evaluation or with its backward pass, and checks of what is asked for."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from phmctl.errors import UserError

Forward = Callable[[Tensor], Tensor]  # from the input to the output that is measured


def training_call(module: nn.Module, forward: Forward, x: Tensor) -> Callable[[], object]:
    """Return a forward and backward pass; the module goes into training mode.

    The input's gradient is computed too, as in the middle of a model or behind trained embeddings.
    """
    module.train()
    leaf = x.clone().requires_grad_()
    gradient = torch.randn_like(forward(x))

    def step() -> None:
        module.zero_grad(set_to_none=True)
        leaf.grad = None
        forward(leaf).backward(gradient)  # type: ignore[no-untyped-call]

    return step


def eval_call(module: nn.Module, forward: Forward, x: Tensor) -> Callable[[], object]:
    """Return a forward pass without gradients; the module goes into evaluation mode."""
    module.eval()

    def call() -> Tensor:
        with torch.no_grad():
            return forward(x)

    return call


def parameters_of(module: nn.Module) -> int:
    """Return the number of a module's parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def check_positive(**counts: int) -> None:
    """Refuse (UserError) a number below one."""
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"{name} = {value} must be at least 1")
