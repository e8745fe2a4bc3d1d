"""The recurrence of an LSTM: all steps of a layer as one operation, and the same in plain operations."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phmctl.backends.operators import without_autocast
from phmctl.backends.products import library_for, linear, weight_gradient

Cell = Literal["standard", "as_printed"]
State = tuple[Tensor, Tensor]  # (h, c)
# data, H of the input's maps, b, H of the state's maps, h, c: see LSTMLayer.inputs
Inputs = tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor]


class Step(NamedTuple):
    """Where one step's rows lie, of the sequences that are as long; N rows in all, B sequences."""

    rows: slice  # of packed data, 0 to N
    here: slice  # of the states after the step, behind the B first ones: 0 to B + N
    before: slice  # of the same sequences' states before the step
    ended: slice  # of the states here that are their sequences' last


def steps_of(sizes: Sequence[int]) -> list[Step]:
    """Return the steps of a packed batch, from the number of sequences that have each; it never grows."""
    first, before, steps = 0, 0, []
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        here = first + sizes[0]
        steps.append(
            Step(
                rows=slice(first, first + size),
                here=slice(here, here + size),
                before=slice(before, before + size),
                ended=slice(here + following, here + size),
            )
        )
        first, before = first + size, here
    return steps


class Recurrence(torch.autograd.Function):
    """All steps of a layer as one operation; all floating-point arguments are of one dtype.

    Where `input_weight` is None, `data` is the input half of the gates, which was made elsewhere.

    The cell is kept in float32 where that dtype is a shorter one: it is a sum over the steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        data: Tensor,
        input_weight: Tensor | None,
        bias: Tensor | None,
        weight: Tensor,
        h: Tensor,
        c: Tensor,
        steps: Sequence[Step],
        cell: Cell,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return h and c after each sequence's last step, (B, h) each, and all outputs, (N, h)."""
        ctx.library = library_for(data, weight if input_weight is None else input_weight)
        # (N, 4h)
        gates = data.clone() if input_weight is None else linear(data, input_weight, bias, ctx.library)
        hidden = gates.new_empty(len(h) + len(gates), h.shape[1])  # (B + N, h): h_0, then h after each step
        cells = torch.empty_like(hidden, dtype=torch.promote_types(c.dtype, torch.float32))  # (B + N, h)
        hidden[: len(h)] = h
        cells[: len(c)] = c
        recurrent = weight.t()  # (h, 4h)
        for step in steps:
            gate = gates[step.rows].addmm_(hidden[step.before], recurrent)  # (b, 4h)
            _advance(gate, cells[step.before], cells[step.here], hidden[step.here], cell)
        ctx.save_for_backward(data, input_weight, bias, weight, h, c, gates, hidden, cells)
        ctx.steps, ctx.cell = steps, cell
        return _last(hidden, steps), _last(cells, steps).to(c.dtype), hidden[len(h) :]

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the six inputs."""
        data, input_weight, bias, weight, h, c, gates, hidden, cells = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated
            inputs = data, input_weight, bias, weight, h, c
            return _plain_gradients(inputs, (grad_h, grad_c, grad_output), ctx)
        needs_data, needs_input_weight, needs_bias, needs_weight, *_ = ctx.needs_input_grad
        with without_autocast(data.device.type):
            grads = torch.empty_like(gates)  # (N, 4h), of the gates before they are squashed
            dh = grad_h.clone()  # (B, h); of a sequence that is not reached yet, its last state's
            dc = grad_c.to(cells.dtype, copy=True)  # (B, h)
            for step in reversed(ctx.steps):
                active = slice(0, step.rows.stop - step.rows.start)
                dh_now = dh[active].add_(grad_output[step.rows])  # (b, h)
                kept = gates[step.rows], cells[step.before], cells[step.here]
                _retreat(grads[step.rows], *kept, dh_now, dc[active], ctx.cell)
                torch.mm(grads[step.rows], weight, out=dh_now)
            return (
                _of_data(grads, input_weight, ctx.library) if needs_data else None,
                weight_gradient(grads, data, ctx.library) if needs_input_weight else None,
                grads.sum(0) if needs_bias else None,
                weight_gradient(grads, _earlier(hidden, ctx.steps), ctx.library) if needs_weight else None,
                dh,
                dc.to(grad_c.dtype),
                None,
                None,
            )


def _plain_gradients(
    inputs: tuple[Tensor | None, ...], gradients: tuple[Tensor, ...], ctx: Any
) -> tuple[Tensor | None, ...]:
    """Return gradients of the recurrence that can be differentiated again."""
    wanted = ctx.needs_input_grad[: len(inputs)]
    leaves = [part for part, want in zip(inputs, wanted, strict=True) if want and part is not None]
    results = plain_recurrence(inputs, ctx.steps, ctx.cell)  # type: ignore[arg-type]
    found = iter(torch.autograd.grad(results, leaves, gradients, create_graph=True, allow_unused=True))
    return *(next(found) if want else None for want in wanted), None, None


def plain_recurrence(
    inputs: Inputs,
    steps: Sequence[Step],
    cell: Cell,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :class:`Recurrence` does; with `lengths` (B,) the rows are not packed, and padding is masked."""
    data, input_weight, bias, weight, h, c = inputs
    gates = data if input_weight is None else F.linear(data, input_weight, bias)  # (N, 4h)
    outputs, ended = [], []
    for number, step in enumerate(steps):
        size, ending = step.rows.stop - step.rows.start, step.ended.stop - step.ended.start
        before_h, before_c = h[:size], c[:size]
        gate = gates[step.rows] + F.linear(before_h, weight)  # (b, 4h)
        f, i, o, candidate = gate.chunk(4, dim=1)
        c = f.sigmoid() * before_c + i.sigmoid() * candidate.tanh()
        h = o * c if cell == "as_printed" else o.sigmoid() * c.tanh()
        outputs.append(h)
        if lengths is not None:
            active = (lengths > number)[:, None]  # (B, 1)
            outputs[-1] = h.masked_fill(~active, 0.0)
            h, c = torch.where(active, h, before_h), torch.where(active, c, before_c)
        ended.append((h[size - ending :], c[size - ending :]))
    states = (torch.cat([pair[which] for pair in reversed(ended)]) for which in range(2))
    return *states, torch.cat(outputs)  # type: ignore[return-value]


