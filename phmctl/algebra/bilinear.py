"""Decompose a rule into bilinear factors, so that a multiplication by H takes R block products instead of n².

The factors of a rule of order n are ``A[i, a, b] = Σᵣ W[i, r] · U[a, r] · V[r, b]`` with R terms. This is an exact
canonical polyadic decomposition (Kolda and Bader 2009, §3). The system is underdetermined, so the solver takes
Gauss–Newton steps of minimum norm with Levenberg–Marquardt damping, in float64 on the CPU.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.errors import RankError

_Parts = tuple[Tensor, Tensor, Tensor]  # W, U and Vᵀ, (n, R) each

QUICK = 8  # largest n whose rules are decomposed in about a second; n = 16 takes minutes
TOLERANCE = 1e-10  # relative residual of an exact decomposition
STARTS = 8  # random starts per rank
_MAX_ITERATIONS = 500
_STALL_ITERATIONS = 25  # iterations in which the residual must fall by a fifth
_MAX_ENTRY = 6.0  # of a factor, if the rule's entries have a root mean square of one
# Over the reals a random 2×2×2 tensor has rank 2 or 3, each with positive probability; 3×3×3 has generic rank 5
# (Kruskal 1989). At other n the number of unknowns determines the rank (Abo, Ottaviani and Peterson 2009).
_GENERIC_RANK_EXCEPTIONS = {1: 1, 2: 3, 3: 5}
# W, U and Vᵀ of fixed algebras at ranks 3 and 8 (Howell and Lafon 1975); 0, ±1 and ±½ are exact in any dtype.
_FIXED_FACTORS = {
    "complex": (((1, 1, 0), (1, 0, 1)), ((1, 0, -1), (1, 1, 0)), ((1, -1, 1), (0, 1, 1))),
    "quaternion": (
        ((1, 0, -1, 0, 0, 0, 1, 1), (1, 0, 1, 0, 1, 1, 0, 0), (0, -1, 0, 1, 0, 0, 1, -1), (0, 1, 0, 1, 1, -1, 0, 0)),
        (
            (0, 1, 0, 0, -0.5, -0.5, 0.5, 0.5),
            (1, 0, 0, 0, -0.5, -0.5, -0.5, -0.5),
            (0, 0, -1, 0, 0.5, -0.5, 0.5, -0.5),
            (0, 0, 0, -1, 0.5, -0.5, -0.5, 0.5),
        ),
        ((1, 0, 0, -1, 0, 0, 1, 1), (1, 0, 0, 1, 1, 1, 0, 0), (0, 1, 1, 0, 1, -1, 0, 0), (0, -1, 1, 0, 0, 0, -1, 1)),
    ),
}


class Factors(NamedTuple):
    """A rule as a sum of R outer products of three vectors."""

    W: Tensor  # (n, R)
    U: Tensor  # (n, R)
    V: Tensor  # (R, n)


def generic_rank(n: int) -> int:
    """Return the rank that suffices for a random n×n×n rule: ⌈n³ / (3n − 2)⌉, except 3 for n = 2 and 5 for n = 3."""
    return _GENERIC_RANK_EXCEPTIONS.get(n, math.ceil(n**3 / (3 * n - 2)))


def recompose(factors: Factors) -> Tensor:
    """Return the rule ``A[i, a, b] = Σᵣ W[i, r] U[a, r] V[r, b]``, (n, n, n), or one for each of several factors."""
    W, U, V = factors
    products = U.mT.unsqueeze(-1) * V.unsqueeze(-2)  # (..., R, a, b); faster than einsum
    return (W @ products.flatten(-2)).view(*W.shape[:-1], *products.shape[-2:])


@torch.no_grad()
def decompose(rule: Tensor, rank: int | None = None) -> Factors:
    """Return exact factors of a rule, in its dtype and on its device.

    Corresponding columns of W, U and V have equal norms, and entries are bounded by a few times the rule's entries, so
    the decomposition is as well conditioned as the rule. The result is deterministic.

    Args:
        rule: A, (n, n, n).
        rank: R; by default the generic rank, or up to four more if the generic rank fails.

    Raises:
        RankError: no random start reaches a relative residual of 1e-10 at this rank.
    """
    target, scale = normalised(rule)
    n = len(rule)
    ranks = range(generic_rank(n), generic_rank(n) + 5) if rank is None else (rank,)
    for terms in ranks:
        solution = search(target, terms)
        if solution is not None:
            W, U, V = ((factor * scale ** (1 / 3)).to(rule) for factor in solution)
            return Factors(W, U, V.t().contiguous())
    raise RankError(
        f"{STARTS} random starts found no decomposition of rank {ranks[-1]} of a rule of order n = {n}; use a higher"
        f" rank (the generic rank is {generic_rank(n)})"
    )


def fixed_factors(algebra: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Factors:
    """Return the factors of an algebra of :data:`phmctl.dimension.WITH_FACTORS`."""
    dtype = dtype or torch.get_default_dtype()
    W, U, V = (torch.tensor(entries, device=device, dtype=dtype) for entries in _FIXED_FACTORS[algebra])
    return Factors(W, U, V.t().contiguous())


def normalised(rule: Tensor) -> tuple[Tensor, float]:
    """Return the rule divided by the root mean square of its entries, in float64, and that divisor."""
    target = rule.detach().to("cpu", torch.float64)
    scale = target.square().mean().sqrt().item()
    return target / scale, scale


def search(target: Tensor, rank: int) -> _Parts | None:
    """Return exact factors of `rank` terms with bounded entries, or None if no random start finds them."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(STARTS):
        # Divided by rank^(1/6), the factors make a rule whose entries have a root mean square of one, as the target's.
        start = [torch.randn(len(target), rank, generator=generator, dtype=torch.float64) for _ in range(3)]
        W, U, V = (factor / rank ** (1 / 6) for factor in start)
        parts, residual = _descend(target, (W, U, V))
        largest = max(part.abs().max().item() for part in parts)
        if residual <= TOLERANCE and largest <= _MAX_ENTRY:
            return parts
    return None


