"""Write ONNX graphs with dynamic batch sizes and lengths. :mod:`phmctl.answering.onnx` describes inputs and outputs.

The graphs are traced from :mod:`phmctl.plain`, so they contain standard operators only. They compute the weights from
the stored tensors. onnxruntime folds these nodes into constants when a session opens, so that a graph of a compact form
answers as fast as one of a dense form. The graphs of a folder share one file of tensors.
"""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import plain
from phmctl.answering.onnx import CLASSIFIER, DECODER, ENCODER
from phmctl.data import EOS
from phmctl.errors import require
from phmctl.export.forms import Form
from phmctl.storage import writing

WEIGHTS = "weights.bin"
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


def write_onnx(form: Form, number_type: str, folder: Path) -> None:
    """Write the graphs of a model, whose numbers are rounded to `number_type`. Raises MissingExtraError."""
    for module in ("onnx", "onnxruntime"):
        require(module, "onnx")
    config, stored = form.rounded(number_type)
    model = plain.MODELS[config["kind"]](config).eval()
    ids = torch.full((2, 5), EOS)
    if isinstance(model, plain.Transformer):
        encoder = _Graph(_encode, model, config, stored)
        memory = encoder(ids)
        _trace(encoder, folder / ENCODER, {"source": ids}, ["memory"])
        layers, _, _, heads, _, width = memory.shape
        past = torch.zeros(layers, 2, 6, heads, 4, width)
        inputs = {"tokens": ids[:, :3], "mask": ids != plain.PAD, "memory": memory, "past": past}
        _trace(_Graph(_decode, model, config, stored), folder / DECODER, inputs, ["logits", "new_past"])
    else:
        inputs = {"first": ids}
        if isinstance(model, plain.PairClassifier):
            inputs["second"] = ids[:, :4].contiguous()
        _trace(_Graph(_classify, model, config, stored), folder / CLASSIFIER, inputs, ["logits"])
    _share_tensors(folder)


class _Graph(nn.Module):
    """`function` of a model, whose weights are computed from the stored tensors."""

    def __init__(
        self, function: Callable[..., Any], model: nn.Module, config: plain.Config, stored: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.function, self.model, self.config = function, [model], config  # in a list, it is no submodule
        self.names = {name.replace(".", "/"): name for name in stored}  # a buffer's name has no full stop
        for buffer, name in self.names.items():
            self.register_buffer(buffer, stored[name])

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> Any:
        stored = {name: self.get_buffer(buffer) for buffer, name in self.names.items()}
        tensors = plain.dense(self.config, stored)
        tensors |= {name: tensors[source] for name, source in self.config["shared"].items()}
        (model,) = self.model
        for name, tensor in tensors.items():
            path, _, key = name.rpartition(".")
            module = model.get_submodule(path)
            module._parameters.pop(key, None)
            setattr(module, key, tensor)
        return self.function(model, *inputs)


def _classify(model: nn.Module, *texts: Tensor) -> Any:
    return model(*texts)


def _encode(model: plain.Transformer, source: Tensor) -> Tensor:
    """Map source ids (B, S) to the cross-attention keys and values of each decoder layer, (L, 2, B, heads, S, w)."""
    states, _ = model.encode(source)
    memory = []
    for layer in model.decoder:
        attention: Any = layer.cross_attention
        memory += [attention.split(attention.key(states)), attention.split(attention.value(states))]
    stacked = torch.stack(memory)  # (2L, B, heads, S, w)
    return stacked.view(len(model.decoder), 2, *stacked.shape[1:])


def _decode(
    model: plain.Transformer, tokens: Tensor, mask: Tensor, memory: Tensor, past: Tensor
) -> tuple[Tensor, Tensor]:
    """Extend each of the K prefixes of B sentences by one token."""
    width, position = model.target_embedding.embedding_dim, past.shape[4]
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


def _trace(graph: _Graph, path: Path, inputs: dict[str, Tensor], outputs: list[str]) -> None:
    """Trace a graph with example inputs.

    This is torch's older exporter, with warnings hidden. The one on ``torch.export`` unrolls an LSTM to the length
    of the example and takes twenty times as long.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            tuple(inputs.values()),
            str(path),
            dynamo=False,
            opset_version=18,
            do_constant_folding=False,  # would store the weights
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes={name: _DYNAMIC_AXES[name] for name in inputs},
        )


def _share_tensors(folder: Path) -> None:
    """Move the tensors of a folder's graphs into one file, each once."""
    onnx = require("onnx", "onnx")
    places: dict[str, tuple[int, int]] = {}  # offset and length in the file
    with writing(folder / WEIGHTS), (folder / WEIGHTS).open("wb") as file:
        for path in sorted(folder.glob("*.onnx")):
            model = onnx.load(str(path))
            for tensor in model.graph.initializer:
                if tensor.name not in places:
                    places[tensor.name] = file.tell(), len(tensor.raw_data)
                    file.write(tensor.raw_data)
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key, value in zip(("offset", "length"), places[tensor.name], strict=True):
                    tensor.external_data.add(key=key, value=str(value))
                tensor.external_data.add(key="location", value=WEIGHTS)
            onnx.save(model, str(path))
