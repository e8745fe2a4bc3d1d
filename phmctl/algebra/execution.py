"""Ways to apply ``H = Σᵢ kron(A[i], S[i])`` to a batch, and the choice between them.

With d in-features, k out-features and T tokens a dense layer takes T·k·d multiplications. The executions:

- ``dense`` builds H: n·k·d multiplications and one pass over k×d numbers. Kept in evaluation, it is ``nn.Linear``.
- ``factored`` never builds H. It multiplies x by every S[i], then mixes by the rule, or the other way round, whichever
  temporary is smaller: T·n²·min(d, k) multiplications more. For few tokens, where touching k×d numbers is what costs.
- ``rank`` takes R block products, T·k·d·R/n² multiplications (:mod:`phmctl.algebra.rank_product`). It wants the rule's
  factors.

All are differentiable as often as one likes, work under autocast and go through ``torch.func``.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from phmctl.algebra.bilinear import Factors, recompose
from phmctl.algebra.kronecker import apply_built, materialise
from phmctl.algebra.rank_product import blocks_of, rank_product
from phmctl.backends import choices, products
from phmctl.backends.choices import AUTO, DENSE, FACTORED, FIXED, KEPT, LEARNED, RANK, SMALL, TRAINED, Choice, Use
from phmctl.backends.measuring import Call
from phmctl.backends.operators import autocast_dtype
from phmctl.backends.products import MKL, PACKED, TRITON, kept_product, libraries, linear

__all__ = ["AUTO", "DENSE", "EXECUTIONS", "FACTORED", "RANK", "apply_blocks", "apply_built", "apply_factored"]
__all__ += ["apply_rank", "candidates", "choose", "decide", "standing"]

EXECUTIONS = (AUTO, DENSE, FACTORED, RANK)


def apply_factored(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None, library: str | None = None) -> Tensor:
    """Apply the components and the rule one after the other. (T, d) -> (T, k)."""
    _, rows, columns = S.shape
    return (_mix_first if rows > columns else _mix_last)(x, A, S, bias, library)


def apply_rank(
    x: Tensor, factors: Factors, S: Tensor, bias: Tensor | None, library: str = MKL, *, keep: bool = True
) -> Tensor:
    """Apply R block products. (T, d) -> (T, k)."""
    return apply_blocks(x, blocks_of(factors.W, S), factors, bias, library, keep=keep)


def apply_blocks(
    x: Tensor, T: Tensor, factors: Factors, bias: Tensor | None, library: str = MKL, *, keep: bool = True
) -> Tensor:
    """Apply R block products whose blocks T (R, k/n, d/n) are made. (T, d) -> (T, k)."""
    U, V = factors.U, factors.V
    dtype = autocast_dtype(x.device.type)
    if dtype is not None and x.dtype != torch.float64:
        x, T, U, V = (part.to(dtype) for part in (x, T, U, V))
        bias = None if bias is None else bias.to(dtype)
    return rank_product(x, T, U, V, bias, keep=keep, library=library)


def _mix_last(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None, library: str | None) -> Tensor:
    """Multiply by every component, then mix by the rule. (T, d) -> (T, k)."""
    n, rows, columns = S.shape
    tokens = x.shape[0]
    products = linear(x.reshape(tokens * n, columns), S.reshape(n * rows, columns), library=library)  # (T b, i s)
    products = products.view(tokens, n * n, rows)  # (T, b i, s)
    rule = A.permute(1, 2, 0).reshape(1, n, n * n).expand(tokens, -1, -1)  # (T, a, b i)
    if bias is None:
        return torch.bmm(rule, products).view(tokens, n * rows)  # (T, a s)
    return torch.baddbmm(bias.view(1, n, rows), rule, products).view(tokens, n * rows)  # (T, a s)


def _mix_first(x: Tensor, A: Tensor, S: Tensor, bias: Tensor | None, library: str | None) -> Tensor:
    """Mix by the rule, then multiply by the components. (T, d) -> (T, k)."""
    n, rows, columns = S.shape
    tokens = x.shape[0]
    rule = A.transpose(0, 1).reshape(1, n * n, n).expand(tokens, -1, -1)  # (T, a i, b)
    mixed = torch.bmm(rule, x.reshape(tokens, n, columns))  # (T, a i, t)
    components = S.transpose(0, 1).reshape(rows, n * columns)  # (s, i t)
    y = linear(mixed.view(tokens * n, n * columns), components, library=library).view(tokens, n * rows)  # (T, a s)
    return y if bias is None else y + bias.to(y.dtype)  # autocast: y is in the lower precision, the bias is not


def choose(
    tokens: int,
    d: int,
    k: int,
    n: int,
    rank: int | None,
    *,
    mode: str,
    learned: bool = True,
    execution: str = AUTO,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Choice:
    """Return how a map is applied to so many tokens: the execution, and the library of its products.

    Args:
        tokens: T.
        d: in-features.
        k: out-features.
        n: the PHM hyperparameter.
        rank: R of the rule's factors, None where they are not known.
        mode: one of :data:`~phmctl.backends.choices.MODES`.
        learned: whether the rule, or its factors, want gradients in training.
        execution: that is asked for.
        device: where.
        dtype: computed in.
    """
    use = _use(tokens, d, k, n, rank or 0, mode, learned, execution, torch.device(device), dtype)
    if tokens == 0 or (mode == KEPT and tokens * d * k < SMALL):
        return use.default
    return choices.choose(use, candidates)


def standing(d: int, k: int, n: int, rank: int, mode: str, learned: bool, device: str, dtype: str) -> str:
    """Return the choice as it stands, in words, for what is recorded: nothing is measured, for any number of tokens."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    return str(choices.standing(_use(choices.MOST, d, k, n, rank, mode, learned, AUTO, torch.device(device), kind)))


