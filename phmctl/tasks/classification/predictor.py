"""A classifier: labels for lines of text, and for what a program asks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import exports
from phmctl.assembly import Classifier, answering, build_classifier, texts_of, trained
from phmctl.console import silence
from phmctl.data.batches import Batch, TokenRows, collate, encode_texts, lengths_of, plan_by_count
from phmctl.data.clean import clean_line
from phmctl.data.copies import ADVICE, load_cleaning, load_tokenizers
from phmctl.decoding.onnx_engine import OnnxClassifier
from phmctl.decoding.translator import TORCH
from phmctl.devices import pick_device
from phmctl.errors import DataError, RunError, UserError
from phmctl.exports import Export
from phmctl.models import plain
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import DATA, Run
from phmctl.tasks.model import Classified, Model, Texts, check_texts

WINDOW = 1024  # lines that are sorted and labelled together
_VECTORS = {1: "what the label is read from", 2: "the maximum and the mean over time of the LSTM's states"}


class TextClassifier(Model):
    """A trained model with its tokenizer and labels."""

    verb = "labelling"

    def __init__(
        self, model: nn.Module, run: Run, checkpoint: str, device: torch.device, *, cleaned: bool = False
    ) -> None:
        recipe = run.recipe_of(ClassificationRecipe)
        self.model: Any = model
        self.device, self.tokenizer, self.labels = device, load_tokenizers(run).source, labels_of(run)
        self.cleaning = load_cleaning(run)
        if cleaned:
            self.cleaning = self.cleaning.model_copy(update={"entities": "keep"})
        self.texts, self.batch_size = texts_of(recipe.model), recipe.training.batch_size
        self._max_tokens = recipe.data.max_tokens
        about = {"labels": list(self.labels), "texts": self.texts, "device": str(device)}
        about |= {"engine": run.engine if isinstance(run, Export) else TORCH}
        self.answers = ("classify",)
        if hasattr(model, "encoded_width"):  # an export has it not
            self.answers = ("classify", "encode")
            about |= {"vectors": _VECTORS[self.texts]}
        super().__init__(run, checkpoint, **about)

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[Sequence[str]]) -> Tensor:
        """Return the probability of each class, (N, classes) float32 on the CPU, for the texts of N examples."""
        result = torch.empty(len(texts), len(self.labels))
        for rows, batch in self._batches(self._encoded(texts)) if texts else ():
            result[rows] = self.model(*batch.sides).float().softmax(1).cpu()
        return result

    def label(self, texts: Sequence[Sequence[str]]) -> list[Classified]:
        """Return the answer to each example."""
        rows = (dict(zip(self.labels, row, strict=True)) for row in self.probabilities(texts).tolist())
        return [Classified(max(each, key=each.__getitem__), each) for each in rows]

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    @silence()
    def lengths(self, texts: Texts) -> list[int]:
        columns = zip(*self._examples(texts), strict=True)
        counts = [self.tokenizer.encode([clean_line(text, self.cleaning) for text in column]) for column in columns]
        return [max(map(len, sides)) for sides in zip(*counts, strict=True)]

    @silence()
    def classify(self, texts: Texts, *, strict: bool = False) -> list[Classified]:
        cut = [length > self.max_tokens for length in self.lengths(texts)]
        if strict and any(cut):
            raise DataError(
                f"texts: text {cut.index(True) + 1} has more than the {self.max_tokens} tokens that the model knows"
            )
        found = self._unless_empty(self._examples(texts))
        return [replace(each, cut=long) for each, long in zip(found, cut, strict=True)]

    def _unless_empty(self, examples: Sequence[Sequence[str]]) -> list[Classified]:
        """Return the answer to each example; an empty one has no label."""
        empty = [not "".join(texts).strip() for texts in examples]
        answers = iter(self.label([texts for texts, none in zip(examples, empty, strict=True) if not none]))
        return [Classified("", {}) if none else next(answers) for none in empty]

    @silence()
    def encode(self, texts: Sequence[str]) -> Tensor:
        if "encode" not in self.answers:
            raise self._lacks("encode")
        encoded = self._encoded([(text,) for text in check_texts(texts)])
        found = torch.zeros(len(texts), self.model.encoded_width)
        with torch.no_grad():
            for rows, batch in self._batches(encoded):
                found[rows] = self.model.encode(batch.source).float().cpu()
        return found.masked_fill_(torch.from_numpy(encoded.sides[0].lengths == 0)[:, None], 0.0)

    def _encoded(self, texts: Sequence[Sequence[str]]) -> TokenRows:
        return encode_texts(texts, self.tokenizer, self.cleaning, self.max_tokens)

    def _batches(self, encoded: TokenRows) -> Iterator[tuple[Tensor, Batch]]:
        """Yield batches of examples, of like length, and their places."""
        for rows in plan_by_count(lengths_of(encoded), self.batch_size, seed=0, epoch=0, shuffle=False):
            yield torch.from_numpy(rows), collate(encoded, rows).to(self.device)

    def _examples(self, texts: Texts) -> list[tuple[str, ...]]:
        """Return the texts of each example."""
        if isinstance(texts, str):
            check_texts(texts)
        examples = [(each,) if isinstance(each, str) else tuple(each) for each in texts]
        for number, example in enumerate(examples, start=1):
            if len(example) != self.texts:
                reads = "one text" if self.texts == 1 else f"{self.texts} texts, given as a tuple"
                raise UserError(f"texts: example {number} has {len(example)}; {self.name} reads {reads} an example")
        for column in zip(*examples, strict=True):
            check_texts(column)
        return examples

    # ------------------------------------------------------------------------------------------------- for decode

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[Classified]:
        """Return the answer to each line; a pair's texts stand in one line with a tab between."""
        examples = []
        for line, number in zip(lines, numbers or count(1), strict=False):
            texts = tuple(line.split("\t")) if line.strip() else ()
            if texts and len(texts) != self.texts:
                wanted = "one text, without a tab" if self.texts == 1 else f"{self.texts} texts with a tab between"
                has = "1 text" if len(texts) == 1 else f"{len(texts)} texts"
                raise DataError(f"line {number} has {has}; this classifier reads {wanted}")
            examples.append(texts)
        found = self._unless_empty(examples)
        advance(len(lines))
        return found

    def lines(self, found: Sequence[Classified], *, first_line: int = 1) -> Iterator[str]:
        """Yield the label of each line."""
        return (answer.label for answer in found)

    def as_json(self, found: Sequence[Classified]) -> Iterator[dict[str, Any]]:
        return ({"label": each.label or None, "probability": each.probability or None} for each in found)


def exported_model(
    to: str, folder: Path, *, device: str = "auto", execution: str | None = None, threads: int = 0
) -> nn.Module:
    """Return the model of a classifier's export. Raises UserError, MissingExtraError, RunError."""
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
    """Load a run's model, tokenizer and labels. Raises UserError, RunError."""
    run.recipe_of(ClassificationRecipe)
    if isinstance(run, Export):
        folder = run.checkpoint(checkpoint)
        run.verify()
        model = exported_model(run.to, folder, device=device, execution=execution, threads=threads)
    else:
        model = answering(trained_classifier(run, checkpoint, device), execution)
    return TextClassifier(model, run, checkpoint, pick_device(device), cleaned=cleaned)


def trained_classifier(run: Run, checkpoint: str, device: str) -> Classifier:
    """Load a run's trained model as it was trained, in evaluation mode. Raises RunError."""
    section, classes = run.recipe_of(ClassificationRecipe).model, len(labels_of(run))
    model = build_classifier(section, load_tokenizers(run).source.size, classes, device="meta")
    return trained(model, run, checkpoint, pick_device(device))


def labels_of(run: Run) -> list[str]:
    labels = run.data().get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise RunError(f"{run.folder / DATA} does not say which labels there are; {ADVICE}")
    return labels
