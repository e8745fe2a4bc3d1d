"""Load the checkpoint to export, and compare the answers of its export with torch's on the run's own text."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from phmctl.answering.base import Engine, Hypothesis, plan
from phmctl.answering.beam import pad
from phmctl.answering.classifier import Classifier
from phmctl.answering.opening import load_classifier, load_translator
from phmctl.answering.torch_models import trained_model
from phmctl.answering.translator import Translator
from phmctl.console import progress, silence
from phmctl.data import BOS, EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.export.dense import DenseForm, dense_form
from phmctl.metrics.text import ScoreOptions, bleu, usual_tokenizer
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run, Weights
from phmctl.runs.copies import load_tokenizers, read_text
from phmctl.tasks import answers
from phmctl.tasks.classification import read_examples

CTRANSLATE2_INPUT = 1024  # tokens; CTranslate2 truncates longer sources by default


def longest_source(run: Run) -> int:
    """Return the length of the longest text that is not truncated, in tokens; with EOS if the run translates."""
    data: Any = run.recipe.data
    return int(data.max_tokens) + isinstance(run.recipe, TranslationRecipe)


def longest_output(run: Run) -> int:
    """Return the length of the longest output of decoding, in tokens with BOS and EOS."""
    recipe = run.recipe_of(TranslationRecipe)
    return int(recipe.decoding.max_ratio * recipe.data.max_tokens) + recipe.decoding.max_extra + 2


def max_positions(run: Run) -> int:
    """Return the rows of a stored table of positions: for every text of decoding and for CTranslate2's defaults."""
    return max(longest_source(run), longest_output(run), CTRANSLATE2_INPUT)


@dataclass(frozen=True)
class ExportSource:
    """A loaded checkpoint of a run, from which all formats are written."""

    run: Run
    weights: Weights
    model: nn.Module  # the trained model in evaluation mode, on the CPU
    predictor: Translator | Classifier  # answers with torch
    tokenizers: TokenizerPair  # a classifier has the same one twice
    sizes: dict[str, int]  # of the vocabularies and the label set, named as by the task

    @property
    def section(self) -> Any:
        return self.run.recipe.model

    @property
    def translates(self) -> bool:
        return isinstance(self.predictor, Translator)

    @cached_property
    def form(self) -> DenseForm:
        return dense_form(self.model, self.section, self.sizes)

    def examples(self, count: int | None = None) -> tuple[str, list[Any], list[str]]:
        """Return a split of the run's text: its name, its texts, and their references or labels.

        The split is the validation set, or the test set without one. `count` examples are taken at equal distances;
        None: all. Raises RunError if the run's text is missing.
        """
        split = "valid" if "valid" in self.run.splits() else "test"
        if self.translates:
            texts: list[Any] = read_text(self.run, split, "source")
            targets = read_text(self.run, split, "target")
        else:
            examples = read_examples(self.run, split)
            texts, targets = list(examples.texts), list(examples.labels)
        total = len(texts)
        number = total if count is None else min(count, total)
        rows = [index * total // number for index in range(number)]
        return split, [texts[row] for row in rows], [targets[row] for row in rows]


def open_source(run: Run, checkpoint: str) -> ExportSource:
    """Load a checkpoint of a run. Raises UserError if the run's task cannot be exported."""
    answers(run.recipe, "export")  # raises UserError

    def load(name: str) -> ExportSource:
        tokenizers = load_tokenizers(run)
        predictor: Translator | Classifier
        if isinstance(run.recipe, TranslationRecipe):
            decoding = run.recipe.decoding.model_copy(update={"precision": None})
            predictor = load_translator(run, name, "cpu", decoding, cleaned=True)
            sizes = {"source": tokenizers.source.size, "target": tokenizers.target.size}
        else:
            predictor = load_classifier(run, name, "cpu", cleaned=True)
            sizes = {"vocabulary": tokenizers.source.size, "classes": len(predictor.labels)}
        model = trained_model(run, name, torch.device("cpu"), tokenizers)
        return ExportSource(run, run.weights(name), model, predictor, tokenizers, sizes)

    return run.load_checkpoint(checkpoint, load)


TIE = 1e-3  # nats; log-probabilities that differ by less are a tie


@dataclass(frozen=True)
class Verification:
    """Comparison of an export's answers with torch's."""

    split: str
    texts: int
    equal: int  # texts with equal answers: all tokens of the greedy output, or the label
    ties: int  # texts with other answers where torch's two candidates are a tie
    largest: float  # largest difference of the log-probabilities of equal answers, in nats
    scores: dict[str, Any]  # BLEU with its signature, or accuracy, of torch and of the export

    @property
    def different(self) -> int:
        return self.texts - self.equal - self.ties

    def __str__(self) -> str:
        text = f"{self.texts:,} texts of {self.split}: answers of {self.equal:,} equal to torch's"
        return f"{text}, {self.ties:,} differ by a tie, {self.different:,} otherwise"

    @property
    def score_lines(self) -> list[str]:
        scores = self.scores
        return [f"{scores['metric']}: torch {scores['torch']:.4g}, export {scores['export']:.4g}"]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "different": self.different}


