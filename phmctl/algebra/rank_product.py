"""A rule of bilinear rank R applied by R block products where H has n².

With ``A[i, a, b] = Σᵣ W[i, r] · U[a, r] · V[r, b]`` and the blocks ``Tᵣ = Σᵢ W[i, r] · S[i]``,

    y_a = Σᵣ U[a, r] · Tᵣ (Σ_b V[r, b] · x_b)

which takes R/n² of the multiplications of a k×d product, and mixing: T·n·R·(d + k)/n more for T tokens. Tokens are
taken in tiles, so that what is mixed stays in cache until it is used. Nothing is transposed: a token's n parts become
its R inputs where they lie, by a product of V with each token (R × n by n × d/n).
"""

from typing import Any

import torch
from torch import Tensor

from phmctl.backends.operators import define, is_transformed
from phmctl.backends.products import MKL, block_products

# Tokens of a tile, at most. Measured forward and backward with 128 to 2048, d and k of 512 to 4096, n = 4 and 8, two
# threads, either library: 1024 is the best or within 3 % of it (but for 512 → 512, where it was the best of one run and
# an eighth behind in another); 512 costs up to a sixth more, 128 up to a third. Mixing is a batch of as many products
# as a tile has tokens, and a CUDA grid has at most 65,535 places along the axis that some kernels count these on. What
# is best on a GPU, and that 65,536 would fail there, was not tried.
TILE = {"cpu": 1024, "cuda": 1 << 15}


def blocks_of(W: Tensor, S: Tensor) -> Tensor:
    """Return ``T[r] = Σᵢ W[i, r] · S[i]``. (n, R), (n, k/n, d/n) -> (R, k/n, d/n); differentiable."""
    n, rows, columns = S.shape
    blocks = W.t() @ S.reshape(n, rows * columns)  # (R, s t)
    return blocks.view(-1, rows, columns)  # (R, s, t)


def rank_product(
    x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None = None, *, keep: bool = True, library: str = MKL
) -> Tensor:
    """Apply a rule of rank R to tokens: the operator ``phmctl::rank_product``.

    Args:
        x: (N, d).
        T: (R, k/n, d/n), from :func:`blocks_of`.
        U: (n, R).
        V: (R, n).
        bias: (k,), added to every token.
        keep: in training, keep the N·R·k/n outputs of the block products for the gradient of U. Otherwise they are
            computed again in the backward pass: a third more block products, and no memory but a tile's.
        library: that multiplies, forward and backward; one of :data:`~phmctl.backends.products.LIBRARIES`.

    Returns:
        (N, k), differentiable in all five as often as one likes: the first time in tiles, then by plain operations.
    """
    if is_transformed():
        return _plain(x, T, U, V, bias, False)[0]
    y, _ = _rank_product(x, T, U, V, bias, keep and U.requires_grad and torch.is_grad_enabled(), library)
    return y  # type: ignore[no-any-return]


def _run(
    x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None, save: bool, library: str = MKL
) -> tuple[Tensor, Tensor]:
    """Return the output (N, k) and, to be saved, those of the block products (N, R, k/n); else an empty tensor."""
    x, T = x.contiguous(), T.contiguous()
    N, n, (R, s, t) = x.shape[0], U.shape[0], T.shape
    inputs = x.view(N, n, t)  # (N, b, t)
    y = x.new_empty(N, n, s)  # (N, a, s)
    saved = x.new_empty((N, R, s) if save and _tile(x) < N else (0,))
    scratch = _scratch(x, T, t)
    for rows in _tiles(x):
        tile = inputs[rows]
        # .shape: at few tokens a len() of a tensor costs as much as a call
        products = block_products(_mixed(V, tile, out=scratch[: tile.shape[0]]), T, library)  # (m, R, s)
        if bias is None:
            _mixed(U, products, out=y[rows])
        else:
            torch.baddbmm(bias.view(n, s), _each(U, products), products, out=y[rows])
        if save and _tile(x) < N:
            saved[rows] = products
        elif save:
            saved = products.contiguous()
    return y.view(N, n * s), saved


