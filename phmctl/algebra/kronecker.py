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


def check_numbers(weight: Tensor) -> None:
    """Refuse (UserError) a weight without numbers, or with some that are not finite."""
    if weight.is_meta:
        raise UserError("the weight is on the meta device and has no numbers; load them first")
    if not weight.isfinite().all():
        raise UserError("the weight has NaN or infinite numbers; no sum of Kronecker products is near to it")


def _blocks(weight: Tensor, n: int) -> Tensor:
    """Return the blocks of a matrix (k, d) as rows, (n², kd/n²), in float64."""
    k, d = weight.shape
    check_divides(n, in_features=d, out_features=k)
    check_numbers(weight)
    return weight.double().reshape(n, k // n, n, d // n).transpose(1, 2).reshape(n * n, -1)


@torch.no_grad()
def nearest_sum(weight: Tensor, n: int) -> NearestSum:
    """Return the sum of n Kronecker products nearest to a matrix in the Frobenius norm.

    Rearranged so that each block is a row, a Kronecker product is a matrix of rank one, and the nearest sum is the
    truncated singular value decomposition (Van Loan and Pitsianis, 1993). Computed in float64. The fibres of the rule
    have unit length in the mean, as at initialisation.

    Args:
        weight: (k, d).
        n: the order of the blocks' grid and the number of terms.

    Raises:
        DimensionError: n does not divide k and d.
        UserError: the weight has no numbers, or some that are not finite.
    """
    k, d = weight.shape
    blocks = _blocks(weight, n)  # (a b, s t)
    left, singular, right = torch.linalg.svd(blocks, full_matrices=False)  # (a b, r), (r,), (r, s t)
    terms = min(n, len(singular))
    # A layer so small that it has fewer terms than n keeps a rule for the idle ones: with A = S = 0 neither would ever
    # get a gradient.
    A = weight.new_full((n, n * n), 1 / math.sqrt(n), dtype=torch.float64)
    S = weight.new_zeros(n, blocks.shape[1], dtype=torch.float64)
    A[:terms] = left[:, :terms].t() * math.sqrt(n)
    S[:terms] = right[:terms] * singular[:terms, None] / math.sqrt(n)
    norm = singular.norm().item()
    error = singular[terms:].norm().item() / norm if norm else 0.0
    return NearestSum(A.view(n, n, n).to(weight.dtype), S.view(n, k // n, d // n).to(weight.dtype), error)


@torch.no_grad()
def nearest_components(weight: Tensor, A: Tensor) -> tuple[Tensor, float]:
    """Return the components S whose sum with a given rule is nearest to a matrix, by least squares in float64.

    Args:
        weight: (k, d).
        A: (n, n, n).

    Returns:
        S (n, k/n, d/n) and the relative error ‖W − H‖ / ‖W‖ (Frobenius).

    Raises:
        DimensionError: n does not divide k and d.
        UserError: the weight has no numbers, or some that are not finite.
    """
    n, (k, d) = len(A), weight.shape
    blocks = _blocks(weight, n)  # (a b, s t)
    rule = A.double().reshape(n, n * n).t()  # (a b, i)
    S = torch.linalg.pinv(rule) @ blocks  # (i, s t)
    norm = blocks.norm().item()
    error = (rule @ S - blocks).norm().item() / norm if norm else 0.0
    return S.view(n, k // n, d // n).to(weight.dtype), error
