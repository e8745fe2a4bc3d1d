"""Classify texts with a trained model: clean, tokenize, batch, and return labels with probabilities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import plain
from phmctl.answering.base import Advance, Document, Line, Texts, check_texts, ignore
from phmctl.answering.onnx import OnnxClassifier
from phmctl.answering.opening import ONNX, Source, about, check_options, engine_of, in_use
from phmctl.console import silence
from phmctl.data.batches import Batch, TokenRows, collate, encode_texts, lengths_of, plan_by_count
from phmctl.data.card import Cleaning
from phmctl.data.rows import clean_line
from phmctl.data.tokenizer import Tokenizer
from phmctl.devices import pick_device, torch_defaults
from phmctl.errors import DataError, NonFiniteError, RunError, UserError
from phmctl.models import load
from phmctl.nn.convert import to_dense
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import AUTO, Run
from phmctl.runs.copies import load_cleaning, load_labels, load_tokenizers

_VECTORS = {1: "the input of the map to the labels", 2: "the maximum and the mean over time of the LSTM's states"}


@dataclass(frozen=True, slots=True)
class Classified:
    """A classifier's answer to one example."""

    label: str  # the most probable class, empty for an empty text
    probabilities: Mapping[str, float]  # class -> probability, in the order of the model's labels, empty for no text
    cut: bool = False  # True if a text exceeded the model's limit and only a part of it was read

    @property
    def probability(self) -> float:
        """The probability of the label, 0 for an empty text."""
        return self.probabilities.get(self.label, 0.0)


class Classifier:
    """A trained classifier, as :func:`phmctl.load` returns it.

    The methods print nothing and change no global state. Several threads may call them at once.

    Attributes:
        name: ``<recipe>/<variant>/<version>`` of the classifier's run.
        task: ``classification``.
        methods: names of the methods that answer texts. An export has ``classify`` alone.
        max_tokens: maximum length of a text in tokens, as counted by :meth:`lengths`.
    """

    verb = "labelling"  # label of the progress bar of ``decode``

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        recipe: ClassificationRecipe,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        cleaning: Cleaning,
        about: Document,
    ) -> None:
        self.model: Any = model
        self.device = device
        self.tokenizer = tokenizer
        self.labels = labels
        self.cleaning = cleaning
        self.texts = recipe.model.texts
        self.batch_size = recipe.training.batch_size
        self.max_tokens = recipe.data.max_tokens
        self.methods = ("classify", "encode") if hasattr(model, "encoded_width") else ("classify",)
        self.name, self.task = str(about["name"]), str(about["task"])
        self._about = about

    def __repr__(self) -> str:
        return f"<phmctl classifier {self.name}: {', '.join(self.methods)}>"

    def about(self) -> Document:
        """Return a description as JSON values: name, task, folder, checkpoint, engine, device, labels, methods."""
        about = {
            **self._about,
            "labels": list(self.labels),
            "texts": self.texts,
            "device": str(self.device),
            "methods": list(self.methods),
        }
        if "encode" in self.methods:
            about["vectors"] = _VECTORS[self.texts]
        return about

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[Sequence[str]], advance: Advance = ignore) -> Tensor:
        """Return the probability of each class, (N, classes) float32 on the CPU, for the texts of N examples.

        Raises NonFiniteError if the model's scores are NaN or infinite.
        """
        result = torch.empty(len(texts), len(self.labels), dtype=torch.float32)
        for rows, batch in self._batches(self._encoded(texts)) if texts else ():
            result[rows] = self.model(*batch.sides).float().softmax(1).cpu()
            advance(len(rows))
        if result.isnan().any():
            raise NonFiniteError("the model gives NaN or infinite scores; was its training stable?")
        return result

    def label(self, texts: Sequence[Sequence[str]], advance: Advance = ignore) -> list[Classified]:
        """Return the label of each of N examples."""
        answers = []
        for row in self.probabilities(texts, advance).tolist():
            probabilities = dict(zip(self.labels, row, strict=True))
            answers.append(Classified(max(probabilities, key=probabilities.__getitem__), probabilities))
        return answers

    @silence()
    def lengths(self, texts: Texts) -> list[int]:
        """Return the number of tokens of each text. In a pair the longer text counts."""
        columns = zip(*self._examples(texts), strict=True)
        counts = [self.tokenizer.encode([clean_line(text, self.cleaning) for text in column]) for column in columns]
        return [max(map(len, sides)) for sides in zip(*counts, strict=True)]

    @silence()
    def classify(self, texts: Texts, *, strict: bool = False) -> list[Classified]:
        """Return the label of each text, or of each pair of texts.

        Args:
            texts: N texts, or N pairs if the classifier reads pairs: ``[("one", "two"), …]``.
            strict: raise an error if a text is longer than `max_tokens`. By default a part of it is read, and the
                answer has ``cut`` set.

        Raises:
            UserError: an example has the wrong number of texts.
            DataError: a text is too long and `strict` is set, or a text is not valid Unicode.
        """
        cut = [length > self.max_tokens for length in self.lengths(texts)]
        if strict and any(cut):
            number = cut.index(True) + 1
            raise DataError(f"texts: text {number} has more than the {self.max_tokens} tokens of the training data")
        answers = self._label_unless_empty(self._examples(texts))
        return [replace(answer, cut=is_cut) for answer, is_cut in zip(answers, cut, strict=True)]

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the label of each line. The texts of a pair are separated by a tab. Errors count from `first`."""
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
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return a vector for each text, (N, d) float32 on the CPU.

        An encoder classifier returns the input of the output layer (the recipe's ``pooling``). A pair classifier
        concatenates the maximum and the mean of the LSTM's states over time. A text without tokens gives zeros. Of a
        long text the part that the card keeps is read. Raises UserError if the classifier is an export.
        """
        if "encode" not in self.methods:
            raise UserError(f"{self.name} cannot encode: it is an export, which can only classify")
        encoded = self._encoded([(text,) for text in check_texts(texts)])
        vectors = torch.zeros(len(texts), self.model.encoded_width, dtype=torch.float32)
        with torch.no_grad():
            for rows, batch in self._batches(encoded):
                vectors[rows] = self.model.encode(batch.source).float().cpu()
        is_empty = torch.from_numpy(encoded.sides[0].lengths == 0)
        return vectors.masked_fill_(is_empty[:, None], 0.0)

    def _label_unless_empty(self, examples: Sequence[Sequence[str]]) -> list[Classified]:
        """Return the label of each example. Empty examples get an empty label."""
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
        if isinstance(texts, str) or not hasattr(texts, "__len__"):
            check_texts(texts)
        examples = [tuple(example) if isinstance(example, list | tuple) else (example,) for example in texts]
        for number, example in enumerate(examples, start=1):
            if len(example) != self.texts:
                reads = "one text" if self.texts == 1 else f"{self.texts} texts, given as a tuple"
                raise UserError(f"texts: example {number} has {len(example)}; {self.name} reads {reads} an example")
        for column in zip(*examples, strict=True):
            check_texts(column)
        return examples


