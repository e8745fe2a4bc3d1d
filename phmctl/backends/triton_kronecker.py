"""``H = Σᵢ kron(A[i], S[i])`` and its gradients by kernels of Triton's, for CUDA: S is read once and H written once.

torch's own operations read and write H twice (a product, and a copy that permutes it) and, under autocast, cast A and S
before. Each kernel takes a tile of S, or of a gradient, by all n blocks beside each other. Sums are in float32, float64
for float64, in a fixed order: the same numbers give the same bits.

To be imported where :func:`phmctl.backends.products.has_triton` says so.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 2048  # in a tile: 16 for each thread of four warps


def build(A: Tensor, S: Tensor, dtype: torch.dtype) -> Tensor:
    """Return H. (n, n, n), (n, k/n, d/n) -> (k, d), rounded once, to the dtype asked for."""
    n, rows, columns = S.shape
    H = S.new_empty(n * rows, n * columns, dtype=dtype)
    _launch(_build, S, A, S, H)
    return H


def gradient_of_components(A: Tensor, gradient: Tensor, S: Tensor) -> Tensor:
    """Return the gradient of S, given that of H. (n, n, n), (k, d) -> (n, k/n, d/n)."""
    found = torch.empty_like(S, memory_format=torch.contiguous_format)
    _launch(_components, S, A, gradient, found)
    return found


def gradient_of_rule(gradient: Tensor, S: Tensor) -> Tensor:
    """Return the gradient of A, given that of H. (k, d), (n, k/n, d/n) -> (n, n, n)."""
    n, tiles = len(S), triton.cdiv(S[0].numel(), _tile(S))
    parts = S.new_empty(tiles, n, n, n, dtype=torch.float64 if S.dtype == torch.float64 else torch.float32)
    _launch(_rule, S, gradient, S, parts)
    return parts.sum(0).to(S.dtype)


def _launch(kernel: Any, S: Tensor, *tensors: Tensor) -> None:
    """Run a kernel over the tiles of a component × n, on the GPU that has S."""
    n, rows, columns = S.shape
    grid = triton.cdiv(rows * columns, _tile(S)), n
    with torch.cuda.device_of(S):
        kernel[grid](*(each.contiguous() for each in tensors), rows, columns, n, triton.next_power_of_2(n), _tile(S))


def _tile(S: Tensor) -> int:
    """Return how many numbers of a component a tile has."""
    return max(NUMBERS // triton.next_power_of_2(len(S)), 32)  # type: ignore[no-any-return]


@triton.jit
def _places(columns, e, n: tl.constexpr, b):
    """Return where the numbers e of a component lie in the n blocks of a row of blocks of H. (BESIDE, TILE)."""
    at = (e // columns) * (n * columns) + e % columns
    return at[None, :] + (b * columns)[:, None]


@triton.jit
def _build(A, S, H, rows, columns, n: tl.constexpr, BESIDE: tl.constexpr, TILE: tl.constexpr):
    """H[a, e, b] = Σᵢ A[i, a, b] S[i, e], of one a and a tile of e."""
    a, b, size = tl.program_id(1), tl.arange(0, BESIDE), rows * columns
    e = tl.program_id(0) * TILE + tl.arange(0, TILE)
    kind: tl.constexpr = tl.float64 if S.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BESIDE, TILE), kind)
    for i in range(n):
        s = tl.load(S + i * size + e, e < size, 0.0).to(kind)
        rule = tl.load(A + (i * n + a) * n + b, b < n, 0.0).to(kind)
        total += rule[:, None] * s[None, :]
    inside = (b < n)[:, None] & (e < size)[None, :]
    tl.store(H + a.to(tl.int64) * n * size + _places(columns, e, n, b), total.to(H.dtype.element_ty), inside)


@triton.jit
def _components(A, gradient, found, rows, columns, n: tl.constexpr, BESIDE: tl.constexpr, TILE: tl.constexpr):
    """dS[i, e] = Σ_ab A[i, a, b] dH[a, e, b], of one i and a tile of e."""
    i, b, size = tl.program_id(1), tl.arange(0, BESIDE), rows * columns
    e = tl.program_id(0) * TILE + tl.arange(0, TILE)
    kind: tl.constexpr = tl.float64 if found.dtype.element_ty == tl.float64 else tl.float32
    inside = (b < n)[:, None] & (e < size)[None, :]
    total, row = tl.zeros((TILE,), kind), gradient
    for a in range(n):
        g = tl.load(row + _places(columns, e, n, b), inside, 0.0).to(kind)
        rule = tl.load(A + (i * n + a) * n + b, b < n, 0.0).to(kind)
        total += tl.sum(rule[:, None] * g, axis=0)
        row += n * size
    tl.store(found + i * size + e, total.to(found.dtype.element_ty), e < size)


@triton.jit
def _rule(gradient, S, parts, rows, columns, n: tl.constexpr, BESIDE: tl.constexpr, TILE: tl.constexpr):
    """The part of dA[i, a, b] = Σ_e S[i, e] dH[a, e, b] that a tile of e gives, of one a."""
    a, b, size = tl.program_id(1), tl.arange(0, BESIDE), rows * columns
    e = tl.program_id(0) * TILE + tl.arange(0, TILE)
    kind: tl.constexpr = parts.dtype.element_ty
    inside = (b < n)[:, None] & (e < size)[None, :]
    g = tl.load(gradient + a.to(tl.int64) * n * size + _places(columns, e, n, b), inside, 0.0).to(kind)
    for i in range(n):
        s = tl.load(S + i * size + e, e < size, 0.0).to(kind)
        part = tl.sum(g * s[None, :], axis=1)
        tl.store(parts + ((tl.program_id(0).to(tl.int64) * n + i) * n + a) * n + b, part, b < n)
