"""The bilinear rank of a rule: in how many products it can be carried out.

A rule of order n written as ``A[i, a, b] = Σᵣ W[i, r] · U[a, r] · V[r, b]`` with R terms multiplies by R block
products where H has n² blocks. That is a canonical polyadic decomposition (Kolda and Bader 2009, §3) with so many
terms that it is exact. There are more unknowns than equations, hence Gauss–Newton steps of minimum norm, damped as
by Levenberg and Marquardt. Everything is computed in float64 on the CPU.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from phmctl.errors import RankError

_Parts = tuple[Tensor, Tensor, Tensor]  # W, U and Vᵀ, (n, R) each

QUICK = 8  # largest n whose rules are decomposed in about a second; n = 16 takes minutes
TOLERANCE = 1e-10  # relative residual of an exact decomposition
STARTS = 8  # random starts at a rank before it is given up
_ITERATIONS = 500
_STALLED = 25  # iterations in which the residual must fall by a fifth
_LARGEST = 6.0  # of a factor's entry, for a rule whose entries have a root mean square of one
# Over the reals a random 2×2×2 tensor has rank 2 or 3, each with positive probability; 3×3×3 has generic rank 5
# (Kruskal 1989). Elsewhere the count of unknowns tells (Abo, Ottaviani and Peterson 2009).
_EXCEPTIONS = {1: 1, 2: 3, 3: 5}
# W, U and V of fixed algebras by their rank, 3 and 8 (Howell and Lafon 1975); entries 0, ±1 and ±½ keep them exact.
_TABLES = {
    "complex": (((1, 1, 0), (1, 0, 1)), ((1, 0, -1), (1, 1, 0)), ((1, 0), (-1, 1), (1, 1))),
    "quaternion": (
        ((1, 0, -1, 0, 0, 0, 1, 1), (1, 0, 1, 0, 1, 1, 0, 0), (0, -1, 0, 1, 0, 0, 1, -1), (0, 1, 0, 1, 1, -1, 0, 0)),
        (
            (0, 1, 0, 0, -0.5, -0.5, 0.5, 0.5),
            (1, 0, 0, 0, -0.5, -0.5, -0.5, -0.5),
            (0, 0, -1, 0, 0.5, -0.5, 0.5, -0.5),
            (0, 0, 0, -1, 0.5, -0.5, -0.5, 0.5),
        ),
        (
            (1, 1, 0, 0),
            (0, 0, 1, -1),
            (0, 0, 1, 1),
            (-1, 1, 0, 0),
            (0, 1, 1, 0),
            (0, 1, -1, 0),
            (1, 0, 0, -1),
            (1, 0, 0, 1),
        ),
    ),
}


class Factors(NamedTuple):
    """A rule as a sum of R products of three vectors."""

    W: Tensor  # (n, R)
    U: Tensor  # (n, R)
    V: Tensor  # (R, n)


def generic_rank(n: int) -> int:
    """Return the rank with which a random n×n×n rule can be written, ⌈n³ / (3n − 2)⌉ but for n = 2 and 3."""
    return _EXCEPTIONS.get(n, math.ceil(n**3 / (3 * n - 2)))


def recompose(factors: Factors) -> Tensor:
    """Return the rule of its factors: ``A[i, a, b] = Σᵣ W[i, r] U[a, r] V[r, b]``. (n, n, n)."""
    W, U, V = factors
    products = U.t().unsqueeze(2) * V.unsqueeze(1)  # (R, a, b); einsum takes twice the time to think
    return (W @ products.flatten(1)).view(-1, *products.shape[1:])


@torch.no_grad()
def decompose(rule: Tensor, rank: int | None = None) -> Factors:
    """Write a rule as a sum of R products of vectors, exactly.

    The columns of W, U and V that belong together have equal norms, and no entry is larger than a few times the
    rule's own: the decomposition is as well conditioned as the rule. A rule always gives the same factors.

    Args:
        rule: A, (n, n, n).
        rank: R. Without it the generic rank, and one to four more where the rule resists.

    Returns:
        Factors in the rule's dtype and on its device.

    Raises:
        RankError: no start reaches a relative residual of 1e-10 at this rank.
    """
    target, scale = normalised(rule)
    n = len(rule)
    ranks = range(generic_rank(n), generic_rank(n) + 5) if rank is None else (rank,)
    for terms in ranks:
        found = search(target, terms)
        if found is not None:
            W, U, V = ((part * scale ** (1 / 3)).to(rule) for part in found)
            return Factors(W, U, V.t().contiguous())
    raise RankError(
        f"no decomposition of rank {ranks[-1]} was found in {STARTS} starts; this rule of order n = {n} needs a higher"
        f" rank (the generic rank is {generic_rank(n)})"
    )


def fixed_factors(algebra: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Factors:
    """Return the factors of an algebra of :data:`phmctl.dimension.WITH_FACTORS`."""
    like = torch.empty((), device=device, dtype=dtype)
    return Factors(*map(like.new_tensor, _TABLES[algebra]))


def normalised(rule: Tensor) -> tuple[Tensor, float]:
    """Return the rule in float64 with entries of root mean square one, and what it was divided by."""
    target = rule.detach().to("cpu", torch.float64)
    scale = target.square().mean().sqrt().item()
    return target / scale, scale


def search(target: Tensor, rank: int) -> _Parts | None:
    """Return the first solution with bounded entries that a random start leads to."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(STARTS):
        # The sum of such factors has entries of root mean square one.
        start = [torch.randn(len(target), rank, generator=generator, dtype=torch.float64) for _ in range(3)]
        parts, residual = _descend(target, tuple(part / rank ** (1 / 6) for part in start))
        if residual <= TOLERANCE and max(part.abs().max().item() for part in parts) <= _LARGEST:
            return parts
    return None


