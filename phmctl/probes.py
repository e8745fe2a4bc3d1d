"""``eval --probing``: what a translator's encoder knows of its sentences, as Table 3 of Li et al. 2020 has it.

The frozen encoder reads a task's sentences, and a probe, SentEval's perceptron, is trained on their vectors. What it
answers to the test split is kept in the data folder, in ``probes/<corpus>/<key>.json``: an interrupted command goes on
with the next task. The key is a digest of the encoder's weights, the corpus' splits and the settings of the probe. The
folder may be removed at any time.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phmctl.assembly import build_probe
from phmctl.console import Table, progress, warn
from phmctl.data.batches import plan_by_count
from phmctl.data.prepared.folder import PreparedData, data_root, prepare_command, trained_sizes
from phmctl.data.special import EOS, PAD
from phmctl.decoding.beam import pad
from phmctl.decoding.translator import Translator, change_decoding, load_translator, plan
from phmctl.devices import isolated, pick_device, seed_generators
from phmctl.errors import DataError, NonFiniteError
from phmctl.files import read_json_object, sha256_text, write_json
from phmctl.metrics.classification import Accuracy, McNemar, accuracy, mcnemar
from phmctl.nn.convert import to_dense
from phmctl.nn.layers import POOLINGS, mean_pool
from phmctl.nn.loss import label_loss
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.models import NOTHING, ProbeSection, keys_changing
from phmctl.recipe.schema import ProbingRecipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.tasks.base import Sizes, TaskKind
from phmctl.training.optimiser import build_optimiser, build_schedule, set_learning_rate
from phmctl.training.trainer import Part, seed_dropout

# group, the paper's abbreviation, our name, accuracy in % of Transformer-Base, and with NI composition
TABLE_3 = (
    ("surface", "SeLen", "probe-sentence-length", 92.20, 92.11),
    ("surface", "WC", "probe-word-content", 63.00, 63.50),
    ("syntactic", "TrDep", "probe-tree-depth", 44.74, 44.96),
    ("syntactic", "ToCo", "probe-top-constituents", 79.02, 81.31),
    ("syntactic", "BShif", "probe-bigram-shift", 71.24, 72.44),
    ("semantic", "Tense", "probe-past-present", 89.24, 89.26),
    ("semantic", "SubNm", "probe-subj-number", 84.69, 87.05),
    ("semantic", "ObjNm", "probe-obj-number", 84.53, 86.91),
    ("semantic", "SOMO", "probe-odd-man-out", 52.13, 52.52),
    ("semantic", "CoIn", "probe-coord-inversion", 62.47, 64.93),
)
TASKS = tuple(task for _, _, task, _, _ in TABLE_3)
KINDS = ("encoder", "embeddings")  # what vectors are of: the pooled states; the source embeddings, a bag of words
_ROWS = 1024  # that a probe reads at a time
_WIDTH = 512  # of the vectors, counted where no encoder is there to tell


def probe(
    run: str | Path,
    *,
    against: str | Path | None = None,
    checkpoint: str = "auto",
    device: str = "auto",
    data: Path | None = None,
    settings: Sequence[str] = (),
) -> "ProbingReport":
    """Probe a translator's encoder, and write the scores into its results. Raises DataError, RunError, OutputError.

    `against` is another translator, the table's base, which is only read; `checkpoint` is of both. `data` is the folder
    with the prepared tasks, by default ``$PHMCTL_DATA`` or ``data``. `settings` are keys of the recipe ``probe``,
    ``key=value``; with ``data.card`` its task alone is probed.
    """
    encoders = [Encoder(place, checkpoint, device) for place in (run, against) if place is not None]
    own, root, scores = encoders[0], data or data_root(), {}
    there = _prepared(root, [f"training.device={device}", *settings])
    languages = {recipe.data.language for recipe in there.values()} - {None}
    for each in encoders:
        theirs = each.run.data().get("source_language")
        if theirs not in (None, "source") and languages - {theirs}:  # own files may have sides alone
            advice = "a probe tells little of an encoder of another language (data.direction turns a recipe round)"
            warn(f"{each.run.name} translates from {theirs!r}, not the language of the probed sentences: {advice}")
    with progress(f"probing {own.run.name}", len(there) * len(encoders)) as advance:
        for name, recipe in there.items():
            prepared, answers = _open(recipe, root), list[list[int]]()
            for encoder in encoders:
                answers += answers_of(encoder, prepared, root, recipe).values()
                advance(1)
            scores[name] = _scores(prepared, answers)
    rival, pooling = next((each.run.name for each in encoders[1:]), None), next(iter(there.values())).model.pooling
    report = ProbingReport(own.run.name, own.weights.name, scores, rival, pooling)
    write_json(own.run.results_folder / "probing.json", report.as_json())
    return report


def _prepared(root: Path, settings: Sequence[str]) -> dict[str, ProbingRecipe]:
    """Return the recipe of each task whose data is there, in the table's order, or of the one that is asked for."""
    given = {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in settings)}
    recipes = {}
    for name in [given["data.card"].replace("probing-", "probe-", 1)] if "data.card" in given else TASKS:
        own = [f"data.card={name.replace('probe-', 'probing-', 1)}"]
        own += ["model.hidden=0"] if name == "probe-word-content" else []
        recipes[name] = expect(load_recipe("probe", [*own, *settings]), ProbingRecipe)
    there = {name: recipe for name, recipe in recipes.items() if trained_sizes(recipe.data, root) is not None}
    if not there:
        command = prepare_command(next(iter(recipes.values())).data, root)
        raise DataError(f"no probing task is prepared in {root}; for the first one, run: {command} --source DIR")
    return there