def _descend(target: Tensor, parts: _Parts) -> tuple[_Parts, float]:
    """Take damped Gauss–Newton steps until the residual reaches rounding error, stalls, or the iterations run out.

    Returns:
        the factors and the relative residual.
    """
    norm = target.norm().item()
    history = [math.inf] * _STALL_ITERATIONS
    error = _residual(target, *parts)
    damping = 0.1
    for _ in range(_MAX_ITERATIONS):
        relative_error = error.norm().item() / norm
        if relative_error <= 1e-13 or relative_error > 0.8 * history[-_STALL_ITERATIONS]:
            break
        history.append(relative_error)
        while damping < 1e3:  # shorten the step until it reduces the residual
            next_parts = _step(parts, error, damping)
            next_error = _residual(target, *next_parts)
            if next_error.norm() < error.norm():
                break
            damping *= 4
        else:  # no step reduces the residual
            break
        parts, error = next_parts, next_error
        damping = max(damping / 5, 1e-13)
    return parts, error.norm().item() / norm


def _residual(target: Tensor, W: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Return ``Σᵣ wᵣ ∘ uᵣ ∘ vᵣ − A``. (n, n, n)."""
    return torch.einsum("ir,ar,br->iab", W, U, V) - target


def _step(parts: _Parts, error: Tensor, damping: float) -> _Parts:
    """Return the factors after ``−Jᵀ(JJᵀ + λI)⁻¹ e``, the shortest step that solves the linearised equations.

    The three vectors of each term are rescaled to equal norms, which leaves their product unchanged.
    """
    W, U, V = parts
    gram = _gram(W, U, V)
    gram.diagonal().add_(damping * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed:
        return W * torch.nan, U, V  # NaN is never an improvement, so the caller increases the damping
    dual = torch.cholesky_solve(error.reshape(-1, 1), factor).view_as(error)  # (n, n, n)
    stepped = (
        W - torch.einsum("iab,ar,br->ir", dual, U, V),
        U - torch.einsum("iab,ir,br->ar", dual, W, V),
        V - torch.einsum("iab,ir,ar->br", dual, W, U),
    )
    norms = torch.stack([part.norm(dim=0) for part in stepped]).clamp_min(1e-150)  # (3, R)
    scales = norms.log().mean(dim=0).exp() / norms  # (3, R)
    return stepped[0] * scales[0], stepped[1] * scales[1], stepped[2] * scales[2]


def _gram(W: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Return JJᵀ, (n³, n³), for the Jacobian J of the rule's entries with respect to W, U and V.

    W couples the entries of equal i, by ``(UUᵀ ⊗ VVᵀ)`` summed over r; U couples equal a, and V equal b.
    """
    n = len(W)
    gram = W.new_zeros(n, n, n, n, n, n)  # (i, a, b, i', a', b')
    for axis, (X, Y) in enumerate(((U, V), (W, V), (W, U))):
        pairs = (X[:, None] * Y[None]).reshape(n * n, -1)  # (n², R)
        block = (pairs @ pairs.t()).view(n, n, n, n)
        gram.diagonal(dim1=axis, dim2=axis + 3).add_(block[..., None])  # (n, n, n, n, n); the last axis: equal indices
    return gram.view(n**3, n**3)
