"""The encoder that is probed: whose it is, and how it reads texts into vectors. It is never trained here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phmctl.checkpoints import checkpoint_digest, verify_checkpoint
from phmctl.data.copies import read_text
from phmctl.data.special import EOS, PAD, UNK
from phmctl.decoding.loading import load_translator
from phmctl.decoding.settings import change_decoding
from phmctl.decoding.torch_engine import pad
from phmctl.decoding.translator import plan
from phmctl.errors import RunError
from phmctl.nn.pooling import POOLINGS, mean_pool
from phmctl.recipe.schema import ProbeSection, TranslationRecipe
from phmctl.runs import Run

KINDS = ("encoder", "embeddings")  # what vectors are of
_OWN = 1000  # lines of the encoder's own validation text that others are compared with


@dataclass(frozen=True)
class Encoder:
    """Which encoder, and how its states become vectors.

    Attributes:
        run: a translator's.
        checkpoint: the folder's name.
        sha256: of the file with its weights.
        pooling: ``mean``, ``max`` or ``last``.
        width: d, of the vectors.
    """

    run: Run
    checkpoint: str
    sha256: str
    pooling: str
    width: int

    @classmethod
    def of(cls, settings: ProbeSection) -> "Encoder":
        """Find the encoder that a probe's section names.

        Raises:
            RunError: none is named, there is no such run or checkpoint, it is damaged, or it is no translator's.
        """
        if settings.encoder is None:
            raise RunError("model.encoder: whose encoder is probed? Name a translator's run: --set model.encoder=RUN")
        run = Run.open(Path(settings.encoder))
        if not isinstance(run.recipe, TranslationRecipe):
            task = run.recipe.task
            raise RunError(f"model.encoder: {run.folder} is a run of task {task!r}; only a translator has an encoder")
        width = run.recipe.model.width

        def found(name: str) -> Encoder:
            folder = run.checkpoint(name)
            verify_checkpoint(folder, ("model",))  # its vectors may be kept, and then nobody reads it again
            return cls(run, name, checkpoint_digest(folder, "model"), settings.pooling, width)

        return run.use(settings.checkpoint, found)

    def as_json(self) -> dict[str, Any]:
        """Return what a probe's run keeps of its encoder."""
        of = {"run": str(self.run.folder.resolve()), "name": self.run.name, "checkpoint": self.checkpoint}
        return {**of, "sha256": self.sha256, "pooling": self.pooling, "width": self.width}


@dataclass(frozen=True)
class Encoded:
    """Texts as an encoder has them.

    Attributes:
        vectors: (N, d) float32 each, by what they are of: ``encoder``, the pooled states; ``embeddings``, the mean of
            the source embeddings without positions, a bag of words. A text without tokens gives zeros.
        tokens: of the encoder's tokenizer, ends of sentence not counted.
        unknown: those of them that it does not know.
        words: stretches of the texts without a space.
    """

    vectors: dict[str, Tensor]
    tokens: int
    unknown: int
    words: int


class Reader:
    """An encoder's model, loaded.

    Args:
        encoder: which.
        device: where to compute.

    Raises:
        RunError: the run is damaged.
    """

    def __init__(self, encoder: Encoder, device: str = "auto") -> None:
        self._encoder = encoder
        exact = change_decoding(encoder.run.recipe_of(TranslationRecipe).decoding, precision="float32")
        self._translator = load_translator(encoder.run, encoder.checkpoint, device, exact)
        self._translator.max_source_tokens = None  # nothing of a sentence is cut off

    @torch.inference_mode()
    def read(self, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> Encoded:
        """Read texts as the translator reads lines; the end of sentence is one of an encoder's positions."""
        rows = self._tokens(texts)
        vectors = {kind: torch.zeros(len(rows), self._encoder.width) for kind in KINDS}
        advance(rows.count([]))
        for batch in plan([len(row) for row in rows], self._translator.settings.batch_tokens):
            for kind, found in self._vectors([rows[row] for row in batch]).items():
                vectors[kind][batch] = found.float().cpu()
            advance(len(batch))
        return Encoded(vectors, *_counts(rows, texts))

    def fertility(self) -> float | None:
        """Return the tokens a word of the encoder's own validation text; None where its run keeps none."""
        try:
            texts = read_text(self._encoder.run, "valid", "source")[:_OWN]
        except RunError:
            return None
        tokens, _, words = _counts(self._tokens(texts), texts)
        return tokens / words if words else None

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self._translator.encode(texts, strict=False)[0]

    def _vectors(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        engine: Any = self._translator.engine
        ids = pad(rows).to(engine.device)  # (B, S)
        seen = ids != PAD
        states, embeddings = engine.model.encode(ids).states, engine.model.source_embedding(ids)  # (B, S, d) both
        pooled = POOLINGS[self._encoder.pooling](states, seen)
        return {"encoder": pooled, "embeddings": mean_pool(embeddings, seen & (ids != EOS))}


def _counts(rows: Sequence[Sequence[int]], texts: Sequence[str]) -> tuple[int, int, int]:
    """Return the tokens of texts, ends of sentence not counted, the unknown ones, and the words."""
    tokens = sum(max(len(row) - 1, 0) for row in rows)
    return tokens, sum(list(row).count(UNK) for row in rows), sum(len(text.split()) for text in texts)
