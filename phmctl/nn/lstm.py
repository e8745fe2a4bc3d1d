"""The PHM-LSTM: an LSTM whose maps are hypercomplex multiplications (Zhang et al. 2021, §4.1).

**Layout.** Sequences of several lengths are packed, as in ``torch.nn.utils.rnn``: sorted by length, time-major, padding
left out. Step t then works on the first sequences of the batch, those that have a step t, and nothing is computed on
padding. All layers of a stack work on the packed rows.

**Speed.** H of all maps is built once a forward, and stacked into one input weight and one recurrent weight of 4h rows.
The input half of all gates is one product over all steps, or that of
the maps' own execution where it is ``rank``. What is left of a step is one product and six elementwise
operations in buffers that exist. Autograd would record each of these, and add up the weight's gradient step by step;
:class:`~phmctl.nn.recurrence.Recurrence` runs the loop and its backward pass itself, and takes the gradients of the
weights in one product each.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from phmctl.algebra.execution import RANK
from phmctl.algebra.rules import LEARNED
from phmctl.backends.operators import compute_dtype, is_recorded, is_transformed
from phmctl.errors import DimensionError, UserError, check_known
from phmctl.nn.build import LinearBuilder
from phmctl.nn.kronecker_weight import weight_of
from phmctl.nn.linear import PHMLinear
from phmctl.nn.recurrence import Cell, Inputs, Recurrence, State, Step, plain_recurrence, steps_of

Gates = Literal["separate", "fused"]
GATES = ("forget", "input", "output", "candidate")  # the order of the paper's split φ: f, i, o, x′


class PHMLSTM(nn.Module):
    """A unidirectional LSTM, or a stack of them, for batches (B, T, d).

    It stands in for ``nn.LSTM(batch_first=True)``, and takes lengths too where that wants a ``PackedSequence``.

    ::

        f, i, o, x′ = φ(PHM(x_t) + PHM(h_{t−1}) + b)
        c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(x′)
        h_t = σ(o) ⊙ tanh(c_t)          cell "standard"
        h_t = o ⊙ c_t                   cell "as_printed": the paper's equation to the letter

    There is one bias b of 4h, where ``nn.LSTM`` has two that are only ever added; it belongs to the input's maps.

    Parameters of a layer, without the bias: ``4h(d + h)/n`` components, and n³ for each rule. There are 8 rules with
    separate gates, 2 with fused ones. Table 1 of the paper (d = h = 300) counts separate gates.

    It can be differentiated as often as one likes. Compilers, exporters and ``torch.func`` see its steps unrolled,
    in plain operations: a graph is for one T, and for any batch.
    """

    dense_type: type[nn.Module] | None = None  # what phmctl.convert found here; None where it made nothing

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        n: int = 1,
        algebra: str = LEARNED,
        num_layers: int = 1,
        bias: bool = True,
        gates: Gates = "separate",
        cell: Cell = "standard",
        builder: LinearBuilder | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make the layers.

        Args:
            input_size: d, the features of the input.
            hidden_size: h, the features of the state and the output.
            n: the PHM hyperparameter; 1 is the dense LSTM.
            algebra: ``phm`` for learned rules, or a fixed algebra of dimension n.
            num_layers: how many LSTMs are stacked; each but the first reads the one below it.
            bias: add b.
            gates: ``separate``: a map for each gate, of the input and of the state; ``fused``: one map of 4h outputs
                for the input and one for the state, the form that the paper's equation has.
            cell: ``standard``, or ``as_printed``, whose output gate and output are not squashed.
            builder: makes the maps, where a model has one: its algebra, n, bias, rule sharing and device then count,
                those given here do not. A layer of the stack is a sublayer of the model.
            device: of the parameters.

        Raises:
            DimensionError: n does not divide a dimension, or is not the algebra's own; a size is below one.
            UserError: no such algebra, gates or cell.
        """
        super().__init__()
        check_known("gates", gates, get_args(Gates))
        check_known("cell", cell, get_args(Cell))
        if num_layers < 1:
            raise DimensionError(f"num_layers = {num_layers} must be at least 1")
        maker = LinearBuilder(algebra, n, bias=bias, device=device) if builder is None else builder
        widths = [input_size] + [hidden_size] * (num_layers - 1)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.gates = gates
        self.cell = cell
        self.layers = nn.ModuleList(LSTMLayer(maker.sublayer(), width, hidden_size, gates, cell) for width in widths)

    def forward(
        self, x: Tensor | PackedSequence, lengths: Tensor | State | None = None, hx: State | None = None
    ) -> tuple[Tensor | PackedSequence, State]:
        """Run over a batch of sequences.

        Args:
            x: (B, T, d). What stands at padding is never read. As of ``nn.LSTM`` it may also be one sequence (T, d),
                and then nothing has the axis B, or a ``PackedSequence``, and then the output is one.
            lengths: (B,) integers of 1 to T, in any order, on any device; all T where None. The state may stand here
                instead, where ``nn.LSTM`` has it.
            hx: h and c before the first step, (num_layers, B, h) each; zeros where None.

        Returns:
            the last layer's output (B, T, h), zero at padding; and h and c of every layer after each sequence's own
            last step, (num_layers, B, h) each. Under autocast they are in its precision.

        Raises:
            DimensionError: a shape is wrong, the batch is empty, or a length is not of 1 to T.
            UserError: a ``PackedSequence`` comes with lengths, or to a compiler, an exporter or ``torch.func``.
        """
        if isinstance(lengths, tuple):
            lengths, hx = None, lengths
        if isinstance(x, PackedSequence):
            return self._packed(x, lengths, hx)
        if x.dim() != 2:
            return self._batch(x, lengths, hx)
        start = None if hx is None else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        output, (h, c) = self._batch(x.unsqueeze(0), lengths, start)
        return output.squeeze(0), (h.squeeze(1), c.squeeze(1))

    def flatten_parameters(self) -> None:
        """Do nothing: ``nn.LSTM`` has it, for the sake of cuDNN, and models call it."""

    def _packed(self, x: PackedSequence, lengths: Tensor | None, state: State | None) -> tuple[PackedSequence, State]:
        if lengths is not None:
            raise UserError("a PackedSequence has its lengths; leave lengths out")
        if is_recorded() or is_transformed():
            raise UserError("a PackedSequence cannot be compiled, exported or transformed; give (B, T, d) and lengths")
        sizes = x.batch_sizes.tolist()
        self._check((sizes[0], len(sizes), *x.data.shape[1:]), state)
        data, final = self._run(x, steps_of(sizes), state)
        return x._replace(data=data), final

    def _batch(self, x: Tensor, lengths: Tensor | None, state: State | None) -> tuple[Tensor, State]:
        self._check(x.shape, state)
        if is_recorded() or is_transformed():
            return self._plainly(x, lengths, state)
        packed = _pack(x, lengths)
        # Without lengths no value of a tensor is asked for, so that a step can be traced.
        steps = steps_of([len(x)] * x.shape[1] if lengths is None else packed.batch_sizes.tolist())
        data, final = self._run(packed, steps, state)
        return _unpack(packed, data, x.shape[1]), final  # (B, T, h)

    def _run(self, packed: PackedSequence, steps: Sequence[Step], state: State | None) -> tuple[Tensor, State]:
        """Return the last layer's packed rows (N, h), and h and c of every layer in the batch's own order."""
        order, data = packed.sorted_indices, packed.data  # (N, d)
        finals = []
        for index, layer in enumerate(self.layers):
            start = None if state is None else (_rows(state[0][index], order), _rows(state[1][index], order))
            data, h, c = layer(data, steps, start)  # (N, h), (B, h), (B, h)
            finals.append((_rows(h, packed.unsorted_indices), _rows(c, packed.unsorted_indices)))
        return data, (torch.stack([h for h, _ in finals]), torch.stack([c for _, c in finals]))

    def _plainly(self, x: Tensor, lengths: Tensor | None, state: State | None) -> tuple[Tensor, State]:
        """Run by operations that torch has every rule for, over padding too, and ask for no value of a tensor."""
        batch, longest, width = x.shape
        data = x.transpose(0, 1).reshape(-1, width)  # (T B, d)
        steps = steps_of([batch] * longest)
        finals = []
        for index, layer in enumerate(self.layers):
            start = None if state is None else (state[0][index], state[1][index])
            inputs = layer.inputs(data, batch, start)  # type: ignore[operator]
            h, c, data = plain_recurrence(inputs, steps, self.cell, None if lengths is None else lengths.to(x.device))
            finals.append((h, c))
        output = data.view(longest, batch, self.hidden_size).transpose(0, 1)  # (B, T, h)
        return output, (torch.stack([h for h, _ in finals]), torch.stack([c for _, c in finals]))

    def _check(self, shape: Sequence[int], state: State | None) -> None:
        if len(shape) != 3 or shape[2] != self.input_size:
            raise DimensionError(f"input of shape {tuple(shape)} is not (batch, steps, input_size = {self.input_size})")
        if 0 in shape:
            raise DimensionError(f"input of shape {tuple(shape)} is empty; give at least one sequence and one step")
        wanted = (self.num_layers, shape[0], self.hidden_size)
        for name, value in zip("hc", state or (), strict=False):
            if value.shape != wanted:
                raise DimensionError(
                    f"state {name} has shape {tuple(value.shape)}, not (layers, batch, hidden) = {wanted}"
                )

    @torch.no_grad()
    def to_dense(self) -> nn.LSTM:
        """Return the ``nn.LSTM(batch_first=True)`` of the same function, to rounding, with parameters of its own.

        Its gates stand in torch's order; b is its first bias, and the second is zero. It takes no lengths, but a
        ``PackedSequence``.

        Raises:
            UserError: the cell is ``as_printed``, which ``nn.LSTM`` does not have.
        """
        if self.cell != "standard":
            raise UserError(
                f"nn.LSTM has no cell {self.cell!r}, only 'standard'; phmctl.to_dense keeps it, with dense maps"
            )
        layers = [layer for layer in self.layers if isinstance(layer, LSTMLayer)]
        weight, bias = _weight(layers[0].from_input), _bias(layers[0].from_input) is not None
        sizes = self.input_size, self.hidden_size, self.num_layers
        dense = nn.LSTM(*sizes, bias=bias, batch_first=True, device="meta", dtype=weight.dtype)
        dense = dense.to_empty(device=weight.device).train(self.training)  # no random numbers are drawn
        for index, layer in enumerate(layers):
            with torch.enable_grad():  # so that each says whether it learns
                parts = {"weight_ih": _weight(layer.from_input), "weight_hh": _weight(layer.from_hidden)}
                b = _bias(layer.from_input)
            if b is not None:
                parts |= {"bias_ih": b, "bias_hh": torch.zeros_like(b, requires_grad=b.requires_grad)}
            for name, part in parts.items():
                getattr(dense, f"{name}_l{index}").copy_(_in_torchs_order(part)).requires_grad_(part.requires_grad)
        return dense

    def extra_repr(self) -> str:
        """Return the arguments that the layers do not show, for ``repr``."""
        return f"{self.input_size}, {self.hidden_size}, gates={self.gates!r}, cell={self.cell!r}"


