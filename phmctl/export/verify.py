"""Compare the answers of an export with torch's on the run's own text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from phmctl.answering.base import Advance, Hypothesis, plan
from phmctl.answering.beam import pad
from phmctl.answering.classifier import Classifier
from phmctl.answering.translator import Translator
from phmctl.console import progress, silence
from phmctl.data import BOS, EOS
from phmctl.errors import RunError
from phmctl.metrics.text import ScoreOptions, bleu, usual_tokenizer
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.copies import read_text
from phmctl.tasks.classification import read_examples

TIE = 1e-3  # nats. Log-probabilities that differ by less are a tie


@dataclass(frozen=True)
class Verification:
    """Comparison of an export's answers with torch's."""

    split: str
    texts: int
    equal: int  # texts with equal answers: all tokens of the greedy output, or the label
    ties: int  # texts with other answers where torch's two candidates are a tie
    largest: float  # largest difference of the log-probabilities of equal answers, in nats
    scores: dict[str, object]  # BLEU with the signature, or accuracy, of torch and of the export

    @property
    def different(self) -> int:
        return self.texts - self.equal - self.ties

    @property
    def lines(self) -> list[str]:
        """The result in words: the equal answers, and the scores."""
        answers = f"{self.texts:,} texts of {self.split}: answers of {self.equal:,} equal to torch's"
        scores = f"{self.scores['metric']}: torch {self.scores['torch']:.4g}, export {self.scores['export']:.4g}"
        return [f"{answers}, {self.ties:,} differ by a tie, {self.different:,} otherwise", scores]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "different": self.different}


def verify(
    run: Run, predictor: Translator | Classifier, exported: Translator | Classifier, count: int | None = None
) -> Verification:
    """Compare greedy outputs token by token, or labels.

    Args:
        predictor: the run's model in torch.
        exported: the same with the export's engine or model.
        count: number of texts, taken at equal distances. None: all.

    Raises RunError if the run lacks texts.
    """
    split, texts, references = _examples(run, count)
    with progress(f"comparing {len(texts):,} texts with torch", 2 * len(texts)) as advance:
        ours, theirs = (_answers(model, texts, advance) for model in (predictor, exported))
    differences, ties = [], 0
    for text, answer, other in zip(texts, ours, theirs, strict=True):
        if answer.tokens == other.tokens:
            differences.append(abs(answer.log_prob - other.log_prob))
        elif _preference(predictor, text, answer.tokens, other.tokens) < TIE:
            ties += 1
    scores = _scores(run, predictor, ours, theirs, references)
    return Verification(split, len(texts), len(differences), ties, max(differences, default=0.0), scores)


def _examples(run: Run, count: int | None) -> tuple[str, list[Any], list[str]]:
    """Return the name, texts, and references or labels of a split of the run's text: valid, or else test."""
    splits = run.splits()
    if not splits:
        raise RunError(
            f"{run.text_folder} has no text on which the export could be compared with the run; "
            "to export without a comparison, give --texts 0"
        )
    split = "valid" if "valid" in splits else "test"
    if isinstance(run.recipe, TranslationRecipe):
        texts: list[Any] = read_text(run, split, "source")
        references = read_text(run, split, "target")
    else:
        examples = read_examples(run, split)
        texts, references = list(examples.texts), list(examples.labels)
    number = len(texts) if count is None else min(count, len(texts))
    rows = [index * len(texts) // number for index in range(number)]
    return split, [texts[row] for row in rows], [references[row] for row in rows]


def _answers(model: Translator | Classifier, texts: Sequence[Any], advance: Advance) -> list[Hypothesis]:
    """Return the greedy output of each text. A classifier's output is the number of the label instead of tokens."""
    if isinstance(model, Classifier):
        nats = model.probabilities(texts, advance).clamp(min=1e-30).log()  # (N, classes)
        values, labels = (column.tolist() for column in nats.max(1))
        return [Hypothesis([label], value, value) for label, value in zip(labels, values, strict=True)]
    with silence():  # truncated lines do not concern the export
        ids, _ = model.token_ids(texts)
    greedy = model.settings.model_copy(update={"beam": 1, "alpha": 0.0})
    outputs = [Hypothesis([], 0.0, 0.0)] * len(ids)  # the output of an empty source
    for rows in plan([len(row) for row in ids], greedy.batch_tokens):
        batch = [ids[row] for row in rows]
        n_best = model.engine.search(batch, greedy, allowed=model.tokenizers.target.size, n_best=1)
        for row, hypotheses in zip(rows, n_best, strict=True):
            outputs[row] = hypotheses[0]
        advance(len(rows))
    return outputs


@torch.no_grad()
def _preference(predictor: Translator | Classifier, text: Any, answer: Sequence[int], other: Sequence[int]) -> float:
    """Return by how many nats torch prefers torch's label, or torch's token at the first place that differs."""
    if isinstance(predictor, Classifier):
        nats = predictor.probabilities([text]).clamp(min=1e-30).log()[0]  # (classes,)
        return abs(float(nats[answer[0]] - nats[other[0]]))
    [ids], _ = predictor.token_ids([text])
    ours, theirs = [*answer, EOS], [*other, EOS]
    place = next(index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    model: Any = predictor.engine.model
    logits = model.logits(model(pad([ids]), torch.tensor([[BOS, *ours[:place]]])))[0, -1]  # (V,)
    return abs(float(logits[ours[place]] - logits[theirs[place]]))


def _scores(
    run: Run,
    predictor: Translator | Classifier,
    ours: Sequence[Hypothesis],
    theirs: Sequence[Hypothesis],
    references: Sequence[str],
) -> dict[str, object]:
    """Return BLEU with the signature, or the accuracy, of torch and of the export."""
    if isinstance(predictor, Classifier):
        accuracies = []
        for answers in (ours, theirs):
            right = [predictor.labels[a.tokens[0]] == label for a, label in zip(answers, references, strict=True)]
            accuracies.append(sum(right) / len(right))
        return {"metric": "accuracy", "torch": accuracies[0], "export": accuracies[1]}
    target = predictor.tokenizers.target
    recipe = run.recipe_of(TranslationRecipe)
    tokenize = recipe.training.bleu_tokenizer or usual_tokenizer(run.data().get("target_language"))
    options: ScoreOptions = {"lowercase": target.lowercase, "tokenize": tokenize}
    torch_bleu, export_bleu = (
        bleu([target.decode(answer.tokens) for answer in answers], references, **options) for answers in (ours, theirs)
    )
    values = {"torch": torch_bleu.value, "export": export_bleu.value}
    return {"metric": "BLEU", **values, "signature": torch_bleu.signature}
