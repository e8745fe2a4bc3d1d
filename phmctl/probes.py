"""``eval --probing``: what a translator's encoder knows of its sentences, as Table 3 of Li et al. 2020 has it.

The frozen encoder reads a task's sentences once. Their vectors lie in the data folder, in ``vectors/<corpus>/<key>``;
the key is a digest of the encoder's weights, the corpus' splits and the pooling. A probe, SentEval's perceptron, is
trained on them, and what it answers to the test split is kept beside them: an interrupted command goes on where it
stopped. The folder may be removed at any time.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from phmctl.assembly import answering, build_probe
from phmctl.checkpoints import checkpoint_digest, verify_checkpoint
from phmctl.console import Table, note, once, progress, warn
from phmctl.data.batches import plan_by_count
from phmctl.data.copies import load_tokenizers, read_text
from phmctl.data.prepared.folder import PreparedData, data_root, prepare_command, trained_sizes
from phmctl.data.special import EOS, PAD, UNK
from phmctl.decoding.beam import pad
from phmctl.decoding.translator import Translator, change_decoding, load_translator, plan
from phmctl.devices import isolated, pick_device, seed_generators
from phmctl.errors import DataError, NonFiniteError, RunError
from phmctl.files import locked, read_json_object, sha256, sha256_text, write_atomic, write_json
from phmctl.metrics.classification import Accuracy, McNemar, accuracy, mcnemar
from phmctl.nn.layers import POOLINGS, mean_pool
from phmctl.nn.loss import label_loss
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import ProbingRecipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.training.optimiser import build_optimiser, build_schedule, set_learning_rate
from phmctl.training.trainer import Part, seed_dropout

# group -> (the paper's abbreviation, our name, accuracy in % of Transformer-Base, and with NI composition)
TABLE_3: dict[str, tuple[tuple[str, str, float, float], ...]] = {
    "surface": (("SeLen", "probe-sentence-length", 92.20, 92.11), ("WC", "probe-word-content", 63.00, 63.50)),
    "syntactic": (
        ("TrDep", "probe-tree-depth", 44.74, 44.96),
        ("ToCo", "probe-top-constituents", 79.02, 81.31),
        ("BShif", "probe-bigram-shift", 71.24, 72.44),
    ),
    "semantic": (
        ("Tense", "probe-past-present", 89.24, 89.26),
        ("SubNm", "probe-subj-number", 84.69, 87.05),
        ("ObjNm", "probe-obj-number", 84.53, 86.91),
        ("SOMO", "probe-odd-man-out", 52.13, 52.52),
        ("CoIn", "probe-coord-inversion", 62.47, 64.93),
    ),
}
TASKS = tuple(task for tasks in TABLE_3.values() for _, task, _, _ in tasks)
KINDS = ("encoder", "embeddings")  # what vectors are of: the pooled states; the source embeddings, a bag of words
_ROWS = 1024  # that a probe reads at a time
_MANY_UNKNOWN = 0.05  # of the tokens
_MANY_PIECES = 1.5  # times as many tokens a word as in the text that the encoder was trained for


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
    encoders = [Encoder.of(Path(place), checkpoint, device) for place in (run, against) if place is not None]
    own, root, scores = encoders[0], data or data_root(), {}
    there = _prepared(root, [*settings, f"training.device={device}"])
    words = f"probing {' and '.join(each.run.name for each in encoders)}"
    with once(), progress(words, len(there) * len(encoders) * len(KINDS)) as advance:
        for name, recipe in there.items():
            prepared = _open(recipe, root)
            read = [Sentences(encoder, prepared, root, recipe) for encoder in encoders]
            answers = [each.answers(kind, advance) for each in read for kind in KINDS]
            scores[name] = _scores(prepared, answers)
    rival, pooling = [each.run.name for each in encoders[1:]], next(iter(there.values())).model.pooling
    report = ProbingReport(own.run.name, own.checkpoint, scores, rival[0] if rival else None, pooling)
    write_json(own.run.results_folder / "probing.json", report.as_json())
    return report


def _prepared(root: Path, settings: Sequence[str]) -> dict[str, ProbingRecipe]:
    """Return the recipe of each task whose data is there, in the table's order, or of the one that is asked for."""
    given = {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in settings)}
    asked = given.get("data.card")
    cards = {name: name.replace("probe", "probing", 1) for name in TASKS}
    names = {card: name for name, card in cards.items()}
    cards = cards if asked is None else {names.get(asked, asked): asked}
    own = {"probe-word-content": ["model.hidden=0"]}
    recipes = {
        name: expect(load_recipe("probe", [f"data.card={card}", *own.get(name, []), *settings]), ProbingRecipe)
        for name, card in cards.items()
    }
    there = {name: recipe for name, recipe in recipes.items() if trained_sizes(recipe.data, root) is not None}
    if not there:
        command = prepare_command(next(iter(recipes.values())).data, root)
        raise DataError(f"no probing task is prepared in {root}; for the first one, run: {command} --source DIR")
    return there