def _descend(target: Tensor, parts: _Parts) -> tuple[_Parts, float]:
    """Take damped Gauss–Newton steps until the residual is at rounding, stalls, or the iterations are used up."""
    norm = target.norm().item()
    history = [math.inf] * _STALLED
    error = _residual(target, *parts)
    damping = 0.1
    for _ in range(_ITERATIONS):
        size = error.norm().item() / norm
        if size <= 1e-13 or size > 0.8 * history[-_STALLED]:
            break
        history.append(size)
        while damping < 1e3:  # until a step is short enough to help
            moved = _step(parts, error, damping)
            after = _residual(target, *moved)
            if after.norm() < error.norm():
                break
            damping *= 4
        else:
            break
        parts, error, damping = moved, after, max(damping / 5, 1e-13)
    return parts, error.norm().item() / norm


def _residual(target: Tensor, W: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Return ``Σᵣ wᵣ ∘ uᵣ ∘ vᵣ − A``. (n, n, n)."""
    return torch.einsum("ir,ar,br->iab", W, U, V) - target


def _step(parts: _Parts, error: Tensor, damping: float) -> _Parts:
    """Return the parts after ``−Jᵀ(JJᵀ + λI)⁻¹ e``, the shortest step that solves the linearised equations.

    The three vectors of each term get the same norm; their product stays.
    """
    W, U, V = parts
    gram = _gram(W, U, V)
    gram.diagonal().add_(damping * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed:
        return W * torch.nan, U, V  # never an improvement: the caller damps more
    dual = torch.cholesky_solve(error.reshape(-1, 1), factor).view_as(error)  # (n, n, n)
    moved = (
        W - torch.einsum("iab,ar,br->ir", dual, U, V),
        U - torch.einsum("iab,ir,br->ar", dual, W, V),
        V - torch.einsum("iab,ir,ar->br", dual, W, U),
    )
    norms = torch.stack([part.norm(dim=0) for part in moved]).clamp_min(1e-150)  # (3, R)
    scales = norms.log().mean(dim=0).exp() / norms  # (3, R)
    return moved[0] * scales[0], moved[1] * scales[1], moved[2] * scales[2]


def _gram(W: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Return JJᵀ, (n³, n³), of the derivatives of all entries by W, U and V.

    Where W changes, entries of equal i correlate, by ``(UUᵀ ⊗ VVᵀ)`` summed over r; likewise for U and V.
    """
    n = len(W)
    gram = W.new_zeros(n, n, n, n, n, n)  # (i, a, b, i', a', b')
    for axis, (X, Y) in enumerate(((U, V), (W, V), (W, U))):
        pairs = (X[:, None] * Y[None]).reshape(n * n, -1)  # (n², R)
        block = (pairs @ pairs.t()).view(n, n, n, n)
        gram.diagonal(dim1=axis, dim2=axis + 3).add_(block[..., None])  # (the other four axes, i = i')
    return gram.view(n**3, n**3)