def _open(recipe: ProbingRecipe, root: Path) -> PreparedData:
    prepared = PreparedData.find(recipe.data, root)
    if prepared.texts != 1 or not prepared.manifest["settings"].get("train_text"):
        raise DataError(
            f"{prepared.folder} has pairs, or keeps no text of train, and an encoder reads single sentences; your own "
            f"tables keep it with --recipe probe, a card with 'train_text: true': {prepared.command} --force"
        )
    return prepared


def _scores(prepared: PreparedData, answers: Sequence[Sequence[int]]) -> "TaskScores":
    """Return a task's scores, of the answers by the run's states and bag, and by the baseline's where there are."""
    labels, train = prepared.labels, prepared.manifest["splits"]["train"]
    truth = [labels[number] for number in np.asarray(prepared.split("test").labels)]
    given = [[labels[number] for number in each] for each in answers]
    majority = [max(train["labels"], key=train["labels"].__getitem__)] * len(truth)
    names = ("run", "run_bag", "against", "against_bag", "majority")[: len(given)]
    reached = {name: accuracy(each, truth) for name, each in zip(names, given, strict=True)}
    figures = {"majority": accuracy(majority, truth), **dict(sorted(reached.items()))}
    return TaskScores(figures, int(train["kept"]), mcnemar(given[2], given[0], truth) if len(given) > 2 else None)


class Encoder:
    """A translator's run and checkpoint, whose states are probed. Raises RunError: there is none, or no translator."""

    def __init__(self, place: str | Path, checkpoint: str = "auto", device: str = "auto") -> None:
        self.run, self.device = Run.open(place), device
        self.recipe = self.run.recipe_of(TranslationRecipe)
        self.weights = self.run.use(checkpoint, self.run.weights)

    @cached_property
    def translator(self) -> Translator:
        exact = change_decoding(self.recipe.decoding, precision="float32")
        loaded = load_translator(self.run, self.weights.name, self.device, exact)
        loaded.max_tokens = None  # nothing of a sentence is cut off
        return loaded

    @torch.inference_mode()
    def read(self, texts: Sequence[str], pooling: str) -> dict[str, Tensor]:
        """Return the vectors (N, d) float32 of texts, of each kind; a text without tokens gives zeros.

        The end of sentence is one of an encoder's positions, and none of the embeddings that are averaged.
        """
        model, device = self.translator.engine.model, self.translator.engine.device
        rows, _ = self.translator.token_ids(texts)
        vectors = {kind: torch.zeros(len(rows), model.target_embedding.embedding_dim) for kind in KINDS}
        with progress(f"{self.run.name} reads", len(rows)) as advance:
            for places in plan([len(row) for row in rows], self.recipe.decoding.batch_tokens):
                ids = pad([rows[place] for place in places]).to(device)  # (B, S)
                seen = ids != PAD
                states, embeddings = model.encode(ids).states, model.source_embedding(ids)  # (B, S, d) both
                vectors["encoder"][places] = POOLINGS[pooling](states, seen).float().cpu()
                vectors["embeddings"][places] = mean_pool(embeddings, seen & (ids != EOS)).float().cpu()
                advance(len(places))
        return vectors


