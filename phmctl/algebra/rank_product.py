"""A rule of bilinear rank R applied by R block products where H has n² blocks.

With ``A[i, a, b] = Σᵣ W[i, r] · U[a, r] · V[r, b]`` and the blocks ``Tᵣ = Σᵢ W[i, r] · S[i]``,

    y_a = Σᵣ U[a, r] · Tᵣ (Σ_b V[r, b] · x_b)

takes R/n² of the multiplications of a k×d product, and T·R·(d + k) more for mixing T tokens. Tokens go in tiles, so
that what is mixed stays in cache. A token's n parts become its R inputs by a product of V (R × n) with the token
(n × d/n): nothing is transposed.
"""

from typing import Any

import torch
from torch import Tensor

from phmctl.algebra.modes import compute_dtype, needs_plain_operations, without_autocast
from phmctl.errors import UserError

# Tokens of a tile, at most. 1,024 is within 3 % of the best of 128 to 2,048 on two threads of an AMD EPYC, forward and
# backward, d and k of 512 to 4,096. A CUDA grid has at most 65,535 entries along the axis of a batch of products.
TILE = {"cpu": 1 << 10, "cuda": 1 << 15}


def block_sums(W: Tensor, S: Tensor) -> Tensor:
    """Return the blocks ``T[r] = Σᵢ W[i, r] · S[i]``. (n, R), (n, k/n, d/n) -> (R, k/n, d/n)."""
    return (W.t() @ S.flatten(1)).view(-1, *S.shape[1:])


