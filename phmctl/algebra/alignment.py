"""Whether two rules are the same one, and which known algebra a learned rule is nearest to.

``H = Σᵢ kron(A[i], S[i])`` stays as it is when the terms are mixed: for every invertible P

    A'[i] = Σⱼ P[i, j] A[j],    S'[i] = Σⱼ (P⁻ᵀ)[i, j] S[j]    give    Σᵢ kron(A'[i], S'[i]) = H,

so from H the rule can be known only up to GL(n), acting on its first axis, and rules are compared as spans of their
matrices A[i]. The other two axes are not free: they index the components of the layer's input and output.

The converse holds where the components S[1] … S[n] are linearly independent. With each block of H as a row (Van Loan
and Pitsianis 1993), H is the n² × kd/n² matrix ``Σᵢ vec(A[i]) vec(S[i])ᵀ``, and its columns then span just what the
matrices A[i] span: two rules that explain the same H are each other's change of basis. Where the components span only
m < n dimensions (one hypercomplex feature in and out: m = 1), H fixes m dimensions of the span, and no others.

A distance needs a measure: two n-dimensional subspaces of the n² matrices that have nothing to do with one another are
√(1 − 1/n) apart on average, and :func:`chance_distance` says what the nearest of all known algebras comes to by chance.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.algebra.kronecker import fixed_rule
from phmctl.dimension import FIXED_DIMENSION

_DRAWS = 200


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
    """
    learned, wanted = _rows(rule), _rows(truth)  # (n, n²)
    P = wanted @ torch.linalg.pinv(learned)  # (n, n)
    error = (P @ learned - wanted).norm() / wanted.norm()
    first, second = _row_space(learned), _row_space(wanted)  # (n², r) each
    sine = 1.0
    if first.shape == second.shape:
        outside = second - first @ (first.t() @ second)  # from the difference, as 1 − cos² loses half the digits
        sine = min(float(torch.linalg.matrix_norm(outside, 2)), 1.0)
    return Alignment(P, error.item(), sine, torch.linalg.cond(P).item())


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
    """Return m, the number of independent components: how many dimensions of the rule's span H determines.

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


def _row_space(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of a matrix's rows, as columns."""
    singular: Tensor
    right: Tensor
    _, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    rounding = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    rank = int((singular > rounding * singular[0]).sum())
    return right[:rank].t()


class NearestAlgebra(NamedTuple):
    """The known algebra whose matrices come nearest to the span of a rule's.

    Attributes:
        name: of the algebra.
        rule: its rule A*, (n, n, n), float64.
        aligned: ``Σⱼ P[i, j] A[j]``, the learned rule in the basis that is nearest to A*.
        distance: ‖P·A − A*‖ / ‖A*‖: 0 where A* lies in the span of the A[i], 1 where it is orthogonal to it.
    """

    name: str
    rule: Tensor
    aligned: Tensor
    distance: float


def nearest_known(rule: Tensor) -> NearestAlgebra:
    """Return the known algebra nearest to a rule A, (n, n, n) with n at least 2, after the free change of basis."""
    learned, known = rule.detach().to("cpu", torch.float64), known_rules(len(rule))
    aligned = {name: align_rules(learned, wanted) for name, wanted in known.items()}
    name = min(aligned, key=lambda name: aligned[name].relative_error)
    nearest = torch.einsum("ij,jab->iab", aligned[name].P, learned)
    return NearestAlgebra(name, known[name], nearest, aligned[name].relative_error)


@cache
def known_rules(n: int) -> Mapping[str, Tensor]:
    """Return the algebras of dimension n that have a name: rules in float64, by that name."""
    found = {name: fixed_rule(name, dtype=torch.float64) for name, size in FIXED_DIMENSION.items() if size == n > 1}
    i, b = torch.arange(n)[:, None], torch.arange(n)
    cyclic, componentwise = torch.zeros(2, n, n, n, dtype=torch.float64)
    cyclic[i, (i + b) % n, b] = 1.0  # e_i e_b = e_(i + b mod n)
    componentwise[b, b, b] = 1.0
    found["split-complex" if n == 2 else "cyclic (circulant)"] = cyclic
    if n == 4:
        units = torch.eye(4, dtype=torch.float64).view(4, 2, 2)  # E₁₁, E₁₂, E₂₁, E₂₂
        found["2×2 matrices"] = torch.einsum("ipq,bqr,apr->iab", units, units, units)
        for name in ("complex", "split-complex"):
            found[f"{name} ⊗ {name}"] = torch.kron(known_rules(2)[name], known_rules(2)[name])
    if n == 8:
        found["complex ⊗ quaternion"] = torch.kron(known_rules(2)["complex"], known_rules(4)["quaternion"])
    found["polynomials mod xⁿ"] = cyclic.where((i + b < n)[:, None], 0.0)
    found["componentwise"] = componentwise
    return found


@cache
def chance_distance(n: int) -> float:
    """Return the distance to the nearest known algebra that one random rule in twenty is below. The same every time."""
    chance = torch.Generator().manual_seed(0)
    rules = (torch.randn(n, n, n, generator=chance, dtype=torch.float64) for _ in range(_DRAWS))
    return sorted(nearest_known(rule).distance for rule in rules)[_DRAWS // 20]
