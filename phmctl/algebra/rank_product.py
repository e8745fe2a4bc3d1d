"""Apply a rule of bilinear rank R by R block products instead of the n² blocks of H.

With ``A[i, a, b] = Σᵣ W[i, r] · U[a, r] · V[r, b]`` and the blocks ``Tᵣ = Σᵢ W[i, r] · S[i]``,

    y_a = Σᵣ U[a, r] · Tᵣ (Σ_b V[r, b] · x_b)

takes R/n² of the multiplications of a k×d product, plus N·R·(d + k) for mixing N tokens.

On a CPU tokens are processed in tiles, so that the mixed inputs stay in cache. The product of V (R × n) with a token
viewed as (n × d/n) gives the token's R inputs without a transpose. On CUDA one pass over the memory mixes all tokens
into R contiguous matrices, one batched product multiplies them, and another pass mixes the products.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phmctl.algebra.modes import compute_dtype, fused, needs_plain_operations, without_autocast
from phmctl.errors import DimensionError, UserError

# Maximum tokens per tile. On two threads of an AMD EPYC, 1,024 is within 3 % of the best of 128 to 2,048 (forward
# and backward, d and k from 512 to 4,096).
TILE = 1 << 10
AT_ONCE = {"cuda"}  # devices that take all tokens at once, not in tiles


class Factors(NamedTuple):
    """A rule as a sum of R outer products of three vectors."""

    W: Tensor  # (n, R)
    U: Tensor  # (n, R)
    V: Tensor  # (R, n)


def recompose(factors: Factors) -> Tensor:
    """Return the rule ``A[i, a, b] = Σᵣ W[i, r] U[a, r] V[r, b]``, (n, n, n)."""
    W, U, V = factors
    products = U.mT.unsqueeze(-1) * V.unsqueeze(-2)  # (..., R, a, b), faster than einsum
    return (W @ products.flatten(-2)).view(*W.shape[:-1], *products.shape[-2:])


def block_sums(W: Tensor, S: Tensor) -> Tensor:
    """Return the blocks ``T[r] = Σᵢ W[i, r] · S[i]``. (n, R), (n, k/n, d/n) -> (R, k/n, d/n)."""
    return (W.t() @ S.flatten(1)).view(-1, *S.shape[1:])


def rank_linear(x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x Hᵀ + b`` for H of rank R, without building H.

    Training on a CPU stores the R·k/n block products of each token for the gradient of U. On CUDA they are computed
    again. The function is twice differentiable. The second backward pass, like compilers and ``torch.func``, uses plain
    operations.

    Args:
        x: (..., d).
        T: (R, k/n, d/n), from :func:`block_sums`.
        U: (n, R).
        V: (R, n).
        bias: (k,).

    Returns:
        (..., k), under autocast in autocast's dtype.

    Raises:
        UserError: x is not a floating-point tensor.
        DimensionError: x is not as wide as H.
    """
    dtype = compute_dtype(x)
    if not x.is_floating_point():
        raise UserError(f"the input of a linear map must be floating-point, not {x.dtype}")
    width = V.shape[1] * T.shape[2]  # d
    if x.shape[-1] != width:
        raise DimensionError(f"input of shape {tuple(x.shape)}: expected {width} features")
    flat = x.reshape(-1, width).to(dtype)  # (N, d)
    T, U, V = T.to(dtype), U.to(dtype), V.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    if needs_plain_operations():
        y = _mixed_product(flat, T, U, V, bias)
    elif flat.device.type in AT_ONCE:
        y = _AtOnce.apply(flat, T, U, V, bias)  # type: ignore[no-untyped-call]
    else:
        y = _RankLinear.apply(flat.contiguous(), T, U, V, bias, torch.is_grad_enabled() and U.requires_grad)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[1])


