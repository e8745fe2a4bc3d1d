"""Classification: a label for a text or a pair of texts. A task trains by cross-entropy; a classifier answers."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import exports
from phmctl.assembly import Classifier, build_classifier, texts_of, trained
from phmctl.console import note, silence, warn
from phmctl.data import copies
from phmctl.data.batches import Batch, TokenRows, collate, encode_texts, lengths_of, plan_by_count
from phmctl.data.clean import clean_line
from phmctl.data.prepared.folder import PreparedData, Split
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
from phmctl.errors import DataError, RunError, UserError
from phmctl.exports import Export
from phmctl.files import write_atomic
from phmctl.models import plain
from phmctl.nn.convert import to_dense
from phmctl.nn.loss import label_loss
from phmctl.recipe.models import PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.tasks.base import ALONE, Autocast, Cost, Rows, Share
from phmctl.tasks.classification.kind import labels_of

_VECTORS = {1: "what the label is read from", 2: "the maximum and the mean over time of the LSTM's states"}


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
        size, classes = self.prepared.tokenizers.source.size, len(self.prepared.labels)
        return build_classifier(self.recipe.model, size, classes, self._vectors(), device)

    def plan(self, epoch: int) -> list[Rows]:
        training, lengths = self.recipe.training, lengths_of(self.prepared.split("train"))
        return plan_by_count(lengths, training.batch_size, seed=training.seed, epoch=epoch)

    def cost(self, rows: Rows) -> Cost:
        sides = [int(side.lengths[rows].sum()) for side in self.prepared.split("train").sides]
        return Cost(len(rows), sum(sides), max(sides))

    def collate(self, rows: Rows) -> Batch:
        return collate(self.prepared.split("train"), rows)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        training, logits = self.recipe.training, model(*batch.sides)  # (B, classes)
        own, weight = label_loss(logits, batch.labels, training.label_smoothing), training.teacher_weight
        if self._teacher is None:
            return own, batch.target_tokens
        with torch.no_grad():
            taught = self._teacher.to(batch.labels.device)(*batch.sides).softmax(1)
        return (1 - weight) * own + weight * label_loss(logits, taught), batch.target_tokens

    @cached_property
    def _teacher(self) -> nn.Module | None:
        """The model whose probabilities are learned, or None. Raises RunError: it has other labels or tokens."""
        training = self.recipe.training
        if training.teacher is None:
            return None
        try:
            run = Run.open(training.teacher)
        except RunError as error:
            raise RunError(f"training.teacher: {error}") from error
        texts = texts_of(run.recipe_of(ClassificationRecipe).model)
        if (texts, labels_of(run)) != (self.prepared.texts, self.prepared.labels):
            wanted = f"{self.prepared.texts} texts to the labels {self.prepared.labels}"
            raise RunError(f"training.teacher: {run.folder} does not give {wanted}")
        copies.check_same_vocabulary(run, self.prepared, "training.teacher")
        return to_dense(trained_classifier(run, "auto", "cpu"), inplace=True).eval()

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast = nullcontext, share: Share = ALONE) -> dict[str, float]:
        """Return ``loss`` (mean nats an example, not smoothed) and ``accuracy`` (0 to 1) on valid."""
        split = self.prepared.split("valid")
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nats, right answers
        size = self.recipe.training.batch_size
        for rows in share.mine(plan_by_count(lengths_of(split), size, seed=0, epoch=0, shuffle=False)):
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
        """Say where the word vectors are from. Raises DataError (there are none), DimensionError (of another width).

        RunError: the teacher is missing, or gives other labels or reads other tokens.
        """
        self._teacher  # noqa: B018 - opened before a run is made
        if isinstance(self.recipe.model, PairClassifierSection):
            self.build_model("meta")
            if (vectors := self._vectors()) is None and self.recipe.model.embeddings == "vectors":
                command = f"{self.prepared.command} --vectors FILE --force"
                raise DataError(f"model.embeddings: vectors, but {self.prepared.folder} has none; run: {command}")
            of = f"{self.prepared.coverage}, frozen"
            note(f"embeddings: {'trained, no vectors' if vectors is None else of}")

    def check_run(self, run: Run) -> None:
        copies.check_same_data(run, self.prepared)

    def check_vocabulary(self, run: Run) -> None:
        copies.check_same_vocabulary(run, self.prepared)
        theirs, ours = labels_of(run), self.prepared.labels
        if theirs != ours:
            warn(f"{run.folder} has the labels {theirs}, and the data {ours}: a map to as many is taken")

    def furnish(self, run: Run) -> None:
        """Write the tokenizer, the examples of each split but train as JSON lines, and the manifest."""
        self.prepared.tokenizers.save(run.tokenizer_folder)
        for name in self.prepared.splits:
            if name != "train":
                write_atomic(run.text_folder / f"{name}.jsonl", "".join(self._json_lines(self.prepared.split(name))))
        copies.record_copies(run, self.prepared.manifest)

    def _json_lines(self, split: Split) -> Iterator[str]:
        numbers = [] if split.labels is None else split.labels.tolist()
        extras = {name: values.tolist() for name, values in split.extras.items()}
        for row, (texts, number) in enumerate(zip(zip(*split.texts, strict=True), numbers, strict=True)):
            own = {name: values[row] for name, values in extras.items()}
            example = {"texts": texts, "label": self.prepared.labels[number], **own}
            yield json.dumps(example, ensure_ascii=False) + "\n"

    def _vectors(self) -> Tensor | None:
        wanted = getattr(self.recipe.model, "embeddings", "trained") != "trained"
        return self.prepared.vectors if wanted else None


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