def _plain(
    x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None, save: bool, library: str = MKL
) -> tuple[Tensor, Tensor]:
    """Return the same of all tokens at once, by operations that torch has every rule for."""
    N, n, (_, s, t) = x.shape[0], U.shape[0], T.shape
    mixed = torch.matmul(V, x.reshape(N, n, t))  # (N, R, t)
    products = torch.bmm(mixed.transpose(0, 1), T.transpose(1, 2)).transpose(0, 1)  # (N, R, s)
    y = torch.matmul(U, products).reshape(N, n * s)
    saved = products.contiguous() if save else x.new_empty((0,))
    return (y if bias is None else y + bias), saved


def _fake(
    x: Tensor, T: Tensor, U: Tensor, V: Tensor, bias: Tensor | None, save: bool, library: str = MKL
) -> tuple[Tensor, Tensor]:
    N, n, (R, s, _) = x.shape[0], U.shape[0], T.shape
    return x.new_empty(N, n * s), x.new_empty((N, R, s) if save else (0,))


def _scratch(x: Tensor, T: Tensor, width: int) -> Tensor:
    """Return memory (m, R, width) that every tile uses again: fresh memory costs more than what is written into it."""
    return x.new_empty(min(_tile(x), x.shape[0]), T.shape[0], width)


def _tiles(x: Tensor) -> list[slice]:
    """Return the rows of each tile of tokens."""
    return [slice(start, start + _tile(x)) for start in range(0, x.shape[0], _tile(x))]


def _tile(x: Tensor) -> int:
    return TILE.get(x.device.type, TILE["cpu"])


def _each(M: Tensor, tile: Tensor) -> Tensor:
    """View a matrix as one for each token of a tile. (p, q), (m, ...) -> (m, p, q)."""
    return M.expand(tile.shape[0], -1, -1)


def _mixed(M: Tensor, tile: Tensor, out: Tensor | None = None) -> Tensor:
    """Mix the parts of each token by a matrix. (p, q), (m, q, c) -> (m, p, c)."""
    return torch.bmm(_each(M, tile), tile, out=out)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, T, U, V, bias, _, ctx.library = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, T, U, V, bias, output[1])


def _backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, T, U, V, bias, products = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:5])
    if gradient is None:
        return (None,) * 7
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # the gradient will be differentiated
        return *_plain_gradients((x, T, U, V, bias), gradient, wanted), None, None
    found = _rank_product_backward(gradient, x, T, U, V, products.detach(), wanted[:4], ctx.library)
    gradients = [part if want else None for part, want in zip(found, wanted[:4], strict=True)]
    return *gradients, gradient.sum(0) if wanted[4] else None, None, None