def _open(recipe: ProbingRecipe, root: Path) -> PreparedData:
    prepared = PreparedData.find(recipe.data, root)
    if prepared.texts != 1:
        raise DataError(f"a probe reads one sentence an example, and {prepared.folder} has pairs")
    if not prepared.manifest["settings"].get("train_text"):
        raise DataError(
            f"{prepared.folder} keeps no text of train, which an encoder is to read; your own tables keep it with "
            f"--recipe probe, a card with 'train_text: true': {prepared.command} --force"
        )
    for name in ("train", "valid", "test"):
        if not len(prepared.split(name)):
            raise DataError(f"the {name} split in {prepared.folder} holds no example")
    return prepared


def _scores(prepared: PreparedData, answers: Sequence[Sequence[int]]) -> "TaskScores":
    """Return a task's scores, of the answers by the run's states and bag, and by the baseline's where there are."""
    labels, test = prepared.labels, prepared.split("test").labels
    truth = [labels[number] for number in (() if test is None else test)]
    given = [[labels[number] for number in each] for each in answers]
    reached = [accuracy(each, truth) for each in given]
    probed = list(map(Probed, reached[::2], reached[1::2]))
    train: Mapping[str, Any] = prepared.manifest["splits"]["train"]
    majority = max(train["labels"], key=lambda label: train["labels"][label])
    rival, compared = (probed[1], mcnemar(given[2], given[0], truth)) if len(probed) > 1 else (None, None)
    return TaskScores(probed[0], accuracy([majority] * len(truth), truth), int(train["kept"]), rival, compared)


# -------------------------------------------------------------------------------------------------------- vectors