class LSTMLayer(nn.Module):
    """One LSTM over packed rows. What a user calls is :class:`PHMLSTM`.

    Attributes:
        from_input: gate -> map d → h with bias; with fused gates one map d → 4h.
        from_hidden: the same of the state, h → h or h → 4h, without biases.
    """

    def __init__(self, builder: LinearBuilder, input_size: int, hidden_size: int, gates: Gates, cell: Cell) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.cell = cell
        self.from_input = _maps(builder, input_size, hidden_size, gates)
        self.from_hidden = _maps(builder, hidden_size, hidden_size, gates, bias=False)

    def forward(self, data: Tensor, steps: Sequence["Step"], state: State | None) -> tuple[Tensor, Tensor, Tensor]:
        """Run over all steps.

        Args:
            data: (N, d), the packed rows.
            steps: where each step's rows lie.
            state: h and c before the first step, (B, h) each, sorted as the rows are; zeros where None.

        Returns:
            the outputs (N, h), and h and c after each sequence's last step, (B, h) each.
        """
        h, c, output = Recurrence.apply(  # type: ignore[no-untyped-call]
            *self.inputs(data, steps[0].before.stop, state), steps, self.cell
        )
        return output, h, c

    def inputs(self, data: Tensor, batch: int, state: State | None) -> Inputs:
        """Return what the recurrence works on, in the dtype that it is computed in.

        Returns:
            the rows (N, d) with H of the input's maps (4h, d) and b (4h,); or, where these go by rank, the
            input half of the gates (N, 4h) and None twice. Then H of the state's maps (4h, h), and h and c (B, h).
        """
        dtype = compute_dtype(data)
        if state is None:
            zeros = data.new_zeros(batch, self.hidden_size, dtype=dtype)  # (B, h)
            state = zeros, zeros
        weight: Tensor | None
        if _by_rank(self.from_input, data.shape[0]):
            data, weight, bias = torch.cat([layer(data) for layer in self.from_input.values()], dim=1), None, None
        else:
            weight, bias = _weight(self.from_input), _bias(self.from_input)
        return (
            data.to(dtype),
            None if weight is None else weight.to(dtype),
            None if bias is None else bias.to(dtype),
            _weight(self.from_hidden).to(dtype),
            state[0].to(dtype),
            state[1].to(dtype),
        )