def _plain_gradients(
    inputs: tuple[Tensor | None, ...], gradient: Tensor, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated again."""
    leaves = [part for part, want in zip(inputs, wanted, strict=True) if want and part is not None]
    x, T, U, V, bias = inputs
    y, _ = _plain(x, T, U, V, bias, False)  # type: ignore[arg-type]
    found = iter(torch.autograd.grad(y, leaves, gradient, create_graph=True))
    return tuple(next(found) if want else None for want in wanted)


def _run_backward(
    gradient: Tensor, x: Tensor, T: Tensor, U: Tensor, V: Tensor, products: Tensor, wanted: list[bool], library: str
) -> tuple[Tensor, ...]:
    """Return the gradients of x, T, U and V, an empty tensor for each that is not wanted."""
    x, T = x.contiguous(), T.contiguous()
    sums = _Gradients(x, T, U, V, dict(zip("xTUV", wanted, strict=True)), library)
    N, n, (_, s, t) = x.shape[0], U.shape[0], T.shape
    inputs, gradients = x.view(N, n, t), gradient.reshape(N, n, s)  # (N, b, t), (N, a, s)
    for rows in _tiles(x):
        sums.add(rows, inputs[rows], gradients[rows], products[rows] if products.numel() else None)
    return tuple(x.new_empty(0) if part is None else part for part in sums.result())


def _plain_backward(
    gradient: Tensor, x: Tensor, T: Tensor, U: Tensor, V: Tensor, products: Tensor, wanted: list[bool], library: str
) -> tuple[Tensor, ...]:
    """Return the same of all tokens at once."""
    N, n, (_, s, t) = x.shape[0], U.shape[0], T.shape
    inputs, gradients = x.reshape(N, n, t), gradient.reshape(N, n, s)
    mixed, g = torch.matmul(V, inputs), torch.matmul(U.t(), gradients)  # (N, R, t), (N, R, s)
    outputs = torch.einsum("nrt,rst->nrs", mixed, T)
    back = torch.einsum("nrs,rst->nrt", g, T)
    found = (
        torch.matmul(V.t(), back).reshape(x.shape),
        torch.einsum("nrs,nrt->rst", g, mixed),
        torch.einsum("nas,nrs->ar", gradients, outputs),
        torch.einsum("nrt,nbt->rb", back, inputs),
    )
    return tuple(part if want else x.new_empty((0,)) for part, want in zip(found, wanted, strict=True))


def _fake_backward(
    gradient: Tensor, x: Tensor, T: Tensor, U: Tensor, V: Tensor, products: Tensor, wanted: list[bool], library: str
) -> tuple[Tensor, ...]:
    return tuple(part.new_empty(part.shape if want else (0,)) for part, want in zip((x, T, U, V), wanted, strict=True))


_rank_product_backward = define(
    "rank_product_backward(Tensor gradient, Tensor x, Tensor T, Tensor U, Tensor V, Tensor products, bool[] wanted,"
    " str library) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    plain=_plain_backward,
    fake=_fake_backward,
)
_rank_product = define(
    "rank_product(Tensor x, Tensor T, Tensor U, Tensor V, Tensor? bias, bool save, str library='mkl')"
    " -> (Tensor, Tensor)",
    _run,
    plain=_plain,
    fake=_fake,
    backward=_backward,
    setup=_setup,
)


class _Gradients:
    """The gradients of a rank product, summed over tiles; in float32 at least."""

    def __init__(self, x: Tensor, T: Tensor, U: Tensor, V: Tensor, wanted: dict[str, bool], library: str) -> None:
        self.T, self.U, self.V, self.wanted, self.library = T, U, V, wanted, library
        self.back = T.transpose(1, 2).contiguous()  # (R, t, s)
        self.inputs, self.gradients = (_scratch(x, T, width) for width in (T.shape[2], T.shape[1]))
        self.dx = torch.empty_like(x) if wanted["x"] else None
        self.dT, self.dU, self.dV = (torch.zeros_like(part, dtype=_wide(part.dtype)) for part in (T, U, V))

    def add(self, rows: slice, x: Tensor, g: Tensor, products: Tensor | None) -> None:
        """Add a tile: x (m, n, t), the gradient g (m, n, s) of its output, its block products (m, R, s) if kept."""
        mixed = _mixed(self.V, x, out=self.inputs[: len(x)])  # (m, R, t)
        if self.wanted["U"]:
            products = block_products(mixed, self.T, self.library) if products is None else products  # (m, R, s)
            self.dU += _summed(g, products)
        g = _mixed(self.U.t(), g, out=self.gradients[: len(x)])  # (m, R, s)
        if self.wanted["T"]:
            _accumulate(self.dT, g.permute(1, 2, 0), mixed.transpose(0, 1))
        if not (self.wanted["x"] or self.wanted["V"]):
            return
        back = block_products(g, self.back, self.library)  # (m, R, t)
        if self.wanted["V"]:
            self.dV += _summed(back, x)
        if self.dx is not None:
            _mixed(self.V.t(), back, out=self.dx[rows].view_as(x))

    def result(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, T, U and V, None where none is wanted."""
        sums = zip("TUV", (self.dT, self.dU, self.dV), (self.T, self.U, self.V), strict=True)
        return self.dx, *(total.to(part.dtype) if self.wanted[name] else None for name, total, part in sums)


def _summed(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of each token's parts with one another, summed. (m, p, c), (m, q, c) -> (p, q)."""
    return torch.bmm(left, right.transpose(1, 2)).sum(0, dtype=_wide(left.dtype))


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add products of matrices (R, s, m), (R, m, t) to a sum (R, s, t) that may be wider than they are."""
    if total.dtype == left.dtype:
        total.baddbmm_(left, right)
    else:
        total += torch.bmm(left, right)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