def answers_of(encoder: Encoder, prepared: PreparedData, root: Path, recipe: ProbingRecipe) -> dict[str, list[int]]:
    """Return the number of the class that a probe of each kind of vectors answers to each sentence of test.

    They are computed unless they are kept in the data folder.
    """
    training, name = recipe.training, encoder.run.name
    data = sorted(entry["sha256"] for entry in prepared.manifest["files"] if entry["name"].endswith(".arrow"))
    choices = training.model_dump(exclude=keys_changing(training, NOTHING))
    of = {"encoder": encoder.weights.sha256, "data": data, "model": recipe.model.model_dump(), "training": choices}
    path = root / "probes" / prepared.folder.parent.name / f"{sha256_text([json.dumps(of)])[:16]}.json"
    with suppress(DataError):
        if path.is_file() and (kept := read_json_object(path, DataError, "")).get("of") == of:
            found: dict[str, list[int]] = kept["answers"]
            return found
    device, classes, vectors, labels = pick_device(training.device), len(prepared.labels), {}, {}
    for split in ("train", "valid", "test"):
        vectors[split] = encoder.read(prepared.split(split).texts[0], recipe.model.pooling)
        labels[split] = torch.tensor(prepared.split(split).labels)
    found = {}
    for kind in KINDS:
        splits = {split: (vectors[split][kind].to(device), labels[split].to(device)) for split in ("train", "valid")}
        with isolated(device, training.threads):
            model = train_probe(recipe, splits, classes, device)
        with torch.inference_mode():
            parts = torch.split(vectors["test"][kind], _ROWS)
            found[kind] = [int(row) for part in parts for row in model(part.to(device)).argmax(1)]
    write_json(path, {"of": of, "run": name, "answers": found})
    return found


def train_probe(
    recipe: ProbingRecipe, splits: Mapping[str, tuple[Tensor, Tensor]], classes: int, device: torch.device
) -> nn.Module:
    """Return the probe that is best on valid: by its accuracy, and by its loss where that is equal.

    `splits` has the vectors (N, d) and the numbers of the classes (N,) of ``train`` and ``valid``, on the device.
    Raises NonFiniteError where the loss is no number.
    """
    training, (vectors, labels) = recipe.training, splits["train"]
    seed_generators(device, training.seed)
    model: nn.Module = build_probe(recipe.model, vectors.shape[1], classes, device)
    optimiser, schedule = build_optimiser(model, training), build_schedule(training)
    best, kept, stale = (-1.0, -math.inf), model.state_dict(), 0
    even, size, seed = [np.ones(len(vectors), np.int64)], training.batch_size, training.seed
    batches = (rows for epoch in count() for rows in plan_by_count(even, size, seed=seed, epoch=epoch))
    for step, rows in zip(range(1, training.steps + 1), batches, strict=False):
        seed_dropout(device, training.seed, step, Part(0, 0, rows))
        chosen = torch.from_numpy(rows).to(device)
        loss = label_loss(model(vectors[chosen]), labels[chosen], training.label_smoothing) / len(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip or math.inf)
        set_learning_rate(optimiser, schedule(step))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % training.validate_every and step != training.steps:
            continue
        score = _validate(model, *splits["valid"])
        if not math.isfinite(score[1]):
            raise NonFiniteError(f"step {step}: the probe's loss is no number; lower training.learning_rate")
        if score > best:
            best, kept, stale = score, deepcopy(model.state_dict()), 0
        else:
            stale += 1
        if stale == training.patience > 0:
            break
    model.load_state_dict(kept)
    return to_dense(model.eval(), inplace=True)


