"""The large products of a layer, by the faster of the two libraries that torch carries.

On a CPU torch multiplies float32 matrices with MKL, and takes oneDNN for convolutions and for bfloat16. On an AMD
processor with AVX-512, oneDNN took half of MKL's time for the same float32 product (docs/performance.md). So there,
and only there, all but small products go to oneDNN: a plain product through the operator that torch's own compiler
uses, R products of one batch as a convolution of width one in R groups. The function is the same to rounding.

The environment variable ``PHMCTL_PRODUCTS`` decides instead of the processor's name: ``mkl`` or ``onednn``.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phmctl.algebra.operators import is_recorded, is_transformed
from phmctl.algebra.pristine import computed_once
from phmctl.errors import UserError, check_known

_ORDINARY = (Tensor, torch.nn.Parameter)  # what a subclass holds (no numbers, a shard, integers) only torch knows
VARIABLE = "PHMCTL_PRODUCTS"
MKL, ONEDNN = LIBRARIES = ("mkl", "onednn")

_preferred: ContextVar[str | None] = ContextVar("preferred", default=None)

# From so many multiplications oneDNN's start is paid for: measured for 1 to 4096 rows, d and k of 64 to 8000, on one
# thread and on two. An autograd function of our own has to be paid for too; a convolution wants more, and more rows.
_MULTIPLICATIONS, _TRAINED = 1 << 21, 1 << 23
_CONVOLVED, _CONVOLVED_ROWS = 1 << 24, 128
_IMAGES = 16  # torch gives a convolution of width one to oneDNN on one thread from a batch of 16


def library() -> str:
    """Return which library takes the large float32 products of a CPU: ``mkl`` (torch's own choice) or ``onednn``.

    Raises:
        UserError: the environment variable names neither.
    """
    if torch.compiler.is_compiling():
        return MKL  # what a compiler sees is a plain product
    return _preferred.get() or _library()


@contextmanager
def preferred_library(name: str) -> Iterator[None]:
    """Have a library take the large products, whatever the processor is: for measurements, in this thread.

    A layer that has chosen its execution for so many tokens stays by it inside ``phmctl.cached()``.

    Raises:
        UserError: there is no such library.
    """
    token = _preferred.set(check_library(name))
    try:
        yield
    finally:
        _preferred.reset(token)


@lru_cache
def _library() -> str:
    """Return what the environment asks for, or else what is faster on this processor."""
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        return check_library(asked, f"library (by {VARIABLE})")
    return ONEDNN if _has_onednn() and _is_amd_with_avx512() else MKL


def check_library(name: str, kind: str = "library") -> str:
    """Return the name of a library that this torch has.

    Raises:
        UserError: there is none of this name, or torch was built without it.
    """
    check_known(kind, name, LIBRARIES)
    if name == ONEDNN and not _has_onednn():
        raise UserError(f"{kind} {name!r}: this torch has no oneDNN")
    return name


def is_large(rows: int, d: int, k: int, *, trains: bool) -> bool:
    """Whether a product of (rows, d) and (d, k) is one for oneDNN where that is the faster library."""
    return rows * d * k >= (_TRAINED if trains else _MULTIPLICATIONS)


def are_large(rows: int, R: int, d: int, k: int) -> bool:
    """Whether R products of (rows, d) and (d, k) are for oneDNN where that is the faster library."""
    return rows >= _CONVOLVED_ROWS and rows % _IMAGES == 0 and rows * R * d * k >= _CONVOLVED


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x Wᵀ + b``. (..., d), (k, d), (k,) -> (..., k); ``F.linear``, by the faster library."""
    if is_recorded():
        return F.linear(x, weight, bias)
    k, d = weight.shape
    trains = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    if not (is_large(x.numel() // max(d, 1), d, k, trains=trains) and _fits(x, weight, bias) and library() == ONEDNN):
        return F.linear(x, weight, bias)
    flat = x.reshape(-1, d)  # (T, d)
    if trains:
        y: Tensor = _Linear.apply(flat, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = _onednn_linear(flat, weight, bias)
    return y.view(*x.shape[:-1], k)


def block_products(x: Tensor, blocks: Tensor) -> Tensor:
    """Multiply R matrices of a batch by a block each: ``y[:, r] = x[:, r] · blocks[r]ᵀ``. Not differentiable.

    Args:
        x: (m, R, t).
        blocks: (R, s, t), contiguous.

    Returns:
        (m, R, s), not always contiguous.
    """
    R, s, t = blocks.shape
    if not (are_large(x.shape[0], R, t, s) and _is_plain(x) and library() == ONEDNN):
        return torch.bmm(x.transpose(0, 1), blocks.transpose(1, 2)).transpose(0, 1)
    images = x.reshape(_IMAGES, -1, 1, R * t).permute(0, 3, 1, 2)  # (16, R t, m / 16, 1), channels innermost
    y = F.conv2d(images, blocks.reshape(R * s, t, 1, 1), groups=R)  # (16, R s, m / 16, 1)
    return y.permute(0, 2, 3, 1).reshape(-1, R, s)


class _Linear(torch.autograd.Function):
    """``x Wᵀ + b`` by oneDNN, whose operator has no gradient of its own. Its gradients are such products again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wants_x, wants_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.t()) if wants_x else None,  # (T, d)
            linear(gradient.t(), x.t()) if wants_weight else None,  # (k, d)
            gradient.sum(0) if wants_bias else None,  # (k,)
        )


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _operator()(x, weight, bias, "none", [], "")


def _operator() -> Callable[..., Tensor]:
    return torch.ops.mkldnn._linear_pointwise.default


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether shapes and types are those of a plain product; what is wrong with others, ``F.linear`` says better."""
    k, d = weight.shape
    plain_bias = bias is None or (bias.shape == (k,) and bias.dtype == x.dtype)
    return x.shape[-1] == d and weight.dtype == x.dtype and plain_bias and _is_plain(x)


def _is_plain(x: Tensor) -> bool:
    """Whether this is float32 on a CPU, and nobody transforms or records what is done to it but autograd."""
    return (
        type(x) in _ORDINARY
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not is_transformed()
    )


@computed_once
def _has_onednn() -> bool:
    """Whether torch carries oneDNN and an operator that gives the right product: its name is torch's own affair."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    here: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the default dtype is just now
    x, weight, bias = torch.ones(2, 3, **here), torch.eye(4, 3, **here), torch.full((4,), 2, **here)
    try:
        return torch.equal(_onednn_linear(x, weight, bias), F.linear(x, weight, bias))
    except (AttributeError, RuntimeError, TypeError):
        return False


def _is_amd_with_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and "AMD" in _processor()


def _processor() -> str:
    """Return what the system calls the maker of the processor: GenuineIntel, AuthenticAMD, ..."""
    described = Path("/proc/cpuinfo")
    if not described.exists():
        return platform.processor()  # on Windows: "AMD64 Family 25 ..., AuthenticAMD"
    lines = described.read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
