"""Classification: a label for a text or a pair of texts, trained by cross-entropy, chosen by accuracy."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn

from phmctl.assembly import Classifier, build_classifier, texts_of
from phmctl.console import note, warn
from phmctl.data.batches import Batch, collate, lengths_of, plan_by_count
from phmctl.data.copies import check_same_data, check_same_vocabulary, record_copies
from phmctl.data.listing import coverage_of
from phmctl.data.prepared.folder import PreparedData, Split
from phmctl.data.tokenizer import JOINT_FILE
from phmctl.errors import DataError, RunError
from phmctl.files import write_atomic
from phmctl.nn.convert import to_dense
from phmctl.nn.loss import label_loss
from phmctl.recipe.models import PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.tasks.base import ALONE, Autocast, Cost, Rows, Share


class ClassificationTask:
    """A recipe's model on prepared labelled text."""

    unit = "examples"
    least_score = -math.inf

    def __init__(self, recipe: ClassificationRecipe, prepared: PreparedData) -> None:
        self.recipe = recipe
        self.prepared = prepared
        for name in prepared.splits:
            prepared.split(name)  # checks and maps the file: what is damaged shows before a run is made or changed
        if texts_of(recipe.model) != prepared.texts:
            raise DataError(
                f"model.kind {recipe.model.kind!r} reads {texts_of(recipe.model)} of an example's texts, and those of "
                f"{prepared.folder} have {prepared.texts}: take 'encoder' for one text, 'lstm-pair' for two"
            )

    def build_model(self, device: torch.device | str | None = None) -> Classifier:
        size, classes = self.prepared.tokenizer.size, len(self.prepared.labels)
        return build_classifier(self.recipe.model, size, classes, self._vectors(), device)

    def plan(self, epoch: int) -> list[Rows]:
        return self.planned(self.prepared.split("train"), epoch=epoch, shuffle=True)

    def cost(self, rows: Rows) -> Cost:
        return Cost(len(rows), sum(int(side.lengths[rows].sum()) for side in self.prepared.split("train").sides))

    def collate(self, rows: Rows) -> Batch:
        return collate(self.prepared.split("train"), rows)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        training = self.recipe.training
        if self._teacher is None:
            return model(*batch.sides, labels=batch.labels, smoothing=training.label_smoothing), batch.target_tokens
        logits, teacher = model(*batch.sides), self._teacher.to(batch.labels.device)  # (B, classes)
        with torch.no_grad():
            taught = teacher(*batch.sides).softmax(1)
        weight = training.teacher_weight
        own = label_loss(logits, batch.labels, training.label_smoothing)
        return (1 - weight) * own + weight * label_loss(logits, taught), batch.target_tokens

    @cached_property
    def _teacher(self) -> nn.Module | None:
        """The model whose probabilities are learned, or None. Raises RunError: it has other labels or tokens."""
        training = self.recipe.training
        if training.teacher is None:
            return None
        run = Run.open(training.teacher)
        if run.recipe.task != self.recipe.task or run.data().get("labels") != self.prepared.labels:
            raise RunError(f"training.teacher: {run.folder} is no classifier of the labels {self.prepared.labels}")
        check_same_vocabulary(run, self.prepared)
        if texts_of(run.recipe.model) != self.prepared.texts:  # type: ignore[arg-type]
            raise RunError(f"training.teacher: {run.folder} reads another number of texts than {self.prepared.texts}")
        from phmctl.tasks.classification.predictor import trained_classifier

        return to_dense(trained_classifier(run, "auto", "cpu"), inplace=True).eval()

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast = nullcontext, share: Share = ALONE) -> dict[str, float]:
        """Return ``loss`` (mean nats an example, not smoothed) and ``accuracy`` (0 to 1) on valid."""
        split = self.prepared.split("valid")
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nats, right answers
        for rows in share.mine(self.planned(split, epoch=0, shuffle=False)):
            batch = collate(split, rows).to(device)
            with autocast():
                logits = model(*batch.sides)  # (B, classes)
            sums[0] += label_loss(logits, batch.labels)
            sums[1] += (logits.argmax(1) == batch.labels).sum()
        nats, right = share.total(sums).tolist()
        return {"loss": nats / len(split), "accuracy": right / len(split)}

    def score(self, metrics: Mapping[str, float]) -> float:
        return metrics["accuracy"]

    def check_data(self) -> None:
        """Plan the validation and the first epoch, and say where the word vectors are from. Raises DataError."""
        command, folder = self.prepared.command, self.prepared.folder
        for name in ("train", "valid"):
            if not len(self.prepared.split(name)):
                raise DataError(f"the {name} split in {folder} holds no example; run: {command} --force")
        if isinstance(self.recipe.model, PairClassifierSection):
            self._check_vectors(self.recipe.model)

    def check_run(self, run: Run) -> None:
        check_same_data(run, self.prepared)

    def check_vocabulary(self, run: Run) -> None:
        check_same_vocabulary(run, self.prepared)
        labels = run.data().get("labels")
        if labels != self.prepared.labels:
            warn(
                f"{run.folder} has the labels {labels}, and the data {self.prepared.labels}: a map to as many is taken"
            )

    def furnish(self, run: Run) -> None:
        """Write the tokenizer, the examples of each split but train as JSON lines, and the manifest."""
        self.prepared.tokenizer.save(run.tokenizer_folder / JOINT_FILE)
        for name in self.prepared.splits:
            if name != "train":
                write_atomic(run.text_folder / f"{name}.jsonl", "".join(self._json_lines(self.prepared.split(name))))
        record_copies(run, self.prepared.manifest)

    def _json_lines(self, split: Split) -> Iterator[str]:
        numbers = [] if split.labels is None else split.labels.tolist()
        extras = {name: values.tolist() for name, values in split.extras.items()}
        for row, (texts, number) in enumerate(zip(zip(*split.texts, strict=True), numbers, strict=True)):
            own = {name: values[row] for name, values in extras.items()}
            example = {"texts": texts, "label": self.prepared.labels[number], **own}
            yield json.dumps(example, ensure_ascii=False) + "\n"

    def planned(self, split: Split, *, epoch: int, shuffle: bool) -> list[Rows]:
        """Return the rows of each batch of a split: an epoch's shuffled ones, or all in order of length."""
        training = self.recipe.training
        return plan_by_count(lengths_of(split), training.batch_size, seed=training.seed, epoch=epoch, shuffle=shuffle)

    def _check_vectors(self, settings: PairClassifierSection) -> None:
        """Say what the embeddings are; refuse a recipe that wants others than the data has."""
        prepared, manifest, vectors = self.prepared, self.prepared.manifest, self._vectors()
        if vectors is None and settings.embeddings == "vectors":
            command = f"{prepared.command} --vectors FILE --force"
            raise DataError(f"model.embeddings: vectors, but {prepared.folder} has none; run: {command}")
        if vectors is not None and vectors.shape[1] != settings.embedding_width:
            raise DataError(
                f"{prepared.folder} has vectors {vectors.shape[1]} wide ({manifest['vectors']['file']}), and "
                f"model.embedding_width is {settings.embedding_width}: set model.embedding_width={vectors.shape[1]} or "
                "model.embeddings=trained"
            )
        note("embeddings: trained, no vectors" if vectors is None else f"embeddings: {coverage_of(manifest)}, frozen")

    def _vectors(self) -> Tensor | None:
        wanted = getattr(self.recipe.model, "embeddings", "trained") != "trained"
        return self.prepared.vectors if wanted else None
