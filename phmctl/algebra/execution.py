"""Ways to apply ``H = Σᵢ kron(A[i], S[i])`` to a batch, and the choice between them.

With d in-features, k out-features and T tokens a dense layer takes T·k·d multiplications. The executions differ in what
they add to that:

- ``weight`` builds H first: n·k·d multiplications and one pass over k×d numbers. Right for many tokens.
- ``components`` multiplies x by every S[i], then mixes by the rule: T·n·k more multiplications, a temporary of T·n·k.
- ``rule`` mixes x by the rule, then multiplies by S: T·n²·d more multiplications, a temporary of T·n·d.

The last two never touch k×d numbers, which is what costs when there are few tokens. All are plain differentiable
operations, so autocast, double backward and ``torch.func`` work through them.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from phmctl.algebra.kronecker import materialise

Execution = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # (x, A, S, bias) -> y

# The executions without H win while their temporary is at most so many times the size of H. Measured forward and
# backward on two CPU threads, n = 2 to 16, d and k of 256 to 2048: they lose from 0.5 to 3 times.
_TEMPORARY = 1.5


def apply_weight(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Build H and apply it. (T, d) -> (T, k)."""
    return F.linear(x, materialise(A, S), bias)


def apply_components(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by every component, then mix by the rule. (T, d) -> (T, k)."""
    n, rows, columns = S.shape
    tokens = x.shape[0]
    products = x.reshape(tokens * n, columns) @ S.reshape(n * rows, columns).t()  # (T b, i s)
    products = products.view(tokens, n * n, rows)  # (T, b i, s)
    rule = A.permute(1, 2, 0).reshape(1, n, n * n).expand(tokens, -1, -1)  # (T, a, b i)
    if bias is None:
        return torch.bmm(rule, products).view(tokens, n * rows)  # (T, a s)
    return torch.baddbmm(bias.view(1, n, rows), rule, products).view(tokens, n * rows)  # (T, a s)


def apply_rule(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Mix by the rule, then multiply by the components. (T, d) -> (T, k)."""
    n, rows, columns = S.shape
    tokens = x.shape[0]
    rule = A.transpose(0, 1).reshape(1, n * n, n).expand(tokens, -1, -1)  # (T, a i, b)
    mixed = torch.bmm(rule, x.reshape(tokens, n, columns))  # (T, a i, t)
    components = S.transpose(0, 1).reshape(rows, n * columns)  # (s, i t)
    y = (mixed.view(tokens * n, n * columns) @ components.t()).view(tokens, n * rows)  # (T, a s)
    return y if bias is None else y + bias.to(y.dtype)  # autocast: y is in the lower precision, the bias is not


EXECUTIONS: dict[str, Execution] = {
    "weight": apply_weight,
    "components": apply_components,
    "rule": apply_rule,
}


def choose_execution(tokens: int, S: Tensor) -> str:
    """Return the name of the fastest execution for a number of tokens and components of shape (n, k/n, d/n)."""
    n, rows, columns = S.shape
    if not 0 < tokens * n <= _TEMPORARY * n * max(rows, columns):  # T·n·min(k, d) <= 1.5·k·d
        return "weight"
    return "rule" if rows > columns else "components"
