"""Classify texts with a trained model: clean, tokenize, batch, and return labels with their probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import exports
from phmctl.assembly import Classifier, build_classifier, texts_of, trained
from phmctl.console import silence
from phmctl.data import copies
from phmctl.data.batches import Batch, TokenRows, collate, encode_texts, lengths_of, plan_by_count
from phmctl.data.clean import clean_line
from phmctl.decoding.model import (
    Advance,
    Classified,
    Line,
    Model,
    Texts,
    about_run,
    check_export,
    check_texts,
    ignore,
)
from phmctl.decoding.onnx_engine import OnnxClassifier
from phmctl.decoding.search import TORCH
from phmctl.devices import pick_device
from phmctl.errors import DataError, UserError
from phmctl.exports import Export
from phmctl.models import plain
from phmctl.nn.convert import to_dense
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.tasks.classification.examples import labels_of

_VECTORS = {1: "what the label is read from", 2: "the maximum and the mean over time of the LSTM's states"}


class TextClassifier(Model):
    """A trained model with its tokenizer and labels."""

    verb = "labelling"
    max_tokens: int

    def __init__(
        self, model: nn.Module, run: Run, checkpoint: str, device: torch.device, *, cleaned: bool = False
    ) -> None:
        recipe = run.recipe_of(ClassificationRecipe)
        self.model: Any = model
        self.device, self.tokenizer, self.labels = device, copies.load_tokenizers(run).source, labels_of(run)
        self.cleaning = copies.load_cleaning(run)
        if cleaned:
            self.cleaning = self.cleaning.model_copy(update={"entities": "keep"})
        self.texts, self.batch_size = texts_of(recipe.model), recipe.training.batch_size
        self.max_tokens = recipe.data.max_tokens
        about = {"labels": list(self.labels), "texts": self.texts, "device": str(device)}
        about |= {"engine": run.engine if isinstance(run, Export) else TORCH}
        self.answers = ("classify",)
        if hasattr(model, "encoded_width"):  # an export has it not
            self.answers = ("classify", "encode")
            about |= {"vectors": _VECTORS[self.texts]}
        super().__init__({**about_run(run, checkpoint), **about})

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[Sequence[str]], advance: Advance = ignore) -> Tensor:
        """Return the probability of each class, (N, classes) float32 on the CPU, for the texts of N examples."""
        result = torch.empty(len(texts), len(self.labels))
        for rows, batch in self._batches(self._encoded(texts)) if texts else ():
            result[rows] = self.model(*batch.sides).float().softmax(1).cpu()
            advance(len(rows))
        return result

    def label(self, texts: Sequence[Sequence[str]], advance: Advance = ignore) -> list[Classified]:
        rows = (dict(zip(self.labels, row, strict=True)) for row in self.probabilities(texts, advance).tolist())
        return [Classified(max(each, key=each.__getitem__), each) for each in rows]

    @silence()
    def lengths(self, texts: Texts) -> list[int]:
        columns = zip(*self._examples(texts), strict=True)
        counts = [self.tokenizer.encode([clean_line(text, self.cleaning) for text in column]) for column in columns]
        return [max(map(len, sides)) for sides in zip(*counts, strict=True)]

    @silence()
    def classify(self, texts: Texts, *, strict: bool = False) -> list[Classified]:
        cut = [length > self.max_tokens for length in self.lengths(texts)]
        if strict and any(cut):
            number = cut.index(True) + 1
            raise DataError(f"texts: text {number} has more than the {self.max_tokens} tokens that the model knows")
        found = self._unless_empty(self._examples(texts))
        return [replace(each, cut=long) for each, long in zip(found, cut, strict=True)]

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the label of each line; a pair's texts stand in one line with a tab between."""
        examples = []
        for number, line in enumerate(lines, first):
            texts = tuple(line.split("\t")) if line.strip() else ()
            if texts and len(texts) != self.texts:
                wanted = "one text, without a tab" if self.texts == 1 else f"{self.texts} texts with a tab between"
                raise DataError(f"line {number}: this classifier reads {wanted}, not {len(texts)}")
            examples.append(texts)
        found = self._unless_empty(examples)
        advance(len(lines))
        told = [{"label": each.label or None, "probability": each.probability or None} for each in found]
        return [(each.label, one) for each, one in zip(found, told, strict=True)]

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

    def _unless_empty(self, examples: Sequence[Sequence[str]]) -> list[Classified]:
        """Return the answer to each example; an empty one has no label."""
        empty = [not "".join(texts).strip() for texts in examples]
        answers = iter(self.label([texts for texts, none in zip(examples, empty, strict=True) if not none]))
        return [Classified("", {}) if none else next(answers) for none in empty]

    def _encoded(self, texts: Sequence[Sequence[str]]) -> TokenRows:
        return encode_texts(texts, self.tokenizer, self.cleaning, self.max_tokens)

    def _batches(self, encoded: TokenRows) -> Iterator[tuple[Tensor, Batch]]:
        for rows in plan_by_count(lengths_of(encoded), self.batch_size, seed=0, epoch=0, shuffle=False):
            yield torch.from_numpy(rows), collate(encoded, rows).to(self.device)

    def _examples(self, texts: Texts) -> list[tuple[str, ...]]:
        if isinstance(texts, str):
            check_texts(texts)
        examples = [tuple(each) if isinstance(each, list | tuple) else (each,) for each in texts]
        for number, example in enumerate(examples, start=1):
            if len(example) != self.texts:
                reads = "one text" if self.texts == 1 else f"{self.texts} texts, given as a tuple"
                raise UserError(f"texts: example {number} has {len(example)}; {self.name} reads {reads} an example")
        for column in zip(*examples, strict=True):
            check_texts(column)
        return examples


def exported_model(to: str, folder: Path, *, device: str = "auto", threads: int = 0) -> nn.Module:
    """Return the model of a classifier's export. Raises MissingExtraError, RunError."""
    if to == exports.ONNX:
        return OnnxClassifier(folder, threads)
    return plain.load(folder).to(pick_device(device))


def load_classifier(
    run: Run,
    checkpoint: str = "best",
    device: str = "auto",
    *,
    cleaned: bool = False,
    threads: int = 0,
) -> TextClassifier:
    """Load a run's model, tokenizer and labels. Raises UserError, RunError."""
    run.recipe_of(ClassificationRecipe)
    if isinstance(run, Export):
        check_export(run, checkpoint, device)
        device = "cpu" if run.to == exports.ONNX else device  # onnxruntime's
        model = exported_model(run.to, run.folder, device=device, threads=threads)
    else:
        model = to_dense(trained_classifier(run, checkpoint, device), inplace=True)
    return TextClassifier(model, run, checkpoint, pick_device(device), cleaned=cleaned)


def trained_classifier(run: Run, checkpoint: str, device: str) -> Classifier:
    """Load a run's trained model as it was trained, in evaluation mode. Raises RunError."""
    section, classes = run.recipe_of(ClassificationRecipe).model, len(labels_of(run))
    model = build_classifier(section, copies.load_tokenizers(run).source.size, classes, device="meta")
    return trained(model, run, checkpoint, pick_device(device))
