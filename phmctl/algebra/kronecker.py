"""The sum of Kronecker products ``H = Σᵢ kron(A[i], S[i])``: fast, and as its definition."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from phmctl.backends.operators import ORDINARY, autocast_dtype, define, is_recorded, is_transformed, is_watched
from phmctl.backends.products import TRITON, linear


def materialise(A: Tensor, S: Tensor, library: str | None = None) -> Tensor:
    """Return H by one matrix product and one permutation, without an n×k×d temporary.

    ``H[a·k/n + s, b·d/n + t] = Σᵢ A[i, a, b] · S[i, s, t]`` (Zhang et al. 2021, eq. 3.3). It is the operator
    ``phmctl::kronecker_sum`` for all who record or watch; what runs as it stands goes without it: to call it took 6 to
    8 % more of a training step of 640 tokens, 128 → 128, n = 8. A profiler is told its name.

    Args:
        A: (n, n, n), the rule.
        S: (n, k/n, d/n), the components.
        library: ``triton`` builds H of what runs as it stands on CUDA; any other name means torch's own operations.

    Returns:
        H of shape (k, d), differentiable in both as often as one likes; under autocast in its dtype.
    """
    lower = None if S.dtype == torch.float64 else autocast_dtype(S.device.type)
    transformed = is_transformed()
    seen = not transformed and (is_recorded() or is_watched() or not {type(A), type(S)} <= ORDINARY)
    build: Callable[..., Tensor] = _kronecker_sum if seen else _plain
    if library == TRITON and not (transformed or seen) and S.numel() < _PLACES:
        build = partial(_ByTriton.apply, lower or S.dtype)
    elif lower is not None:
        A, S = A.to(lower), S.to(lower)
    if transformed or seen or not _profiler_enabled():
        return build(A, S)
    with torch.profiler.record_function("phmctl::kronecker_sum"):
        return build(A, S)


def apply_built(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None, library: str | None = None) -> Tensor:
    """Return ``x Hᵀ + b`` with H built for it. (..., d) -> (..., k); differentiable as often as one likes."""
    return linear(x, materialise(A, S, library), bias, library)


def materialise_reference(A: Tensor, S: Tensor) -> Tensor:
    """Return H in float64 as the plain sum of ``torch.kron``: the definition, to test against. (k, d)."""
    terms = [torch.kron(a, s) for a, s in zip(A.double(), S.double(), strict=True)]
    return torch.stack(terms).sum(dim=0)


def _plain(A: Tensor, S: Tensor) -> Tensor:
    n, rows, columns = S.shape
    blocks = A.reshape(n, n * n).t() @ S.reshape(n, rows * columns)  # (a b, s t)
    grid = blocks.view(n, n, rows, columns).transpose(1, 2)  # (a, s, b, t)
    return grid.reshape(n * rows, n * columns).contiguous()  # (k, d); n = 1 is a view otherwise


_profiler_enabled = getattr(torch.autograd, "_profiler_enabled", bool)
_PLACES = 1 << 31  # numbers of S that Triton's kernels can count, in 32 bits


def _fake(A: Tensor, S: Tensor) -> Tensor:
    n, rows, columns = S.shape
    return S.new_empty(n * rows, n * columns)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    A, S = ctx.saved_tensors
    return _gradients(A, S, gradient, *ctx.needs_input_grad)


def _gradients(
    A: Tensor, S: Tensor, gradient: Tensor, wants_A: bool, wants_S: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of A and S, given that of H (k, d)."""
    n, rows, columns = S.shape
    blocks = gradient.reshape(n, rows, n, columns).transpose(1, 2).reshape(n * n, rows * columns)  # (a b, s t)
    dA = (blocks @ S.reshape(n, -1).t()).t().reshape(n, n, n) if wants_A else None  # (i, a, b)
    dS = (A.reshape(n, n * n) @ blocks).view(n, rows, columns) if wants_S else None  # (i, s, t)
    return dA, dS


class _ByTriton(torch.autograd.Function):
    """H of a dtype by Triton's kernels; the gradients of its gradients by torch's operations."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, A: Tensor, S: Tensor) -> Tensor:
        from phmctl.backends.triton_kronecker import build

        ctx.save_for_backward(A, S)
        return build(A, S, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from phmctl.backends.triton_kronecker import gradient_of_components, gradient_of_rule

        (A, S), (_, wants_A, wants_S) = ctx.saved_tensors, ctx.needs_input_grad
        # A graph that is to be differentiated again, one that is recorded, many gradients at once (is_grads_batched).
        if torch.is_grad_enabled() or is_recorded() or not torch._C._has_storage(gradient):
            return None, *_gradients(A, S, gradient.to(S.dtype), wants_A, wants_S)
        dA = gradient_of_rule(gradient, S) if wants_A else None  # (i, a, b)
        dS = gradient_of_components(A, gradient, S) if wants_S else None  # (i, s, t)
        return None, dA, dS


_kronecker_sum = define(
    "kronecker_sum(Tensor A, Tensor S) -> Tensor", _plain, plain=_plain, fake=_fake, backward=_backward, setup=_setup
)
