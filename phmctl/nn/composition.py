"""Composing representations: N parts in, one out, position by position (Li et al. 2020, eq. 5).

A composition replaces attention's output map, where the parts are the heads (eq. 4), or follows a stack, where they are
the layers' outputs. Layers are a sequence of N tensors (..., w). Heads are one tensor (..., N·w), as attention returns
them. A sequence is never copied into one tensor: ``W [x₁; …; x_N]`` is computed as ``W₁ x₁ + … + W_N x_N``.

At initialisation parts of unit variance give an output of unit variance, as the top layer and attention's output map
do. Each class explains how.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phmctl.algebra.initialisation import dense_variance
from phmctl.errors import DimensionError
from phmctl.nn.layers import LinearBuilder
from phmctl.nn.linear import PHMLinear

Parts = Tensor | Sequence[Tensor]

# Initial standard deviation of the second-order features relative to the linear ones, small because the variance of the
# parts is not known in advance and would enter squared.
_SECOND_ORDER = 0.25


class LinearComposition(nn.Module):
    """``W [x₁; …; x_N] + b`` as a sum of products, with one map for each part (Table 1, row 2).

    The entries of W start with variance gain²/Σw, so that the output has gain² times the mean variance of the parts.
    `widths` has the width of each part. All heads together are one part.
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
            DimensionError: the number of parts is not the number of maps.
        """
        separate = _separate(parts, self.widths)
        y: Tensor = self.maps[0](separate[0])  # (..., out)
        for linear, part in zip(self.maps[1:], separate[1:], strict=True):
            y = y + linear(part)
        return y


class AggregationNode(nn.Module):
    """``LayerNorm(FFN([x; y; …]) + x + y + …)`` (Dou et al. 2018, eq. 9). The norm gives unit variance.

    `inputs` has the number of parts of width w in each input, `hidden` is the inner width of the FFN. If the output is
    wider than the parts, a map projects the sum of the parts.
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
        total = sum(part for tensor in inputs for part in torch.split(tensor, self.width, -1))  # (..., w)
        return self.norm(self.contract(self.expand(inputs).relu()) + self.project(total))  # type: ignore[no-any-return]


class HierarchicalComposition(nn.Module):
    """A tree of aggregation nodes: each joins the next two parts and the previous node (Dou et al. 2018).

    The layer norm of the last node, of width `out`, gives unit variance. The N `parts` have `width` w. With `joined`
    they come in one tensor (heads).

    Raises:
        DimensionError: N is odd.
    """

    def __init__(
        self, builder: LinearBuilder, parts: int, width: int, hidden: int, out: int, *, joined: bool = False
    ) -> None:
        super().__init__()
        if parts % 2 or not parts:
            raise DimensionError(f"{parts} parts: a tree that joins two parts in each node needs an even number")
        count = parts // 2
        self.pair = [2] if joined else [1, 1]  # parts in each new input of a node
        self.widths = [parts_in * width for parts_in in self.pair] * count
        inputs = [self.pair] + [[*self.pair, 1]] * (count - 1)
        outs = [width] * (count - 1) + [out]
        shapes = zip(inputs, outs, strict=True)
        self.nodes = nn.ModuleList(AggregationNode(builder, counts, width, hidden, wide) for counts, wide in shapes)

    def forward(self, parts: Parts) -> Tensor:
        """Map N parts (..., w), or (..., N·w), to (..., out)."""
        inputs = _separate(parts, self.widths)
        step = len(self.pair)
        previous: list[Tensor] = []
        for index, node in enumerate(self.nodes):
            previous = [node([*inputs[step * index : step * (index + 1)], *previous])]
        return previous[0]


class BilinearComposition(nn.Module):
    """Low-rank bilinear pooling: ``P (U R̂ ⊙ V R̂)`` (eq. 10), extended: ``P ([R̂; 1] U ⊙ [R̂; 1] V)`` (eq. 11).

    R̂ is the concatenation of all parts. The 1, which `first_order` appends, is the bias of U and V. The extended form
    starts as ``P (V R̂)``, a linear map (the biases are 1 for U, 0 for V), with second-order features of a quarter of
    that standard deviation. Without the 1, U and V each keep the variance. The variance of P compensates for the sum.
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
        """Map parts to (..., out)."""
        return self.P(self.U(parts) * self.V(parts))  # type: ignore[no-any-return]


def _separate(parts: Parts, widths: Sequence[int]) -> Sequence[Tensor]:
    separate = torch.split(parts, list(widths), -1) if isinstance(parts, Tensor) else parts
    if len(separate) != len(widths):
        raise DimensionError(f"a composition of {len(widths)} parts got {len(separate)}")
    return separate


@torch.no_grad()
def _draw(linear: PHMLinear, variance: float) -> None:
    """Scale a new map so that the entries of H have this variance."""
    drawn = dense_variance(linear.initialization, linear.in_features, linear.out_features // linear.splits)
    components = linear.weight if linear.n == 1 else linear.S
    components.mul_(math.sqrt(variance / drawn))
    linear.variance = variance
