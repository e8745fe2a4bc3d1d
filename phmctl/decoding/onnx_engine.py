"""onnxruntime's engines: an export's encoder and decoder step under our own beam search, and its classifiers.

The graphs, whose axes B, S, K and t may have any size::

    encoder.onnx     source (B, S) int64                             -> memory (L, 2, B, heads, S, w)
    decoder.onnx     tokens (B, K), mask (B, S) bool, memory, past (L, 2, B·K, heads, t, w)
                                                                     -> logits (B, K, V), past with t + 1
    classifier.onnx  first (B, S) [and second (B, S′)]               -> logits (B, classes)

`memory` holds each layer's keys and values of the source, `past` those of the tokens so far: none at the first step.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.data.special import PAD
from phmctl.decoding.beam import BeamEngine
from phmctl.errors import RunError, require
from phmctl.exports import ONNX

ENCODER, DECODER, CLASSIFIER = "encoder.onnx", "decoder.onnx", "classifier.onnx"


def session(path: Path, threads: int = 0) -> Any:
    """Return an onnxruntime session on the CPU. Raises MissingExtraError, RunError."""
    library = require("onnxruntime", "onnx")
    options = library.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base but this
        raise RunError(f"{path} cannot be loaded by onnxruntime: {error}; make the export anew") from error


class OnnxEngine(BeamEngine):
    name = ONNX

    def __init__(self, folder: Path, threads: int = 0) -> None:
        model = _Stepwise(session(folder / ENCODER, threads), session(folder / DECODER, threads))
        super().__init__(model, torch.device("cpu"))


class _State:
    """The source's keys and values, once a sentence, and those of each prefix so far."""

    def __init__(self, memory: Tensor, mask: Tensor, beams: int) -> None:
        layers, parts, sentences, heads, _, width = memory.shape
        self.memory, self.mask, self.beams = memory, mask, beams
        self.past = memory.new_zeros(layers, parts, sentences * beams, heads, 0, width)

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Let each beam continue from another of its sentence; see :class:`phmctl.decoding.beam.Seq2Seq`."""
        first = torch.arange(len(parents)) if sentences is None else sentences  # (B',)
        self.past = self.past[:, :, (first[:, None] * self.beams + parents).flatten()]
        self.beams = parents.shape[1]
        if sentences is not None:
            self.memory, self.mask = self.memory[:, :, sentences], self.mask[sentences]


class _Stepwise:
    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        (memory,) = self._encoder.run(None, {"source": source.numpy()})
        return torch.from_numpy(memory), source != PAD

    def start(self, memory: tuple[Tensor, Tensor], beams: int, max_length: int) -> _State:
        return _State(*memory, beams)

    def step(self, tokens: Tensor, state: _State) -> Tensor:
        given = {"tokens": tokens, "mask": state.mask, "memory": state.memory, "past": state.past}
        arrays = {name: value.contiguous().numpy() for name, value in given.items()}
        logits, past = self._decoder.run(None, arrays)
        state.past = torch.from_numpy(past)
        return torch.from_numpy(logits)


class OnnxClassifier(nn.Module):
    def __init__(self, folder: Path, threads: int = 0) -> None:
        super().__init__()
        self._session = session(folder / CLASSIFIER, threads)

    def forward(self, *texts: Tensor) -> Tensor:
        names = [each.name for each in self._session.get_inputs()]
        (logits,) = self._session.run(None, {name: ids.numpy() for name, ids in zip(names, texts, strict=True)})
        return torch.from_numpy(logits)
