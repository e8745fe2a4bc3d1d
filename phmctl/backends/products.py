"""The products of a layer, by whichever of the libraries that torch carries is the faster one for them here.

On a CPU torch multiplies float32 matrices with MKL, and takes oneDNN for convolutions and for bfloat16. Which of them
takes less time for a float32 product is another thing on another processor: it is measured
(:mod:`phmctl.backends.choices`). A plain product goes to oneDNN through the operator that torch's own compiler uses, R
products of one batch as a convolution of width one in R groups. A weight that is kept may be laid out for oneDNN
beforehand ("packed"): for few rows that saves most of the time. The function is the same to rounding.

On CUDA products are torch's own; there a library may build the H that is to be multiplied with (Triton).

The environment variable ``PHMCTL_PRODUCTS`` decides instead of a measurement: ``mkl`` (torch's own choice, which goes
without Triton too) or ``onednn`` (on CPUs).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phmctl.backends.choices import AUTO, DENSE, KEPT, LEARNED, SMALL, TRAINED, Choice, Use, choose, rounded
from phmctl.backends.measuring import Call
from phmctl.backends.operators import ORDINARY, is_recorded, is_transformed
from phmctl.backends.pristine import computed_once, undisturbed
from phmctl.errors import UserError, check_known

VARIABLE = "PHMCTL_PRODUCTS"
MKL, ONEDNN = LIBRARIES = ("mkl", "onednn")  # torch's own choice, and the other
PACKED = "packed"  # oneDNN, with a weight that was laid out for it; for kept weights only
TRITON = "triton"  # torch's own product with an H that one kernel of Triton's builds; on CUDA
LOWER = "lower"  # by a weight that is kept in a lower precision, where a scope asks for one

_preferred: ContextVar[str | None] = ContextVar("preferred", default=None)


def libraries(device: str = "cpu", dtype: torch.dtype = torch.float32, *, kept: bool = False) -> tuple[str, ...]:
    """Return the libraries at hand for products of a dtype on a type of device; torch's own is the first.

    Args:
        device: where.
        dtype: computed in.
        kept: whether the weight is kept, so that it can be laid out beforehand.

    Raises:
        UserError: the environment variable names none.
    """
    if device == "cuda" and not kept and _asked() != MKL and has_triton():
        return (MKL, TRITON)
    if device != "cpu" or dtype != torch.float32:
        return (MKL,)
    asked = _preferred.get() or _asked()
    if asked == PACKED and not kept:
        return (ONEDNN,)
    if asked or not _has_onednn():
        return (asked or MKL,)
    return (*LIBRARIES, PACKED) if kept else LIBRARIES


@contextmanager
def preferred_library(name: str) -> Iterator[None]:
    """Have a library take the products, whichever is faster: for measurements, in this thread.

    A layer that has chosen its execution for so many tokens stays by it inside ``phmctl.cached()``.

    Args:
        name: one of :data:`LIBRARIES`; or :data:`PACKED`, which is oneDNN where no weight is kept; or :data:`TRITON`,
            whose products are torch's own.

    Raises:
        UserError: there is no such library.
    """
    name = MKL if name == TRITON else name
    token = _preferred.set(name if name == PACKED and _has_onednn() else check_library(name))
    try:
        yield
    finally:
        _preferred.reset(token)


@lru_cache
def _asked() -> str | None:
    """Return what the environment asks for."""
    asked = os.environ.get(VARIABLE)
    return None if asked is None else check_library(asked, f"library (by {VARIABLE})")


def check_library(name: str, kind: str = "library") -> str:
    """Return the name of a library that this torch has.

    Raises:
        UserError: there is none of this name, or torch was built without it.
    """
    check_known(kind, name, LIBRARIES)
    if name == ONEDNN and not _has_onednn():
        raise UserError(f"{kind} {name!r}: this torch has no oneDNN")
    return name


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, library: str | None = None) -> Tensor:
    """Return ``x Wᵀ + b``. (..., d), (k, d), (k,) -> (..., k); ``F.linear``, by a library.

    Args:
        x: the input.
        weight: W.
        bias: b.
        library: one of :data:`LIBRARIES`; the faster one where None, and torch's own for a small product.
    """
    if library in (MKL, TRITON) or is_recorded() or (library is None and _is_small(x, weight)):
        return F.linear(x, weight, bias)
    parts = (x, weight) if bias is None else (x, weight, bias)
    trains = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
    if not _fits(x, weight, bias) or (library or library_for(x, weight, trains=trains)) == MKL:
        return F.linear(x, weight, bias)
    k, d = weight.shape
    flat = x.reshape(-1, d)  # (T, d)
    if trains:
        y: Tensor = _Linear.apply(flat, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = _onednn_linear(flat, weight, bias)
    return y.view(*x.shape[:-1], k)


def weight_gradient(gradient: Tensor, x: Tensor, library: str) -> Tensor:
    """Return the gradient of W in ``y = x Wᵀ``. (T, k), (T, d) -> (k, d), not always contiguous.

    Args:
        gradient: of y.
        x: the input.
        library: one of :data:`LIBRARIES`.
    """
    (tokens, k), d = gradient.shape, x.shape[1]
    # Of two operands that are transposed oneDNN's operator copies the first; a result that is transposed is copied too.
    if library == ONEDNN and k * tokens > d * (tokens + k):
        return linear(x.t(), gradient.t(), library=library).t()
    return linear(gradient.t(), x.t(), library=library)


def library_for(x: Tensor, weight: Tensor, *, trains: bool = False) -> str:
    """Return the library for ``x Wᵀ``, and for its gradients: the faster one, and torch's own for a small product.

    Args:
        x: (..., d).
        weight: (k, d).
        trains: whether autograd takes the gradients.
    """
    return _choice_for(x, weight, trains=trains).library


def kept_choice(x: Tensor, weight: Tensor, held: Mapping[Any, Any]) -> Choice:
    """Return the choice for ``x Wᵀ`` by a weight that is kept, with what is kept beside it; see :func:`library_for`."""
    return lower_choice(x.numel() * len(weight), held) or _choice_for(x, weight, kept=True)


def lower_choice(multiplications: int, held: Mapping[Any, Any]) -> Choice | None:
    """Return the choice for a product whose weight is kept in a lower precision, None where it is not."""
    return Choice(DENSE, LOWER) if LOWER in held and multiplications >= SMALL else None


def _choice_for(x: Tensor, weight: Tensor, *, trains: bool = False, kept: bool = False) -> Choice:
    if is_recorded() or _is_small(x, weight) or not _is_plain(x) or weight.dtype != x.dtype:
        return Choice(DENSE, MKL)
    k, d = weight.shape
    return _choice(x.numel() // max(d, 1), d, k, trains=trains, kept=kept)


def kept_product(weight: Tensor, bias: Tensor | None, library: str, held: dict[Any, Any]) -> Callable[[Tensor], Tensor]:
    """Return ``x -> x Wᵀ + b`` by a weight that is kept.

    Args:
        weight: W, (k, d).
        bias: b, (k,), or None.
        library: one of :data:`LIBRARIES`, :data:`PACKED` or :data:`LOWER`.
        held: what is kept beside it, where the weight is laid out once; the dtype of `LOWER` too.
    """
    if library == MKL:
        return lambda x: F.linear(x, weight, bias)
    if library == ONEDNN:
        return lambda x: linear(x, weight, bias, library)
    if library == LOWER:
        return _lower_product(weight, bias, held)
    packed = held.get(PACKED)
    if packed is None:
        packed = held[PACKED] = _packed(weight)
    k, d = weight.shape

    def product(x: Tensor) -> Tensor:
        if not _fits(x, weight, bias) or _wants_gradient(x):
            return F.linear(x, weight, bias)
        return _onednn_linear(x.reshape(-1, d), packed, bias).view(*x.shape[:-1], k)

    return product


def _lower_product(weight: Tensor, bias: Tensor | None, held: dict[Any, Any]) -> Callable[[Tensor], Tensor]:
    """Return the product in the precision asked for; an x that wants a gradient or is not float32 is taken as it is."""
    dtype, (k, d) = held[LOWER], weight.shape
    if "in lower" not in held:
        with torch.inference_mode(False), torch.no_grad():
            lower, added = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        packs = weight.device.type == "cpu" and dtype == torch.bfloat16 and _has_onednn() and _lays_out_bfloat16()
        held["in lower"] = (_packed(lower), added, _onednn_linear) if packs else (lower, added, F.linear)
    kept, shift, apply = held["in lower"]

    def product(x: Tensor) -> Tensor:
        if x.dtype != torch.float32 or x.shape[-1] != d or _wants_gradient(x):
            return F.linear(x, weight, bias)
        return apply(x.reshape(-1, d).to(dtype), kept, shift).view(*x.shape[:-1], k).float()  # type: ignore[no-any-return]

    return product


def _wants_gradient(x: Tensor) -> bool:
    """Whether a gradient goes through x: oneDNN's operator, with a weight that is kept and frozen, would lose it."""
    return torch.is_grad_enabled() and x.requires_grad