@dataclass(frozen=True)
class Encoder:
    """Whose states are probed: a translator's run, the folder's name of its checkpoint, the SHA-256 of its weights."""

    run: Run
    checkpoint: str
    sha256: str
    device: str = "auto"

    @classmethod
    def of(cls, place: Path, checkpoint: str = "auto", device: str = "auto") -> "Encoder":
        """Find it. Raises RunError: there is no such run or checkpoint, it is damaged, or it is no translator's."""
        run = Run.open(place)
        if not isinstance(run.recipe, TranslationRecipe):
            raise RunError(f"{run.folder} is a run of task {run.recipe.task!r}; only a translator has an encoder")

        def found(name: str) -> Encoder:
            folder = run.checkpoint(name)
            verify_checkpoint(folder, ("model",))  # its vectors may be kept, and then nobody reads it again
            return cls(run, name, checkpoint_digest(folder, "model"), device)

        return run.use(checkpoint, found)

    @cached_property
    def translator(self) -> Translator:
        """The translator, loaded; nothing of a sentence is cut off."""
        exact = change_decoding(self.run.recipe_of(TranslationRecipe).decoding, precision="float32")
        loaded = load_translator(self.run, self.checkpoint, self.device, exact)
        loaded.max_source_tokens = None
        return loaded

    @torch.inference_mode()
    def read(
        self, texts: Sequence[str], pooling: str, advance: Callable[[int], None] = lambda count: None
    ) -> dict[str, Tensor]:
        """Return the vectors (N, d) float32 of texts, of each kind; a text without tokens gives zeros.

        The end of sentence is one of an encoder's positions, and none of the embeddings that are averaged.
        """
        translator = self.translator
        engine: Any = translator.engine
        rows = translator.encode(texts, strict=False)[0]
        width = self.run.recipe_of(TranslationRecipe).model.width
        vectors = {kind: torch.zeros(len(rows), width) for kind in KINDS}
        advance(rows.count([]))
        for places in plan([len(row) for row in rows], translator.settings.batch_tokens):
            ids = pad([rows[place] for place in places]).to(engine.device)  # (B, S)
            seen = ids != PAD
            states, embeddings = engine.model.encode(ids).states, engine.model.source_embedding(ids)  # (B, S, d) both
            vectors["encoder"][places] = POOLINGS[pooling](states, seen).float().cpu()
            vectors["embeddings"][places] = mean_pool(embeddings, seen & (ids != EOS)).float().cpu()
            advance(len(places))
        return vectors

    def warn_of_other_text(self, texts: Sequence[str], corpus: str, language: str | None) -> None:
        """Warn where it reads another language, does not know the words of a corpus, or cuts them into many pieces."""
        name, theirs = self.run.name, self.run.data().get("source_language")
        if language is not None and theirs not in (None, language):
            warn(
                f"{name} translates from {theirs!r}, and the probed sentences are {language!r}: "
                "a probe tells little of an encoder of another language (data.direction turns a recipe round)"
            )
        pieces, unknown = self._fertility(texts)
        own = 0.0
        with suppress(RunError):  # it keeps no text
            own, _ = self._fertility(read_text(self.run, "valid", "source")[:_ROWS])
        if unknown > _MANY_UNKNOWN:
            warn(f"{unknown:.1%} of the tokens of {corpus} are unknown to the tokenizer of {name}: it reads other text")
        elif own and pieces > _MANY_PIECES * own:
            warn(
                f"the tokenizer of {name} cuts a word of {corpus} into {pieces:.1f} pieces, and one of its own text "
                f"into {own:.1f}: it reads other text"
            )

    def _fertility(self, texts: Sequence[str]) -> tuple[float, float]:
        """Return the tokens a word of texts, and the share of unknown ones."""
        rows = load_tokenizers(self.run).source.encode(list(texts))
        tokens, words = sum(map(len, rows)), sum(len(text.split()) for text in texts)
        return tokens / max(words, 1), sum(row.count(UNK) for row in rows) / max(tokens, 1)


