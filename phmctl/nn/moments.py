"""Second moments of the inputs of a model's layers."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.errors import UserError


def call(model: nn.Module, batch: Any) -> Any:
    """Return the output of a model for a tensor, a tuple of arguments or a dict of them."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an error of a model that cannot read its input into a UserError that begins with `what`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        raise UserError(f"{what}: {problem}") from problem


def input_moments(model: nn.Module, modules: Iterable[nn.Module], batches: Iterable[Any]) -> dict[nn.Module, Tensor]:
    """Return the second moments of the inputs of each linear map (d, d), and the reads of each row of a table (k,).

    Raises:
        UserError: there is no batch, the model cannot read a batch, or a moment is not finite.
    """
    moments: dict[nn.Module, Tensor] = {}

    def add(module: nn.Module, arguments: tuple[Tensor, ...], keywords: Mapping[str, Tensor]) -> None:
        x = arguments[0] if arguments else keywords["input"]
        if isinstance(module, nn.Linear):
            x = x.detach().double().reshape(-1, x.shape[-1])  # (positions, d)
            found = x.mT @ x
        else:
            found = torch.bincount(x.flatten(), minlength=len(module.weight)).double()  # type: ignore[arg-type]
        moments[module] = moments[module] + found if module in moments else found

    if not isinstance(batches, Iterable):
        raise UserError(f"inputs: expected batches for the model, not a {type(batches).__name__}")
    number = 0
    modes = {module: module.training for module in model.modules()}
    parts = [part for part in modules if isinstance(part, nn.Linear | nn.Embedding)]
    hooks = [part.register_forward_pre_hook(add, with_kwargs=True) for part in parts]
    model.eval()
    try:
        for number, batch in enumerate(batches, 1):
            with reading(f"inputs: the model cannot read batch {number}"):
                call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    if not number or (moments and not any(bool(found.any()) for found in moments.values())):
        raise UserError("inputs: the batches are empty or exhausted")
    if not all(bool(found.isfinite().all()) for found in moments.values()):
        raise UserError("inputs: an input of a layer is NaN or infinite")
    return moments
