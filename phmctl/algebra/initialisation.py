"""Initialisation that gives H the variance of the dense layer's scheme, for every n and every algebra.

Every rule here has fibres of unit length: ``Σᵢ A[i, a, b]² = 1`` for all a, b. A fixed rule has them by nature (one
entry ±1), a learned one is drawn so: each ``A[:, a, b]`` is a random direction, so Var(A) = 1/n. Then each entry of
``H = Σᵢ kron(A[i], S[i])`` has exactly the variance of S, whatever n is, whatever rule was drawn, and S is drawn by the
dense scheme with the dense fans: ``n·Var(A)·Var(S)`` is the scheme's variance. A rule of independent entries would keep
that only on average; at n = 2, of 8 numbers, the gain of single layers would stray by a half.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.bilinear import QUICK, Factors, decompose, generic_rank, recompose
from phmctl.errors import check_known

_TINY = 1e-12

# scheme -> (variance of H from the dense fans, distribution)
_SCHEMES: dict[str, tuple[Callable[[int, int], float], str]] = {
    "default": (lambda fan_in, fan_out: 1 / (3 * fan_in), "uniform"),  # nn.Linear: kaiming_uniform(a=√5)
    "xavier_uniform": (lambda fan_in, fan_out: 2 / (fan_in + fan_out), "uniform"),
    "embedding": (lambda fan_in, fan_out: 1 / fan_in, "normal"),  # N(0, 1/d), Vaswani et al. (2017)
    "standard_normal": (lambda fan_in, fan_out: 1.0, "normal"),  # nn.Embedding
}
SCHEMES = tuple(_SCHEMES)


def dense_variance(scheme: str, fan_in: int, fan_out: int) -> float:
    """Return the variance that a scheme gives the entries of a dense weight.

    Args:
        scheme: one of :data:`SCHEMES`. ``default`` is that of ``nn.Linear``; ``embedding`` is N(0, 1/fan_in).
        fan_in: d, the in-features (of an embedding: its width).
        fan_out: k, the out-features (of one map, where several are stacked).

    Raises:
        UserError: no scheme has this name; names the nearest.
    """
    check_known("initialization", scheme, SCHEMES)
    return _SCHEMES[scheme][0](fan_in, fan_out)


@torch.no_grad()
def initialise_rule_(A: Tensor) -> None:
    """Draw a learned rule in place: every fibre ``A[:, a, b]`` a random direction. (n, n, n)."""
    A.normal_()
    A.copy_(F.normalize(A, dim=0, eps=_TINY))


@torch.no_grad()
def initialise_factors_(W: Tensor, U: Tensor, V: Tensor) -> None:
    """Draw the factors of a learned rule in place. (n, R), (n, R), (R, n).

    At the generic rank, where that is found in seconds, the rule that they make has fibres ``A[:, a, b]`` of unit
    length, as :func:`initialise_rule_` gives it: one such rule is decomposed for each n, and moved by what keeps
    lengths and rank: a rotation of i, permutations and signs of a and b. At other ranks U and V are random tight frames
    (their rows orthogonal and of one length), so that mixing stretches no direction: at R = n the singular values of H
    are those of its blocks. The fibres are of unit length in the mean.
    """
    n, rank = W.shape
    if rank == natural_rank(n) and n <= QUICK:
        W0, U0, V0 = (torch.tensor(part, dtype=torch.float64) for part in _canonical_factors(n))
        rotation, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))  # (n, n)
        signs = torch.randint(0, 2, (2, n), dtype=torch.float64) * 2 - 1
        U0 = U0[torch.randperm(n)] * signs[0, :, None]
        parts = Factors(rotation @ W0, U0, V0[:, torch.randperm(n)] * signs[1])
    else:
        parts = Factors(*(nn.init.orthogonal_(torch.empty(part.shape, dtype=torch.float64)) for part in (W, U, V)))
        gain = recompose(parts).square().sum(dim=0).mean() ** (1 / 6)
        parts = Factors(*(part / gain for part in parts))
    for part, drawn in zip((W, U, V), parts, strict=True):
        part.copy_(drawn)


def natural_rank(n: int) -> int:
    """Return the rank that factors have where none is given: that of a random rule."""
    return len(_canonical_factors(n)[2]) if n <= QUICK else generic_rank(n)


@cache
def _canonical_factors(n: int) -> list[list[list[float]]]:
    """Return W, U and V of one random rule with unit fibres, the same in every process.

    As lists: a cached tensor would keep the device or the mode that was active.
    """
    with torch.device("cpu"):
        rule = torch.randn(n, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        return [part.tolist() for part in decompose(F.normalize(rule, dim=0))]


@torch.no_grad()
def initialise_dense_(weight: Tensor, scheme: str, fan_in: int, fan_out: int) -> None:
    """Draw a tensor in place with the variance and the distribution of a scheme; see :func:`dense_variance`."""
    deviation = math.sqrt(dense_variance(scheme, fan_in, fan_out))
    if _SCHEMES[scheme][1] == "uniform":
        bound = math.sqrt(3) * deviation
        weight.uniform_(-bound, bound)
    else:
        weight.normal_(0.0, deviation)


@torch.no_grad()
def initialise_components_(S: Tensor, A: Tensor, scheme: str, fan_in: int, fan_out: int) -> None:
    """Draw the components in place so that H, under the rule A as it is, has the variance of a scheme.

    A rule whose fibres are not of unit length (one that a caller brings) is allowed for by its mean square length.

    Args:
        S: (n, k/n, d/n), overwritten.
        A: (n, n, n), read.
        scheme: see :func:`dense_variance`; `fan_in` and `fan_out` are the dense layer's, not a component's.
    """
    initialise_dense_(S, scheme, fan_in, fan_out)
    gain = A.square().sum(dim=0).mean().sqrt()
    S.div_(gain.clamp_min(_TINY))