class _RankLinear(torch.autograd.Function):
    """The product of a rank-R weight with x (N, d), computed in tiles."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None, store_products: bool
    ) -> Tensor:
        N, n, (R, s, t) = len(x), len(U), T.shape
        inputs, scratch = x.view(N, n, t), _scratch(x, R, t)
        y = x.new_empty(N, n * s)
        outputs = y.view(N, n, s)
        stored = x.new_empty((N, R, s) if store_products else 0)
        for rows in _tiles(x):
            mixed = _mix(V, inputs[rows], scratch)  # (m, R, t)
            products = torch.bmm(mixed.transpose(0, 1), T.transpose(1, 2)).transpose(0, 1)  # (m, R, s)
            if bias is None:
                torch.bmm(_expand(U, products), products, out=outputs[rows])
            else:
                torch.baddbmm(bias.view(n, s), _expand(U, products), products, out=outputs[rows])
            if store_products:
                stored[rows] = products
        ctx.save_for_backward(x, T, U, V, bias, stored)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if compute_dtype(gradient) != gradient.dtype:  # backward under autocast, forward without
            with without_autocast(gradient.device.type):
                return _RankLinear.backward(ctx, gradient)
        x, T, U, V, bias, stored = ctx.saved_tensors
        need_x, need_T, need_U, need_V, need_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *_gradients(_mixed_product, ctx.needs_input_grad, gradient, (x, T, U, V, bias)), None
        N, n, (R, s, t) = len(x), len(U), T.shape
        inputs, gradients = x.view(N, n, t), gradient.reshape(N, n, s)
        mixed_scratch, gradient_scratch = _scratch(x, R, t), _scratch(x, R, s)
        dx = torch.empty_like(x)
        sum_dtype = torch.promote_types(x.dtype, torch.float32)  # for sums over tokens
        dT, dU, dV = (torch.zeros_like(tensor, dtype=sum_dtype) for tensor in (T, U, V))
        for rows in _tiles(x):
            tile = inputs[rows]  # (m, n, t)
            if need_U:
                dU += torch.bmm(gradients[rows], stored[rows].transpose(1, 2)).sum(0, dtype=sum_dtype)  # (n, R)
            mixed_gradient = _mix(U.t(), gradients[rows], gradient_scratch)  # (m, R, s)
            if need_T:
                mixed = _mix(V, tile, mixed_scratch).transpose(0, 1)  # (R, m, t)
                if dT.dtype == mixed.dtype:
                    dT.baddbmm_(mixed_gradient.permute(1, 2, 0), mixed)  # (R, s, t)
                else:
                    dT += torch.bmm(mixed_gradient.permute(1, 2, 0), mixed)
            if need_x or need_V:
                back = torch.bmm(mixed_gradient.transpose(0, 1), T).transpose(0, 1)  # (m, R, t)
                if need_V:
                    dV += torch.bmm(back, tile.transpose(1, 2)).sum(0, dtype=sum_dtype)  # (R, n)
                if need_x:
                    torch.bmm(_expand(V.t(), back), back, out=dx[rows].view_as(tile))
        return (
            dx if need_x else None,
            dT.to(T.dtype) if need_T else None,
            dU.to(U.dtype) if need_U else None,
            dV.to(V.dtype) if need_V else None,
            gradient.sum(0) if need_bias else None,
            None,
        )


class _AtOnce(torch.autograd.Function):
    """The product of a rank-R weight with x (N, d), for all tokens at once. The backward pass computes it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, T, U, V, bias)
        plain_bias = None if bias is None else bias.view_as(bias)  # sizes of an nn.Parameter are constants of a graph
        return fused(_mixed_product, x.device, x, T, U, V, plain_bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        product = _mixed_product if torch.is_grad_enabled() else partial(fused, _mixed_product, gradient.device)
        with without_autocast(gradient.device.type):
            return _gradients(product, ctx.needs_input_grad, gradient, ctx.saved_tensors)


def _mixed_product(x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product (N, k) for x (N, d) by sums, each of which a compiler makes one kernel of."""
    tokens = x.reshape(x.shape[0], V.shape[1], x.shape[1] // V.shape[1])  # (N, n, d/n)
    mixed = (V[:, None, :, None] * tokens).sum(2)  # (R, N, d/n)
    products = torch.bmm(mixed, T.mT)  # (R, N, k/n)
    y = (U.t()[:, None, :, None] * products[:, :, None]).flatten(2).sum(0)  # (N, k)
    return y if bias is None else y + bias


def _gradients(
    product: Callable[..., Tensor], needed: Sequence[bool], gradient: Tensor, arguments: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a product's arguments that are needed, by autograd."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        # The views stop the gradient here, even if x itself depends on U, V or the bias.
        inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in arguments]
        sources = [tensor for tensor, need in zip(inputs, needed, strict=False) if need and tensor is not None]
        gradients = iter(torch.autograd.grad(product(*inputs), sources, gradient, create_graph=differentiable))
    return tuple(next(gradients) if need else None for need in needed[: len(inputs)])


def _tiles(x: Tensor) -> list[slice]:
    return [slice(start, start + TILE) for start in range(0, len(x), TILE)]


def _scratch(x: Tensor, rank: int, width: int) -> Tensor:
    """Return a buffer (m, R, width) that all tiles reuse: allocating memory costs more than filling it."""
    return x.new_empty(min(TILE, len(x)), rank, width)


def _expand(M: Tensor, tile: Tensor) -> Tensor:
    """View a matrix (p, q) as a batch (m, p, q), one copy per token of a tile."""
    return M.expand(tile.shape[0], -1, -1)


def _mix(M: Tensor, tile: Tensor, scratch: Tensor) -> Tensor:
    """Multiply each token of a tile by a matrix. (p, q), (m, q, c) -> (m, p, c)."""
    return torch.bmm(_expand(M, tile), tile, out=scratch[: tile.shape[0]])
