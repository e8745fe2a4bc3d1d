"""Write ONNX graphs with dynamic batch sizes and lengths.

:mod:`phmctl.answering.onnx` describes their inputs and outputs. They are traced from :mod:`phmctl.plain`,
so they contain standard operators only.
"""

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import plain
from phmctl.answering.onnx import CLASSIFIER, DECODER, ENCODER
from phmctl.answering.opening import EXACT
from phmctl.data import EOS
from phmctl.errors import require
from phmctl.export.compact import CompactForm
from phmctl.export.dense import DenseForm
from phmctl.export.onnx_weights import compact_graphs

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


def write_onnx(form: DenseForm, compact: CompactForm, quantize: str, folder: Path) -> None:
    """Write the graphs of a model: dense, or with the weights of a compact form. Raises MissingExtraError."""
    for module in ("onnx", "onnxruntime"):
        require(module, "onnx")
    model = plain.MODELS[form.config["kind"]](form.config)
    model.load_state_dict(form.all_tensors())
    model.eval()
    ids = torch.full((2, 5), EOS)
    if not isinstance(model, plain.Transformer):
        inputs = {"first": ids}
        if isinstance(model, plain.PairClassifier):
            inputs["second"] = ids[:, :4].contiguous()
        _export(model, folder / CLASSIFIER, inputs, ["logits"])
    else:
        _export_steps(model, ids, folder)
    if compact.rows or quantize != EXACT:
        compact_graphs(sorted(folder.glob("*.onnx")), form.tensors, compact, quantize)


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

    This is torch's older exporter, with its warnings hidden. The one on ``torch.export`` unrolls an LSTM to the length
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
