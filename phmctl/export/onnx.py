"""Write ONNX graphs with dynamic batch sizes and lengths. :mod:`phmctl.answering.onnx` describes inputs and outputs.

The graphs are traced from the dense form in :mod:`phmctl.plain`, so they contain standard operators only. For a compact
form the matrices are then replaced by nodes that compute them. onnxruntime folds these nodes into constants when a
session opens, so a graph computes as fast as a dense one. The graphs of a folder share one file of weights.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phmctl import plain
from phmctl.algebra.quantise import SCALE
from phmctl.answering.onnx import CLASSIFIER, DECODER, ENCODER
from phmctl.answering.opening import EXACT
from phmctl.data import EOS
from phmctl.errors import require
from phmctl.export.forms import Form, Rows
from phmctl.storage import writing

WEIGHTS = "weights.bin"
_LSTM_ORDER = (0, 3, 1, 2)  # torch's gates i, f, g, o in ONNX's order i, o, f, c

Array = npt.NDArray[Any]

_TEXT_AXES = {0: "B", 1: "S"}
_DYNAMIC_AXES = {
    "source": _TEXT_AXES,
    "mask": _TEXT_AXES,
    "first": _TEXT_AXES,
    "second": {0: "B", 1: "S2"},
    "tokens": {0: "B", 1: "K"},
    "memory": {2: "B", 4: "S"},
    "past": {2: "prefixes", 4: "t"},
}


def write_onnx(dense: Form, stored: Form, quantize: str, folder: Path) -> None:
    """Write the graphs of a model with the weights of `stored`, rounded to `quantize`. Raises MissingExtraError."""
    for module in ("onnx", "onnxruntime"):
        require(module, "onnx")
    model = plain.MODELS[dense.config["kind"]](dense.config)
    model.load_state_dict(dense.all_tensors())
    model.eval()
    ids = torch.full((2, 5), EOS)
    if not isinstance(model, plain.Transformer):
        inputs = {"first": ids}
        if isinstance(model, plain.PairClassifier):
            inputs["second"] = ids[:, :4].contiguous()
        _export(model, folder / CLASSIFIER, inputs, ["logits"])
    else:
        _export_steps(model, ids, folder)
    if stored.rows or quantize != EXACT:
        _replace_matrices(sorted(folder.glob("*.onnx")), dense.tensors, stored, quantize)


def _export_steps(model: plain.Transformer, ids: Tensor, folder: Path) -> None:
    encoder = _Encoder(model)
    with torch.no_grad():
        memory = encoder(ids)
    _export(encoder, folder / ENCODER, {"source": ids}, ["memory"])
    layers, _, _, heads, _, width = memory.shape
    past = torch.zeros(layers, 2, 6, heads, 4, width)
    inputs = {"tokens": ids[:, :3], "mask": ids != plain.PAD, "memory": memory, "past": past}
    _export(_DecoderStep(model), folder / DECODER, inputs, ["logits", "new_past"])


class _Encoder(nn.Module):
    """Map source ids (B, S) to the cross-attention keys and values of each decoder layer, (L, 2, B, heads, S, w)."""

    def __init__(self, model: plain.Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> Tensor:
        states, _ = self.model.encode(source)
        memory = []
        for layer in self.model.decoder:
            attention: Any = layer.cross_attention
            memory += [attention.split(attention.key(states)), attention.split(attention.value(states))]
        stacked = torch.stack(memory)  # (2L, B, heads, S, w)
        return stacked.view(len(self.model.decoder), 2, *stacked.shape[1:])


class _DecoderStep(nn.Module):
    """Extend each of the K prefixes of B sentences by one token."""

    def __init__(self, model: plain.Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        model, width, position = self.model, self.model.target_embedding.embedding_dim, past.shape[4]
        positions = plain.positions(position, position + 1, width)
        x = model.target_embedding(tokens) * math.sqrt(width) + positions  # (B, K, d)
        new_past = []
        for index, layer in enumerate(model.decoder):
            x, keys_and_values = _step(layer, x, mask[:, None, None], memory[index], past[index])
            new_past.append(keys_and_values)
        return model.generator(model.decoder_norm(x)), torch.stack(new_past)


def _step(layer: Any, x: Tensor, mask: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Return a decoder layer's output for one token, and the keys and values with this token appended."""
    keys_and_values = []

    def attend_past(h: Tensor) -> Tensor:
        attention, flat = layer.attention, h.reshape(-1, 1, h.shape[-1])  # (B·K, 1, d)
        for stored, project in zip(past, (attention.key, attention.value), strict=True):
            keys_and_values.append(torch.cat([stored, attention.split(project(flat))], dim=2))  # (B·K, heads, t + 1, w)
        mixed: Tensor = attention.attend(attention.split(attention.query(flat)), *keys_and_values, None)
        return mixed.view(h.shape)

    def attend_memory(h: Tensor) -> Tensor:
        attention = layer.cross_attention
        query = attention.split(attention.query(h))  # (B, heads, K, w): the prefixes take the axis of positions
        return attention.attend(query, memory[0], memory[1], mask)  # type: ignore[no-any-return]

    x = layer.attention_residual(x, attend_past)
    x = layer.cross_residual(x, attend_memory)
    return layer.feed_forward_residual(x, layer.feed_forward), torch.stack(keys_and_values)