def _is_small(x: Tensor, weight: Tensor) -> bool:
    """Whether a product takes microseconds."""
    return x.numel() * weight.shape[0] < SMALL


def faster_library(rows: int, d: int, k: int, *, trains: bool, kept: bool = False) -> str:
    """Return which library takes a float32 product of (rows, d) and (d, k) on this CPU; `kept`: by a kept weight."""
    return _choice(rows, d, k, trains=trains, kept=kept).library


def _choice(rows: int, d: int, k: int, *, trains: bool, kept: bool) -> Choice:
    names, mode = libraries(kept=kept), TRAINED if trains else KEPT
    if rows * d * k < SMALL or len(names) == 1:
        return Choice(DENSE, names[0])
    shape = rounded(rows, d, k), mode, LEARNED, AUTO, "float32", "cpu", torch.get_num_threads(), "+".join(names)
    return choose(Use(d, k, 1, 0, *shape), candidates)


def candidates(use: Use) -> Mapping[Choice, Call]:
    """Return a product for each library, with its gradients where the use trains."""
    generator, trains = torch.Generator().manual_seed(0), use.mode == TRAINED
    shapes = (use.tokens, use.d), (use.k, use.d), (use.k,)
    x, weight, bias = (
        torch.rand(shape, generator=generator, dtype=torch.float32).requires_grad_(trains) for shape in shapes
    )

    def product(library: str) -> Call:
        if not trains:
            call = kept_product(weight, bias, library, {})
            return lambda: call(x)
        gradient = x.new_ones(use.tokens, use.k)
        return lambda: torch.autograd.grad(linear(x, weight, bias, library), (x, weight, bias), gradient)

    return {Choice(DENSE, library): product(library) for library in use.libraries.split("+")}