class Sentences:
    """A task's sentences as an encoder has them, and what probes answer to them; computed unless they are there.

    A second process waits for the first, and then reads what that wrote. What is damaged is computed again.
    """

    def __init__(self, encoder: Encoder, prepared: PreparedData, root: Path, recipe: ProbingRecipe) -> None:
        self.encoder, self.prepared, self.recipe = encoder, prepared, recipe
        splits = {f"{name}.arrow" for name in prepared.splits}
        data = [entry["sha256"] for entry in prepared.manifest["files"] if entry["name"] in splits]
        key = sha256_text(f"{value}\n" for value in (encoder.sha256, recipe.model.pooling, *data))
        self.folder = root / "vectors" / prepared.folder.parent.name / key[:16]

    def answers(self, kind: str, advance: Callable[[int], None] = lambda count: None) -> list[int]:
        """Return the number of the class that a probe of these vectors answers to each sentence of test."""
        training, model = self.recipe.training, self.recipe.model
        choices = training.model_dump(exclude=keys_changing(training, NOTHING))
        decides = json.dumps({"kind": kind, "model": model.model_dump(), "training": choices})
        path = self.folder / f"answers.{kind}.{sha256_text([decides])[:16]}.json"
        size = len(self.prepared.split("test"))
        with locked(self.folder / ".lock"):
            with suppress(DataError):
                found = read_json_object(path, DataError, "").get("answers") if path.is_file() else None
                if isinstance(found, list) and len(found) == size and set(found) <= {*range(len(self.prepared.labels))}:
                    advance(1)
                    return found
            if kind == "encoder":  # the bag is its baseline, and has been warned of
                texts = self.prepared.split("test").texts[0]
                self.encoder.warn_of_other_text(texts, self.recipe.data.card, self.recipe.data.language)
            given = self._probe(self.vectors(kind))
            write_json(path, {"of": json.loads(decides), "encoder": self.encoder.run.name, "answers": given})
        advance(1)
        return given

    def vectors(self, kind: str) -> dict[str, Tensor]:
        """Return the vectors (N, d) float32 of each split."""
        path, digests = self.folder / f"{kind}.safetensors", self.folder / "sha256.json"
        if digests.is_file():
            with suppress(DataError, OSError, SafetensorError):
                if sha256(path) == read_json_object(digests, DataError, "").get(path.name):
                    found: dict[str, Tensor] = load(path.read_bytes())
                    return found
            note(f"{self.folder} is damaged: its vectors are computed again")
        made: dict[str, dict[str, Tensor]] = {each: {} for each in KINDS}
        for name in self.prepared.splits:
            texts = self.prepared.split(name).texts[0]
            words = f"{self.encoder.run.name} reads {name} of {self.prepared.folder.parent.name}"
            with progress(words, len(texts)) as advance:
                for each, rows in self.encoder.read(texts, self.recipe.model.pooling, advance).items():
                    made[each][name] = rows
        for each, tensors in made.items():
            write_atomic(self.folder / f"{each}.safetensors", save(tensors))
        write_json(digests, {f"{each}.safetensors": sha256(self.folder / f"{each}.safetensors") for each in KINDS})
        return made[kind]

    def _probe(self, vectors: Mapping[str, Tensor]) -> list[int]:
        """Train a probe, and return what it answers to the vectors of test."""
        device = pick_device(self.recipe.training.device)
        labels = {name: torch.tensor(self.prepared.split(name).labels) for name in ("train", "valid")}
        splits = {name: (vectors[name].to(device), labels[name].to(device)) for name in labels}
        with isolated(device, self.recipe.training.threads):
            model = train_probe(self.recipe, splits, len(self.prepared.labels), device)
        with torch.inference_mode():
            parts = torch.split(vectors["test"], _ROWS)
            return [int(row) for part in parts for row in model(part.to(device)).argmax(1)]


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
        loss = model(vectors[chosen], labels=labels[chosen], smoothing=training.label_smoothing) / len(rows)
        loss.backward()
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
    return answering(model.eval())


