"""Models of one map or two: the probe of a sentence vector, and the layer of Figure 2 whose rule is to be found."""

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.build import LinearBuilder
from phmctl.nn.loss import label_loss


class Probe(nn.Module):
    """``W₂ σ(dropout(W₁ x + b₁)) + b₂``, with dropout before the sigmoid as SentEval has it (Conneau et al. 2018).

    Without `hidden`, the first map, it is a logistic regression. The encoder that made the vectors is no part of it, so
    no gradient reaches it.
    """

    def __init__(self, hidden: nn.Module | None, output: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.output, self.dropout = hidden, output, dropout

    def forward(self, vectors: Tensor, *, labels: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Map sentence vectors (B, d) to logits (B, classes).

        With `labels` (B,), return the label-smoothed cross-entropy summed over the sentences instead.
        """
        if self.hidden is not None:
            vectors = F.dropout(self.hidden(vectors), self.dropout, self.training).sigmoid()  # (B, hidden)
        logits: Tensor = self.output(vectors)
        return logits if labels is None else label_loss(logits, labels, smoothing)


class RuleModel(nn.Module):
    """``y = Hx``, with as many features out as in. Raises DimensionError where n does not divide them."""

    def __init__(self, builder: LinearBuilder, features: int) -> None:
        super().__init__()
        self.product = builder.linear(features, features)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the products. (B, d) -> (B, d). With targets (B, d), return their summed squared error instead."""
        y: Tensor = self.product(x)
        return y if targets is None else F.mse_loss(y, targets, reduction="sum")
