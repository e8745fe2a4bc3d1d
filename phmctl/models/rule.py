"""The model of Figure 2: one PHM layer, whose rule is to be found."""

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.build import LinearBuilder


class RuleModel(nn.Module):
    """``y = Hx``, with as many features out as in.

    Args:
        builder: makes the map.
        features: d, real numbers in and out.

    Raises:
        DimensionError: n does not divide d.
    """

    def __init__(self, builder: LinearBuilder, features: int) -> None:
        super().__init__()
        self.product = builder.linear(features, features)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the products. (B, d) -> (B, d). With targets (B, d), return their summed squared error instead."""
        y: Tensor = self.product(x)
        return y if targets is None else F.mse_loss(y, targets, reduction="sum")
