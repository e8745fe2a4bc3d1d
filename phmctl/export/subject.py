"""What is exported: a run's trained model, with all that the formats ask of it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from phmctl.data.copies import read_text
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.engine import change_decoding
from phmctl.decoding.loading import load_transformer, load_translator
from phmctl.decoding.translator import Translator
from phmctl.errors import RunError, UserError
from phmctl.export.dense import DenseForm, dense_form
from phmctl.recipe.schema import ClassificationRecipe, TranslationRecipe
from phmctl.runs import Run, Weights
from phmctl.tasks.classification.evaluation import read_examples
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

    def examples(self, count: int | None = None) -> tuple[str | None, list[Any], list[str]]:
        """A split of the run's own text, its texts (lines, or the texts of each example), and what belongs to them.

        `count` of them, evenly chosen; None: all. Nothing where the run keeps none.
        """
        for split in ("valid", "test"):
            with suppress(RunError):
                if self.translates:
                    texts: list[Any] = read_text(self.run, split, "source")
                    right = read_text(self.run, split, "target")
                else:
                    found = read_examples(self.run, split)
                    texts, right = list(found.texts), list(found.labels)
                rows = range(len(texts) if count is None else min(count, len(texts)))
                chosen = [row * len(texts) // len(rows) for row in rows]
                return split, [texts[row] for row in chosen], [right[row] for row in chosen]
        return None, [], []


def open_subject(run: Run, checkpoint: str) -> Subject:
    """Load a run's model. Where ``auto`` is not what the recipe asks for, that is said."""
    return run.use(checkpoint, lambda name: _open(run, name))


def _open(run: Run, checkpoint: str) -> Subject:
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
