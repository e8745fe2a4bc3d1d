"""Rules A, the weight ``H = Σᵢ kron(A[i], S[i])``, and the Kronecker sum nearest to a weight.

In the product S·x, the term ``A[i, a, b] * S_i * x_b`` adds to component a. The fixed rules (complex, quaternion,
octonion, sedenion) come from the Cayley–Dickson construction. A learned rule is initialised at random.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.algebra.dimension import FIXED_DIMENSION, LEARNED, check_channels, check_divides
from phmctl.errors import DimensionError, UserError, check_known

ALGEBRAS = (*FIXED_DIMENSION, LEARNED)


def check_algebra(algebra: str, n: int) -> int:
    """Return n as an int. Raises UserError for an unknown algebra, DimensionError for another n than the algebra's."""
    check_known("algebra", algebra, ALGEBRAS)
    n = check_divides(n)
    implied = FIXED_DIMENSION.get(algebra, n)
    if n != implied:
        raise DimensionError(f"algebra {algebra!r} has n = {implied}, not {n}; use n = {implied} or 'phm'")
    return n


def check_dtype(dtype: torch.dtype) -> None:
    """Raise UserError if parameters cannot have this dtype."""
    if not dtype.is_floating_point or dtype.itemsize < 2:
        raise UserError(f"dtype {dtype}: A and S are real floating-point numbers of at least 16 bits")


def check_values(weight: Tensor) -> None:
    """Raise UserError unless the entries of a weight are real, finite and present."""
    check_dtype(weight.dtype)
    if weight.is_meta:
        raise UserError("the weight is on the meta device; load its values first")
    if not weight.isfinite().all():
        raise UserError("the weight has NaN or infinite entries, which nothing approximates")


