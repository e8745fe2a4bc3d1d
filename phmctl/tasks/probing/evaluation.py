"""Scoring a probe: accuracy with its interval, beside the majority class; two probes by McNemar's test."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from phmctl.console import Table
from phmctl.data.copies import ADVICE
from phmctl.errors import RunError
from phmctl.metrics.classification import Accuracy, McNemar, accuracy, mcnemar
from phmctl.recipe.schema import ProbingRecipe
from phmctl.runs import DATA, Run, Weights
from phmctl.runs.results import Setting, write_result
from phmctl.tasks.answers import ONE_SEED
from phmctl.tasks.classification.copies import read_examples
from phmctl.tasks.classification.evaluation import write_predictions
from phmctl.tasks.classification.predictor import Prediction
from phmctl.tasks.probing.copies import encoder_of, read_vectors
from phmctl.tasks.probing.predictor import TrainedProbe


@dataclass(frozen=True)
class ProbeReport:
    """What ``eval`` found of a probe.

    Attributes:
        run: its name.
        checkpoint: the name of the checkpoint's folder.
        encoder: the name of the run whose encoder is probed.
        vectors: ``encoder``, or ``embeddings`` for a bag of words.
        split: the split's name.
        accuracy: the share of right answers, with its 95 % interval.
        majority: that of always giving the class that train has most.
        majority_class: that class.
        against, compared: the baseline's name and McNemar's test against it, if there is one.
    """

    run: str
    checkpoint: str
    encoder: str
    vectors: str
    split: str
    accuracy: Accuracy
    majority: Accuracy
    majority_class: str
    against: str | None = None
    compared: McNemar | None = None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    def tables(self) -> Iterator[Table]:
        """Yield what people are shown."""
        what = "a bag of embeddings of" if self.vectors == "embeddings" else "the encoder of"
        rows = [_cells(f"probe of {what} {self.encoder}", self.accuracy)]
        rows.append(_cells(f"always {self.majority_class!r}, the majority class", self.majority))
        title = f"{self.run}, {self.split}, checkpoint {self.checkpoint}: {self.accuracy.total:,} examples"
        yield Table(title, ["answers", "right", "accuracy", "95 % interval"], rows)
        if self.compared is not None:
            test = self.compared
            cells = f"{100 * test.difference:+.2f} %", test.only_baseline, test.only_system, f"{test.p_value:.4f}"
            columns = ["difference", "right only there", "right only here", "p"]
            yield Table(f"McNemar's exact test against {self.against}; {ONE_SEED}", columns, [cells])


def evaluate(
    run: Run, split: str = "test", checkpoint: str = "best", *, against: Run | None = None, device: str = "auto"
) -> ProbeReport:
    """Score a probe on a split that its run keeps, and write the scores into the run.

    Args:
        run: the probe's.
        split: ``test`` or ``valid``.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``, of both runs.
        against: another probe of the same examples. Nothing is written into it.
        device: where to compute.

    Raises:
        RunError: the split or the checkpoint is missing or damaged, or the baseline was tested on other examples.
        OutputError: the run's folder cannot be written.
    """
    truth = read_examples(run, split)
    majority = majority_class(run)
    weights, answers = _answers(run, split, checkpoint, device)
    given = [answer.label for answer in answers]
    compared = rival = None
    if against is not None:
        if read_examples(against, split) != truth:
            raise RunError(
                f"{against.folder} has other {split} examples than {run.folder}; their scores do not compare"
            )
        rival, theirs = _answers(against, split, checkpoint, device)
        compared = mcnemar([answer.label for answer in theirs], given, truth.labels)
    report = ProbeReport(
        run.name,
        weights.name,
        encoder_of(run)["name"],
        run.recipe_of(ProbingRecipe).model.vectors,
        split,
        accuracy(given, truth.labels),
        accuracy([majority] * len(truth), truth.labels),
        majority,
        against.name if against else None,
        compared,
    )
    scores, own = {"accuracy": report.accuracy.value}, Setting(split, weights)
    predictions = own.path(run, "predictions.tsv")
    write_predictions(predictions, truth, answers)
    write_result(run, own, replace(report, against=None, compared=None).as_json(), scores, answers=predictions)
    if against is not None and rival is not None:
        beside = own.beside(against.name, rival)
        write_result(run, beside, report.as_json(), scores, against=against.name)
    return report


def majority_class(run: Run) -> str:
    """Return the class that the train split of a probe's data has most. Raises RunError if the run does not say."""
    try:
        counts: dict[str, int] = run.data()["splits"]["train"]["labels"]
        return max(counts, key=lambda label: counts[label])
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{run.folder / DATA} does not say how often train has each class; {ADVICE}") from error


def _answers(run: Run, split: str, checkpoint: str, device: str) -> tuple[Weights, list[Prediction]]:
    """Return which weights were read, and their answers."""
    weights, probe = run.use(checkpoint, lambda found: (run.weights(found), TrainedProbe.load(run, found, device)))
    return weights, probe.answer(read_vectors(run, split))


def _cells(name: str, one: Accuracy) -> Sequence[str]:
    return name, f"{one.right:,}", f"{100 * one.value:.2f} %", f"{100 * one.lower:.2f} – {100 * one.upper:.2f} %"
