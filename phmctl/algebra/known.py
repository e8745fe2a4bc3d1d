"""Which known algebra a learned rule is nearest to, and how much of its freedom a layer uses.

A layer ``H = Σᵢ kron(A[i], S[i])`` knows its rule only up to an invertible P on the first axis
(:mod:`phmctl.algebra.alignment`), so a rule is compared as the span of its matrices A[i]. A distance needs a measure:
two n-dimensional subspaces of the n² matrices that have nothing to do with one another are √(1 − 1/n) apart on
average, and :func:`chance_distance` says what the nearest of all known ones comes to by chance.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.algebra.alignment import align_rules
from phmctl.algebra.rules import fixed_rule
from phmctl.dimension import FIXED_DIMENSION

_DRAWS = 200


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


class Spectra(NamedTuple):
    """Singular values that no change of basis alters, each descending.

    Attributes:
        terms: of the n² × kd/n² matrix ``Σᵢ vec(A[i]) vec(S[i])ᵀ`` (Van Loan and Pitsianis 1993), with squares that add
            up to 1: how much of H each of the n terms carries. As many are above zero as terms are used.
        outputs: of the unfolding (a; i, b) of an orthonormal basis of the rule's span, divided by √n: how evenly the
            rule uses the n components of the output. All 1/√n for a division algebra.
        inputs: of the unfolding (b; i, a): the same of the input.
    """

    terms: list[float]
    outputs: list[float]
    inputs: list[float]


@cache
def known_rules(n: int) -> Mapping[str, Tensor]:
    """Return the algebras of dimension n that have a name: rules in float64, by that name."""
    found = {name: fixed_rule(name, dtype=torch.float64) for name, size in FIXED_DIMENSION.items() if size == n > 1}
    first, second, cyclic = _pairs(n)
    found["split-complex" if n == 2 else "cyclic (circulant)"] = _table(n, first, second, cyclic)
    if n == 4:
        split, complexes = _table(2, *_pairs(2)), fixed_rule("complex", dtype=torch.float64)
        found["2×2 matrices"] = _matrices()
        found["complex ⊗ complex"] = _tensor(complexes, complexes)
        found["split-complex ⊗ split-complex"] = _tensor(split, split)
    if n == 8:
        found["complex ⊗ quaternion"] = _tensor(
            fixed_rule("complex", dtype=torch.float64), fixed_rule("quaternion", dtype=torch.float64)
        )
    low = first + second < n
    found["polynomials mod xⁿ"] = _table(n, first[low], second[low], (first + second)[low])
    found["componentwise"] = _table(n, *[torch.arange(n)] * 3)
    return found


def nearest_known(rule: Tensor) -> NearestAlgebra:
    """Return the known algebra nearest to a rule after the change of basis that is free.

    Args:
        rule: A, (n, n, n), n at least 2.
    """
    learned = rule.detach().to("cpu", torch.float64)
    aligned = {name: align_rules(learned, wanted) for name, wanted in known_rules(len(rule)).items()}
    name = min(aligned, key=lambda name: aligned[name].relative_error)
    basis = aligned[name].P
    return NearestAlgebra(
        name,
        known_rules(len(rule))[name],
        torch.einsum("ij,jab->iab", basis, learned),
        aligned[name].relative_error,
    )


@cache
def chance_distance(n: int) -> float:
    """Return the distance to the nearest known algebra that one random rule in twenty is below. The same every time."""
    chance = torch.Generator().manual_seed(0)
    rules = (torch.randn(n, n, n, generator=chance, dtype=torch.float64) for _ in range(_DRAWS))
    return sorted(nearest_known(rule).distance for rule in rules)[_DRAWS // 20]


def spectra(A: Tensor, S: Tensor) -> Spectra:
    """Return what a layer's terms, outputs and inputs carry.

    Args:
        A: (n, n, n), the rule.
        S: (n, k/n, d/n), the components.
    """
    n = len(A)
    rows, components = (each.detach().to("cpu", torch.float64).flatten(1).t() for each in (A, S))  # (n², n), (kd/n², n)
    basis, left = torch.linalg.qr(rows)  # (n², n), (n, n)
    right = torch.linalg.qr(components, mode="r").R  # (≤ n, n)
    terms = torch.linalg.svdvals(left @ right.t())
    total = float(terms.norm())
    span = basis.t().reshape(n, n, n)  # (i, a, b), orthonormal over i
    outputs = torch.linalg.svdvals(span.permute(1, 0, 2).flatten(1)) / math.sqrt(n)
    inputs = torch.linalg.svdvals(span.permute(2, 0, 1).flatten(1)) / math.sqrt(n)
    return Spectra([float(each) / total if total else 0.0 for each in terms], outputs.tolist(), inputs.tolist())


def _table(n: int, first: Tensor, second: Tensor, product: Tensor) -> Tensor:
    """Return the rule with e_first · e_second = e_product and no other products."""
    rule = torch.zeros(n, n, n, dtype=torch.float64)
    rule[first, product, second] = 1.0
    return rule


def _pairs(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return i, b and (i + b) mod n of all pairs."""
    index = torch.arange(n)
    first, second = index[:, None].expand(n, n).flatten(), index[None].expand(n, n).flatten()
    return first, second, (first + second) % n


def _tensor(one: Tensor, other: Tensor) -> Tensor:
    """Return the rule of the tensor product of two algebras."""
    n = len(one) * len(other)
    return torch.einsum("iab,jcd->ijacbd", one, other).reshape(n, n, n)


def _matrices() -> Tensor:
    """Return the rule of the 2×2 matrices with the units E₁₁, E₁₂, E₂₁, E₂₂."""
    units = torch.eye(4, dtype=torch.float64).view(4, 2, 2)
    products = torch.einsum("ipq,bqr->ibpr", units, units).reshape(4, 4, 4)  # (i, b, a)
    return products.transpose(1, 2).contiguous()
