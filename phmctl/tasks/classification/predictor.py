"""Labels for lines of text, with a trained classifier."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import exports
from phmctl.assembly import Classifier, answering, build_classifier, texts_of, trained
from phmctl.data.batches import collate, encode_texts, lengths_of, plan_by_count
from phmctl.data.card import Cleaning
from phmctl.data.clean import clean_line
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.data.tokenizer import Tokenizer
from phmctl.decoding.onnx_engine import OnnxClassifier
from phmctl.devices import pick_device
from phmctl.errors import DataError, UserError
from phmctl.exports import Export
from phmctl.models import plain
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.tasks.classification.copies import labels_of

WINDOW = 1024  # lines that are sorted and labelled together


@dataclass(frozen=True)
class Prediction:
    """What a model answers to one example.

    Attributes:
        label: the most probable class.
        probability: its probability, 0 to 1.
    """

    label: str
    probability: float


def named(probabilities: Tensor, labels: Sequence[str]) -> list[Prediction]:
    """Return the most probable class of each row, (N, classes)."""
    best, number = probabilities.max(1)
    return [Prediction(labels[index], value) for index, value in zip(number.tolist(), best.tolist(), strict=True)]


class LabelPredictor:
    """What all predictors of classes have in common."""

    labels: Sequence[str]

    def about(self) -> dict[str, Any]:
        """Return the classes."""
        return {"labels": list(self.labels)}

    def origin(self) -> dict[str, Any]:
        """Return what decides the answers: the weights alone."""
        return {}

    def lines(self, found: Sequence[Prediction | None], *, first_line: int = 1) -> Iterator[str]:
        """Yield the label of each line, nothing for an empty one."""
        return ("" if answer is None else answer.label for answer in found)

    def as_json(self, found: Sequence[Prediction | None]) -> Iterator[dict[str, Any]]:
        """Yield ``label`` and ``probability`` of each line; both are null for an empty one."""
        return ({"label": None, "probability": None} if answer is None else asdict(answer) for answer in found)


class TextClassifier(LabelPredictor):
    """A trained model with its tokenizer and labels.

    Args:
        model: maps the ids of each text, (B, S), to logits (B, classes).
        tokenizer: of all texts.
        labels: the classes.
        cleaning: what a text goes through before it is tokenized.
        texts: how many texts an example has.
        max_tokens: of a text; more are cut off.
        batch_size: examples that are labelled at a time.
        device: where the model lies.
    """

    verb = "labelling"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        cleaning: Cleaning,
        *,
        texts: int,
        max_tokens: int,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.tokenizer, self.labels, self.cleaning = tokenizer, labels, cleaning
        self.model: Any = model
        self.texts, self.max_tokens, self.batch_size, self.device = texts, max_tokens, batch_size, device

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[Sequence[str]]) -> Tensor:
        """Return the probability of each class, (N, classes) float32 on the CPU, for the texts of N examples."""
        result = torch.empty(len(texts), len(self.labels))
        if not texts:
            return result
        encoded = encode_texts(texts, self.tokenizer, self.cleaning, self.max_tokens)
        for rows in plan_by_count(lengths_of(encoded), self.batch_size, seed=0, epoch=0, shuffle=False):
            batch = collate(encoded, rows).to(self.device)
            result[torch.from_numpy(rows)] = self.model(*batch.sides).float().softmax(1).cpu()
        return result

    def label(self, texts: Sequence[Sequence[str]]) -> list[Prediction]:
        """Return the answer to each example."""
        return named(self.probabilities(texts), self.labels) if texts else []

    def lengths(self, texts: Sequence[Sequence[str]]) -> list[int]:
        """Return of each example the tokens of its longest text, before it is cut."""
        columns = zip(*texts, strict=True)
        counts = [self.tokenizer.encode([clean_line(text, self.cleaning) for text in column]) for column in columns]
        return [max(map(len, sides)) for sides in zip(*counts, strict=True)]

    @property
    def encodes(self) -> bool:
        """Whether it has :meth:`vectors`: an export has not."""
        return hasattr(self.model, "encoded_width")

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return what the model reads each text into, (N, d) float32 on the CPU; zeros for a text without tokens."""
        if not self.encodes:
            raise UserError("an export of a classifier has labels and no vectors; ask the run for these")
        encoded = encode_texts([(text,) for text in texts], self.tokenizer, self.cleaning, self.max_tokens)
        result = torch.zeros(len(texts), self.model.encoded_width)
        for rows in plan_by_count(lengths_of(encoded), self.batch_size, seed=0, epoch=0, shuffle=False):
            batch = collate(encoded, rows).to(self.device)
            result[torch.from_numpy(rows)] = self.model.encode(batch.source).float().cpu()
        return result.masked_fill_(torch.from_numpy(encoded.sides[0].lengths == 0)[:, None], 0.0)

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[Prediction | None]:
        """Return the answer to each line, None to an empty one; a pair's texts stand in one line with a tab between.

        Raises:
            DataError: a line has another number of texts.
        """
        texts = [self._texts(*each) for each in zip(lines, numbers or count(1), strict=False)]
        answers = iter(self.label([each for each in texts if each]))
        advance(len(lines))
        return [next(answers) if each else None for each in texts]

    def _texts(self, line: str, number: int) -> tuple[str, ...]:
        if not line.strip():
            return ()
        texts = tuple(line.split("\t"))
        if len(texts) != self.texts:
            wanted = "one text, without a tab" if self.texts == 1 else f"{self.texts} texts with a tab between"
            found = "1 text" if len(texts) == 1 else f"{len(texts)} texts"
            raise DataError(f"line {number} has {found}; this classifier reads {wanted}")
        return texts


