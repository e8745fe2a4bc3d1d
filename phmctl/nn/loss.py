"""Cross-entropy over a vocabulary, in slices that never hold all logits of a batch.

The logits of 4,096 tokens over 8,000 types take 131 MB. Writing, reading and freeing them at every step costs more than
the arithmetic. Here a slice of tokens is mapped to logits, then to the loss and the gradient, and multiplied back, in
buffers that the allocator reuses.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from phmctl.algebra.modes import compute_dtype, needs_plain_operations, without_autocast

# Logits per slice: on a CPU they fit the cache (8 MB of float32), on a GPU they need few launches (512 MB).
_SLICE_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 27}


def vocabulary_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, smoothing: float = 0.0, ignore: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of a softmax over the vocabulary.

    ``Σ (1 − ε)·(−log p[target]) + ε/V·Σ_v(−log p[v])`` over the targets other than `ignore` (Szegedy et al. 2016, §7).
    The smoothing mass is spread over all V types, as in ``F.cross_entropy``.

    Args:
        hidden: (..., d).
        weight: the generator's weight, (V, d).
        bias: (V,) or None.
        targets: ids (...), of hidden's leading shape.
        smoothing: ε.
        ignore: id of the targets that are left out.

    Returns:
        the smoothed loss, and the negative log-likelihood without gradient, both scalars in at least float32.
    """
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)  # (N, d), (N,)
    if needs_plain_operations():
        logits = wide(F.linear(flat, weight, bias))  # (N, V), at once
        loss = F.cross_entropy(logits, targets, ignore_index=ignore, reduction="sum", label_smoothing=smoothing)
        return loss, F.cross_entropy(logits.detach(), targets, ignore_index=ignore, reduction="sum")
    if flat.device.type == "cpu" and type(flat) is Tensor:  # the count would synchronise a GPU and break a trace
        rows = (targets != ignore).nonzero().squeeze(1)
        if len(rows) < len(targets):
            flat, targets = flat.index_select(0, rows), targets.index_select(0, rows)
    loss, likelihood = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]
        flat, weight, bias, targets, smoothing, ignore, torch.is_grad_enabled()
    )
    return loss, likelihood


def label_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the label-smoothed cross-entropy of (N, classes) logits summed over N labels, in float32 or wider."""
    return F.cross_entropy(wide(logits), labels, reduction="sum", label_smoothing=smoothing)


def wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype.itemsize < 4 else values


class _VocabularyLoss(torch.autograd.Function):
    """Computes the gradients along with the loss: the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        ignore: int,
        trains: bool,  # torch.is_grad_enabled(): needs_input_grad is true also without gradients
    ) -> tuple[Tensor, Tensor]:
        dtype = compute_dtype(hidden)
        needs_gradient = [trains and needed for needed in ctx.needs_input_grad[:3]]
        with without_autocast(hidden.device.type):
            loss, likelihood, *gradients = _sliced(
                hidden.to(dtype), weight.to(dtype), bias, targets, smoothing, ignore, needs_gradient
            )
        for index, tensor in enumerate((hidden, weight, bias)):
            if tensor is not None and (gradient := gradients[index]) is not None:
                gradients[index] = gradient.to(tensor.dtype)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if g is None else g * scale.to(g.dtype) for g in ctx.saved_tensors)
        return *gradients, None, None, None, None


def _sliced(
    hidden: Tensor,  # (N, d)
    weight: Tensor,  # (V, d)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    smoothing: float,
    ignore: int,
    needs_gradient: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return loss, likelihood and the gradients of hidden, weight and bias, each None if it is not needed."""
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    rows = max(_SLICE_ELEMENTS.get(hidden.device.type, 1 << 21) // vocabulary, 64)
    total = hidden.new_zeros(2, dtype=torch.float32 if hidden.dtype.itemsize < 4 else hidden.dtype)
    hidden_grad = torch.empty_like(hidden) if needs_gradient[0] else None
    # Sums over slices are float32, which keeps the partial sums of bfloat16 exact enough.
    weight_grad = torch.zeros_like(weight, dtype=total.dtype) if needs_gradient[1] else None
    bias_grad = torch.zeros_like(bias, dtype=total.dtype) if needs_gradient[2] and bias is not None else None
    for start in range(0, tokens, rows):
        part = slice(start, start + rows)
        logits = F.linear(hidden[part], weight).to(total.dtype)  # (rows, V)
        if bias is not None:
            logits += bias
        if not any(needs_gradient):
            total += _sums(logits, logits.logsumexp(1), targets[part], smoothing, ignore)
            continue
        sums, wide_gradient = _loss_and_gradient(logits, targets[part], smoothing, ignore)
        total += sums
        gradient = wide_gradient.to(hidden.dtype)
        if hidden_grad is not None:
            torch.mm(gradient, weight, out=hidden_grad[part])  # (rows, d)
        if weight_grad is not None and gradient.dtype == weight_grad.dtype:
            weight_grad.addmm_(gradient.t(), hidden[part])  # (V, d)
        elif weight_grad is not None:
            weight_grad += gradient.t() @ hidden[part]
        if bias_grad is not None:
            bias_grad += wide_gradient.sum(0)
    # Copies, not views: wrappers that shard a model attach hooks to the outputs.
    return total[0].clone(), total[1].clone(), hidden_grad, weight_grad, bias_grad


def _loss_and_gradient(logits: Tensor, targets: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """Return a slice's (loss, likelihood) and dL/dlogits, from its logits (rows, V)."""
    gradient = logits.softmax(1)  # (rows, V)
    # log Σ exp is taken from the largest softmax, which is at least 1/V, to save a second pass over exp.
    sums = _sums(logits, logits.amax(1) - gradient.amax(1).log(), targets, smoothing, ignore)
    if smoothing:
        gradient.sub_(smoothing / logits.shape[1])
    kept = (targets != ignore)[:, None]  # (rows, 1)
    column = targets[:, None].where(kept, 0)  # an ignored id may be -100
    gradient.scatter_add_(1, column, torch.full_like(column, smoothing - 1, dtype=logits.dtype))
    return sums, gradient.mul_(kept)


def _sums(logits: Tensor, norm: Tensor, targets: Tensor, smoothing: float, ignore: int) -> Tensor:
    """Return (loss, likelihood) over the targets other than `ignore`, from logits (rows, V) and log Σ exp (rows,)."""
    kept = targets != ignore  # (rows,)
    likelihood = norm - logits.gather(1, targets.where(kept, 0)[:, None]).squeeze(1)  # −log p[target]
    loss = likelihood
    if smoothing:
        loss = (1 - smoothing) * likelihood + smoothing * (norm - logits.mean(1))
    weights = kept.to(logits.dtype)
    return torch.stack([loss @ weights, likelihood @ weights])
