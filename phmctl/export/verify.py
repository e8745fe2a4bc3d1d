"""What is exported, and whether its export answers as it does: asked at export, on the run's own validation text."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from phmctl.console import progress, silence
from phmctl.data.copies import read_text
from phmctl.data.special import EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.beam import pad
from phmctl.decoding.translator import (
    Engine,
    Hypothesis,
    Translator,
    change_decoding,
    load_transformer,
    load_translator,
    plan,
)
from phmctl.errors import RunError, UserError
from phmctl.export.dense import DenseForm, dense_form
from phmctl.metrics.text import How, bleu, usual_tokenizer
from phmctl.recipe.schema import ClassificationRecipe, TranslationRecipe
from phmctl.runs import Run, Weights
from phmctl.tasks.classification.kind import read_examples
from phmctl.tasks.classification.task import TextClassifier, load_classifier, trained_classifier


@dataclass(frozen=True)
class Subject:
    run: Run
    weights: Weights
    model: nn.Module  # as it was trained, in evaluation mode, on the CPU
    answering: Translator | TextClassifier  # what answers with it, for the run's own text

    @property
    def section(self) -> Any:
        return self.run.recipe.model

    @property
    def translates(self) -> bool:
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

    def load(name: str) -> Subject:
        weights = run.weights(name)
        if isinstance(run.recipe, TranslationRecipe):
            settings = change_decoding(run.recipe.decoding, precision="float32")  # which the export is compared with
            translator = load_translator(run, name, "cpu", settings, cleaned=True)
            return Subject(run, weights, load_transformer(run, name, "cpu", translator.tokenizers), translator)
        if isinstance(run.recipe, ClassificationRecipe):
            classifier = load_classifier(run, name, "cpu", cleaned=True)
            return Subject(run, weights, trained_classifier(run, name, "cpu"), classifier)
        raise UserError(
            f"{run.folder} is a run of task {run.recipe.task!r}, whose model answers no text; "
            "translators and classifiers can be exported"
        )

    return run.use(checkpoint, load)


ANSWERS, LOGITS, IDS = "answers", "logits", "token ids"  # what an export is compared by
NEAR = 1e-3  # nats: two next tokens whose log-probabilities are nearer than this are a tie


@dataclass(frozen=True)
class Verification:
    """How an export's answers compare with torch's."""

    split: str | None  # whose text was answered; None: the run keeps none, and nothing was compared
    texts: int = 0  # how many were
    equal: int = 0  # how many answers are the same: greedy outputs, token by token, or labels
    ties: int = 0  # of the others, those that part where torch itself has two next tokens, or two classes, alike
    largest: float = 0.0  # the largest difference of a log-probability between answers that are the same, in nats
    # BLEU (or accuracy) of both, torch and export, with its signature; None without references.
    scores: dict[str, Any] | None = None
    compared: str = ANSWERS  # or the logits of the references, or token ids alone: of an export without the model

    @property
    def different(self) -> int:
        """How many answers differ without a tie."""
        return self.texts - self.equal - self.ties

    def __str__(self) -> str:
        if self.split is None:
            return "not: the run keeps no text"
        found = f"{self.texts:,} texts of {self.split}: "
        if self.compared == IDS:
            return found + "token ids equal to phmctl's; the model is left out"
        if self.compared == LOGITS:
            return found + f"token ids equal to phmctl's, logits of {self.equal:,} references to torch's"
        return found + (
            f"{self.equal:,} answers equal to torch's, {self.ties:,} differ by a tie, {self.different:,} otherwise"
        )

    @property
    def score_words(self) -> str:
        scores = self.scores or {}
        return f"torch {scores['torch']:.4g}, export {scores['export']:.4g}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "different": self.different}


def verify_translator(subject: Subject, ours: Translator, engine: Engine, count: int | None = None) -> Verification:
    split, lines, references = subject.examples(count)
    if not lines:
        return Verification(None)
    with silence():  # that a line is cut is no news of the export
        ids, _ = ours.token_ids(lines)
    greedy = ours.settings.model_copy(update={"beam": 1, "alpha": 0.0, "execution": None})
    found = []
    with progress(f"comparing {len(lines):,} lines with torch", 2 * len(lines)) as advance:
        for each in (ours.engine, engine):
            results: list[Hypothesis] = [Hypothesis([], 0.0, 0.0)] * len(ids)
            for rows in plan([len(row) for row in ids], greedy.batch_tokens):
                best = each.search([ids[row] for row in rows], greedy, allowed=subject.sizes["target"], n_best=1)
                for row, (found_best, *_) in zip(rows, best, strict=True):
                    results[row] = found_best
                advance(len(rows))
            found.append(results)
    equal = ties = 0
    largest = 0.0
    for source, one, other in zip(ids, *found, strict=True):
        if one.tokens == other.tokens:
            equal += 1
            largest = max(largest, abs(one.log_prob - other.log_prob))
        else:
            ties += _is_tie(subject, source, one.tokens, other.tokens)
    target, run = ours.tokenizers.target, subject.run
    own = run.recipe_of(TranslationRecipe).training.bleu_tokenizer
    how: How = {"lowercase": target.lowercase, "tokenize": own or usual_tokenizer(run.data().get("target_language"))}
    first, second = (bleu([target.decode(one.tokens) for one in each], references, **how) for each in found)
    scores = {"metric": "BLEU", "torch": first.value, "export": second.value, "signature": first.signature}
    return Verification(split, len(lines), equal, ties, largest, scores)


@torch.no_grad()
def _is_tie(subject: Subject, source: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two outputs part where torch's two next tokens are alike."""
    ours, theirs = [*one, EOS], [*other, EOS]
    place = next(index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    model: Any = subject.model
    prefix = torch.tensor([[2, *ours[:place]]])
    logits = model.logits(model(pad([source]), prefix))[0, -1]  # (V,)
    return abs(float(logits[ours[place]] - logits[theirs[place]])) < NEAR


def verify_classifier(
    subject: Subject, ours: TextClassifier, theirs: TextClassifier, count: int | None = None
) -> Verification:
    """Compare an export's probabilities with torch's on the run's own examples."""
    split, texts, truth = subject.examples(count)
    if not texts:
        return Verification(None)
    one, other = (each.probabilities(texts).clamp(min=1e-30).log() for each in (ours, theirs))  # (N, classes)
    labels, others = one.argmax(1), other.argmax(1)
    same = labels == others
    rows = torch.arange(len(texts))
    ties = (~same & ((one[rows, labels] - one[rows, others]).abs() < NEAR)).sum()
    gaps = (one[rows, labels] - other[rows, labels]).abs()[same]
    given = {
        name: sum(ours.labels[index] == right for index, right in zip(found.tolist(), truth, strict=True)) / len(truth)
        for name, found in (("torch", labels), ("export", others))
    }
    largest = float(gaps.max()) if len(gaps) else 0.0
    return Verification(split, len(texts), int(same.sum()), int(ties), largest, {"metric": "accuracy", **given})