def exported_model(
    to: str, folder: Path, *, device: str = "auto", execution: str | None = None, threads: int = 0
) -> nn.Module:
    """Return the model of a classifier's export.

    Raises:
        UserError: it cannot compute as asked, or the format is not one that phmctl answers with.
        MissingExtraError: its engine is not installed.
        RunError: the files cannot be read.
    """
    if execution is not None:
        raise UserError(f"--execution: {folder} holds H itself; leave it out, or answer with the run")
    if to == exports.SAFETENSORS:
        return plain.load(folder).to(pick_device(device))
    if device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: an export to {to} runs on the CPU here; leave it out")
    if to == exports.ONNX:
        return OnnxClassifier(folder, threads)
    raise exports.no_engine(folder)


def load_classifier(
    run: Run,
    checkpoint: str = "best",
    device: str = "auto",
    *,
    cleaned: bool = False,
    execution: str | None = None,
    threads: int = 0,
) -> TextClassifier:
    """Load a run's model, tokenizer and labels.

    Args:
        run: the run.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``.
        cleaned: whether the texts will be the run's own, which are cleaned already.
        execution: how the maps are applied, if not as the recipe says.
        threads: of an engine that has its own; torch's are the process's.

    Raises:
        UserError: no such execution.
        RunError: the run is no classifier's, or something of it is missing or damaged.
    """
    recipe = run.recipe_of(ClassificationRecipe)
    tokenizer, labels, target = load_tokenizers(run).source, labels_of(run), pick_device(device)
    cleaning = load_cleaning(run)
    if cleaned:
        cleaning = cleaning.model_copy(update={"entities": "keep"})
    if isinstance(run, Export):
        folder = run.checkpoint(checkpoint)
        run.verify()
        model = exported_model(run.to, folder, device=device, execution=execution, threads=threads)
    else:
        model = answering(trained_classifier(run, checkpoint, device), execution)
    return TextClassifier(
        model,
        tokenizer,
        labels,
        cleaning,
        texts=texts_of(recipe.model),
        max_tokens=recipe.data.max_tokens,
        batch_size=recipe.training.batch_size,
        device=target,
    )


def trained_classifier(run: Run, checkpoint: str, device: str) -> Classifier:
    """Load a run's trained model as it was trained, in evaluation mode.

    Raises:
        RunError: the checkpoint or the tokenizer is missing or damaged.
    """
    section, classes = run.recipe_of(ClassificationRecipe).model, len(labels_of(run))
    model = build_classifier(section, load_tokenizers(run).source.size, classes, device="meta")
    return trained(model, run, checkpoint, pick_device(device))
