"""Composing representations: N parts in, one out, position by position (Li et al. 2020, eq. 5).

It stands in the place of attention's output map, where the parts are the heads (eq. 4), and behind a stack, where they
are the layers' outputs. Layers come as a sequence of N tensors (..., w); heads as the one tensor (..., N·w) in which
attention leaves them side by side. Parts of a sequence are never copied into one tensor: ``W [x₁; …; x_N]`` is computed
as ``W₁ x₁ + … + W_N x_N``.

Parts of unit variance give an output of unit variance at the beginning, as the top layer has it behind a layer norm,
and as attention's output map keeps it; each class says how. :func:`begin_as_base` makes them begin as what they replace
instead, for a model that goes on from a trained one.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phmctl.algebra.initialisation import dense_variance
from phmctl.algebra.kronecker import LEARNED
from phmctl.errors import DimensionError
from phmctl.nn.build import LinearBuilder
from phmctl.nn.linear import PHMLinear

Parts = Tensor | Sequence[Tensor]

# Of the second-order features at the beginning, against the linear ones: so the output's variance hardly depends on
# the square of the parts' variance, which a composition cannot know beforehand.
_SECOND_ORDER = 0.25


class LinearComposition(nn.Module):
    """``W [x₁; …; x_N] + b`` as a sum of products, a map a part (Table 1, row 2).

    The entries of W begin with variance gain²/Σw, so that the output has gain² times the mean variance of the parts.
    `widths` are those of the parts, one for all heads together: they are one product.
    """

    def __init__(
        self, builder: LinearBuilder, widths: Sequence[int], out: int, *, bias: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.maps = nn.ModuleList(builder.linear(width, out, bias=bias and not i) for i, width in enumerate(widths))
        for part in self.maps:
            _draw(part, gain**2 / sum(widths))  # type: ignore[arg-type]

    def forward(self, parts: Parts) -> Tensor:
        """Map parts to (..., out).

        Raises:
            DimensionError: there are not as many parts as maps.
        """
        separate = _separate(parts, self.widths)
        y: Tensor = self.maps[0](separate[0])  # (..., out)
        for own, part in zip(self.maps[1:], separate[1:], strict=True):
            y = y + own(part)
        return y


class AggregationNode(nn.Module):
    """``LayerNorm(FFN([x; y; …]) + x + y + …)`` (Dou et al. 2018, eq. 9), of unit variance by its norm.

    Each of `inputs` says how many parts, of width w, stand side by side in an input; `hidden` is the FFN's inner width.
    Where the output is wider than the parts, their sum goes through a map of its own.
    """

    def __init__(self, builder: LinearBuilder, inputs: Sequence[int], width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.width = width
        self.expand = LinearComposition(builder, [count * width for count in inputs], hidden, bias=builder.bias)
        self.contract = builder.linear(hidden, out)
        self.project = builder.linear(width, out, bias=False) if out != width else nn.Identity()
        self.norm = nn.LayerNorm(out, device=builder.device)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Map inputs, each (..., count·w), to (..., out)."""
        total = sum(part for each in inputs for part in torch.split(each, self.width, -1))  # (..., w)
        return self.norm(self.contract(self.expand(inputs).relu()) + self.project(total))  # type: ignore[no-any-return]


class HierarchicalComposition(nn.Module):
    """A tree of aggregation nodes, filter two: each joins the next two parts and the node before it (Dou et al. 2018).

    Its output has unit variance, as a layer norm's has.

    Of N `parts`, each w wide; `joined` ones come side by side in one tensor (heads). `out` is the last node's width d.

    Raises:
        DimensionError: N is odd.
    """

    def __init__(
        self, builder: LinearBuilder, parts: int, width: int, hidden: int, out: int, *, joined: bool = False
    ) -> None:
        super().__init__()
        if parts % 2 or not parts:
            raise DimensionError(f"a tree whose nodes join two parts each takes an even number of them, not {parts}")
        count = parts // 2
        self.pair = [2] if joined else [1, 1]  # parts in each new input of a node
        self.widths = [parts_in * width for parts_in in self.pair] * count
        inputs = [self.pair] + [[*self.pair, 1]] * (count - 1)
        outs = [width] * (count - 1) + [out]
        shapes = zip(inputs, outs, strict=True)
        self.nodes = nn.ModuleList(AggregationNode(builder, each, width, hidden, wide) for each, wide in shapes)

    def forward(self, parts: Parts) -> Tensor:
        """Map N parts (..., w), or (..., N·w), to (..., d)."""
        inputs, step = _separate(parts, self.widths), len(self.pair)
        below: list[Tensor] = []
        for index, node in enumerate(self.nodes):
            below = [node([*inputs[step * index : step * (index + 1)], *below])]
        return below[0]


