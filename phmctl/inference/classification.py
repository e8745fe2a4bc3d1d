"""Classifiers for programs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from phmctl.decoding.engine import TORCH
from phmctl.errors import DataError, UserError
from phmctl.exports import Export
from phmctl.inference.model import Classified, Model, Texts, check_texts, silent
from phmctl.runs import Run
from phmctl.tasks.classification.predictor import TextClassifier, load_classifier

if TYPE_CHECKING:
    from torch import Tensor

_VECTORS = {1: "what the label is read from", 2: "the maximum and the mean over time of the LSTM's states"}


class ClassifierModel(Model):
    """A classifier for programs.

    Args:
        classifier: does the work.
        name: the run's.
        about: further entries of :meth:`about`.
    """

    def __init__(self, classifier: TextClassifier, name: str, about: Mapping[str, Any]) -> None:
        kept = {**classifier.about(), "texts": classifier.texts}
        self.answers = ["classify"]
        if classifier.encodes:
            self.answers.append("encode")
            kept["vectors"] = _VECTORS[classifier.texts]
        super().__init__(name, "classification", {**about, **kept})
        self._classifier = classifier

    @property
    def max_tokens(self) -> int | None:
        """The longest text that the model knows, in tokens."""
        return self._classifier.max_tokens

    @silent
    def lengths(self, texts: Texts) -> list[int]:
        """Return the tokens of each text, of a pair those of the longer one."""
        return self._classifier.lengths(self._examples(texts))

    @silent
    def classify(self, texts: Texts, *, strict: bool = False) -> list[Classified]:
        """Return the label of each text, or of each pair of texts."""
        examples = self._examples(texts)
        classifier = self._classifier
        limit = classifier.max_tokens
        cut = [length > limit for length in classifier.lengths(examples)]
        if strict and any(cut):
            raise DataError(f"texts: text {cut.index(True) + 1} has more than the {limit} tokens that the model knows")
        rows = classifier.probabilities(examples).tolist()
        labels = classifier.labels
        found = (dict(zip(labels, row, strict=True)) for row in rows)
        return [Classified(max(each, key=each.__getitem__), each, long) for each, long in zip(found, cut, strict=True)]

    @silent
    def encode(self, texts: Sequence[str]) -> "Tensor":
        """Return the vector of each text, (N, d)."""
        with torch.inference_mode():
            found = self._classifier.vectors(check_texts(texts))
        return found.clone()  # one that the caller's own gradients may pass

    def _examples(self, texts: Texts) -> list[tuple[str, ...]]:
        """Return the texts of each example."""
        if isinstance(texts, str):
            check_texts(texts)
        wanted = self._classifier.texts
        examples = [(each,) if isinstance(each, str) else tuple(each) for each in texts]
        for number, example in enumerate(examples, start=1):
            if len(example) != wanted:
                reads = "one text" if wanted == 1 else f"{wanted} texts, given as a tuple"
                raise UserError(f"texts: example {number} has {len(example)}; {self.name} reads {reads} an example")
        for column in zip(*examples, strict=True):
            check_texts(column)
        return examples


def load_run(run: Run, checkpoint: str, device: str, threads: int, precision: str | None) -> ClassifierModel:
    """Load a run's or an export's classifier; see :func:`phmctl.inference.loading.load`."""
    if precision is not None:
        raise UserError(f"precision {precision!r} is for translators, and {run.folder} is a classifier; leave it out")
    classifier = load_classifier(run, checkpoint, device, threads=threads)
    engine = run.engine if isinstance(run, Export) else TORCH
    about = {"folder": str(run.folder), "checkpoint": run.weights(checkpoint).name}
    return ClassifierModel(classifier, run.name, {**about, "engine": engine, "device": str(classifier.device)})
