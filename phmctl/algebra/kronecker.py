"""The sum of Kronecker products ``H = Σᵢ kron(A[i], S[i])``: fast, and as its definition."""

import torch
from torch import Tensor


def materialise(A: Tensor, S: Tensor) -> Tensor:
    """Return H by one matrix product and one permutation, without an n×k×d temporary.

    ``H[a·k/n + s, b·d/n + t] = Σᵢ A[i, a, b] · S[i, s, t]`` (Zhang et al. 2021, eq. 3.3).

    Args:
        A: (n, n, n), the rule.
        S: (n, k/n, d/n), the components.

    Returns:
        H of shape (k, d), differentiable in both.
    """
    n, rows, columns = S.shape
    blocks = A.reshape(n, n * n).t() @ S.reshape(n, rows * columns)  # (a b, s t)
    grid = blocks.view(n, n, rows, columns).transpose(1, 2)  # (a, s, b, t)
    return grid.reshape(n * rows, n * columns)  # (k, d)


def materialise_reference(A: Tensor, S: Tensor) -> Tensor:
    """Return H in float64 as the plain sum of ``torch.kron``: the definition, to test against. (k, d)."""
    terms = [torch.kron(a, s) for a, s in zip(A.double(), S.double(), strict=True)]
    return torch.stack(terms).sum(dim=0)