def _advance(gate: Tensor, before: Tensor, now: Tensor, hidden: Tensor, cell: Cell) -> None:
    """Squash a step's gates (b, 4h) in place; write the cell `now` and the state `hidden`, (b, h) each."""
    width = now.shape[1]
    gate[:, : _sigmoids(cell) * width].sigmoid_()
    gate[:, 3 * width :].tanh_()
    f, i, o, candidate = gate.chunk(4, dim=1)
    torch.mul(f, before, out=now).addcmul_(i, candidate)
    if cell == "as_printed":
        torch.mul(o, now, out=hidden)
    else:
        torch.tanh(now, out=hidden).mul_(o)


def _retreat(grad: Tensor, gate: Tensor, before: Tensor, now: Tensor, dh: Tensor, dc: Tensor, cell: Cell) -> None:
    """Write the gradient `grad` (b, 4h) of a step's gates before they were squashed; turn dc into that of `before`.

    Args:
        grad: written.
        gate: the gates after they were squashed, (b, 4h).
        before: the cell before the step, (b, h).
        now: the cell after it, (b, h).
        dh: the gradient of the state after the step, (b, h).
        dc: the gradient of the cell after the step from later steps; overwritten.
        cell: which equations.
    """
    f, i, o, candidate = gate.chunk(4, dim=1)
    df, di, do, dcandidate = grad.chunk(4, dim=1)
    if cell == "as_printed":
        torch.mul(dh, now, out=do)
        dc.addcmul_(dh, o)
    else:
        squashed = now.tanh()  # again: cheaper than to keep it
        torch.mul(dh, squashed, out=do)
        dc.add_(torch.ops.aten.tanh_backward(dh * o, squashed))
    torch.mul(dc, before, out=df)
    torch.mul(dc, candidate, out=di)
    torch.mul(dc, i, out=dcandidate)
    dc.mul_(f)
    sigmoids, width = _sigmoids(cell), dc.shape[1]
    _through_sigmoid(grad[:, : sigmoids * width], gate[:, : sigmoids * width])
    torch.ops.aten.tanh_backward.grad_input(dcandidate, candidate, grad_input=dcandidate)


def _through_sigmoid(grad: Tensor, value: Tensor) -> None:
    """Turn the gradient of a sigmoid's value into that of its argument, in place."""
    torch.ops.aten.sigmoid_backward.grad_input(grad, value, grad_input=grad)


def _sigmoids(cell: Cell) -> int:
    """Return how many of the gates, in the order f, i, o, x′, go through a sigmoid."""
    return 2 if cell == "as_printed" else 3


def _last(states: Tensor, steps: Sequence[Step]) -> Tensor:
    """Return each sequence's last state, the longest first. (B + N, h) -> (B, h)."""
    return torch.cat([states[step.ended] for step in reversed(steps)])


def _earlier(states: Tensor, steps: Sequence[Step]) -> Tensor:
    """Return the states before each packed row. (B + N, h) -> (N, h)."""
    if steps[0].rows.stop * len(steps) == steps[-1].rows.stop:  # all of one length: they lie as they should
        return states[: steps[-1].rows.stop]
    return torch.cat([states[step.before] for step in steps])


def _of_data(grads: Tensor, input_weight: Tensor | None, library: str) -> Tensor:
    """Return the gradient of `data` from that of the gates, (N, 4h)."""
    return grads if input_weight is None else linear(grads, input_weight.t(), library=library)
