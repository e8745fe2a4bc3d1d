"""Compare rules up to a change of basis.

``H = Σᵢ kron(A[i], S[i])`` does not change when its terms are mixed. For every invertible P

    A'[i] = Σⱼ P[i, j] A[j],    S'[i] = Σⱼ (P⁻ᵀ)[i, j] S[j]    give    Σᵢ kron(A'[i], S'[i]) = H.

H therefore determines the rule only up to GL(n) acting on its first axis, and rules are compared as the spans of the
matrices A[i]. The other two axes are not free: they index the components of the layer's input and output.

The converse holds if the components S[1] … S[n] are linearly independent. Rearranged so that each block is a row (Van
Loan and Pitsianis 1993), H is the n² × kd/n² matrix ``Σᵢ vec(A[i]) vec(S[i])ᵀ``, whose column space is the span of the
matrices A[i]. Two rules that give the same H are then related by a change of basis. If the components span only m < n
dimensions (with a single hypercomplex feature in and out, m = 1), H determines only m dimensions of the span.

Unrelated n-dimensional subspaces of the n² matrices have a distance of √(1 − 1/n) on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Alignment(NamedTuple):
    """The change of basis P that maps one rule A as close as possible to another rule A*."""

    P: Tensor  # (n, n), float64, on the CPU
    relative_error: float  # ‖P·A − A*‖ / ‖A*‖ in Frobenius norms: the part of A* outside the span of the A[i]
    span_sine: float  # sine of the largest angle between the spans of A[i] and A*[i], or 1 if the dimensions differ
    condition: float  # condition of P in the 2-norm, infinite or huge if P is not a change of basis


@torch.no_grad()
def align_rules(rule: Tensor, target: Tensor) -> Alignment:
    """Return the least-squares P that maps ``Σⱼ P[i, j] A[j]`` closest to ``A*[i]`` for all i, in float64."""
    rule_rows, target_rows = _rows(rule), _rows(target)  # (n, n²)
    P = target_rows @ torch.linalg.pinv(rule_rows)  # (n, n)
    error = (P @ rule_rows - target_rows).norm() / target_rows.norm()
    rule_basis, target_basis = _row_space(rule_rows), _row_space(target_rows)  # (n², r) each
    sine = 1.0
    if rule_basis.shape == target_basis.shape:
        # The sine comes from the residual, because √(1 − cos²) loses half the digits.
        residual = target_basis - rule_basis @ (rule_basis.t() @ target_basis)
        sine = min(float(torch.linalg.matrix_norm(residual, 2)), 1.0)
    return Alignment(P, error.item(), sine, torch.linalg.cond(P).item())


@torch.no_grad()
def change_basis(A: Tensor, S: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """Return A mixed by an invertible P (n, n), and S mixed by P⁻ᵀ, which make the same H."""
    contragredient = torch.linalg.inv(P).t()  # (n, n)
    return torch.einsum("ij,jab->iab", P, A), torch.einsum("ij,jst->ist", contragredient, S)


@torch.no_grad()
def determined_terms(S: Tensor) -> int:
    """Return m, the number of linearly independent components: if m = n, H determines the rule."""
    rounding = torch.finfo(S.dtype).eps * max(len(S), S[0].numel())  # the components' dtype decides, not float64
    return int(torch.linalg.matrix_rank(_rows(S), rtol=rounding))


def _rows(tensor: Tensor) -> Tensor:
    """Return each matrix of a stack as a row, in float64 on the CPU. (n, p, q) -> (n, p q)."""
    return tensor.detach().to("cpu", torch.float64).flatten(1)


def _row_space(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of a matrix's row space, as columns."""
    singular: Tensor
    right: Tensor
    _, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    rounding = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    rank = int((singular > rounding * singular[0]).sum())
    return right[:rank].t()