class BilinearComposition(nn.Module):
    """Low-rank bilinear pooling: ``P (U R̂ ⊙ V R̂)`` (eq. 10), extended: ``P ([R̂; 1] U ⊙ [R̂; 1] V)`` (eq. 11).

    R̂ is all parts side by side, and the 1 appended to it is U's and V's bias: n need not divide what it is appended to.
    The extended form begins as ``P (V R̂)``, a linear map (the biases are 1 for U, 0 for V), with second-order features
    of a quarter of its standard deviation; without the 1, U and V each keep the variance. P makes up for the sum.
    `first_order` appends the 1. With one width for all heads together U and V are one product each.
    """

    def __init__(
        self, builder: LinearBuilder, widths: Sequence[int], out: int, rank: int, *, first_order: bool = True
    ) -> None:
        super().__init__()
        gain = _SECOND_ORDER if first_order else 1.0
        self.U = LinearComposition(builder, widths, rank, bias=first_order, gain=gain)
        self.V = LinearComposition(builder, widths, rank, bias=first_order)
        self.P = builder.linear(rank, out, bias=False)
        _draw(self.P, 1 / (rank * (1 + gain**2 if first_order else 1)))
        if first_order:
            with torch.no_grad():
                self.U.maps[0].bias.fill_(1)  # type: ignore[operator]

    def forward(self, parts: Parts) -> Tensor:
        """Map parts to (..., d)."""
        return self.P(self.U(parts) * self.V(parts))  # type: ignore[no-any-return]


@torch.no_grad()
def begin_as_base(composition: LinearComposition | BilinearComposition) -> None:
    """Make a composition begin as what it replaces, exactly: the top layer's output, or attention's output map.

    Over layers all maps are zero but the last part's (of V, if bilinear), which is the identity. Over heads V stays as
    drawn and is the output map. P is the identity, and U is its bias, 1, alone.

    Args:
        composition: of rank r = d if bilinear, and of first order. Learned rules are A, each map its own.
    """
    linear = composition
    if isinstance(composition, BilinearComposition):
        linear = composition.V
        _diagonal(composition.P, 1)
        for part in composition.U.maps:
            _diagonal(part, 0)  # type: ignore[arg-type]
    if len(linear.widths) > 1:  # type: ignore[arg-type]
        *others, last = linear.maps  # type: ignore[misc]
        for part in others:
            _diagonal(part, 0)
        _diagonal(last, 1)


def _diagonal(own: PHMLinear, value: float) -> None:
    """Make a square map `value` times the identity, which is kron(I, I): A₀ is I in every fixed algebra."""
    (own.weight if own.n == 1 else own.S).zero_()
    if value:
        torch.diagonal(own.weight if own.n == 1 else own.S[0]).fill_(value)
        if own.algebra == LEARNED and own.n > 1:
            own.A[0].copy_(torch.eye(own.n))


def _separate(parts: Parts, widths: Sequence[int]) -> Sequence[Tensor]:
    separate = torch.split(parts, list(widths), -1) if isinstance(parts, Tensor) else parts
    if len(separate) != len(widths):
        raise DimensionError(f"{len(separate)} parts for a composition of {len(widths)}")
    return separate


@torch.no_grad()
def _draw(own: PHMLinear, variance: float) -> None:
    """Scale a map that was just built so that the entries of H have this variance."""
    drawn = dense_variance(own.initialization, own.in_features, own.out_features // own.splits)
    (own.weight if own.n == 1 else own.S).mul_(math.sqrt(variance / drawn))
