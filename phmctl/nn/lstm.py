"""The PHM-LSTM: an LSTM whose maps are hypercomplex multiplications (Zhang et al. 2021, §4.1)."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from phmctl.algebra.dimension import LEARNED
from phmctl.algebra.modes import compute_dtype, needs_plain_operations, without_autocast
from phmctl.errors import DimensionError, UserError, check_known
from phmctl.nn.layers import LinearBuilder

Gates = Literal["separate", "fused"]
State = tuple[Tensor, Tensor]  # h and c, (num_layers, B, h) each
GATES = ("forget", "input", "output", "candidate")  # the order of the paper's split φ: f, i, o, x′
TORCH_GATES = ("input", "forget", "candidate", "output")  # the order of nn.LSTM


class PHMLSTM(nn.Module):
    """A unidirectional LSTM, or a stack of them, for batches (B, T, d).

    Like ``nn.LSTM(batch_first=True)``, with lengths instead of a ``PackedSequence``.

    ::

        f, i, o, x′ = φ(PHM(x_t) + PHM(h_{t−1}) + b)
        c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(x′)
        h_t = σ(o) ⊙ tanh(c_t)

    The paper prints h_t = o ⊙ c_t, without the activations of an LSTM.
    There is one bias b (4h,), held by the input's maps. ``nn.LSTM`` holds two and adds them.

    Parameters of a layer, without the bias: ``4h(d + h)/n`` components, and n³ for each of the 8 rules of separate
    gates or the 2 rules of fused ones. Table 1 of the paper (d = h = 300) counts separate gates.

    Torch's LSTM kernel gets H of all gates. For compilers, exporters and ``torch.func`` plain operations loop over the
    steps. The graph is for one T and any batch size.
    """

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
        builder: LinearBuilder | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make the layers.

        Args:
            input_size: d, the features of the input.
            hidden_size: h, the features of the state and the output.
            n: the PHM hyperparameter. 1 is the dense LSTM.
            algebra: ``phm`` for learned rules, or a fixed algebra of dimension n.
            num_layers: number of stacked LSTMs.
            bias: add b.
            gates: ``separate``: a map for each gate, of the input and of the state. ``fused``: one map of 4h outputs
                for the input and one for the state, as in the paper's equation.
            builder: builds the maps, instead of `n`, `algebra`, `bias` and `device`. A layer of the stack is a sublayer
                of the model.
            device: device of the parameters.

        Raises:
            DimensionError: n does not divide a dimension, or is not the algebra's dimension.
            UserError: unknown algebra or gates, or fewer than one layer.
        """
        super().__init__()
        check_known("gates", gates, get_args(Gates))
        if num_layers < 1:
            raise UserError(f"num_layers = {num_layers}: expected 1 or more")
        if builder is None:
            builder = LinearBuilder(algebra, n, bias=bias, device=device)
        widths = [input_size] + [hidden_size] * (num_layers - 1)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.layers = nn.ModuleList(LSTMLayer(builder.sublayer(), width, hidden_size, gates) for width in widths)

    def forward(
        self, x: Tensor, lengths: Tensor | Sequence[int] | State | None = None, hx: State | None = None
    ) -> tuple[Tensor, State]:
        """Run over a batch of sequences.

        Args:
            x: (B, T, d). Padding is never read.
            lengths: (B,) integers from 1 to T, a list or a tensor on any device, in any order. None means T for all. As
                the second argument of ``nn.LSTM``, it may be the state `hx`.
            hx: h and c before the first step, (num_layers, B, h) each. None means zeros.

        Returns:
            the last layer's output (B, T, h), zero at padding, and h and c of every layer after the last step of each
            sequence, (num_layers, B, h) each. Under autocast they have autocast's dtype.

        Raises:
            DimensionError: a shape is wrong, the batch is empty, or a length is not between 1 and T.
        """
        if isinstance(lengths, tuple):
            lengths, hx = None, lengths
        lengths = None if lengths is None else torch.as_tensor(lengths)
        self._check(x.shape, hx)
        if needs_plain_operations() or x.is_meta:
            return self._loop(x, lengths, hx)
        if lengths is None:
            return self._kernel(x, None, hx)
        lengths = _checked_lengths(lengths, len(x), x.shape[1])
        packed: Any = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        if hx is not None:
            hx = hx[0].index_select(1, packed.sorted_indices), hx[1].index_select(1, packed.sorted_indices)
        data, (h, c) = self._kernel(packed.data, packed.batch_sizes, hx)
        output, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        return output, (h.index_select(1, packed.unsorted_indices), c.index_select(1, packed.unsorted_indices))

    def _kernel(self, x: Tensor, batch_sizes: Tensor | None, state: State | None) -> tuple[Tensor, State]:
        """Run torch's kernel over (B, T, d), or over packed rows (N, d) with batch sizes (T,)."""
        dtype, device = compute_dtype(x), x.device.type
        # The CPU kernel accumulates the cell state in the dtype of the input, and 16 bits are too few for it.
        kernel_dtype = torch.float32 if device == "cpu" and dtype.itemsize < 4 else dtype
        weights = self._weights()
        batch = len(x) if batch_sizes is None else int(batch_sizes[0])
        if state is None:
            zeros = x.new_zeros(self.num_layers, batch, self.hidden_size)
            state = zeros, zeros
        with without_autocast(device):
            tensors = []  # weights and biases of all layers, in the order of nn.LSTM's parameters
            for weight, recurrent, bias in weights:
                tensors += [weight, recurrent]
                if bias is not None:
                    tensors += [bias, torch.zeros_like(bias)]
            tensors = [tensor.to(kernel_dtype) for tensor in tensors]
            if device == "cuda":
                tensors = _in_one_buffer(tensors)
            initial = [tensor.to(kernel_dtype) for tensor in state]
            x = x.to(kernel_dtype)
            has_bias, dropout, bidirectional, batch_first = weights[0][2] is not None, 0.0, False, True
            options = has_bias, self.num_layers, dropout, self.training, bidirectional
            if batch_sizes is None:
                output, h, c = torch._VF.lstm(x, initial, tensors, *options, batch_first)
            else:
                output, h, c = torch._VF.lstm(x, batch_sizes, initial, tensors, *options)
        return output.to(dtype), (h.to(dtype), c.to(dtype))

    def _loop(self, x: Tensor, lengths: Tensor | None, state: State | None) -> tuple[Tensor, State]:
        """Run over every step, padding included, in plain operations that read no value of a tensor."""
        dtype, steps = compute_dtype(x), x.shape[1]
        sum_dtype = torch.promote_types(dtype, torch.float32)  # 16 bits are too few for the cell state
        real = None  # (B, T, 1), true at steps that are not padding
        if lengths is not None:
            real = (torch.arange(steps, device=x.device) < lengths.to(x.device)[:, None])[..., None]
            x = x.masked_fill(~real, 0.0)
        output = x.to(dtype)  # (B, T, d), then (B, T, h) of each layer
        final_h, final_c = [], []
        for index, (weight, recurrent, bias) in enumerate(self._weights()):
            zeros = x.new_zeros(x.shape[0], self.hidden_size)
            h, c = (zeros, zeros) if state is None else (state[0][index], state[1][index])
            h, c = h.to(dtype), c.to(sum_dtype)  # (B, h)
            outputs = []
            for step, from_input in enumerate(F.linear(output, weight, bias).unbind(1)):  # (B, 4h)
                i, f, candidate, o = (from_input + F.linear(h, recurrent)).chunk(4, dim=1)  # (B, h)
                c_next = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
                h_next = o.sigmoid() * c_next.tanh().to(dtype)
                if real is None:
                    outputs.append(h_next)
                    h, c = h_next, c_next
                else:  # after the end of a sequence the output is zero and the state stays
                    outputs.append(h_next.masked_fill(~real[:, step], 0.0))
                    h = torch.where(real[:, step], h_next, h)
                    c = torch.where(real[:, step], c_next, c)
            output = torch.stack(outputs, dim=1)  # (B, T, h)
            final_h.append(h)
            final_c.append(c.to(dtype))
        return output, (torch.stack(final_h), torch.stack(final_c))

    def _weights(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Return :meth:`LSTMLayer.weights` of each layer."""
        return [layer.weights() for layer in self.layers]  # type: ignore[operator]

    def _check(self, shape: Sequence[int], state: State | None) -> None:
        if len(shape) != 3 or shape[2] != self.input_size or 0 in shape:
            sizes = f"(batch, steps, input_size = {self.input_size}) with at least one sequence and one step"
            raise DimensionError(f"input of shape {tuple(shape)}: expected {sizes}")
        expected = (self.num_layers, shape[0], self.hidden_size)
        for tensor in state or ():
            if tensor.shape != expected:
                raise DimensionError(
                    f"state of shape {tuple(tensor.shape)}: expected (layers, batch, hidden) = {expected}"
                )

    @torch.no_grad()
    def to_dense(self) -> nn.LSTM:
        """Return an ``nn.LSTM(batch_first=True)`` that computes the same function, to rounding, with new parameters.

        Its first bias is b, the second is zero. Sequences of different lengths need a ``PackedSequence``.
        """
        with torch.enable_grad(), without_autocast(next(self.parameters()).device.type):
            weights = self._weights()  # with gradients, so that requires_grad is false for frozen weights
        has_bias = weights[0][2] is not None
        dense = nn.LSTM(  # on the meta device, which draws no random numbers
            self.input_size, self.hidden_size, self.num_layers, bias=has_bias, batch_first=True, device="meta"
        )
        for index, (weight, recurrent, bias) in enumerate(weights):
            tensors = {"weight_ih": weight, "weight_hh": recurrent}
            if bias is not None:
                tensors |= {"bias_ih": bias, "bias_hh": torch.zeros_like(bias, requires_grad=bias.requires_grad)}
            for name, tensor in tensors.items():
                setattr(dense, f"{name}_l{index}", nn.Parameter(tensor.detach().clone(), tensor.requires_grad))
        return dense.train(self.training)


class LSTMLayer(nn.Module):
    """The maps of one LSTM.

    Attributes:
        from_input: the map d → h of each gate, with bias. With fused gates one map d → 4h, in the order of
            :data:`GATES`.
        from_hidden: the map h → h of each gate, or one map h → 4h, without biases.
    """

    def __init__(self, builder: LinearBuilder, input_size: int, hidden_size: int, gates: Gates) -> None:
        super().__init__()
        self.from_input, self.from_hidden = nn.ModuleDict(), nn.ModuleDict()
        # bias: None leaves the choice to the builder
        for maps, inputs, bias in ((self.from_input, input_size, None), (self.from_hidden, hidden_size, False)):
            if gates == "fused":
                maps["gates"] = builder.linear(inputs, 4 * hidden_size, splits=4, bias=bias)
            else:
                maps.update({gate: builder.linear(inputs, hidden_size, bias=bias) for gate in GATES})

    def weights(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return H of the input's maps (4h, d), of the state's maps (4h, h), and b (4h,), in torch's order of gates."""
        weight = _in_torch_order(self.from_input, "weight")
        recurrent = _in_torch_order(self.from_hidden, "weight")
        has_bias = next(iter(self.from_input.values())).bias is not None
        return weight, recurrent, _in_torch_order(self.from_input, "bias") if has_bias else None


def _in_torch_order(maps: nn.ModuleDict, name: str) -> Tensor:
    """Return the weights or the biases of all gates, (4h, ...), in the order of ``nn.LSTM``."""
    if "gates" in maps:
        by_gate = dict(zip(GATES, getattr(maps["gates"], name).chunk(4), strict=True))
        return torch.cat([by_gate[gate] for gate in TORCH_GATES])
    return torch.cat([getattr(maps[gate], name) for gate in TORCH_GATES])


def _in_one_buffer(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors as slices of one buffer, all weights before all biases. cuDNN would copy others."""
    order = sorted(tensors, key=lambda tensor: -tensor.dim())
    parts = torch.split(torch.cat([tensor.flatten() for tensor in order]), [tensor.numel() for tensor in order])
    slices = {tensor: part.view_as(tensor) for tensor, part in zip(order, parts, strict=True)}
    return [slices[tensor] for tensor in tensors]


def _checked_lengths(lengths: Tensor, batch: int, longest: int) -> Tensor:
    """Return the lengths on the CPU, (B,) int64.

    Raises:
        DimensionError: they are not B integers from 1 to T.
    """
    values = lengths.to("cpu", torch.int64)
    if lengths.is_floating_point() or lengths.shape != (batch,) or not ((values >= 1) & (values <= longest)).all():
        raise DimensionError(f"lengths {lengths}: expected {batch} integers from 1 to T = {longest}, one per sequence")
    return values
