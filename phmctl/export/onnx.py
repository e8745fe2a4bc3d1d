"""The form of ONNX: graphs of plain operations, whose batch and lengths may have any size.

:mod:`phmctl.decoding.onnx_engine` says what the graphs take and give. They are traced from the plain twin
(:mod:`phmctl.models.plain`), so that no layer of this package is in them.
"""

import contextlib
import io
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.data.special import EOS
from phmctl.decoding.onnx_engine import CLASSIFIER, DECODER, ENCODER
from phmctl.errors import require
from phmctl.export.dense import DenseForm
from phmctl.models import plain

_IDS = {0: "B", 1: "S"}  # the axes of a batch of texts
_AXES = {
    "tokens": {0: "B", 1: "K"},
    "memory": {2: "B", 4: "S"},
    "past": {2: "prefixes", 4: "t"},
    "second": {0: "B", 1: "S2"},
}


def write_onnx(form: DenseForm, folder: Path) -> None:
    """Write a model's graphs. Raises MissingExtraError."""
    for module in ("onnx", "onnxruntime"):
        require(module, "onnx")
    model = plain.MODELS[form.config["kind"]](form.config)
    model.load_state_dict(form.whole())
    model.eval()
    ids = torch.full((2, 5), EOS)
    if isinstance(model, plain.Transformer):
        _write(_Encoder(model), folder / ENCODER, {"source": ids}, ["memory"])
        with torch.no_grad():
            memory = _Encoder(model)(ids)
        layers, _, _, heads, _, width = memory.shape
        given = {
            "tokens": ids[:, :3],
            "mask": ids != plain.PAD,
            "memory": memory,
            "past": torch.zeros(layers, 2, 6, heads, 4, width),
        }
        _write(_DecoderStep(model), folder / DECODER, given, ["logits", "new_past"])
        return
    names = ["first", "second"] if isinstance(model, plain.PairClassifier) else ["first"]
    given = {name: ids[:, : 5 - index].contiguous() for index, name in enumerate(names)}
    _write(model, folder / CLASSIFIER, given, ["logits"])


class _Encoder(nn.Module):
    """Source ids (B, S) to each decoder layer's keys and values of them, (L, 2, B, heads, S, w)."""

    def __init__(self, model: plain.Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> Tensor:
        states, _ = self.model.encode(source)
        found = []
        for layer in self.model.decoder:
            attention: Any = layer.cross_attention
            found += [attention.split(attention.key(states)), attention.split(attention.value(states))]
        stacked = torch.stack(found)  # (2L, B, heads, S, w)
        return stacked.view(len(self.model.decoder), 2, *stacked.shape[1:])


class _DecoderStep(nn.Module):
    """One more token of each of the K prefixes of B sentences."""

    def __init__(self, model: plain.Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        model, width = self.model, self.model.width
        place = past.shape[4]
        x = model.target_embedding(tokens) * math.sqrt(width) + plain.positions(place, place + 1, width)  # (B, K, d)
        grown = []
        for index, layer in enumerate(model.decoder):
            x, written = _step(layer, x, mask[:, None, None], memory[index], past[index])
            grown.append(written)
        return model.generator(model.decoder_norm(x)), torch.stack(grown)


def _step(layer: Any, x: Tensor, mask: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    written = []

    def attend_past(h: Tensor) -> Tensor:
        own, flat = layer.attention, h.reshape(-1, 1, h.shape[-1])  # (B·K, 1, d)
        for before, project in zip(past, (own.key, own.value), strict=True):
            written.append(torch.cat([before, own.split(project(flat))], dim=2))  # (B·K, heads, t + 1, w)
        mixed: Tensor = own.attend(own.split(own.query(flat)), *written)
        return mixed.view(h.shape)

    def attend_memory(h: Tensor) -> Tensor:
        cross = layer.cross_attention
        query = cross.split(cross.query(h))  # (B, heads, K, w): the beams stand where positions do
        return cross.attend(query, memory[0], memory[1], mask)  # type: ignore[no-any-return]

    x = layer.attention_residual(x, attend_past)
    x = layer.cross_residual(x, attend_memory)
    return layer.feed_forward_residual(x, layer.feed_forward), torch.stack(written)


def _write(model: nn.Module, path: Path, given: dict[str, Tensor], outputs: list[str]) -> None:
    """Trace a model with examples of its inputs, whose named axes may have any size.

    It is torch's older exporter: the one on ``torch.export`` unrolls an LSTM to the length of the example, and takes
    twenty times as long. What it says of its own workings is kept from the user.
    """
    level = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(
                model,
                tuple(given.values()),
                str(path),
                dynamo=False,
                opset_version=18,
                input_names=list(given),
                output_names=outputs,
                dynamic_axes={name: _AXES.get(name, _IDS) for name in given},
            )
        finally:
            logging.disable(level)