def verify_translator(source: ExportSource, engine: Engine, count: int | None = None) -> Verification:
    """Compare the greedy outputs of an engine with torch's, token by token."""
    split, lines, references = source.examples(count)
    translator = cast("Translator", source.predictor)
    with silence():  # truncated lines do not concern the export
        ids, _ = translator.token_ids(lines)
    greedy = translator.settings.model_copy(update={"beam": 1, "alpha": 0.0})
    empty = Hypothesis([], 0.0, 0.0)  # the output of an empty source
    ours, theirs = [empty] * len(ids), [empty] * len(ids)
    with progress(f"comparing {len(lines):,} lines with torch", len(lines)) as advance:
        for rows in plan([len(row) for row in ids], greedy.batch_tokens):
            batch = [ids[row] for row in rows]
            for searcher, outputs in ((translator.engine, ours), (engine, theirs)):
                n_best = searcher.search(batch, greedy, allowed=source.sizes["target"], n_best=1)
                for row, hypotheses in zip(rows, n_best, strict=True):
                    outputs[row] = hypotheses[0]
            advance(len(rows))

    @torch.no_grad()
    def gap(row: int) -> float:
        """Return the difference of torch's logits of the first two tokens that differ."""
        first, second = [*ours[row].tokens, EOS], [*theirs[row].tokens, EOS]
        place = next(index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        model: Any = source.model
        logits = model.logits(model(pad([ids[row]]), torch.tensor([[BOS, *first[:place]]])))[0, -1]  # (V,)
        return abs(float(logits[first[place]] - logits[second[place]]))

    target = source.tokenizers.target
    training = source.run.recipe_of(TranslationRecipe).training
    tokenizer = training.bleu_tokenizer or usual_tokenizer(source.run.data().get("target_language"))
    options: ScoreOptions = {"lowercase": target.lowercase, "tokenize": tokenizer}
    torch_bleu = bleu([target.decode(hypothesis.tokens) for hypothesis in ours], references, **options)
    export_bleu = bleu([target.decode(hypothesis.tokens) for hypothesis in theirs], references, **options)
    scores = {"metric": "BLEU", "torch": torch_bleu.value, "export": export_bleu.value}
    return _compare(split, ours, theirs, gap, scores | {"signature": torch_bleu.signature})


def verify_classifier(source: ExportSource, exported: Classifier, count: int | None = None) -> Verification:
    """Compare the labels of an export with torch's."""
    split, texts, labels = source.examples(count)
    classifier = cast("Classifier", source.predictor)
    models = classifier, exported
    with progress(f"labelling {len(texts):,} texts with torch and the export", 2 * len(texts)) as advance:
        log_probs = [model.probabilities(texts, advance).clamp(min=1e-30).log() for model in models]  # (N, classes)
    answers, accuracies = [], []
    for nats in log_probs:
        values, indices = (column.tolist() for column in nats.max(1))
        answers.append([Hypothesis([index], value, value) for index, value in zip(indices, values, strict=True)])
        correct = [classifier.labels[index] == label for index, label in zip(indices, labels, strict=True)]
        accuracies.append(sum(correct) / len(correct))
    ours, theirs = answers

    def gap(row: int) -> float:
        return abs(float(log_probs[0][row, ours[row].tokens] - log_probs[0][row, theirs[row].tokens]))

    scores = {"metric": "accuracy", "torch": accuracies[0], "export": accuracies[1]}
    return _compare(split, ours, theirs, gap, scores)


def _compare(
    split: str,
    ours: Sequence[Hypothesis],
    theirs: Sequence[Hypothesis],
    gap: Callable[[int], float],
    scores: dict[str, Any],
) -> Verification:
    """Compare torch's answers with the export's; `gap(row)` is torch's preference for its own answer, in nats."""
    differences, ties = [], 0
    for row, (hypothesis, exported) in enumerate(zip(ours, theirs, strict=True)):
        if hypothesis.tokens == exported.tokens:
            differences.append(abs(hypothesis.log_prob - exported.log_prob))
        elif gap(row) < TIE:
            ties += 1
    return Verification(split, len(ours), len(differences), ties, max(differences, default=0.0), scores)
