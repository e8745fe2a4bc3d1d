"""The probe: a perceptron that reads a property of a sentence from its vector (Conneau et al. 2018; SentEval)."""

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.loss import label_loss


class Probe(nn.Module):
    """``W₂ σ(dropout(W₁ x + b₁)) + b₂``, with dropout before the sigmoid as SentEval has it.

    The encoder that made the vectors is no part of it, so no gradient reaches it.

    Args:
        hidden: the map to the hidden layer; None leaves that layer out, and the probe is a logistic regression.
        output: the map to the classes.
        dropout: see above.
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
