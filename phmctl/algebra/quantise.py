"""Round matrices for storage: float16, or integers of 8 or 4 bits with one scale for each row."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from phmctl.errors import UserError

SCALE = ".scale"  # follows the name of a rounded tensor in the name of its scales
_LARGEST = {"int8": 127, "int4": 7}


def quantise(tensor: Tensor, form: str, name: str = "a tensor") -> tuple[Tensor, Tensor | None]:
    """Return a tensor (..., d) in a form for storage, and the scale of each row, (..., 1), for integers.

    Integers are rounded to the nearest and symmetric about zero. For ``int4`` each row has the scale with the least
    squared error, and two columns are packed into a byte, the first one into the low half, as numbers from 1 to 15 (8
    is zero): (..., (d + 1) // 2).

    Raises:
        UserError: the tensor, called `name`, has entries that a rounded form cannot store.
    """
    if form == "float32":
        return tensor.float(), None
    if not tensor.isfinite().all():
        raise UserError(f"{name} has NaN or infinite entries, which {form} cannot store; use float32")
    if form == "float16":
        rounded = tensor.half()
        if not rounded.isfinite().all():
            raise UserError(
                f"{name} has entries above {torch.finfo(torch.half).max:,.0f}, the limit of float16; use int8"
            )
        return rounded, None
    numbers, scale = _scaled(tensor, form)
    if form == "int8":
        return numbers.to(torch.int8), scale
    numbers = F.pad(numbers + 8, (0, numbers.shape[-1] % 2)).to(torch.uint8)
    return numbers[..., ::2] | numbers[..., 1::2] << 4, scale


def stored_values(tensor: Tensor, form: str) -> Tensor:
    """Return the values of a tensor (..., d) that is stored in a form and read again."""
    if form not in _LARGEST:
        return tensor.half().to(tensor.dtype) if form == "float16" else tensor
    numbers, scale = _scaled(tensor, form)
    return numbers * scale


def _scaled(tensor: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """Return whole numbers (..., d), and the scale of each row (..., 1)."""
    largest = _LARGEST[form]
    scale = tensor.abs().amax(-1, keepdim=True) / largest
    if form == "int4":  # with few bits, cutting off the largest entries loses less
        scale = _least_error_scale(tensor, scale, largest)
    return _integers(tensor, scale, largest), scale


def _least_error_scale(tensor: Tensor, full: Tensor, largest: int) -> Tensor:
    """Return the scale of each row with the least squared error, from half of the scale `full` up to it."""
    scale, least = full, torch.full_like(full, math.inf)
    for share in range(16, 33):
        tried = share / 32 * full
        error = (_integers(tensor, tried, largest) * tried - tensor).square().sum(-1, keepdim=True)
        scale, least = torch.where(error < least, tried, scale), torch.minimum(error, least)
    return scale


def _integers(tensor: Tensor, scale: Tensor, largest: int) -> Tensor:
    return (tensor / scale.clamp(min=torch.finfo(scale.dtype).tiny)).round().clamp(-largest, largest)
