"""Search and classify with onnxruntime: our beam search on an exported encoder and decoder step, and classifiers.

The graphs, in which the axes B, S, K and t have any size::

    encoder.onnx     source (B, S) int64                             -> memory (L, 2, B, heads, S, w)
    decoder.onnx     tokens (B, K), mask (B, S) bool, memory, past (L, 2, B·K, heads, t, w)
                                                                     -> logits (B, K, V), past with t + 1
    classifier.onnx  first (B, S) [and second (B, S′)]               -> logits (B, classes)

`memory` contains each layer's keys and values of the source, `past` the keys and values of the previous tokens. `past`
is empty (t = 0) in the first step.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.answering.base import export_errors
from phmctl.data import PAD
from phmctl.errors import require

ENCODER, DECODER, CLASSIFIER = "encoder.onnx", "decoder.onnx", "classifier.onnx"


def session(path: Path, threads: int = 0) -> Any:
    """Return an onnxruntime session on the CPU. Raises MissingExtraError, and onnxruntime's errors."""
    library = require("onnxruntime", "onnx")
    options = library.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    return library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class _State:
    """Keys and values of each source sentence and of each live prefix."""

    def __init__(self, memory: Tensor, mask: Tensor, beams: int) -> None:
        layers, parts, sentences, heads, _, width = memory.shape
        self.memory = memory
        self.mask = mask
        self.beams = beams
        self.past = memory.new_zeros(layers, parts, sentences * beams, heads, 0, width)

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Continue the prefixes of `parents`. See :class:`phmctl.answering.beam.Seq2Seq`."""
        remaining = torch.arange(len(parents)) if sentences is None else sentences  # (B',)
        self.past = self.past[:, :, (remaining[:, None] * self.beams + parents).flatten()]
        self.beams = parents.shape[1]
        if sentences is not None:
            self.memory = self.memory[:, :, sentences]
            self.mask = self.mask[sentences]


class OnnxTransformer:
    """The graphs of a translator, as :class:`phmctl.answering.beam.Seq2Seq`."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        self._encoder, self._decoder = session(folder / ENCODER, threads), session(folder / DECODER, threads)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        (memory,) = self._encoder.run(None, {"source": source.numpy()})
        return torch.from_numpy(memory), source != PAD

    def start(self, memory: tuple[Tensor, Tensor], beams: int, max_length: int) -> _State:
        return _State(*memory, beams)

    def step(self, tokens: Tensor, state: _State) -> Tensor:
        inputs = {"tokens": tokens, "mask": state.mask, "memory": state.memory, "past": state.past}
        arrays = {name: tensor.contiguous().numpy() for name, tensor in inputs.items()}
        logits, past = self._decoder.run(None, arrays)
        state.past = torch.from_numpy(past)
        return torch.from_numpy(logits)


class OnnxClassifier(nn.Module):
    def __init__(self, folder: Path, threads: int = 0) -> None:
        super().__init__()
        self._folder = folder
        self._session = session(folder / CLASSIFIER, threads)

    def forward(self, *texts: Tensor) -> Tensor:
        with export_errors(self._folder):
            inputs = zip(self._session.get_inputs(), texts, strict=True)
            (logits,) = self._session.run(None, {graph_input.name: ids.numpy() for graph_input, ids in inputs})
            return torch.from_numpy(logits)
