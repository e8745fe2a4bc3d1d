"""Translators for programs that have torch's engine: scores of given texts, and vectors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from phmctl.decoding.scoring import forced_scores
from phmctl.decoding.torch_engine import pad
from phmctl.decoding.translator import Translator, plan
from phmctl.errors import UserError
from phmctl.inference.model import check_texts, silent
from phmctl.inference.translation import TranslationModel
from phmctl.nn.pooling import mean_pool

_VECTORS = "the mean of the encoder's states over all positions"


class TorchTranslationModel(TranslationModel):
    """A translator whose model is torch's.

    Args:
        translator: does the work; its engine is torch's.
        name: the run's.
        about: further entries of :meth:`about`.
    """

    answers = ("translate", "score", "encode")

    def __init__(self, translator: Translator, name: str, about: Mapping[str, Any]) -> None:
        engine: Any = translator.engine
        super().__init__(translator, name, {**about, "device": str(engine.device), "vectors": _VECTORS})
        self._model, self._device = engine.model, engine.device

    @silent
    @torch.no_grad()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return the log-probability of each target."""
        checked, outputs = check_texts(sources, "sources"), check_texts(targets, "targets")
        if len(checked) != len(outputs):
            raise UserError(f"{len(checked)} sources and {len(outputs)} targets: give one target for each source")
        translator = self._translator
        rows, _ = translator.encode(checked, strict=True)
        wanted = translator.encode_targets(outputs)
        scores = [-torch.inf if ids else 0.0 for ids in wanted]  # of sources without a token
        lengths = [max(len(row), len(ids) + 1) if row else 0 for row, ids in zip(rows, wanted, strict=True)]
        for places in plan(lengths, translator.settings.batch_tokens):
            source = pad([rows[place] for place in places]).to(self._device)  # (B, S)
            found = forced_scores(self._model, source, [wanted[place] for place in places], alpha=0.0)
            for place, hypothesis in zip(places, found, strict=True):
                scores[place] = hypothesis.log_prob
        return scores

    @silent
    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the mean of the encoder's states of each text, (N, d)."""
        translator = self._translator
        rows, _ = translator.encode(check_texts(texts), strict=False)
        width = self._model.target_embedding.embedding_dim
        vectors = torch.zeros(len(rows), width)  # (N, d)
        for places in plan([len(row) for row in rows], translator.settings.batch_tokens):
            memory = self._model.encode(pad([rows[place] for place in places]).to(self._device))
            vectors[places] = mean_pool(memory.states, memory.mask[:, 0, 0]).float().cpu()  # (B, d)
        return vectors
