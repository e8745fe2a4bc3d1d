"""Whether two rules are the same one, up to the change of basis that a sum of Kronecker products leaves free.

``H = Σᵢ kron(A[i], S[i])`` stays as it is when the terms are mixed: for every invertible P

    A'[i] = Σⱼ P[i, j] A[j],    S'[i] = Σⱼ (P⁻ᵀ)[i, j] S[j]    give    Σᵢ kron(A'[i], S'[i]) = H,

so from H the rule can be known only up to GL(n), acting on its first axis. The other two axes are not free: they index
the components of the layer's input and output, which the data fixes.

The converse holds where the components S[1] … S[n] are linearly independent. With each block of H as a row (Van Loan
and Pitsianis 1993), H is the n² × kd/n² matrix ``Σᵢ vec(A[i]) vec(S[i])ᵀ``, and its columns then span just what the
matrices A[i] span. Two rules that explain the same H are therefore each other's change of basis. Where the components
span only m < n dimensions (one hypercomplex feature in and out: every S[i] is a number, m = 1), H fixes m dimensions of
the span and says nothing of the rest.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.errors import DimensionError


class Alignment(NamedTuple):
    """The change of basis that brings one rule nearest to another.

    Attributes:
        P: (n, n), float64, on the CPU.
        relative_error: ‖P·A − A*‖ / ‖A*‖, Frobenius norms: how far A* lies outside the span of the A[i].
        span_sine: sine of the largest angle between the span of the A[i] and that of the A*[i]; 1 where their
            dimensions differ. It is the same both ways, and no choice of basis changes it.
        condition: of P, in the 2-norm. An infinite or huge one says that P is no change of basis.
    """

    P: Tensor
    relative_error: float
    span_sine: float
    condition: float


@torch.no_grad()
def align_rules(rule: Tensor, truth: Tensor) -> Alignment:
    """Find P by least squares so that ``Σⱼ P[i, j] A[j]`` is nearest to ``A*[i]`` for all i. In float64.

    Args:
        rule: A, (n, n, n).
        truth: A*, (n, n, n).

    Raises:
        DimensionError: the two are not rules of the same order.
    """
    if rule.shape != truth.shape or rule.dim() != 3 or len(set(rule.shape)) != 1:
        raise DimensionError(f"rules to align have one shape (n, n, n), not {tuple(rule.shape)}, {tuple(truth.shape)}")
    learned, wanted = _rows(rule), _rows(truth)  # (n, n²)
    P = wanted @ torch.linalg.pinv(learned)  # (n, n)
    error = (P @ learned - wanted).norm() / wanted.norm()
    return Alignment(P, error.item(), _largest_sine(learned, wanted), torch.linalg.cond(P).item())


@torch.no_grad()
def change_basis(A: Tensor, S: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """Mix the terms of a sum of Kronecker products so that H stays: A by P, S by P⁻ᵀ.

    Args:
        A: (n, n, n), the rule.
        S: (n, k/n, d/n), the components.
        P: (n, n), invertible.

    Returns:
        A and S in the new basis.
    """
    contragredient = torch.linalg.inv(P).t()  # (n, n)
    return torch.einsum("ij,jab->iab", P, A), torch.einsum("ij,jst->ist", contragredient, S)


@torch.no_grad()
def determined_terms(S: Tensor) -> int:
    """Return m, how many dimensions of the rule's span H determines: the number of independent components.

    Args:
        S: (n, k/n, d/n).

    Returns:
        m, at most n and at most kd/n². The rule is determined, up to its basis, if it is n.
    """
    rounding = torch.finfo(S.dtype).eps * max(len(S), S[0].numel())  # of the components' own dtype
    return int(torch.linalg.matrix_rank(_rows(S), rtol=rounding))


def _rows(tensor: Tensor) -> Tensor:
    """Return each matrix of a stack as a row, in float64 on the CPU. (n, p, q) -> (n, p q)."""
    return tensor.detach().to("cpu", torch.float64).flatten(1)


def _largest_sine(one: Tensor, other: Tensor) -> float:
    """Return the sine of the largest principal angle between the row spaces of two matrices, (n, n²) each."""
    first, second = _row_space(one), _row_space(other)  # (n², r) each
    if first.shape != second.shape:
        return 1.0
    outside = second - first @ (first.t() @ second)  # (n², r): from the difference, as 1 − cos² loses half the digits
    return min(float(torch.linalg.matrix_norm(outside, 2)), 1.0)


def _row_space(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of a matrix's rows, as columns."""
    singular: Tensor
    right: Tensor
    _, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    rounding = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    rank = int((singular > rounding * singular[0]).sum())
    return right[:rank].t()
