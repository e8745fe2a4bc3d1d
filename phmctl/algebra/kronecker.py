"""Multiplication rules A, the sums ``H = Σᵢ kron(A[i], S[i])`` that they make, and the sum nearest to a given matrix.

A rule is ``A[i, a, b]``: component a of the product S·x takes ``A[i, a, b] * S_i * x_b``. The fixed rules (complex,
quaternion, octonion, sedenion) come from the Cayley–Dickson construction; a learned rule starts at random.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.dimension import FIXED_DIMENSION, check_divides
from phmctl.errors import DimensionError, UserError, check_known

LEARNED = "phm"
ALGEBRAS = (*FIXED_DIMENSION, LEARNED)


def check_algebra(algebra: str, n: int) -> None:
    """Check that there is such an algebra, and that it has dimension n.

    Raises:
        UserError: no algebra has this name; names the nearest.
        DimensionError: the algebra is a fixed one of another dimension.
    """
    check_known("algebra", algebra, ALGEBRAS)
    implied = FIXED_DIMENSION.get(algebra, n)
    if n != implied:
        raise DimensionError(f"algebra {algebra!r} has n = {implied}, not {n}; use n = {implied} or 'phm'")


def fixed_rule(algebra: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Return the structure tensor A of a fixed algebra, (n, n, n) with entries in {-1, 0, 1}.

    For the quaternions ``Σᵢ kron(A[i], S[i])`` is the Hamilton product matrix of Zhang et al. (2021), eq. 3.4.

    Raises:
        UserError: no fixed algebra has this name; names the nearest.
    """
    check_known("fixed algebra", algebra, FIXED_DIMENSION)
    A = torch.ones(1, 1, 1, device=device, dtype=dtype)
    while len(A) < FIXED_DIMENSION[algebra]:  # Cayley–Dickson: (p, q)(r, s) = (pr − s̄q, sp + qr̄)
        zero, swapped = torch.zeros_like(A), A.transpose(0, 2)  # p·s and s·p
        conjugate = torch.full_like(A[0, 0], -1.0)  # of r and s, on the last axis
        conjugate[0] = 1.0
        by_p = torch.cat([torch.cat([A, zero], 2), torch.cat([zero, swapped], 2)], 1)
        by_q = torch.cat([torch.cat([zero, zero - swapped * conjugate], 2), torch.cat([A * conjugate, zero], 2)], 1)
        A = torch.cat([by_p, by_q])
    return A + 0.0  # no −0


def kronecker_sum(A: Tensor, S: Tensor) -> Tensor:
    """Return H by one matrix product and one permutation, without an n×k×d temporary.

    ``H[a·k/n + s, b·d/n + t] = Σᵢ A[i, a, b] · S[i, s, t]`` (Zhang et al. 2021, eq. 3.3). Plain torch operations:
    autograd, autocast, compilers, exporters, ``torch.func`` and operation counters need no rules of ours.

    Args:
        A: (n, n, n), the rule.
        S: (n, k/n, d/n), the components.

    Returns:
        H of shape (k, d); under autocast in its dtype.
    """
    n, rows, columns = S.shape
    blocks = A.reshape(n, n * n).t() @ S.reshape(n, rows * columns)  # (a b, s t)
    return blocks.view(n, n, rows, columns).transpose(1, 2).reshape(n * rows, n * columns)  # (a s, b t)


class NearestSum(NamedTuple):
    """A and S of the nearest sum, and the error that it leaves."""

    A: Tensor  # (n, n, n)
    S: Tensor  # (n, k/n, d/n)
    relative_error: float  # ‖W − H‖ / ‖W‖, Frobenius norms


@torch.no_grad()
def nearest_sum(weight: Tensor, n: int, algebra: str = LEARNED) -> NearestSum:
    """Return the sum of n Kronecker products nearest to a matrix in the Frobenius norm. Computed in float64.

    Rearranged so that each block is a row, a Kronecker product is a matrix of rank one, and the nearest sum is the
    truncated singular value decomposition (Van Loan and Pitsianis, 1993); the fibres of its rule have unit length in
    the mean, as at initialisation. With the rule of a fixed algebra S is found by least squares.

    Args:
        weight: (k, d).
        n: the order of the blocks' grid and the number of terms.
        algebra: ``phm``, or a fixed algebra of dimension n.

    Raises:
        DimensionError: n does not divide k and d.
        UserError: the weight has no numbers, or some that are not finite.
    """
    k, d = weight.shape
    check_divides(n, in_features=d, out_features=k)
    if weight.is_meta:
        raise UserError("the weight is on the meta device and has no numbers; load them first")
    if not weight.isfinite().all():
        raise UserError("the weight has NaN or infinite numbers; no sum of Kronecker products is near to it")
    blocks = weight.double().reshape(n, k // n, n, d // n).transpose(1, 2).reshape(n * n, -1)  # (a b, s t)
    norm = blocks.norm().item()
    if algebra != LEARNED:
        A = fixed_rule(algebra, device=weight.device, dtype=torch.float64)
        rule = A.reshape(n, n * n).t()  # (a b, i)
        S = torch.linalg.pinv(rule) @ blocks  # (i, s t)
        left = (rule @ S - blocks).norm().item()
    else:
        vectors, singular, right = torch.linalg.svd(blocks, full_matrices=False)  # (a b, r), (r,), (r, s t)
        terms = min(n, len(singular))
        # A layer so small that it has fewer terms than n keeps a rule for the idle ones: with A = S = 0 neither would
        # ever get a gradient.
        A = weight.new_full((n, n * n), 1 / math.sqrt(n), dtype=torch.float64)
        S = weight.new_zeros(n, blocks.shape[1], dtype=torch.float64)
        A[:terms] = vectors[:, :terms].t() * math.sqrt(n)
        S[:terms] = right[:terms] * singular[:terms, None] / math.sqrt(n)
        left = singular[terms:].norm().item()
    error = left / norm if norm else 0.0
    return NearestSum(A.view(n, n, n).to(weight.dtype), S.view(n, k // n, d // n).to(weight.dtype), error)