def block_products(x: Tensor, blocks: Tensor, library: str) -> Tensor:
    """Multiply R matrices of a batch by a block each: ``y[:, r] = x[:, r] · blocks[r]ᵀ``. Not differentiable.

    Args:
        x: (m, R, t).
        blocks: (R, s, t), contiguous.
        library: one of :data:`LIBRARIES`.

    Returns:
        (m, R, s), not always contiguous.
    """
    if library == MKL or not _is_plain(x):
        return torch.bmm(x.transpose(0, 1), blocks.transpose(1, 2)).transpose(0, 1)
    R, s, t = blocks.shape
    image = x.reshape(1, -1, 1, R * t).permute(0, 3, 1, 2)  # (1, R t, m, 1), channels innermost
    y = _onednn_convolution(image, blocks.reshape(R * s, t, 1, 1), R)  # (1, R s, m, 1)
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
            linear(gradient, weight.t(), library=ONEDNN) if wants_x else None,  # (T, d)
            weight_gradient(gradient, x, ONEDNN) if wants_weight else None,  # (k, d)
            gradient.sum(0) if wants_bias else None,  # (k,)
        )


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _operator()(x, weight, bias, "none", [], "")


def _packed(weight: Tensor) -> Tensor:
    """Return a copy of a weight (k, d) as oneDNN wants it; only oneDNN's product can read it."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach())  # type: ignore[no-any-return]


def _onednn_convolution(image: Tensor, weight: Tensor, groups: int) -> Tensor:
    return torch.mkldnn_convolution(image, weight, None, [0, 0], [1, 1], [1, 1], groups)


def _operator() -> Callable[..., Tensor]:
    return torch.ops.mkldnn._linear_pointwise.default


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether shapes and types are those of a plain product; what is wrong with others, ``F.linear`` says better."""
    k, d = weight.shape
    plain_bias = bias is None or (bias.shape == (k,) and bias.dtype == x.dtype)
    return x.shape[-1] == d > 0 and weight.dtype == x.dtype and plain_bias and _is_plain(x)


def _is_plain(x: Tensor) -> bool:
    """Whether this is float32 on a CPU, and nobody transforms or records what is done to it but autograd."""
    return (
        type(x) in ORDINARY
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not is_transformed()
    )


def _lays_out_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_triton() -> bool:
    """Whether Triton is at hand, and its kernels give the right H on this thread's GPU; no while a graph is recorded.

    Of several processes each tries its own GPU: on the first one all would take memory for a context.
    """
    if not torch.cuda.is_available():
        return False
    device = torch.cuda.current_device()
    if device not in _triton_runs:
        if torch.cuda.is_current_stream_capturing():  # a graph that another thread's try would end
            return False
        _triton_runs[device] = _tries_triton(torch.device("cuda", device))
    return _triton_runs[device]


_triton_runs: dict[int, bool] = {}  # by a GPU's number


@undisturbed
def _tries_triton(device: torch.device) -> bool:
    if not find_spec("triton"):
        return False
    try:
        from phmctl.backends import triton_kronecker

        A = torch.eye(4, device=device).view(4, 2, 2)[:2]  # H has the first component above, the second in its corner
        S = torch.arange(12.0, device=device).view(2, 2, 3)
        upper = torch.cat([S[0], S[1]], 1)  # (2, 6)
        return torch.equal(triton_kronecker.build(A, S, S.dtype), torch.cat([upper, torch.zeros_like(upper)]))
    except Exception:  # whatever keeps a compiler from its work: torch's own operations do it then
        return False


@computed_once
def _has_onednn() -> bool:
    """Whether torch carries oneDNN and operators that give the right products: their names are torch's own affair."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    here: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the default dtype is just now
    x, weight, bias = torch.ones(2, 3, **here), torch.eye(4, 3, **here), torch.full((4,), 2, **here)
    try:
        expected = F.linear(x, weight, bias)
        plain = all(torch.equal(_onednn_linear(x, each, bias), expected) for each in (weight, _packed(weight)))
        blocks = _onednn_convolution(x.t().reshape(1, 3, 2, 1), weight.view(4, 3, 1, 1), 1)
        return plain and torch.equal(blocks.view(4, 2).t(), F.linear(x, weight))
    except (AttributeError, RuntimeError, TypeError):
        return False
