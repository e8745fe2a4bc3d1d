"""What is exported, and whether its export answers as it does: asked at export, on the run's own validation text."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from phmctl.assembly import trained
from phmctl.console import progress, silence
from phmctl.data.copies import load_tokenizers, read_text
from phmctl.data.special import BOS, EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.beam import pad
from phmctl.decoding.translator import Engine, Hypothesis, Translator, plan
from phmctl.export.dense import DenseForm, dense_form
from phmctl.metrics.text import ScoreOptions, bleu, usual_tokenizer
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run, Weights
from phmctl.tasks.base import Asked
from phmctl.tasks.classification.kind import read_examples
from phmctl.tasks.classification.task import TextClassifier
from phmctl.tasks.registry import kind_of


@dataclass(frozen=True)
class Subject:
    run: Run
    weights: Weights
    model: nn.Module  # as it was trained, in evaluation mode, on the CPU
    answering: Translator | TextClassifier  # what answers with it, for the run's own text
    tokenizers: TokenizerPair  # of a classifier the one twice
    sizes: dict[str, int]  # of the tokenizers and the label set, as the task names them

    @property
    def section(self) -> Any:
        return self.run.recipe.model

    @property
    def translates(self) -> bool:
        return isinstance(self.answering, Translator)

    @property
    def longest(self) -> int:
        """The longest source or output that decoding can ask for, in tokens with the boundary ones."""
        recipe = self.run.recipe_of(TranslationRecipe)
        decoding, source = recipe.decoding, recipe.data.max_tokens + 1
        return max(source, int(decoding.max_ratio * source) + decoding.max_extra) + 2

    @cached_property
    def form(self) -> DenseForm:
        return dense_form(self.model, self.section, self.sizes)

    def examples(self, count: int | None = None) -> tuple[str, list[Any], list[str]]:
        """A split of the run's own text, its texts (lines, or the texts of each example), and what belongs to them.

        `count` of them, evenly chosen; None: all. RunError: the run has lost its text.
        """
        split = next((name for name in self.run.splits() if name == "valid"), "test")
        if self.translates:
            texts: list[Any] = read_text(self.run, split, "source")
            right = read_text(self.run, split, "target")
        else:
            found = read_examples(self.run, split)
            texts, right = list(found.texts), list(found.labels)
        rows = range(len(texts) if count is None else min(count, len(texts)))
        chosen = [row * len(texts) // len(rows) for row in rows]
        return split, [texts[row] for row in chosen], [right[row] for row in chosen]


def open_subject(run: Run, checkpoint: str) -> Subject:
    """Load a run's model. Where ``auto`` is not what the recipe asks for, that is said."""
    kind: Any = kind_of(run.recipe)
    if "decode" not in kind.commands:
        raise kind.lacks("export")

    def load(name: str) -> Subject:
        exact = {"precision": "float32"} if isinstance(run.recipe, TranslationRecipe) else {}
        answering: Any = kind.load(Asked(run, name, "cpu", exact, own_text=True))
        tokenizers = load_tokenizers(run)
        second = tokenizers.target.size if exact else len(answering.labels)
        sizes = dict(zip(kind.sides, (tokenizers.source.size, second), strict=True))
        model = trained(kind.build(run.recipe.model, sizes, "meta"), run, name, torch.device("cpu"))
        return Subject(run, run.weights(name), model, answering, tokenizers, sizes)

    return run.use(checkpoint, load)


ANSWERS, LOGITS, IDS = "answers", "logits of the references", "token ids"  # what an export is compared by
NEAR = 1e-3  # nats: two next tokens whose log-probabilities are nearer than this are a tie


@dataclass(frozen=True)
class Verification:
    """How an export's answers compare with torch's."""

    split: str  # whose text was answered
    texts: int  # how many were
    equal: int  # how many answers are the same: greedy outputs, token by token, or labels
    ties: int = 0  # of the others, those that part where torch itself has two next tokens, or two classes, alike
    largest: float = 0.0  # the largest difference of a log-probability between answers that are the same, in nats
    # BLEU (or accuracy) of both, torch and export, with its signature; None without references.
    scores: dict[str, Any] | None = None
    compared: str = ANSWERS  # or the logits of the references, or token ids alone: of an export without the model

    @property
    def different(self) -> int:
        return self.texts - self.equal - self.ties

    def __str__(self) -> str:
        apart = f", {self.ties:,} differ by a tie, {self.different:,} otherwise" * (self.compared == ANSWERS)
        return f"{self.texts:,} texts of {self.split}: {self.compared} of {self.equal:,} equal to torch's{apart}"

    @property
    def score_words(self) -> str:
        scores = self.scores or {}
        return f"{scores['metric']}: torch {scores['torch']:.4g}, export {scores['export']:.4g}" if scores else ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "different": self.different}


def verify_translator(subject: Subject, engine: Engine, count: int | None = None) -> Verification:
    """Compare an engine's greedy outputs with torch's, token by token, on the run's own text."""
    split, lines, references = subject.examples(count)
    ours: Any = subject.answering
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

    @torch.no_grad()
    def gap(row: int) -> float:
        """Return how far apart torch's two next tokens are where the outputs part."""
        one, other = ([*each[row].tokens, EOS] for each in found)
        place = next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        model: Any = subject.model
        logits = model.logits(model(pad([ids[row]]), torch.tensor([[BOS, *one[:place]]])))[0, -1]  # (V,)
        return abs(float(logits[one[place]] - logits[other[place]]))

    target, run = subject.tokenizers.target, subject.run
    own = run.recipe_of(TranslationRecipe).training.bleu_tokenizer
    how: ScoreOptions = {
        "lowercase": target.lowercase,
        "tokenize": own or usual_tokenizer(run.data().get("target_language")),
    }
    first, second = (bleu([target.decode(one.tokens) for one in each], references, **how) for each in found)
    scores = {"metric": "BLEU", "torch": first.value, "export": second.value, "signature": first.signature}
    return _compared(split, found, gap, scores)


def verify_classifier(subject: Subject, theirs: TextClassifier, count: int | None = None) -> Verification:
    """Compare an export's labels with torch's on the run's own examples."""
    split, texts, truth = subject.examples(count)
    ours: Any = subject.answering
    nats = [each.probabilities(texts).clamp(min=1e-30).log() for each in (ours, theirs)]  # (N, classes)
    found = []
    for each in nats:
        values, labels = (column.tolist() for column in each.max(1))
        found.append([Hypothesis([label], value, value) for label, value in zip(labels, values, strict=True)])

    def gap(row: int) -> float:
        one, other = (each[row].tokens for each in found)
        return abs(float(nats[0][row, one] - nats[0][row, other]))

    right = [[ours.labels[one.tokens[0]] == label for one, label in zip(each, truth, strict=True)] for each in found]
    first, second = (sum(each) / len(each) for each in right)
    return _compared(split, found, gap, {"metric": "accuracy", "torch": first, "export": second})


def _compared(
    split: str, found: Sequence[Sequence[Hypothesis]], gap: Callable[[int], float], scores: dict[str, Any]
) -> Verification:
    """Compare torch's answers with an export's; `gap` is how far apart torch has those of a row, in nats."""
    pairs = list(zip(*found, strict=True))
    same = [abs(one.log_prob - other.log_prob) for one, other in pairs if one.tokens == other.tokens]
    ties = sum(gap(row) < NEAR for row, (one, other) in enumerate(pairs) if one.tokens != other.tokens)
    return Verification(split, len(pairs), len(same), ties, max(same, default=0.0), scores)