def rank_linear(x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x Hᵀ + b`` for H of rank R, without building H.

    In training the R·k/n outputs of the block products are kept for each token, for the gradient of U. Twice
    differentiable: the first time in tiles, the second by plain operations, which compilers and ``torch.func`` see too.

    Args:
        x: (..., d).
        T: (R, k/n, d/n), from :func:`block_sums`.
        U: (n, R).
        V: (R, n).
        bias: (k,).

    Returns:
        (..., k), under autocast in its dtype.

    Raises:
        UserError: x has whole numbers.
    """
    dtype = compute_dtype(x)
    if not x.is_floating_point():
        raise UserError(f"a linear map wants floating-point numbers, not {x.dtype}")
    flat = x.reshape(-1, x.shape[-1]).to(dtype)  # (N, d)
    T, U, V = T.to(dtype), U.to(dtype), V.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    if needs_plain_operations():
        y = _plain(flat, T, U, V, bias)
    else:
        y = _RankLinear.apply(flat, T, U, V, bias, torch.is_grad_enabled() and U.requires_grad)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[1])


def _plain(x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None) -> Tensor:
    """Return the same for x (N, d) by operations that torch has every rule for, all tokens at once: (N, k)."""
    mixed = V @ x.view(x.shape[0], V.shape[1], x.shape[1] // V.shape[1])  # (N, R, d/n)
    products = torch.bmm(mixed.transpose(0, 1), T.transpose(1, 2)).transpose(0, 1)  # (N, R, k/n)
    y = (U @ products).flatten(1)  # (N, k)
    return y if bias is None else y + bias


class _RankLinear(torch.autograd.Function):
    """The rank product of x (N, d) in tiles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None, keep: bool) -> Tensor:
        x = x.contiguous()
        N, n, (R, s, t) = len(x), len(U), T.shape
        inputs, scratch = x.view(N, n, t), _scratch(x, R, t)
        y = x.new_empty(N, n * s)
        outputs = y.view(N, n, s)
        kept = x.new_empty((N, R, s) if keep else 0)
        for rows in _tiles(x):
            mixed = _mix(V, inputs[rows], scratch)  # (m, R, t)
            products = torch.bmm(mixed.transpose(0, 1), T.transpose(1, 2)).transpose(0, 1)  # (m, R, s)
            if bias is None:
                torch.bmm(_each(U, products), products, out=outputs[rows])
            else:
                torch.baddbmm(bias.view(n, s), _each(U, products), products, out=outputs[rows])
            if keep:
                kept[rows] = products
        ctx.save_for_backward(x, T, U, V, bias, kept)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if compute_dtype(gradient) != gradient.dtype:  # backward within autocast, of a forward pass without it
            with without_autocast(gradient.device.type):
                return _RankLinear.backward(ctx, gradient)
        x, T, U, V, bias, kept = ctx.saved_tensors
        wants_x, wants_T, wants_U, wants_V, wants_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient will be differentiated
            # views, so that the gradient ends at them: x may itself come of U, V and the bias
            inputs: Any = [None if part is None else part.view_as(part) for part in (x, T, U, V, bias)]
            leaves = [part for part, wanted in zip(inputs, ctx.needs_input_grad, strict=False) if wanted]
            grads = iter(torch.autograd.grad(_plain(*inputs), leaves, gradient, create_graph=True))
            return *(next(grads) if wanted else None for wanted in ctx.needs_input_grad[:5]), None
        N, n, (R, s, t) = len(x), len(U), T.shape
        inputs, gradients = x.view(N, n, t), gradient.reshape(N, n, s)
        mixed_scratch, gradient_scratch = _scratch(x, R, t), _scratch(x, R, s)
        dx = torch.empty_like(x)
        wide = torch.promote_types(x.dtype, torch.float32)  # sums over tokens
        dT, dU, dV = (torch.zeros_like(part, dtype=wide) for part in (T, U, V))
        for rows in _tiles(x):
            part = inputs[rows]  # (m, n, t)
            if wants_U:
                dU += torch.bmm(gradients[rows], kept[rows].transpose(1, 2)).sum(0, dtype=wide)  # (n, R)
            mixed_gradient = _mix(U.t(), gradients[rows], gradient_scratch)  # (m, R, s)
            if wants_T:
                mixed = _mix(V, part, mixed_scratch).transpose(0, 1)  # (R, m, t)
                if dT.dtype == mixed.dtype:
                    dT.baddbmm_(mixed_gradient.permute(1, 2, 0), mixed)  # (R, s, t)
                else:
                    dT += torch.bmm(mixed_gradient.permute(1, 2, 0), mixed)
            if wants_x or wants_V:
                back = torch.bmm(mixed_gradient.transpose(0, 1), T).transpose(0, 1)  # (m, R, t)
                if wants_V:
                    dV += torch.bmm(back, part.transpose(1, 2)).sum(0, dtype=wide)  # (R, n)
                if wants_x:
                    torch.bmm(_each(V.t(), back), back, out=dx[rows].view_as(part))
        return (
            dx if wants_x else None,
            dT.to(T.dtype) if wants_T else None,
            dU.to(U.dtype) if wants_U else None,
            dV.to(V.dtype) if wants_V else None,
            gradient.sum(0) if wants_bias else None,
            None,
        )


def _tiles(x: Tensor) -> list[slice]:
    size = TILE.get(x.device.type, TILE["cpu"])
    return [slice(start, start + size) for start in range(0, len(x), size)]


def _scratch(x: Tensor, rank: int, width: int) -> Tensor:
    """Return memory (m, R, width) for every tile: fresh memory costs more than what is written into it."""
    return x.new_empty(min(TILE.get(x.device.type, TILE["cpu"]), len(x)), rank, width)


def _each(M: Tensor, tile: Tensor) -> Tensor:
    """View a matrix (p, q) as one for each token of a tile: (m, p, q)."""
    return M.expand(tile.shape[0], -1, -1)


def _mix(M: Tensor, tile: Tensor, scratch: Tensor) -> Tensor:
    """Mix the parts of each token by a matrix. (p, q), (m, q, c) -> (m, p, c)."""
    return torch.bmm(_each(M, tile), tile, out=scratch[: tile.shape[0]])
