"""Answers of a trained probe: to the vectors that its run keeps, and to new lines, which its encoder's run reads."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from phmctl.assembly import answering, build_probe, trained
from phmctl.devices import pick_device
from phmctl.errors import RunError
from phmctl.recipe.schema import ProbingRecipe
from phmctl.runs import Run
from phmctl.tasks.classification.copies import labels_of
from phmctl.tasks.classification.predictor import LabelPredictor, Prediction, named
from phmctl.tasks.probing.copies import encoder_of
from phmctl.tasks.probing.encoder import Encoder, Reader


class TrainedProbe:
    """A probe with its classes.

    Args:
        model: maps vectors (B, d) to logits (B, classes).
        labels: the classes.
        device: where the model lies.
    """

    def __init__(self, model: nn.Module, labels: Sequence[str], device: torch.device) -> None:
        self.model, self.labels, self.device = model, labels, device

    @classmethod
    def load(cls, run: Run, checkpoint: str = "best", device: str = "auto") -> "TrainedProbe":
        """Load a run's probe.

        Raises:
            RunError: the run is no probe's, or something of it is missing or damaged.
        """
        recipe, labels, target = run.recipe_of(ProbingRecipe), labels_of(run), pick_device(device)
        model = build_probe(recipe.model, encoder_of(run)["width"], len(labels), "meta")
        return cls(answering(trained(model, run, checkpoint, target)), labels, target)

    @torch.inference_mode()
    def answer(self, vectors: Tensor) -> list[Prediction]:
        """Return the class of each vector (N, d), and its probability."""
        return named(self.model(vectors.to(self.device)).float().softmax(1), self.labels)


class LinePredictor(LabelPredictor):
    """A probe and the encoder that it was trained on, ready to answer lines.

    Raises:
        RunError: the encoder's run is not where it was, or is another by now.
    """

    verb = "probing"

    def __init__(self, run: Run, checkpoint: str = "best", device: str = "auto") -> None:
        self._probe = TrainedProbe.load(run, checkpoint, device)
        self.labels = self._probe.labels
        self._kind = run.recipe_of(ProbingRecipe).model.vectors
        self._reader = Reader(_encoder(run), device)

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[Prediction | None]:
        """Return the answer to each line, None to an empty one."""
        answers = self._probe.answer(self._reader.read(lines, advance).vectors[self._kind]) if lines else []
        return [answer if line.strip() else None for line, answer in zip(lines, answers, strict=True)]


def _encoder(run: Run) -> Encoder:
    """Return the encoder that a probe was trained on."""
    kept = encoder_of(run)
    section = run.recipe_of(ProbingRecipe).model
    place = {
        "encoder": kept["run"] if Path(kept["run"]).is_dir() else section.encoder,
        "checkpoint": kept["checkpoint"],
    }
    encoder = Encoder.of(section.model_copy(update=place))
    if encoder.sha256 != kept["sha256"]:
        raise RunError(f"{encoder.run.folder} is not the run that {run.folder} was trained on: its weights are others")
    return encoder
