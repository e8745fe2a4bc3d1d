"""What is exported: a run's trained model, with all that the formats ask of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from phmctl.data.copies import read_text
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.loading import load_transformer, load_translator
from phmctl.decoding.settings import change_decoding
from phmctl.decoding.translator import Translator
from phmctl.errors import RunError, UserError
from phmctl.export.dense import DenseForm, dense_form
from phmctl.recipe.schema import ClassificationRecipe, TranslationRecipe
from phmctl.runs import Run, Weights
from phmctl.tasks.classification.copies import read_examples
from phmctl.tasks.classification.predictor import TextClassifier, load_classifier, trained_classifier


@dataclass(frozen=True)
class Subject:
    """A run's model at one checkpoint."""

    run: Run  # the run
    weights: Weights  # which checkpoint
    model: nn.Module  # as it was trained, in evaluation mode, on the CPU
    answering: Translator | TextClassifier  # the translator or the classifier around it, for the run's own text

    @property
    def section(self) -> Any:
        return self.run.recipe.model

    @property
    def translates(self) -> bool:
        """Whether it is a translator; a classifier otherwise."""
        return isinstance(self.answering, Translator)

    @property
    def tokenizers(self) -> TokenizerPair:
        """Of a translator; of a classifier the one twice."""
        if isinstance(self.answering, Translator):
            return self.answering.tokenizers
        return TokenizerPair(self.answering.tokenizer, self.answering.tokenizer)

    @property
    def sizes(self) -> dict[str, int]:
        """The tokenizers' sizes, as the task names them."""
        pair = self.tokenizers
        if self.translates:
            return {"source": pair.source.size, "target": pair.target.size}
        return {"vocabulary": pair.source.size, "classes": len(self.labels)}

    @property
    def labels(self) -> Sequence[str]:
        return () if isinstance(self.answering, Translator) else self.answering.labels

    @property
    def longest(self) -> int:
        """The longest source or output that decoding can ask for, in tokens with the boundary ones."""
        recipe = self.run.recipe_of(TranslationRecipe)
        decoding, source = recipe.decoding, recipe.data.max_tokens + 1
        return max(source, int(decoding.max_ratio * source) + decoding.max_extra) + 2

    @cached_property
    def form(self) -> DenseForm:
        return dense_form(self.model, self.section, self.sizes)

    @cached_property
    def split(self) -> str | None:
        """The split of the run's own text that an export is verified on; None where the run keeps none."""
        for name in ("valid", "test"):
            try:
                self._lines(name)
            except RunError:
                continue
            return name
        return None

    def texts(self, count: int | None = None) -> list[Any]:
        """Return the texts to verify with: lines, or the texts of each example; `count` of them, evenly chosen."""
        return _chosen([] if self.split is None else self._lines(self.split), count)

    def references(self, count: int | None = None) -> list[str]:
        """Return what belongs to :meth:`texts`: translations, or labels."""
        if self.split is None:
            return []
        if self.translates:
            return _chosen(read_text(self.run, self.split, "target"), count)
        return _chosen(read_examples(self.run, self.split).labels, count)

    def _lines(self, split: str) -> list[Any]:
        return read_text(self.run, split, "source") if self.translates else list(read_examples(self.run, split).texts)


def _chosen(found: list[Any], count: int | None) -> list[Any]:
    """Return so many, evenly chosen; None: all."""
    if count is None or count >= len(found):
        return found
    return [found[row * len(found) // count] for row in range(count)]


def open_subject(run: Run, checkpoint: str) -> Subject:
    """Load a run's model for export."""
    weights = run.weights(checkpoint)
    if isinstance(run.recipe, TranslationRecipe):
        settings = change_decoding(run.recipe.decoding, precision="float32")  # which the export is compared with
        translator = load_translator(run, checkpoint, "cpu", settings, cleaned=True)
        return Subject(run, weights, load_transformer(run, checkpoint, "cpu", translator.tokenizers), translator)
    if isinstance(run.recipe, ClassificationRecipe):
        classifier = load_classifier(run, checkpoint, "cpu", cleaned=True)
        return Subject(run, weights, trained_classifier(run, checkpoint, "cpu"), classifier)
    raise UserError(
        f"{run.folder} is a run of task {run.recipe.task!r}, whose model answers no text; "
        "translators and classifiers can be exported"
    )