def _maps(
    builder: LinearBuilder, inputs: int, outputs: int, gates: Gates, *, bias: bool | None = None
) -> nn.ModuleDict:
    """Build the maps of all gates: a map each, or one."""
    if gates == "fused":
        return nn.ModuleDict({"gates": builder.linear(inputs, 4 * outputs, splits=4, bias=bias)})
    return nn.ModuleDict({gate: builder.linear(inputs, outputs, bias=bias) for gate in GATES})


def _in_torchs_order(gates: Tensor) -> Tensor:
    """Return rows of f, i, o, x′ in the order of ``nn.LSTM``: i, f, x′, o. (4h, ...) -> (4h, ...)."""
    f, i, o, candidate = gates.chunk(4)
    return torch.cat([i, f, candidate, o])


def _weight(maps: nn.ModuleDict) -> Tensor:
    """Return H of all gates, (4h, d)."""
    weights = [weight_of(layer) for layer in maps.values()]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _by_rank(maps: nn.ModuleDict, tokens: int) -> bool:
    """Whether the maps of the input apply themselves to so many rows by block products, and H is not wanted."""
    layers = maps.values()
    return all(
        isinstance(layer, PHMLinear) and layer.n > 1 and layer.choice_for(tokens).execution == RANK for layer in layers
    )


