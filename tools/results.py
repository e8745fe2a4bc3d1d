"""Compute scores, intervals and tests from docs/lab/results.csv, the table of all trainings."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

from phmctl.metrics.significance import Estimate, t_interval, two_sided_t
from phmctl.recipe.loading import load_recipe
from phmctl.results.ledger import Ledger, ledger_for_recipe

ROOT = Path(__file__).parent.parent
LONG = 3000  # steps of the files that are compared with the dense sentence model
MARGIN = 0.5  # the loss that a test of non-inferiority excludes
Training = dict[str, str]  # a row of the table by column


@cache
def trainings() -> tuple[Training, ...]:
    """Return the rows of the table: a training and a checkpoint each, or the mean of several seeds (``1-3``).

    A training with the size of its file is also a row of ``bytes``, whose forms are float32, int8 and int4.
    """
    with (ROOT / "docs" / "lab" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    stored = [row | {"table": "bytes", "form": "float32"} for row in rows if row["megabytes"] and not row["form"]]
    return (*rows, *stored)


def select(table: str, **values: str) -> list[Training]:
    """Return the rows of a table in which each named column has the given value."""
    rows = [row for row in trainings() if row["table"] == table]
    return [row for row in rows if all(row[column] == value for column, value in values.items())]


@dataclass(frozen=True)
class Sample:
    """A score of the seeds of a model."""

    seeds: tuple[float, ...]  # those that are known; fewer than `count` if only mean and deviation are known
    count: int
    mean: float
    deviation: float | None  # None if there is one seed

    @property
    def interval(self) -> Estimate | None:
        """The mean with its 95 % interval over seeds (Student's t), None of less than three seeds."""
        if not self.deviation or self.count < 3:
            return None
        return t_interval(self.mean, self.deviation / math.sqrt(self.count), self.count - 1)

    def text(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


@cache
def sentence_models(*, short: bool = False) -> tuple[tuple[Training, Sample], ...]:
    """Return the models of docs/lab/minilm.csv, with the scores of their seeds.

    They are the dense model and what was healed for long or, if `short`, for fewer steps only.
    """
    seeds: dict[tuple[str, ...], list[Training]] = {}
    with (ROOT / "docs" / "lab" / "minilm.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (0 < int(row["steps"] or 0) < LONG) == short:
                seeds.setdefault(tuple(row[key] for key in ("model", "share", "steps", "lr", "form")), []).append(row)
    return tuple((rows[0], sample_of([float(row["dev"]) for row in rows])) for rows in seeds.values())


def sample_of(scores: Sequence[float]) -> Sample:
    """Return scores with their mean and deviation."""
    return Sample(tuple(scores), len(scores), fmean(scores), stdev(scores) if len(scores) > 1 else None)


def sample(table: str, model: str, metric: str, **values: str) -> Sample:
    """Return a model's scores; a row of several seeds has precedence over the rows of single seeds."""
    rows = [row for row in select(table, model=model, **values) if row[metric]]
    if not rows:
        raise LookupError(f"docs/lab/results.csv: no row of {table} with {model}, {values} and a value of {metric}")
    seeds = tuple(float(row[metric]) for row in rows if "-" not in row["seed"])
    for row in rows:
        if "-" in row["seed"]:
            deviation = row.get(f"{metric}_sd")
            first, last = map(int, row["seed"].split("-"))
            return Sample(seeds, last - first + 1, float(row[metric]), float(deviation) if deviation else None)
    return sample_of(seeds)


@dataclass(frozen=True)
class Change:
    """The difference of two models' means over seeds, tested by Welch's t."""

    value: Estimate
    p_value: float
    p_inferior: float  # one-sided, of a loss of MARGIN or more: TOST's lower test


def welch(baseline: Sample, system: Sample) -> Change:
    """Test `system` minus `baseline`, each of several seeds."""
    parts = [(each.deviation or 0.0) ** 2 / each.count for each in (baseline, system)]
    error = math.sqrt(sum(parts))
    freedoms = (baseline.count - 1, system.count - 1)
    freedom = sum(parts) ** 2 / sum(part**2 / degrees for part, degrees in zip(parts, freedoms, strict=True))
    value = system.mean - baseline.mean
    half = two_sided_t((value + MARGIN) / error, freedom) / 2
    lost = half if value + MARGIN > 0 else 1 - half
    return Change(t_interval(value, error, freedom), two_sided_t(value / error, freedom), lost)


# ---------------------------------------------------------------------------------------------- scores of the pages

AVERAGE = {"rate": "4e-3", "steps": "4000", "checkpoint": "average"}
LAST = {**AVERAGE, "checkpoint": "last"}
EIGHT = {"rate": "8e-3", "steps": "800", "checkpoint": "last"}
DISTILLED = ", distilled"
WIDE = "PHM, n = 4, d = 512"
HALF = "PHM, n = 2, PHM embeddings"
EMBEDDED = "PHM, n = 4, PHM embeddings"
EIGHTH = "PHM, n = 8, PHM embeddings"
NARROW = "dense, d = 128, embeddings of 64"
LOW_RANK = "low rank, r = 46, embeddings of 64"
SETTINGS = {  # of the model section of the recipe multi30k-de-en
    "dense": "",
    "PHM, n = 2": "algebra=phm n=2",
    "PHM, n = 4": "algebra=phm n=4",
    "PHM, n = 8": "algebra=phm n=8",
    "quaternion": "algebra=quaternion",
    HALF: "algebra=phm n=2 embeddings=phm",
    EMBEDDED: "algebra=phm n=4 embeddings=phm",
    EIGHTH: "algebra=phm n=8 embeddings=phm",
    WIDE: "algebra=phm n=4 rank=4 width=512 feed_forward=2048 embedding_width=256",
    "dense, d = 128": "width=128 feed_forward=512 embedding_width=256",
    NARROW: "width=128 feed_forward=512 embedding_width=64",
    LOW_RANK: "algebra=low-rank rank=46 embedding_width=64",
}
STUDENTS = (  # distilled from a dense model
    f"{EIGHTH}{DISTILLED}",
    f"{EMBEDDED}{DISTILLED}",
    "PHM, n = 8, distilled",
    "PHM, n = 4, distilled",
    "dense, d = 128, distilled",
    "dense, distilled",
)
STRUCTURES = ("PHM, n = 2", "PHM, n = 4", "PHM, n = 8", "quaternion")
SMALL = (HALF, EMBEDDED, EIGHTH, NARROW, LOW_RANK)  # all of it is small
TASKS = {  # of each other task: the score, and the rate of each model that docs/results.md names
    "agreement": (
        "accuracy",
        dict.fromkeys(("dense", "PHM, n = 2", "PHM, n = 4", "PHM, n = 8", "dense, d = 48"), "4e-3"),
    ),
    "sentence pairs": (
        "accuracy",
        {"dense": "7.6e-3", "PHM, n = 2": "3.8e-3", "PHM, n = 5": "3.8e-3", "PHM, n = 10": "3.8e-3"},
    ),
    "Shakespeare": ("BLEU", {"dense": "8e-3", "PHM, n = 4": "4e-3", EMBEDDED: "4e-3"}),
    "neuron interaction": ("BLEU", {"dense": "4e-3", "PHM, n = 4": "4e-3"}),
}
FORMS = ("float32", "int8", "int4")  # how the weights of a file are stored
COMPARED_FILES = (("dense", "float32"), ("dense", "int4"), (EMBEDDED, "int4"))
File = tuple[float, Sample, Sample]  # megabytes, BLEU, chrF
# The best rate on valid of those that were tried for 4,000 steps. All other models have 4e-3.
BEST_RATES = {WIDE: "1.6e-2", EIGHTH: "8e-3", LOW_RANK: "8e-3"}


def table_of(model: str) -> str:
    """Return the table with a model's trainings of 4,000 steps."""
    if model == WIDE:
        return "equal parameters"
    if model.removesuffix(DISTILLED) in SMALL:
        return "bytes"
    return "teacher" if model.endswith(DISTILLED) else "plateau"


def at_best_rate(model: str) -> dict[str, str]:
    """Return the columns of a model's averages after 4,000 steps at its best rate."""
    return {**AVERAGE, "rate": BEST_RATES.get(model, AVERAGE["rate"])}


def plateau(model: str, metric: str = "BLEU") -> Sample:
    """Return the scores after 4,000 steps, each model at its best rate."""
    table = table_of(model)
    return sample(table, model, metric, **at_best_rate(model), **({"form": "float32"} if table == "bytes" else {}))


def small_models() -> list[str]:
    """Return the models of `SMALL` that have several seeds."""
    return [model for model in SMALL if len(select("bytes", model=model, form="float32", **at_best_rate(model))) > 1]


def at_steps(model: str, steps: int) -> Sample:
    """Return BLEU of the last checkpoint after some steps."""
    if steps == 800:
        return sample("800 steps", model, "BLEU", **EIGHT)
    if steps == 2000:
        return sample("2,000 steps", model, "BLEU")
    return sample("plateau", model, "BLEU", **LAST)


def task(name: str) -> list[tuple[str, Sample, Sample]]:
    """Return the models of another task: name, scores of dense, own scores."""
    metric, rates = TASKS[name]
    scores = {model: sample(name, model, metric, rate=rate) for model, rate in rates.items()}
    dense = scores.pop("dense")
    return [(model, dense, score) for model, score in scores.items()]


def parameters(model: str, table: str) -> int:
    """Return a model's number of parameters without embeddings."""
    return int(next(row["parameters"] for row in select(table, model=model) if row["parameters"]))


@cache
def ledger(model: str) -> Ledger:
    """Return the parameters of a model of Multi30k by component."""
    settings = SETTINGS[model.removesuffix(DISTILLED)].split()
    return ledger_for_recipe(load_recipe("multi30k-de-en", [f"model.{setting}" for setting in settings]))


def weights(model: str) -> int:
    """Return the number of all weights of a model of Multi30k, embeddings included."""
    return ledger(model).totals.parameters


def files() -> dict[str, dict[str, File]]:
    """Return the files of the dense model and of small ones after 4,000 steps by form, each model at its best rate."""
    models = ["dense", *(f"{model}{taught}" for model in SMALL for taught in ("", DISTILLED))]
    found: dict[str, dict[str, File]] = {}
    for model in models:
        for row in select("bytes", model=model, **at_best_rate(model)):
            same = {**at_best_rate(model), "form": row["form"]}
            bleu, chrf = (sample("bytes", model, metric, **same) for metric in ("BLEU", "chrF"))
            found.setdefault(model, {})[row["form"]] = (float(row["megabytes"]), bleu, chrf)
    return found


def compared_files() -> tuple[File, File, File]:
    """Return the files of the dense model in float32 and in 4 bits, and of n = 4 in 4 bits."""
    dense, rounded, small = (files()[model][form] for model, form in COMPARED_FILES)
    return dense, rounded, small


def against_dense(model: str, metric: str = "BLEU") -> Change:
    """Return a model's difference from dense without a teacher after 4,000 steps."""
    return welch(plateau("dense", metric), plateau(model, metric))


def duration(model: str, processor: str) -> float:
    """Return the minutes of the longest training of 4,000 steps on a core: Zen 4 in bfloat16, Zen 3 in float32."""
    rows = select(table_of(model), model=model, processor=processor, steps="4000")
    ranges = [[float(end) for end in row["minutes"].split("-")] for row in rows if row["minutes"]]
    return fmean(max(ranges))


def equal_score(model: str, number: int) -> Sample:
    """Return BLEU of two models of equal size after 800 (last checkpoint) or 4,000 steps (average)."""
    if number == 4000:
        return plateau(model)
    return sample("equal parameters", model, "BLEU", steps="800")
