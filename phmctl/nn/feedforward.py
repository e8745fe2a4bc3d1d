"""The position-wise feed-forward network: two PHM maps around a ReLU (Zhang et al. 2021, §4.2)."""

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.build import LinearBuilder


class FeedForward(nn.Module):
    """``Y = PHM(ReLU(PHM(X)))``.

    Args:
        builder: makes the maps.
        width: residual width d.
        inner: hidden width.
        dropout: on the hidden activations.
    """

    def __init__(self, builder: LinearBuilder, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = builder.map(width, inner)
        self.contract = builder.map(inner, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., d)."""
        hidden = self.expand(x).relu()  # (..., inner)
        return self.contract(F.dropout(hidden, self.dropout, self.training))  # type: ignore[no-any-return]
