"""The model of Figure 2: one PHM layer, whose rule is to be found."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.build import builder_for
from phmctl.recipe.schema import RuleModelSection


class RuleModel(nn.Module):
    """``y = Hx``, with as many features out as in.

    Args:
        settings: the recipe's model section.
        features: d, real numbers in and out.
        device: where parameters are allocated; ``meta`` allocates nothing.

    Raises:
        DimensionError: n does not divide d.
    """

    def __init__(self, settings: RuleModelSection, features: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.product = builder_for(settings, device).linear(features, features)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the products. (B, d) -> (B, d). With targets (B, d), return their summed squared error instead."""
        y: Tensor = self.product(x)
        return y if targets is None else F.mse_loss(y, targets, reduction="sum")