@torch.no_grad()
def _validate(model: nn.Module, vectors: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the share of right answers, and the negative mean loss."""
    model.eval()
    logits = torch.cat([model(part) for part in torch.split(vectors, _ROWS)])  # (N, classes)
    model.train()
    right = (logits.argmax(1) == labels).double().mean().item()
    return right, -label_loss(logits, labels).item() / len(labels)


@dataclass(frozen=True)
class TaskScores:
    # by name, in the table's order: ``majority``, of always giving the class that train has most; ``against`` by the
    # baseline's states and ``against_bag`` by a bag of its source embeddings, if there is one; ``run`` and ``run_bag``
    figures: dict[str, Accuracy]
    train: int  # sentences that the probes were trained on
    compared: McNemar | None = None  # McNemar's test of the two encoders' probes


@dataclass(frozen=True)
class ProbingReport:
    run: str  # the name of its run
    checkpoint: str  # the name of the checkpoint's folder
    tasks: dict[str, TaskScores]  # scores by task, of those whose data is there
    against: str | None = None  # the name of the baseline
    pooling: str = "mean"  # how states became a vector

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; the averages are of the tasks that are there."""
        averages = {group: found for group, *_ in TABLE_3 if (found := self._averages(group))}
        return {**asdict(self), "averages": averages, "missing": [name for name in TASKS if name not in self.tasks]}

    def tables(self) -> Iterator[Table]:
        """Yield the table in the paper's arrangement; a corpus of the user's own comes last."""
        columns = ["majority", *(["base", "its bag"] if self.against else []), "run", "its bag"]
        columns += ["Δ"] if self.against else []

        def cells(found: Mapping[str, float], intervals: Mapping[str, Accuracy], form: str) -> list[str]:
            if not found:
                return ["–"] * len(columns)
            shown = [f"{value:{form}}" for value in found.values()]
            for place, (key, one) in enumerate(intervals.items()):
                shown[place] += f" ({100 * one.lower:.1f}–{100 * one.upper:.1f})" if key in ("against", "run") else ""
            return shown + ([_gain(found["against"], found["run"])] if self.against else [])

        def row(name: str) -> list[str]:
            figures = self.tasks[name].figures if name in self.tasks else {}
            return cells({key: 100 * one.value for key, one in figures.items()}, figures, ".1f")

        rows = []
        for group in dict.fromkeys(group for group, *_ in TABLE_3):
            tasks = [task for task in TABLE_3 if task[0] == group]
            rows += [[short, *row(name), *_published(base, ni)] for _, short, name, base, ni in tasks]
            known = sum(name in self.tasks for _, _, name, _, _ in tasks)
            title = f"{group}, average{f' of {known}' if known < len(tasks) else ''}"
            means = fmean(each[3] for each in tasks), fmean(each[4] for each in tasks)
            rows.append([title, *cells(self._averages(group), {}, ".2f"), *_published(*means)])
        rows += [[name, *row(name), "–", "–", "–"] for name in self.tasks if name not in TASKS]
        yield Table(f"probing: accuracy of {self.run} in %", ["", *columns, "Base", "NI", "Δ"], rows)

    def notes(self) -> Iterator[str]:
        yield f"run: {self.run} ({self.checkpoint}){f'; base: {self.against}' if self.against else ''}; 95 % intervals"
        sizes = {scores.train for scores in self.tasks.values()}
        yield f"probes were trained on {min(sizes):,} to {max(sizes):,} sentences, the published ones on 100,000"
        yield f"vectors: {self.pooling} over the encoder's positions; bag: the mean of the run's source embeddings"
        yield "at the right as published (Li et al. 2020, Table 3); averages of ours are of the tasks that are there"
        if missing := [name.removeprefix("probe-") for name in TASKS if name not in self.tasks]:
            yield f"no data for {', '.join(missing)}: phmctl prepare-data probing-{missing[0]} --source DIR"

    def _averages(self, group: str) -> dict[str, float]:
        """Return the mean accuracies in % over a group's tasks that are there."""
        found = [self.tasks[row[2]].figures for row in TABLE_3 if row[0] == group and row[2] in self.tasks]
        return {key: 100 * fmean(each[key].value for each in found) for key in (found[0] if found else ())}


def _published(base: float, composed: float) -> list[str]:
    return [f"{base:.2f}", f"{composed:.2f}", _gain(base, composed)]


def _gain(base: float, other: float) -> str:
    return f"{100 * (other / base - 1):+.1f}%"


class ProbingKind(TaskKind[ProbingRecipe]):
    """A perceptron on the vectors of a frozen encoder: no run of its own."""

    recipe = ProbingRecipe
    commands = ("eval RUN --probing", "count-params")

    def sizes(self, recipe: ProbingRecipe, data: Path | None = None) -> Sizes:
        trained = None if data is None else trained_sizes(recipe.data, data)
        classes = 2 if trained is None else trained[1]  # counted where no data, and no encoder, is there to tell
        return Sizes({"width": _WIDTH, "classes": classes}, f"vectors {_WIDTH} wide, {classes} classes")

    def build(
        self, settings: ProbeSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        return build_probe(settings, sizes["width"], sizes["classes"], device)

    def notes(self, settings: ProbeSection, sizes: Mapping[str, int]) -> tuple[str]:
        return (f"the probe alone: it reads vectors {sizes['width']} wide; the encoder that makes them is not counted",)


KIND = ProbingKind()
