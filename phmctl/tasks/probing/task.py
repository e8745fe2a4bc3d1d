"""Probing: a class for a sentence from its vector, trained by cross-entropy, chosen by accuracy."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from phmctl.assembly import build_probe
from phmctl.console import warn
from phmctl.data.batches import plan_by_count
from phmctl.data.copies import check_same_data
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import DataError, RunError
from phmctl.models.small import Probe
from phmctl.nn.loss import label_loss
from phmctl.recipe.schema import ProbingRecipe
from phmctl.runs import Run
from phmctl.tasks.base import ALONE, Autocast, Cost, Rows, Share
from phmctl.tasks.probing.copies import encoder_of, write_copies
from phmctl.tasks.probing.encoder import Encoder
from phmctl.tasks.probing.vectors import SentenceVectors, warn_of_other_text

_ROWS = 1024  # of vectors that are validated at a time


@dataclass(frozen=True)
class VectorBatch:
    """Some sentences: their vectors (B, d) float32, and their classes (B,) int64."""

    vectors: Tensor
    labels: Tensor

    @property
    def target_tokens(self) -> int:
        """What the loss is divided by: the number of sentences."""
        return len(self.labels)

    def to(self, device: torch.device | str) -> "VectorBatch":
        """Return the batch on a device."""
        return VectorBatch(self.vectors.to(device), self.labels.to(device))


class ProbingTask:
    """A recipe's probe on the vectors that an encoder makes of a prepared corpus.

    Args:
        recipe: the experiment.
        prepared: the corpus.
        encoder: what reads it.
        vectors: what it made of it.

    Raises:
        DataError: an example is a pair of texts, or a file is damaged.
    """

    unit = "examples"
    floor = -math.inf

    def __init__(
        self, recipe: ProbingRecipe, prepared: PreparedData, encoder: Encoder, vectors: SentenceVectors
    ) -> None:
        self.recipe, self.prepared, self.encoder = recipe, prepared, encoder
        self._manifest = vectors.manifest
        self.splits = {
            name: VectorBatch(vectors.split(name, recipe.model.vectors), torch.tensor(prepared.split(name).labels))
            for name in prepared.splits
        }

    def build_model(self, device: torch.device | str | None = None) -> Probe:
        """Build the untrained probe."""
        return build_probe(self.recipe.model, self.encoder.width, len(self.prepared.labels), device)

    def plan(self, epoch: int) -> list[Rows]:
        """Return the rows of each micro-batch of an epoch: the files have one class after the other."""
        training = self.recipe.training
        even = np.ones(self.splits["train"].target_tokens, np.int64)
        return plan_by_count([even], training.batch_size, seed=training.seed, epoch=epoch)

    def cost(self, rows: Rows) -> Cost:
        """Count the sentences."""
        return Cost(len(rows), len(rows))

    def collate(self, rows: Rows) -> VectorBatch:
        """Build the micro-batch of some training sentences."""
        train, places = self.splits["train"], torch.from_numpy(np.asarray(rows, np.int64))
        return VectorBatch(train.vectors[places], train.labels[places])

    def loss(self, model: nn.Module, batch: VectorBatch) -> tuple[Tensor, int]:
        """Return the label-smoothed cross-entropy summed over the sentences, and their number."""
        smoothing = self.recipe.training.label_smoothing
        return model(batch.vectors, labels=batch.labels, smoothing=smoothing), batch.target_tokens

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast = nullcontext, share: Share = ALONE) -> dict[str, float]:
        """Return ``loss`` (mean nats a sentence, not smoothed) and ``accuracy`` (0 to 1) on valid."""
        valid, device = self.splits["valid"], next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nats, right answers
        parts = np.array_split(np.arange(len(valid.labels)), -(-len(valid.labels) // _ROWS))
        for rows in map(torch.from_numpy, share.mine(parts)):
            batch = VectorBatch(valid.vectors[rows], valid.labels[rows]).to(device)
            with autocast():
                logits = model(batch.vectors)  # (B, classes)
            sums[0] += label_loss(logits, batch.labels)
            sums[1] += (logits.argmax(1) == batch.labels).sum()
        nats, right = share.total(sums).tolist()
        return {"loss": nats / len(valid.labels), "accuracy": right / len(valid.labels)}

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the accuracy."""
        return metrics["accuracy"]

    def check_data(self) -> None:
        """Refuse (DataError) empty splits; warn of an encoder of another language, or of other text."""
        for name in ("train", "valid"):
            if not self.splits[name].target_tokens:
                raise DataError(f"the {name} split in {self.prepared.folder} holds no example")
        if self.recipe.model.vectors == "embeddings":
            return  # the baseline of a probe that has been warned of
        warn_of_other_text(self._manifest, self.recipe.data.card)
        ours, theirs = self.recipe.data.language, self.encoder.run.data().get("source_language")
        if ours is not None and theirs not in (None, ours):
            warn(
                f"{self.encoder.run.name} translates from {theirs!r}, and the probed sentences are {ours!r}: "
                "a probe tells little of an encoder of another language (data.direction turns a recipe round)"
            )

    def check_run(self, run: Run) -> None:
        """Refuse (RunError) to continue a run on another encoder's vectors, or on other data."""
        check_same_data(run, self.prepared, tokenizers=False)
        self._check_encoder(run)

    def check_vocabulary(self, run: Run) -> None:
        """Refuse (RunError) a run to which vectors or classes mean something else."""
        self._check_encoder(run)
        if run.data().get("labels") != self.prepared.labels:
            raise RunError(
                f"{run.folder} tells apart {run.data().get('labels')}, and the data has {self.prepared.labels}"
            )

    def furnish(self, run: Run) -> None:
        """Write the evaluation splits with their vectors, the data's manifest and the encoder's name into the run."""
        vectors = {name: batch.vectors for name, batch in self.splits.items() if name != "train"}
        write_copies(run, self.prepared, vectors, self.encoder.as_json())

    def _check_encoder(self, run: Run) -> None:
        theirs = encoder_of(run)
        if (theirs["sha256"], theirs["pooling"]) != (self.encoder.sha256, self.encoder.pooling):
            raise RunError(
                f"{run.folder} probes {theirs['name']} ({theirs['checkpoint']}, {theirs['pooling']}), and this is "
                f"{self.encoder.run.name} ({self.encoder.checkpoint}, {self.encoder.pooling}): its vectors are others"
            )