# What torch.compiler.assume_constant_result does; but that imports the compiler, for a second.
standing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def decide(use: Use) -> Choice:
    """Return the choice for a use."""
    return choices.choose(use, products.candidates if use.n == 1 else candidates)


def _use(
    tokens: int,
    d: int,
    k: int,
    n: int,
    rank: int,
    mode: str,
    learned: bool,
    execution: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Use:
    place, kind, rule = device.type, str(dtype).removeprefix("torch."), LEARNED if learned else FIXED
    if place == "cuda":
        place = _gpu(device.index)
    at_hand = "+".join(libraries(device.type, dtype, kept=mode == KEPT))
    size = choices.rounded(max(tokens, 1), d, k)
    return Use(d, k, n, rank, size, mode, rule, execution, kind, place, torch.get_num_threads(), at_hand)


@lru_cache
def _gpu(index: int | None) -> str:
    return f"cuda:{torch.cuda.get_device_name(index).replace(' ', '-')}"


def candidates(use: Use) -> Mapping[Choice, Call]:
    """Return every execution that a use allows by every library at hand, on random numbers: what is to be timed."""
    applied, leaves = _random_map(use)
    gradient = leaves[0].new_ones(use.tokens, use.k)

    def call(name: str, library: str) -> Call:
        def forward() -> object:
            with torch.no_grad():
                return applied[name](library)

        def both() -> object:
            return torch.autograd.grad(applied[name](library), leaves, gradient)

        return both if use.mode == TRAINED else forward

    names = (use.execution,) if use.execution != AUTO else (DENSE, FACTORED, RANK) if use.rank else (DENSE, FACTORED)
    pairs = [(name, library) for name in names for library in use.libraries.split("+")]
    calls = {Choice(*pair): call(*pair) for pair in pairs if pair[0] == DENSE or pair[1] not in (PACKED, TRITON)}
    for choice, each in calls.items():
        if choice.library == TRITON:
            each()  # its kernels are compiled, in seconds: who takes so long at first is measured no more
    return calls


def _random_map(use: Use) -> tuple[dict[str, Callable[[str], Tensor]], list[Tensor]]:
    """Return each execution of a map of random numbers, as a layer calls it with a library, and what has gradients."""
    n, R, device, trains = use.n, use.rank, use.device.partition(":")[0], use.mode == TRAINED
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=getattr(torch, use.dtype), device=device)

    x, S, bias, A = drawn(use.tokens, use.d), drawn(n, use.k // n, use.d // n), drawn(use.k), drawn(n, n, n)
    factors = Factors(drawn(n, R), drawn(n, R), drawn(R, n))
    learned = () if use.rule == FIXED else tuple(factors) if R else (A,)
    leaves = [part.requires_grad_(trains) for part in (x, S, bias, *learned)]

    def rule() -> Tensor:
        return recompose(factors) if R and learned else A

    if use.mode == KEPT:
        with torch.no_grad():
            H, T = materialise(A, S), blocks_of(factors.W, S)
        held: dict[Any, Any] = {}
        return {
            DENSE: lambda library: kept_product(H, bias, library, held)(x),
            FACTORED: lambda library: apply_factored(x, A, S, bias, library),
            RANK: lambda library: apply_blocks(x, T, factors, bias, library),
        }, leaves
    return {
        DENSE: lambda library: apply_built(x, rule(), S, bias, library),
        FACTORED: lambda library: apply_factored(x, rule(), S, bias, library),
        RANK: lambda library: apply_rank(x, factors, S, bias, library),
    }, leaves
