"""A rule of bilinear rank R applied by R block products where H has n².

With ``A[i, a, b] = Σᵣ W[i, r] · U[a, r] · V[r, b]`` and the blocks ``Tᵣ = Σᵢ W[i, r] · S[i]``,

    y_a = Σᵣ U[a, r] · Tᵣ (Σ_b V[r, b] · x_b)

which takes R/n² of the multiplications of a k×d product, and mixing: T·n·R·(d + k)/n more for T tokens. Tokens are
taken in tiles, so that what is mixed stays in cache until it is used.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Tokens of a tile, at most. Measured forward and backward on CPUs with 1 MiB of second-level cache a core, d and k of
# 512 to 4096, n = 4 and 8: from 128 to 256 nothing changes by more than 5 %, below and above it gets slower.
TILE = {"cpu": 128, "cuda": 1 << 16}


def blocks_of(W: Tensor, S: Tensor) -> Tensor:
    """Return ``T[r] = (Σᵢ W[i, r] · S[i])ᵀ``. (n, R), (n, k/n, d/n) -> (R, d/n, k/n); differentiable."""
    n, rows, columns = S.shape
    blocks = W.t() @ S.reshape(n, rows * columns)  # (R, s t)
    return blocks.view(-1, rows, columns).transpose(1, 2)  # (R, t, s)


def rank_product(x: Tensor, T: Tensor, U: Tensor, V: Tensor, *, keep: bool = True) -> Tensor:
    """Apply a rule of rank R to tokens.

    Args:
        x: (N, d).
        T: (R, d/n, k/n), from :func:`blocks_of`.
        U: (n, R).
        V: (R, n).
        keep: in training, keep the N·R·k/n outputs of the block products for the gradient of U. Otherwise they are
            computed again in the backward pass: a third more work, and no memory but a tile's.

    Returns:
        (N, k), differentiable once in all four.
    """
    return _RankProduct.apply(x, T, U, V, keep)  # type: ignore[no-any-return, no-untyped-call]


def _components(tile: Tensor, n: int) -> Tensor:
    """Lay a tile's components out one after another. (m, n·c) -> (n, m·c)."""
    return tile.view(len(tile), n, -1).transpose(0, 1).reshape(n, -1)


def _put(out: Tensor, components: Tensor) -> None:
    """Write components (n, m·c) as the tile (m, n·c) that they are: the inverse of :func:`_components`."""
    n, m = len(components), len(out)
    out.view(m, n, -1).copy_(components.view(n, m, -1).transpose(0, 1))


def _mixed(tile: Tensor, V: Tensor) -> Tensor:
    """Return a tile (m, d) mixed by V, (R, m, t): the inputs of the R block products."""
    R, n = V.shape
    return (V @ _components(tile, n)).view(R, len(tile), -1)


class _RankProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, T: Tensor, U: Tensor, V: Tensor, keep: bool) -> Tensor:
        x, T = x.contiguous(), T.contiguous()
        n, R = U.shape
        y = x.new_empty(len(x), n * T.shape[2])  # (N, k)
        tile = TILE.get(x.device.type, TILE["cpu"])
        keep = keep and U.requires_grad
        outputs = []
        for start in range(0, len(x), tile):
            products = torch.bmm(_mixed(x[start : start + tile], V), T)  # (R, m, s)
            _put(y[start : start + tile], U @ products.view(R, -1))
            if keep:
                outputs.append(products)
        ctx.save_for_backward(x, T, U, V, *outputs)
        ctx.tile = tile
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, T, U, V, *outputs = ctx.saved_tensors
        wanted = dict(zip("xTUV", ctx.needs_input_grad, strict=False))
        sums = _Gradients(x, T, U, V, wanted)
        gradient = gradient.contiguous()
        for index, start in enumerate(range(0, len(x), ctx.tile)):
            rows = slice(start, start + ctx.tile)
            sums.add(rows, x[rows], gradient[rows], outputs[index] if outputs else None)
        return *sums.result(), None


class _Gradients:
    """The gradients of a rank product, summed over tiles; in float32 at least."""

    def __init__(self, x: Tensor, T: Tensor, U: Tensor, V: Tensor, wanted: dict[str, bool]) -> None:
        self.T, self.U, self.V, self.wanted = T, U, V, wanted
        self.dx = torch.empty_like(x) if wanted["x"] else None
        self.dT, self.dU, self.dV = (torch.zeros_like(part, dtype=_wide(part.dtype)) for part in (T, U, V))

    def add(self, rows: slice, x: Tensor, g: Tensor, products: Tensor | None) -> None:
        """Add a tile: x (m, d), the gradient g (m, k) of its output, and its block products (R, m, s) if kept."""
        (n, R), m = self.U.shape, len(x)
        g = _components(g, n)  # (n, m·s)
        mixed = _mixed(x, self.V)  # (R, m, t)
        if self.wanted["U"]:
            products = torch.bmm(mixed, self.T) if products is None else products  # (R, m, s)
            _accumulate(self.dU, g, products.view(R, -1).t())
        g = (self.U.t() @ g).view(R, m, -1)  # (R, m, s)
        if self.wanted["T"]:
            _accumulate(self.dT, mixed.transpose(1, 2), g)
        if not (self.wanted["x"] or self.wanted["V"]):
            return
        back = torch.bmm(g, self.T.transpose(1, 2)).view(R, -1)  # (R, m·t)
        if self.wanted["V"]:
            _accumulate(self.dV, back, _components(x, n).t())
        if self.dx is not None:
            _put(self.dx[rows], self.V.t() @ back)

    def result(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, T, U and V, None where none is wanted."""
        sums = zip("TUV", (self.dT, self.dU, self.dV), (self.T, self.U, self.V), strict=True)
        return self.dx, *(total.to(part.dtype) if self.wanted[name] else None for name, total, part in sums)


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product of matrices, or of stacks of them, to a sum that may be wider than they are."""
    if total.dtype != left.dtype:
        total.add_(left @ right)
    elif total.dim() == 3:
        total.baddbmm_(left, right)
    else:
        total.addmm_(left, right)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
