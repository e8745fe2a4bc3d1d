"""Probing, as the commands know it."""

from __future__ import annotations  # what a method works with is imported in it

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.errors import DataError
from phmctl.recipe.schema import ProbeSection, ProbingRecipe
from phmctl.runs import Run
from phmctl.runs.results import Result
from phmctl.tasks.answers import Answers, LabelComparer, Metric
from phmctl.tasks.base import Asked, Sizes, TaskKind, TypicalBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from phmctl.models.small import Probe
    from phmctl.tasks.probing.evaluation import ProbeReport
    from phmctl.tasks.probing.predictor import LinePredictor
    from phmctl.tasks.probing.task import ProbingTask

_WIDTH, _CLASSES = 512, 2  # counted where neither encoder nor data is there to tell


class ProbingKind(TaskKind[ProbingRecipe]):
    """Classes for sentences, from the vectors of a frozen encoder. Its corpora are labelled text."""

    recipe = ProbingRecipe
    commands = ("train", "eval", "decode", "count-params", "bench train")
    metrics = (Metric("accuracy", scale=100, tested=True),)
    comparer = LabelComparer()

    def open(self, recipe: ProbingRecipe, data: Path) -> ProbingTask:
        """Bind a recipe to its encoder and its prepared sentences; the encoder reads them if it has not yet."""
        from phmctl.data.prepared.folder import PreparedData
        from phmctl.tasks.probing.encoder import Encoder
        from phmctl.tasks.probing.task import ProbingTask
        from phmctl.tasks.probing.vectors import SentenceVectors

        encoder = Encoder.of(recipe.model)
        prepared = PreparedData.find(recipe.data, data)
        if prepared.texts != 1:
            raise DataError(f"a probe reads one sentence an example, and {prepared.folder} has pairs")
        if not prepared.manifest["settings"].get("train_text"):
            raise DataError(
                f"{prepared.folder} keeps no text of train, which an encoder is to read: a card with "
                f"'train_text: true' does; run: {prepared.command} --force"
            )
        vectors = SentenceVectors(encoder, prepared, data, recipe.training.device)
        return ProbingTask(recipe, prepared, encoder, vectors)

    def sizes(self, recipe: ProbingRecipe, data: Path | None = None) -> Sizes:
        """Return the ``width`` of a vector and the number of ``classes``."""
        from phmctl.data.prepared.folder import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        width, classes = _WIDTH, _CLASSES if trained is None else trained[1]
        if recipe.model.encoder is not None:
            from phmctl.tasks.probing.encoder import Encoder

            width = Encoder.of(recipe.model).width
        known = recipe.model.encoder is not None and trained is not None
        return Sizes({"width": width, "classes": classes}, f"vectors {width} wide, {classes} classes", trained=known)

    def build(
        self, settings: ProbeSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> Probe:
        """Build the probe."""
        from phmctl.assembly import build_probe

        return build_probe(settings, sizes["width"], sizes["classes"], device)

    def typical_batch(self, recipe: ProbingRecipe) -> TypicalBatch:
        """Return a batch of vectors."""
        import torch

        rows, width = recipe.training.batch_size, self.sizes(recipe).values["width"]

        def loss(model: nn.Module) -> Tensor:
            total: Tensor = model(torch.ones(rows, width), labels=torch.zeros(rows, dtype=torch.int64))
            return total

        return TypicalBatch(rows, 1, loss, f"vectors of {width} numbers")

    def scored(self, asked: Asked) -> ProbeReport:
        """Score classes by accuracy, beside the majority class; compare two probes by McNemar's exact test."""
        from phmctl.tasks.probing.evaluation import evaluate

        return evaluate(asked.run, asked.split, asked.checkpoint, against=asked.against, device=asked.device)

    def answers(self, run: Run, result: Result) -> Answers | None:
        """Return a split's sentences with their classes and answers."""
        from phmctl.tasks.classification.evaluation import read_predictions

        return None if result.answers is None else read_predictions(result.answers)

    def answering(self, asked: Asked) -> LinePredictor:
        """Load a probe and its encoder, ready to answer lines."""
        from phmctl.tasks.probing.predictor import LinePredictor

        return LinePredictor(asked.run, asked.checkpoint, asked.device)

    def split_lines(self, run: Run, split: str) -> list[str]:
        """Return a split's sentences."""
        from phmctl.tasks.classification.copies import read_examples

        return [" ".join(text.split()) for (text,) in read_examples(run, split).texts]

    def notes(self, settings: ProbeSection, sizes: Mapping[str, int]) -> Iterator[str]:
        """Yield what the numbers hang on."""
        yield f"the probe alone: it reads vectors {sizes['width']} wide, and the encoder that makes them is not counted"


KIND = ProbingKind()
