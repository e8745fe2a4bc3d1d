"""Train classifiers by cross-entropy."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from phmctl.answering.classifier import load_classifier
from phmctl.console import note, warn
from phmctl.data.batches import Batch, collate, lengths_of, plan_by_count
from phmctl.data.prepared import PreparedData, Split
from phmctl.errors import DataError, RunError
from phmctl.models import build
from phmctl.models.classifiers import PairClassifier
from phmctl.nn.loss import label_loss
from phmctl.processes import Processes
from phmctl.recipe.models import PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import DATA, Run, copies
from phmctl.storage import write_atomic, write_json
from phmctl.tasks.base import Autocast, Cost, Rows, Task


class ClassificationTask(Task):
    """A recipe's model on prepared labelled text."""

    least_score = -math.inf

    def __init__(self, recipe: ClassificationRecipe, prepared: PreparedData) -> None:
        self.recipe = recipe
        self.prepared = prepared
        self.runs: Path | None = None  # the folder of runs in which a teacher is looked up
        for name in prepared.splits:
            prepared.split(name)  # checks and maps the file, before a run is created or changed
        if recipe.model.texts != prepared.texts:
            raise DataError(
                f"model.kind {recipe.model.kind!r} reads {recipe.model.texts} texts, and the examples of "
                f"{prepared.folder} have {prepared.texts}: use 'encoder' for one text, 'lstm-pair' for two"
            )

    def build_model(self, device: torch.device | str | None = None) -> nn.Module:
        sizes = {"vocabulary": self.prepared.tokenizers.source.size, "classes": len(self.prepared.labels)}
        model, vectors = build(self.recipe.model, sizes, device), self._vectors()
        if isinstance(model, PairClassifier) and vectors is not None:
            model.freeze_embedding(vectors)
        return model

    def plan(self, epoch: int) -> list[Rows]:
        training = self.recipe.training
        lengths = lengths_of(self.prepared.split("train"))
        return plan_by_count(lengths, training.batch_size, seed=training.seed, epoch=epoch)

    def cost(self, rows: Rows) -> Cost:
        return Cost(len(rows), sum(int(side.lengths[rows].sum()) for side in self.prepared.split("train").sides))

    def collate(self, rows: Rows) -> Batch:
        return collate(self.prepared.split("train"), rows)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        training, logits = self.recipe.training, model(*batch.sides)  # (B, classes)
        loss = label_loss(logits, batch.labels, training.label_smoothing)
        if self._teacher is None:
            return loss, batch.target_tokens
        weight = training.teacher_weight
        with torch.no_grad():
            probabilities = self._teacher.to(batch.labels.device)(*batch.sides).softmax(1)
        return (1 - weight) * loss + weight * label_loss(logits, probabilities), batch.target_tokens

    @cached_property
    def _teacher(self) -> nn.Module | None:
        """The model whose probabilities are learned. Raises RunError if it has other labels or tokens."""
        training = self.recipe.training
        if training.teacher is None:
            return None
        try:
            run = Run.open(training.teacher, self.runs)
        except RunError as error:
            raise RunError(f"training.teacher: {error}") from error
        texts = run.recipe_of(ClassificationRecipe).model.texts
        if (texts, copies.load_labels(run)) != (self.prepared.texts, self.prepared.labels):
            expected = f"{self.prepared.texts} texts and the labels {self.prepared.labels}"
            raise RunError(f"training.teacher: {run.folder} does not have {expected}")
        copies.check_same_vocabulary(run, self.prepared, "training.teacher")
        model: nn.Module = load_classifier(run, device="cpu").model
        return model

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast, processes: Processes) -> dict[str, float]:
        """Return ``loss`` (mean nats an example, not smoothed) and ``accuracy`` (0 to 1) on valid."""
        split = self.prepared.split("valid")
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nats, right answers
        size = self.recipe.training.batch_size
        for rows in processes.mine(plan_by_count(lengths_of(split), size, seed=0, epoch=0, shuffle=False)):
            batch = collate(split, rows).to(device)
            with autocast():
                logits = model(*batch.sides)  # (B, classes)
            sums[0] += label_loss(logits, batch.labels)
            sums[1] += (logits.argmax(1) == batch.labels).sum()
        nats, right = processes.total(sums).tolist()
        return {"loss": nats / len(split), "accuracy": right / len(split)}

    def score(self, metrics: Mapping[str, float]) -> float:
        return metrics["accuracy"]

    def check_data(self, runs: Path | None = None) -> None:
        """Print the origin of the word vectors.

        Raises:
            DataError: the recipe requires vectors, and the data lacks them.
            DimensionError: the vectors have another width.
            RunError: the teacher is missing, or has other labels or tokens.
        """
        self.runs = runs
        self._teacher  # noqa: B018 - opened before a run is made
        if isinstance(self.recipe.model, PairClassifierSection):
            self.build_model("meta")
            if (vectors := self._vectors()) is None and self.recipe.model.embeddings == "vectors":
                command = f"{self.prepared.command} --vectors FILE --force"
                raise DataError(f"model.embeddings: vectors, but {self.prepared.folder} lacks them; run: {command}")
            origin = "trained, no vectors" if vectors is None else f"{self.prepared.coverage}, frozen"
            note(f"embeddings: {origin}")

    def check_run(self, run: Run) -> None:
        copies.check_same_data(run, self.prepared)

    def check_vocabulary(self, run: Run) -> None:
        copies.check_same_vocabulary(run, self.prepared)
        labels = copies.load_labels(run)
        if labels != self.prepared.labels:
            warn(
                f"{run.folder} has the labels {labels}, and the data {self.prepared.labels}: "
                "the map to the labels is copied if their number is equal"
            )

    def furnish(self, run: Run) -> None:
        """Write the tokenizer, the examples of each split but train as JSON lines, and the manifest."""
        self.prepared.tokenizers.save(run.tokenizer_folder)
        for name in self.prepared.splits:
            if name != "train":
                write_atomic(run.text_folder / f"{name}.jsonl", "".join(self._json_lines(self.prepared.split(name))))
        write_json(run.folder / DATA, self.prepared.manifest)

    def _json_lines(self, split: Split) -> Iterator[str]:
        numbers = [] if split.labels is None else split.labels.tolist()
        extras = {name: values.tolist() for name, values in split.extras.items()}
        for row, (texts, number) in enumerate(zip(zip(*split.texts, strict=True), numbers, strict=True)):
            numbers_of_row = {name: values[row] for name, values in extras.items()}
            example = {"texts": texts, "label": self.prepared.labels[number], **numbers_of_row}
            yield json.dumps(example, ensure_ascii=False) + "\n"

    def _vectors(self) -> Tensor | None:
        is_trained = getattr(self.recipe.model, "embeddings", "trained") == "trained"
        return None if is_trained else self.prepared.vectors