@torch.no_grad()
def _validate(model: nn.Module, vectors: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the share of right answers, and the negative mean loss."""
    model.eval()
    logits = torch.cat([model(part) for part in torch.split(vectors, _ROWS)])  # (N, classes)
    model.train()
    right = (logits.argmax(1) == labels).double().mean().item()
    return right, -label_loss(logits, labels).item() / len(labels)


# ---------------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Probed:
    """What probes of one encoder reach on a task's test set: by its states, and by a bag of its source embeddings."""

    encoder: Accuracy
    embeddings: Accuracy


@dataclass(frozen=True)
class TaskScores:
    """One task."""

    own: Probed  # of the run
    majority: Accuracy  # of always giving the class that train has most
    train: int  # sentences that the probes were trained on
    against: Probed | None = None  # of the baseline, if there is one
    compared: McNemar | None = None  # McNemar's test of the two encoders' probes

    def figures(self) -> dict[str, Accuracy]:
        """Return its accuracies by name, in the table's order."""
        rival = self.against and {"against": self.against.encoder, "against_bag": self.against.embeddings}
        return {"majority": self.majority, **(rival or {}), "run": self.own.encoder, "run_bag": self.own.embeddings}


@dataclass(frozen=True)
class ProbingReport:
    """What probing found of an encoder."""

    run: str  # the name of its run
    checkpoint: str  # the name of the checkpoint's folder
    tasks: dict[str, TaskScores]  # scores by task, of those whose data is there
    against: str | None = None  # the name of the baseline
    pooling: str = "mean"  # how states became a vector

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; the averages are of the tasks that are there."""
        averages = {group: found for group in TABLE_3 if (found := self._averages(group))}
        rows = [row for tasks in TABLE_3.values() for row in tasks]
        published = {name: {"base": base, "composed": composed} for _, name, base, composed in rows}
        return {**asdict(self), "averages": averages, "missing": self._missing(), "published": published}

    def tables(self) -> Iterator[Table]:
        """Yield the table in the paper's arrangement; a corpus of the user's own comes last."""
        rival = ["base", "its bag"] if self.against else []
        columns = ["", "majority", *rival, "run", "its bag", *(["Δ"] if self.against else []), "Base", "NI", "Δ"]
        rows = []
        for group, tasks in TABLE_3.items():
            rows += [[short, *self._cells(name), *_published(base, ni)] for short, name, base, ni in tasks]
            found, known = self._averages(group), sum(name in self.tasks for _, name, _, _ in tasks)
            average = [f"{value:.2f}" for value in found.values()] or ["–"] * (5 if self.against else 3)
            if self.against:
                average.append(_gain(found["against"], found["run"]) if found else "–")
            title = f"{group}, average{f' of {known}' if known < len(tasks) else ''}"
            means = fmean(base for *_, base, _ in tasks), fmean(composed for *_, composed in tasks)
            rows.append([title, *average, *_published(*means)])
        rows += [[name, *self._cells(name), "–", "–", "–"] for name in self.tasks if name not in TASKS]
        yield Table(f"probing: accuracy of {self.run} in %", columns, rows)

    def notes(self) -> Iterator[str]:
        """Yield what a reader of the table must know."""
        yield f"run: {self.run} ({self.checkpoint}){f'; base: {self.against}' if self.against else ''}; 95 % intervals"
        sizes = {scores.train for scores in self.tasks.values()}
        tested = {scores.majority.total for scores in self.tasks.values()}
        yield (
            f"probes were trained on {min(sizes):,} to {max(sizes):,} sentences and tested on {min(tested):,} to "
            f"{max(tested):,}; the published ones on 100,000 and 10,000"
        )
        yield f"vectors: {self.pooling} over the encoder's positions; bag: the mean of the run's source embeddings"
        yield "at the right as published (Li et al. 2020, Table 3); averages of ours are of the tasks that are there"
        missing = [name.removeprefix("probe-") for name in self._missing()]
        if missing:
            yield f"no data for {', '.join(missing)}: phmctl prepare-data probing-{missing[0]} --source DIR"

    def _missing(self) -> list[str]:
        return [name for name in TASKS if name not in self.tasks]

    def _averages(self, group: str) -> dict[str, float]:
        """Return the mean accuracies in % over a group's tasks that are there."""
        found = [self.tasks[name].figures() for _, name, _, _ in TABLE_3[group] if name in self.tasks]
        return {key: 100 * fmean(each[key].value for each in found) for key in (found[0] if found else ())}

    def _cells(self, name: str) -> list[str]:
        if name not in self.tasks:
            return ["–"] * (6 if self.against else 3)
        scores = self.tasks[name]
        cells = []
        for key, one in scores.figures().items():
            interval = f" ({100 * one.lower:.1f}–{100 * one.upper:.1f})" if key in ("against", "run") else ""
            cells.append(f"{100 * one.value:.1f}{interval}")
        return cells + ([_gain(scores.against.encoder.value, scores.own.encoder.value)] if scores.against else [])


def _published(base: float, composed: float) -> list[str]:
    return [f"{base:.2f}", f"{composed:.2f}", _gain(base, composed)]


def _gain(base: float, other: float) -> str:
    """Return the relative improvement, as the paper's Δ has it."""
    return f"{100 * (other / base - 1):+.1f}%"
