"""Compare rules up to a change of basis, and find the known algebra nearest to a learned rule.

``H = Σᵢ kron(A[i], S[i])`` does not change when its terms are mixed. For every invertible P

    A'[i] = Σⱼ P[i, j] A[j],    S'[i] = Σⱼ (P⁻ᵀ)[i, j] S[j]    give    Σᵢ kron(A'[i], S'[i]) = H.

H therefore determines the rule only up to GL(n) acting on its first axis, and rules are compared as the spans of their
matrices A[i]. The other two axes are not free: they index the components of the layer's input and output.

The converse holds if the components S[1] … S[n] are linearly independent. Rearranged so that each block is a row (Van
Loan and Pitsianis 1993), H is the n² × kd/n² matrix ``Σᵢ vec(A[i]) vec(S[i])ᵀ``, whose column space is the span of the
matrices A[i]. Two rules that give the same H are then related by a change of basis. If the components span only m < n
dimensions (with a single hypercomplex feature in and out, m = 1), H determines only m dimensions of the span.

Unrelated n-dimensional subspaces of the n² matrices have a distance of √(1 − 1/n) on average.
:func:`chance_distance` gives the threshold for the nearest of all known algebras.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.algebra.kronecker import fixed_rule
from phmctl.dimension import FIXED_DIMENSION

_RANDOM_RULES = 200  # sample size of chance_distance


class Alignment(NamedTuple):
    """The change of basis P that maps one rule A as close as possible to another rule A*."""

    P: Tensor  # (n, n), float64, on the CPU
    relative_error: float  # ‖P·A − A*‖ / ‖A*‖ in Frobenius norms: the part of A* outside the span of the A[i]
    span_sine: float  # of the largest angle between the spans of A[i] and A*[i]; 1 if their dimensions differ
    condition: float  # of P in the 2-norm; infinite or huge if P is not a change of basis


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
    """Return m, the number of linearly independent components: H determines the rule, up to its basis, if m = n."""
    rounding = torch.finfo(S.dtype).eps * max(len(S), S[0].numel())  # of the components' dtype, not of float64
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


class NearestAlgebra(NamedTuple):
    """The known algebra nearest to a learned rule A."""

    name: str
    rule: Tensor  # A* of the algebra, (n, n, n), float64
    aligned: Tensor  # Σⱼ P[i, j] A[j], the learned rule in the basis nearest to A*
    distance: float  # ‖P·A − A*‖ / ‖A*‖: 0 if A* is in the span of the A[i], 1 if A* is orthogonal to it


def nearest_known(rule: Tensor) -> NearestAlgebra:
    """Return the known algebra nearest to a rule A after a change of basis; A is (n, n, n) with n ≥ 2."""
    learned = rule.detach().to("cpu", torch.float64)
    algebras = known_rules(len(rule))
    alignments = {name: align_rules(learned, target) for name, target in algebras.items()}
    nearest = min(alignments, key=lambda name: alignments[name].relative_error)
    P, distance, *_ = alignments[nearest]
    return NearestAlgebra(nearest, algebras[nearest], torch.einsum("ij,jab->iab", P, learned), distance)


@cache
def known_rules(n: int) -> Mapping[str, Tensor]:
    """Return the rules of the named algebras of dimension n, in float64, by name."""
    rules = {name: fixed_rule(name, dtype=torch.float64) for name, size in FIXED_DIMENSION.items() if size == n > 1}
    i, b = torch.arange(n)[:, None], torch.arange(n)
    cyclic, componentwise = torch.zeros(2, n, n, n, dtype=torch.float64)
    cyclic[i, (i + b) % n, b] = 1.0  # e_i e_b = e_(i + b mod n)
    componentwise[b, b, b] = 1.0
    rules["split-complex" if n == 2 else "cyclic (circulant)"] = cyclic
    if n == 4:
        units = torch.eye(4, dtype=torch.float64).view(4, 2, 2)  # E₁₁, E₁₂, E₂₁, E₂₂
        rules["2×2 matrices"] = torch.einsum("ipq,bqr,apr->iab", units, units, units)
        for name in ("complex", "split-complex"):
            rules[f"{name} ⊗ {name}"] = torch.kron(known_rules(2)[name], known_rules(2)[name])
    if n == 8:
        rules["complex ⊗ quaternion"] = torch.kron(known_rules(2)["complex"], known_rules(4)["quaternion"])
    rules["polynomials mod xⁿ"] = cyclic.where((i + b < n)[:, None], 0.0)
    rules["componentwise"] = componentwise
    return rules


@cache
def chance_distance(n: int) -> float:
    """Return the 5 % quantile of the distance from a random rule to the nearest known algebra, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    distances = []
    for _ in range(_RANDOM_RULES):
        rule = torch.randn(n, n, n, generator=generator, dtype=torch.float64)
        distances.append(nearest_known(rule).distance)
    return sorted(distances)[_RANDOM_RULES // 20]
