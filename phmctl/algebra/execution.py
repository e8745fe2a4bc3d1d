"""Ways to apply ``H = Σᵢ kron(A[i], S[i])`` to a batch, and the choice between them.

With d in-features, k out-features and T tokens a dense layer takes T·k·d multiplications. The executions:

- ``dense`` builds H: n·k·d multiplications and one pass over k×d numbers. Kept in evaluation, it is ``nn.Linear``.
- ``factored`` never builds H. It multiplies x by every S[i], then mixes by the rule, or the other way round, whichever
  temporary is smaller: T·n²·min(d, k) multiplications more. For few tokens, where touching k×d numbers is what costs.
- ``rank`` takes R block products, T·k·d·R/n² multiplications (:mod:`phmctl.algebra.rank_product`). It wants the rule's
  factors.

All are differentiable as often as one likes, work under autocast and go through ``torch.func``.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from phmctl.algebra.bilinear import Factors
from phmctl.algebra.cost import DENSE, FACTORED, RANK, cheapest
from phmctl.algebra.kronecker import materialise
from phmctl.algebra.products import MKL, library, linear
from phmctl.algebra.rank_product import blocks_of, rank_product

__all__ = ["AUTO", "DENSE", "EXECUTIONS", "FACTORED", "RANK", "Execution", "apply_blocks", "apply_dense"]
__all__ += ["apply_factored", "apply_rank", "choose"]

Execution = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # (x, A, S, bias) -> y

AUTO = "auto"
EXECUTIONS = (AUTO, DENSE, FACTORED, RANK)


def apply_dense(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Build H and apply it. (T, d) -> (T, k)."""
    return linear(x, materialise(A, S), bias)


def apply_factored(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Apply the components and the rule one after the other. (T, d) -> (T, k)."""
    _, rows, columns = S.shape
    return (_mix_first if rows > columns else _mix_last)(x, A, S, bias)


def apply_rank(x: Tensor, factors: Factors, S: Tensor, bias: Tensor | None, *, keep: bool = True) -> Tensor:
    """Apply R block products. (T, d) -> (T, k)."""
    return apply_blocks(x, blocks_of(factors.W, S), factors, bias, keep=keep)


def apply_blocks(x: Tensor, T: Tensor, factors: Factors, bias: Tensor | None, *, keep: bool = True) -> Tensor:
    """Apply R block products whose blocks T (R, k/n, d/n) are made. (T, d) -> (T, k)."""
    U, V = factors.U, factors.V
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, T, U, V = (part.to(dtype) for part in (x, T, U, V))
        bias = None if bias is None else bias.to(dtype)
    return rank_product(x, T, U, V, bias, keep=keep)


def _mix_last(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by every component, then mix by the rule. (T, d) -> (T, k)."""
    n, rows, columns = S.shape
    tokens = x.shape[0]
    products = linear(x.reshape(tokens * n, columns), S.reshape(n * rows, columns))  # (T b, i s)
    products = products.view(tokens, n * n, rows)  # (T, b i, s)
    rule = A.permute(1, 2, 0).reshape(1, n, n * n).expand(tokens, -1, -1)  # (T, a, b i)
    if bias is None:
        return torch.bmm(rule, products).view(tokens, n * rows)  # (T, a s)
    return torch.baddbmm(bias.view(1, n, rows), rule, products).view(tokens, n * rows)  # (T, a s)


def _mix_first(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None) -> Tensor:
    """Mix by the rule, then multiply by the components. (T, d) -> (T, k)."""
    n, rows, columns = S.shape
    tokens = x.shape[0]
    rule = A.transpose(0, 1).reshape(1, n * n, n).expand(tokens, -1, -1)  # (T, a i, b)
    mixed = torch.bmm(rule, x.reshape(tokens, n, columns))  # (T, a i, t)
    components = S.transpose(0, 1).reshape(rows, n * columns)  # (s, i t)
    y = linear(mixed.view(tokens * n, n * columns), components).view(tokens, n * rows)  # (T, a s)
    return y if bias is None else y + bias.to(y.dtype)  # autocast: y is in the lower precision, the bias is not


def choose(
    tokens: int,
    d: int,
    k: int,
    n: int,
    rank: int | None,
    *,
    trains: bool,
    kept: bool = True,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> str:
    """Return the execution that costs least by the model of :mod:`phmctl.algebra.cost`.

    Args:
        tokens: T.
        d: in-features.
        k: out-features.
        n: the PHM hyperparameter.
        rank: R of the rule's factors, None where they are not known.
        trains: whether a gradient is wanted.
        kept: whether H, or the blocks, are at hand once they are built; in training they never are.
        device: the type of the device. Elsewhere than on a CPU nothing was measured: it is ``dense``.
        dtype: computed in. Below four bytes nothing was measured either: it is ``dense``.
    """
    if tokens == 0 or device != "cpu" or dtype.itemsize < 4:
        return DENSE
    faster = library() if dtype == torch.float32 else MKL
    return cheapest(tokens, d, k, n, rank, trains=trains, kept=kept, threads=torch.get_num_threads(), library=faster)