def _bias(maps: nn.ModuleDict) -> Tensor | None:
    """Return the bias of all gates, (4h,)."""
    biases = [layer.bias for layer in maps.values() if isinstance(layer.bias, Tensor)]
    return torch.cat(biases) if biases else None


def _pack(x: Tensor, lengths: Tensor | None) -> PackedSequence:
    """Return the real rows of x (B, T, d), time-major, the longest sequence first; without lengths in x's own order."""
    batch, longest, width = x.shape
    if lengths is None:
        sizes = torch.full((longest,), batch)
        return PackedSequence(x.transpose(0, 1).reshape(-1, width), sizes)  # (T B, d)
    return pack_padded_sequence(x, _checked(lengths, batch, longest), batch_first=True, enforce_sorted=False)


def _unpack(packed: PackedSequence, data: Tensor, longest: int) -> Tensor:
    """Return packed rows (N, h) as (B, T, h) in the batch's own order, zero at padding."""
    if packed.sorted_indices is None:
        return data.view(longest, -1, data.shape[1]).transpose(0, 1)  # (B, T, h)
    output, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=longest)
    return output


def _rows(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else x.index_select(0, order)


def _checked(lengths: Tensor, batch: int, longest: int) -> Tensor:
    """Return the lengths on the CPU, (B,) int64.

    Raises:
        DimensionError: they are not B integers of 1 to T; names the first that is wrong.
    """
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        kind = f"{str(lengths.dtype).removeprefix('torch.')} of shape {tuple(lengths.shape)}"
        raise DimensionError(f"lengths are {kind}; give one integer for each of the {batch} sequences")
    values = lengths.to("cpu", torch.int64)
    wrong = ((values < 1) | (values > longest)).nonzero().flatten().tolist()
    if wrong:
        value = int(values[wrong[0]])
        raise DimensionError(f"lengths[{wrong[0]}] = {value}; a length is at least 1 and at most T = {longest} steps")
    return values
