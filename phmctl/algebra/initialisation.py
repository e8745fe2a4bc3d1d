"""Draw A and S so that H has the variance of a dense layer.

Every rule has fibres of unit length: ``Σᵢ A[i, a, b]² = 1`` for all a, b. A fibre of a fixed rule has one entry ±1,
a fibre ``A[:, a, b]`` of a learned rule is drawn as a random direction, so Var(A) = 1/n. Each entry of
``H = Σᵢ kron(A[i], S[i])`` then has exactly the variance of S for every n and every drawn rule, and S is drawn by the
dense scheme with the dense fans: ``n·Var(A)·Var(S)`` is the scheme's variance. With independent entries of A this would
hold only on average: at n = 2, with 8 numbers, the gain of a single layer would deviate by up to a half.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.rank_product import Factors, recompose
from phmctl.errors import check_known

_EPSILON = 1e-12  # avoids division by zero

# scheme -> (variance of H from the dense fans, distribution)
_SCHEMES: dict[str, tuple[Callable[[int, int], float], str]] = {
    "default": (lambda fan_in, fan_out: 1 / (3 * fan_in), "uniform"),  # nn.Linear: kaiming_uniform(a=√5)
    "xavier_uniform": (lambda fan_in, fan_out: 2 / (fan_in + fan_out), "uniform"),
    "embedding": (lambda fan_in, fan_out: 1 / fan_in, "normal"),  # N(0, 1/d), Vaswani et al. (2017)
    "standard_normal": (lambda fan_in, fan_out: 1.0, "normal"),  # nn.Embedding
}
SCHEMES = tuple(_SCHEMES)


def dense_variance(scheme: str, fan_in: int, fan_out: int) -> float:
    """Return the variance of a dense weight's entries under a scheme.

    Args:
        scheme: one of :data:`SCHEMES`. ``default`` initialises like ``nn.Linear``, ``embedding`` is N(0, 1/fan_in).
        fan_in: d, the in-features, or the width of an embedding.
        fan_out: k, the out-features (of a single map, if several are stacked).

    Raises:
        UserError: the name is unknown. The message suggests the nearest one.
    """
    check_known("initialization", scheme, SCHEMES)
    return _SCHEMES[scheme][0](fan_in, fan_out)


@torch.no_grad()
def initialise_rule_(A: Tensor) -> None:
    """Draw a learned rule (n, n, n) in place: each fibre ``A[:, a, b]`` is a random unit vector."""
    A.normal_()
    A.copy_(F.normalize(A, dim=0, eps=_EPSILON))


@torch.no_grad()
def initialise_factors_(W: Tensor, U: Tensor, V: Tensor) -> None:
    """Draw the factors W (n, R), U (n, R) and V (R, n) of a learned rule in place.

    They are random tight frames (orthogonal rows or columns of equal length), so that mixing does not distort any
    direction: at R = n, H has the singular values of its blocks. The fibres have unit length on average.
    """
    empty = [torch.empty(part.shape, dtype=torch.float64, device="cpu") for part in (W, U, V)]
    frames = Factors(*map(nn.init.orthogonal_, empty))
    gain = recompose(frames).square().sum(dim=0).mean() ** (1 / 6)
    for factor, frame in zip((W, U, V), frames, strict=True):
        factor.copy_(frame / gain)


def frame_scale(n: int, rank: int) -> float:
    """Return the root mean square of the entries of factors that :func:`initialise_factors_` draws, on average."""
    entry = 1 / math.sqrt(max(n, rank))  # in a matrix with orthogonal rows or columns of length 1
    fibre = min(n, rank) ** 3 / (n * rank) ** 2  # mean square length of the fibres before the division by the gain
    return entry / math.pow(fibre, 1 / 6)


@torch.no_grad()
def initialise_dense_(weight: Tensor, scheme: str, fan_in: int, fan_out: int) -> None:
    """Draw a dense weight in place by a scheme. See :func:`dense_variance` for the arguments."""
    deviation = math.sqrt(dense_variance(scheme, fan_in, fan_out))
    if _SCHEMES[scheme][1] == "uniform":
        bound = math.sqrt(3) * deviation
        weight.uniform_(-bound, bound)
    else:
        weight.normal_(0.0, deviation)


@torch.no_grad()
def initialise_components_(S: Tensor, A: Tensor, scheme: str, fan_in: int, fan_out: int) -> None:
    """Draw the components in place so that H has the variance of a scheme under the rule A, with the dense fans.

    If the fibres of A do not have unit length, S is divided by the root mean square length.
    """
    initialise_dense_(S, scheme, fan_in, fan_out)
    gain = A.square().sum(dim=0).mean().sqrt()
    S.div_(gain.clamp_min(_EPSILON))