def load_classifier(
    source: Source, checkpoint: str = AUTO, device: str = "auto", *, cleaned: bool = False, threads: int = 0
) -> Classifier:
    """Load the classifier of a run or an export.

    :func:`phmctl.answering.opening.load_translator` describes arguments and errors.
    """
    recipe = source.recipe_of(ClassificationRecipe)
    check_options(source, device, threads)
    name = source.chosen(checkpoint)
    with in_use(source):
        tokenizer, labels = load_tokenizers(source).source, load_labels(source)
        target = pick_device("cpu" if engine_of(source) == ONNX else device)
        model = open_classifier(source, name, {"vocabulary": tokenizer.size, "classes": len(labels)}, target, threads)
        cleaning = load_cleaning(source)
        if cleaned:
            cleaning = cleaning.model_copy(update={"entities": "keep"})
        description = {**about(source, name), "engine": engine_of(source)}
        return Classifier(model, target, recipe, tokenizer, labels, cleaning, description)


@torch_defaults()
def open_classifier(
    source: Source, checkpoint: str, sizes: Mapping[str, int], device: torch.device, threads: int = 0
) -> nn.Module:
    """Return the classifier's module. Raises MissingExtraError, RunError."""
    if isinstance(source, Run):
        path, tensors = source.read_model(checkpoint)
        return to_dense(load(source.recipe.model, sizes, tensors, path, device), inplace=True)
    if source.to == ONNX:
        return OnnxClassifier(source.folder, threads)
    model: Any = plain.load(source.folder)
    rows, tokens = model.embedding.num_embeddings, sizes["vocabulary"]
    if rows != tokens:
        raise RunError(f"{source.folder}: the table has {rows} tokens, the tokenizer {tokens}; export the run again")
    return model.to(device)  # type: ignore[no-any-return]
