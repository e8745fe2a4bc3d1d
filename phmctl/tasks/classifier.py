"""Classify texts with a trained model: clean, tokenize, batch, and return labels with their probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import exports, plain
from phmctl.assembly import Classifier, build_classifier, texts_of, trained
from phmctl.console import silence
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
from phmctl.devices import pick_device, torch_defaults
from phmctl.errors import DataError, NonFiniteError, UserError
from phmctl.exports import Export
from phmctl.nn.convert import to_dense
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run, copies

_VECTORS = {1: "the input of the map to the labels", 2: "the maximum and the mean over time of the LSTM's states"}


class TextClassifier(Model):
    """A trained model with its tokenizer and labels."""

    verb = "labelling"
    max_tokens: int

    def __init__(
        self, model: nn.Module, run: Run, checkpoint: str, device: torch.device, *, cleaned: bool = False
    ) -> None:
        recipe = run.recipe_of(ClassificationRecipe)
        self.model: Any = model
        self.device = device
        self.tokenizer = copies.load_tokenizers(run).source
        self.labels = copies.load_labels(run)
        self.cleaning = copies.load_cleaning(run)
        if cleaned:
            self.cleaning = self.cleaning.model_copy(update={"entities": "keep"})
        self.texts = texts_of(recipe.model)
        self.batch_size = recipe.training.batch_size
        self.max_tokens = recipe.data.max_tokens
        about = {"labels": list(self.labels), "texts": self.texts, "device": str(device)}
        about |= {"engine": run.engine if isinstance(run, Export) else TORCH}
        self.answers = ("classify",)
        if hasattr(model, "encoded_width"):  # an export lacks it
            self.answers = ("classify", "encode")
            about |= {"vectors": _VECTORS[self.texts]}
        super().__init__({**about_run(run, checkpoint), **about})

    @torch_defaults()
    @torch.inference_mode()
    def probabilities(self, texts: Sequence[Sequence[str]], advance: Advance = ignore) -> Tensor:
        """Return the probability of each class, (N, classes) float32 on the CPU, for the texts of N examples.

        Raises NonFiniteError if the model's scores are NaN or infinite.
        """
        result = torch.empty(len(texts), len(self.labels))
        for rows, batch in self._batches(self._encoded(texts)) if texts else ():
            result[rows] = self.model(*batch.sides).float().softmax(1).cpu()
            advance(len(rows))
        if result.isnan().any():
            raise NonFiniteError("the model gives NaN or infinite scores; was its training stable?")
        return result

    def label(self, texts: Sequence[Sequence[str]], advance: Advance = ignore) -> list[Classified]:
        answers = []
        for row in self.probabilities(texts, advance).tolist():
            probabilities = dict(zip(self.labels, row, strict=True))
            answers.append(Classified(max(probabilities, key=probabilities.__getitem__), probabilities))
        return answers

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
            raise DataError(f"texts: text {number} has more than the {self.max_tokens} tokens of the training data")
        answers = self._label_unless_empty(self._examples(texts))
        return [replace(answer, cut=is_cut) for answer, is_cut in zip(answers, cut, strict=True)]

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the label of each line; the texts of a pair are separated by a tab."""
        examples = []
        for number, line in enumerate(lines, first):
            texts = tuple(line.split("\t")) if line.strip() else ()
            if texts and len(texts) != self.texts:
                expected = "one text, without a tab" if self.texts == 1 else f"{self.texts} texts with a tab between"
                raise DataError(f"line {number}: this classifier reads {expected}, not {len(texts)}")
            examples.append(texts)
        answers = self._label_unless_empty(examples)
        advance(len(lines))
        return [
            (answer.label, {"label": answer.label or None, "probability": answer.probability or None})
            for answer in answers
        ]

    @silence()
    @torch_defaults()
    def encode(self, texts: Sequence[str]) -> Tensor:
        if "encode" not in self.answers:
            raise self._lacks("encode")
        encoded = self._encoded([(text,) for text in check_texts(texts)])
        vectors = torch.zeros(len(texts), self.model.encoded_width)
        with torch.no_grad():
            for rows, batch in self._batches(encoded):
                vectors[rows] = self.model.encode(batch.source).float().cpu()
        is_empty = torch.from_numpy(encoded.sides[0].lengths == 0)
        return vectors.masked_fill_(is_empty[:, None], 0.0)

    def _label_unless_empty(self, examples: Sequence[Sequence[str]]) -> list[Classified]:
        """Return the label of each example; empty examples get an empty label."""
        answers = [Classified("", {}) for _ in examples]
        rows = [row for row, texts in enumerate(examples) if "".join(texts).strip()]
        for row, answer in zip(rows, self.label([examples[row] for row in rows]), strict=True):
            answers[row] = answer
        return answers

    def _encoded(self, texts: Sequence[Sequence[str]]) -> TokenRows:
        return encode_texts(texts, self.tokenizer, self.cleaning, self.max_tokens)

    def _batches(self, encoded: TokenRows) -> Iterator[tuple[Tensor, Batch]]:
        for rows in plan_by_count(lengths_of(encoded), self.batch_size, seed=0, epoch=0, shuffle=False):
            yield torch.from_numpy(rows), collate(encoded, rows).to(self.device)

    def _examples(self, texts: Texts) -> list[tuple[str, ...]]:
        if isinstance(texts, str):
            check_texts(texts)
        examples = [tuple(example) if isinstance(example, list | tuple) else (example,) for example in texts]
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


@torch_defaults()
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
        device = "cpu" if run.to == exports.ONNX else device  # onnxruntime's engine
        model = exported_model(run.to, run.folder, device=device, threads=threads)
    else:
        model = to_dense(trained_classifier(run, checkpoint, device), inplace=True)
    return TextClassifier(model, run, checkpoint, pick_device(device), cleaned=cleaned)


@torch_defaults()
def trained_classifier(run: Run, checkpoint: str, device: str) -> Classifier:
    """Load a run's model in its trained form, in evaluation mode. Raises RunError."""
    section = run.recipe_of(ClassificationRecipe).model
    vocabulary = copies.load_tokenizers(run).source.size
    model = build_classifier(section, vocabulary, len(copies.load_labels(run)), device="meta")
    return trained(model, run, checkpoint, pick_device(device))