def _export(model: nn.Module, path: Path, inputs: dict[str, Tensor], outputs: list[str]) -> None:
    """Trace a model with example inputs.

    This is torch's older exporter, with warnings hidden. The one on ``torch.export`` unrolls an LSTM to the length
    of the example and takes twenty times as long.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(inputs.values()),
            str(path),
            dynamo=False,
            opset_version=18,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes={name: _DYNAMIC_AXES[name] for name in inputs},
        )


# ----------------------------------------------------------------------------------------------- stored weights


def _replace_matrices(paths: list[Path], dense: Mapping[str, Tensor], compact: Form, number_type: str) -> None:
    """Rewrite the graphs with the weights of a compact form, rounded to `number_type`, in one file in the same folder.

    Args:
        dense: the dense form's tensors, by which the matrices of the graphs are found.
    """
    onnx = require("onnx", "onnx")
    _, stored = compact.rounded(number_type)
    targets: dict[tuple[tuple[int, ...], bytes], tuple[str, str]] = {}  # a matrix's name and layout, by key
    for name, tensor in dense.items():
        if tensor.dim() > 1:
            for layout, array in _layouts(name, tensor.numpy()):
                targets.setdefault(_key(array), (name, layout))
    places: dict[str, tuple[int, int]] = {}  # offset and length of each stored tensor in the file of weights
    for path in paths:
        model = onnx.load(str(path))
        graph, nodes = model.graph, _Nodes(onnx, compact, stored, places)
        kept = []
        for initializer in graph.initializer:
            array = onnx.numpy_helper.to_array(initializer)
            target = targets.get(_key(array)) if array.ndim > 1 else None
            if target is None:
                kept.append(initializer)
            else:
                nodes.write(initializer.name, array.shape, *target)
        all_nodes = [*nodes.nodes, *graph.node]
        del graph.initializer[:], graph.node[:]
        graph.initializer.extend([*kept, *nodes.initializers])
        graph.node.extend(all_nodes)
        onnx.save(model, str(path))
    with writing(paths[0].parent / WEIGHTS):
        (paths[0].parent / WEIGHTS).write_bytes(b"".join(stored[name].numpy().tobytes() for name in places))


def _layouts(name: str, array: Array) -> Iterator[tuple[str, Array]]:
    """Yield the arrays that a graph can hold for a dense matrix, each with the name of the layout."""
    yield "", array
    yield "transposed", array.T
    if ".weight_" in name:  # a weight of an LSTM
        gates = array.reshape(4, -1, array.shape[1])
        yield "gates", gates[list(_LSTM_ORDER)].reshape(1, *array.shape)


def _key(array: Array) -> tuple[tuple[int, ...], bytes]:
    """Return the shape of an array and the SHA-256 of the entries."""
    return array.shape, hashlib.sha256(np.ascontiguousarray(array).data).digest()


class _Nodes:
    """Nodes and initializers that compute matrices, each matrix once."""

    def __init__(
        self, onnx: Any, compact: Form, stored: Mapping[str, Tensor], places: dict[str, tuple[int, int]]
    ) -> None:
        self._onnx, self._compact, self._stored, self._places = onnx, compact, stored, places
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._made: set[str] = set()

    def write(self, output: str, shape: tuple[int, ...], name: str, layout: str) -> None:
        """Add the nodes of a dense tensor in a layout of the graph, which has this shape."""
        value = self._dense(name)
        if layout == "transposed":
            self._node("Transpose", [value], perm=[1, 0], output=output)
        elif layout == "gates":
            gates = self._reshaped(value, (4, -1, shape[-1]))
            ordered = self._node("Gather", [gates, self._constant(np.array(_LSTM_ORDER))], axis=0)
            self._reshaped(ordered, shape, output)
        else:
            self._node("Identity", [value], output=output)

    def _dense(self, name: str) -> str:
        rows = self._compact.rows.get(name)
        if rows is None:
            return self._numbers(name)
        parts = [self._slice(row) for row in rows]
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, axis=0)

    def _slice(self, row: Rows) -> str:
        path, first, last = row
        value = self._matrix(path)
        if (first, last) == (0, self._height(path)):
            return value
        bounds = [self._constant(np.array([bound])) for bound in (first, last, 0)]
        return self._node("Slice", [value, *bounds])

    def _height(self, path: str) -> int:
        """Return the number of rows of a matrix."""
        tensors = self._compact.tensors
        if f"{path}.S" in tensors:
            n, height, _ = tensors[f"{path}.S"].shape
            return n * height
        for name in (f"{path}.L", f"{path}.weight"):
            if name in tensors:
                return len(tensors[name])
        return self._height(f"{path}.table")

    def _matrix(self, path: str) -> str:
        """Add the nodes of a matrix. See :func:`phmctl.plain.matrix`."""
        tensors = self._compact.tensors
        if f"{path}/H" in self._made:
            return f"{path}/H"
        self._made.add(f"{path}/H")
        if f"{path}.S" in tensors:
            n, height, width = tensors[f"{path}.S"].shape
            rule = self._reshaped(self._transposed(self._numbers(f"{path}.A"), (1, 2, 0)), (n * n, n))  # (ab, i)
            components = self._reshaped(self._numbers(f"{path}.S"), (n, height * width))  # (i, st)
            product = self._reshaped(self._node("MatMul", [rule, components]), (n, n, height, width))  # (a, b, s, t)
            return self._reshaped(self._transposed(product, (0, 2, 1, 3)), (n * height, n * width), f"{path}/H")
        if f"{path}.R" in tensors:
            factors = [self._numbers(f"{path}.{factor}") for factor in "LR"]
            return self._node("MatMul", factors, output=f"{path}/H")
        if f"{path}.weight" in tensors:
            return self._node("Identity", [self._numbers(f"{path}.weight")], output=f"{path}/H")
        table, map_ = self._matrix(f"{path}.table"), self._matrix(f"{path}.map")
        return self._node("MatMul", [table, self._transposed(map_, (1, 0))], output=f"{path}/H")

    def _numbers(self, name: str) -> str:
        """Return the name of a stored tensor in float32."""
        if name in self._made:
            return f"{name}/float32"
        self._made.add(name)
        value = self._external(name)
        if self._stored[name].dtype == torch.uint8:
            value = self._unpacked(value, self._compact.tensors[name].shape)
        if name + SCALE in self._stored:
            number = self._node("Cast", [value], to=self._onnx.TensorProto.FLOAT)
            return self._node("Mul", [number, self._external(name + SCALE)], output=f"{name}/float32")
        return self._node("Cast", [value], to=self._onnx.TensorProto.FLOAT, output=f"{name}/float32")

    def _unpacked(self, value: str, shape: Sequence[int]) -> str:
        """Return numbers of this shape from bytes that hold two columns each, the first one in the low half."""
        arrays = np.array([-1]), np.array([0, 4], np.uint8), np.array(15, np.uint8)
        axis, shifts, low = (self._constant(array) for array in arrays)
        halves = self._node("BitShift", [self._node("Unsqueeze", [value, axis]), shifts], direction="RIGHT")
        numbers = self._reshaped(self._node("BitwiseAnd", [halves, low]), (*shape[:-1], -1))
        bounds = [self._constant(np.array([bound])) for bound in (0, shape[-1], -1)]
        number = self._node("Cast", [self._node("Slice", [numbers, *bounds])], to=self._onnx.TensorProto.FLOAT)
        return self._node("Sub", [number, self._constant(np.array(8, np.float32))])

    def _external(self, name: str) -> str:
        """Add an initializer whose values are in the file of weights."""
        tensor = self._stored[name]
        if name not in self._places:
            self._places[name] = sum(length for _, length in self._places.values()), tensor.nbytes
        offset, length = self._places[name]
        dtype = self._onnx.helper.np_dtype_to_tensor_dtype(tensor.numpy().dtype)
        proto = self._onnx.TensorProto(name=f"{name}/stored", data_type=dtype, dims=tensor.shape)
        proto.data_location = self._onnx.TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", offset), ("length", length)):
            proto.external_data.add(key=key, value=str(value))
        self.initializers.append(proto)
        return f"{name}/stored"

    def _constant(self, array: Array) -> str:
        name = f"constant/{len(self.initializers)}"
        self.initializers.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def _reshaped(self, value: str, shape: tuple[int, ...], output: str | None = None) -> str:
        return self._node("Reshape", [value, self._constant(np.array(shape))], output=output)

    def _transposed(self, value: str, axes: tuple[int, ...]) -> str:
        return self._node("Transpose", [value], perm=list(axes))

    def _node(self, operator: str, inputs: list[str], *, output: str | None = None, **attributes: Any) -> str:
        output = output or f"weight/{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output