def fixed_rule(algebra: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Return the structure tensor A of a fixed algebra, (n, n, n) with entries in {-1, 0, 1}.

    For the quaternions ``Σᵢ kron(A[i], S[i])`` is the Hamilton product matrix of Zhang et al. (2021), eq. 3.4.

    Raises:
        UserError: no fixed algebra has this name. The message suggests the nearest one.
    """
    check_known("fixed algebra", algebra, FIXED_DIMENSION)
    A = torch.ones(1, 1, 1, device=device, dtype=dtype)
    while len(A) < FIXED_DIMENSION[algebra]:  # Cayley–Dickson: (p, q)(r, s) = (pr − s̄q, sp + qr̄)
        zero, swapped = torch.zeros_like(A), A.transpose(0, 2)  # p·s and s·p
        conjugate = torch.full_like(A[0, 0], -1.0)  # signs for r̄ and s̄, on the last axis
        conjugate[0] = 1.0
        by_p = torch.cat([torch.cat([A, zero], 2), torch.cat([zero, swapped], 2)], 1)
        by_q = torch.cat([torch.cat([zero, zero - swapped * conjugate], 2), torch.cat([A * conjugate, zero], 2)], 1)
        A = torch.cat([by_p, by_q])
    return A + 0.0  # turns −0 into 0


def kronecker_sum(A: Tensor, S: Tensor, groups: int = 1) -> Tensor:
    """Return H from one matrix product and one permutation, without an n×k×d temporary.

    ``H[a·k/n + s, b·d/n + t, …] = Σᵢ A[i, a, b] · S[i, s, t, …]`` (Zhang et al. 2021, eq. 3.3, Grassucci et al. 2022
    for the further axes, a convolution's kernel). The operations are plain torch, so that autograd, autocast,
    compilers, exporters, ``torch.func`` and operation counters work unchanged.

    Args:
        A: (n, n, n), the rule.
        S: (n, k/n, d/n, ...), the components.
        groups: number of sums that H stacks, all with the rule A. S stacks the rows of the groups.

    Returns:
        H, (k, d, ...), under autocast in autocast's dtype.
    """
    _, rows, columns, *kernel = S.shape
    n = len(A)
    blocks = A.reshape(n, n * n).t() @ S.reshape(n, rows * columns * math.prod(kernel))  # (a b, g s t …)
    split = blocks.view(n, n, groups, rows // groups, columns * math.prod(kernel))
    return split.permute(2, 0, 3, 1, 4).reshape(n * rows, n * columns, *kernel)  # (g a s, b t, …)


def kronecker_sums(A: Tensor, S: Tensor, dtype: torch.dtype) -> Tensor:
    """Return m weights H (m, k, d) in `dtype`, from A (m, n, n, n), or one (n, n, n), and S (m, n, k/n, d/n).

    A compiler makes one kernel of the broadcast product and the sum over i.
    """
    m, n, rows, columns = S.shape
    if torch.compiler.is_compiling():
        blocks = (A[..., :, None, :, None] * S[:, :, None, :, None]).sum(1)  # (m, a, s, b, t)
    else:  # the product would be an n×k×d temporary
        blocks = (A.flatten(-2).mT @ S.flatten(2)).view(m, n, n, rows, columns).transpose(2, 3)
    return blocks.to(dtype, memory_format=torch.contiguous_format).reshape(m, n * rows, n * columns)


def kronecker_gradients(A: Tensor, S: Tensor, dH: Tensor, learned: bool) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of A (None unless `learned`) and S of :func:`kronecker_sums` from the gradient of H.

    They have the dtype of `dH`, which may be wider than the dtype of A and S.
    """
    A, S = A.to(dH.dtype), S.to(dH.dtype)
    m, n, rows, columns = S.shape
    blocks = dH.view(m, n, rows, n, columns)  # (m, a, s, b, t)
    if torch.compiler.is_compiling():
        dA = (blocks[:, None] * S[:, :, None, :, None]).sum((3, 5)) if learned else None
        return dA, (blocks[:, None] * A[..., :, None, :, None]).sum((2, 4))
    flat = blocks.transpose(2, 3).reshape(m, n * n, rows * columns)
    dA = (S.flatten(2) @ flat.mT).view(m, n, n, n) if learned else None
    return dA, (A.flatten(-2) @ flat).view_as(S)


class NearestSum(NamedTuple):
    """The rule and components of the nearest sum of Kronecker products, and the error."""

    A: Tensor  # (n, n, n)
    S: Tensor  # (n, k/n, d/n, ...)
    relative_error: float  # ‖W − H‖ / ‖W‖, Frobenius norms


@torch.no_grad()
def nearest_sum(weight: Tensor, n: int, algebra: str = LEARNED, groups: int = 1) -> NearestSum:
    """Return the sum of n Kronecker products nearest to a weight in the Frobenius norm, computed in float64.

    If the matrix is rearranged so that each block is a row, a Kronecker product becomes a matrix of rank one, and the
    nearest sum is a truncated singular value decomposition (Van Loan and Pitsianis 1993). The rule is scaled so that
    the fibres have unit length on average, as at initialisation. For a fixed algebra, least squares gives S.

    Args:
        weight: (k, d, ...).
        n: the number of terms, and of blocks in each direction.
        algebra: ``phm``, or a fixed algebra of dimension n.
        groups: number of sums that the weight stacks. See :func:`kronecker_sum`.

    Raises:
        DimensionError: n does not divide d and the rows of a group.
        UserError: the weight is not real and floating-point, on the meta device, or not finite.
    """
    k, d, *kernel = weight.shape
    check_channels(n, d, k // groups, kernel, groups)
    check_values(weight)
    split = weight.double().reshape(groups, n, k // (groups * n), n, -1)  # (g, a, s, b, t …)
    rows = split.permute(1, 3, 0, 2, 4).reshape(n * n, -1)  # (a b, g s t …)
    norm = rows.norm().item()
    if algebra != LEARNED:
        A = fixed_rule(algebra, device=weight.device, dtype=torch.float64)
        rule = A.reshape(n, n * n).t()  # (a b, i)
        S = torch.linalg.pinv(rule) @ rows  # (i, s t)
        residual = (rule @ S - rows).norm().item()
    else:
        vectors, singular, right = torch.linalg.svd(rows, full_matrices=False)  # (a b, r), (r,), (r, s t)
        terms = min(n, len(singular))
        # A small layer may have fewer terms than n. The unused terms keep a nonzero A: with A = S = 0 neither factor
        # would ever get a gradient.
        A = weight.new_full((n, n * n), 1 / math.sqrt(n), dtype=torch.float64)
        S = weight.new_zeros(n, rows.shape[1], dtype=torch.float64)
        A[:terms] = vectors[:, :terms].t() * math.sqrt(n)
        S[:terms] = right[:terms] * singular[:terms, None] / math.sqrt(n)
        residual = singular[terms:].norm().item()
    error = residual / norm if norm else 0.0
    return NearestSum(A.view(n, n, n).to(weight.dtype), S.view(n, k // n, d // n, *kernel).to(weight.dtype), error)
