"""``probe``: measure which properties of a sentence a translator's encoder represents.

The frozen encoder turns a task's sentences into vectors, and a probe, SentEval's perceptron, is fitted to them by
L-BFGS (Table 3 of Li et al. 2020).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.answering.base import change_decoding, plan
from phmctl.answering.beam import pad
from phmctl.answering.opening import load_translator
from phmctl.answering.translator import Translator
from phmctl.console import Table, progress, warn
from phmctl.data import EOS, PAD
from phmctl.data.prepared import PreparedData, data_root, prepare_command, trained_sizes
from phmctl.devices import isolated, pick_device, torch_defaults
from phmctl.errors import DataError, NonFiniteError
from phmctl.metrics.classification import Accuracy, accuracy
from phmctl.metrics.text import language
from phmctl.models.classifiers import Probe
from phmctl.nn.convert import to_dense
from phmctl.nn.layers import POOLINGS, mean_pool
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import ProbingRecipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import check_scorable, write_record
from phmctl.shipped import shipped_names

VECTORS = ("encoder", "embeddings")  # pooled encoder states, and the mean source embedding as a bag of words
_SCORES = ("majority", "run", "bag")  # commonest label of train, and probes of the two kinds of vectors


@torch_defaults()
def probe(
    run: str | Path,
    *,
    checkpoint: str = "auto",
    device: str = "auto",
    data: str | Path | None = None,
    settings: Sequence[str] = (),
) -> "ProbingReport":
    """Probe a translator's encoder and write the scores into the run. Raises DataError, RunError, OutputError.

    `data` is the folder of the prepared tasks, by default ``$PHMCTL_DATA`` or ``data``. `settings` are keys of the
    recipe ``probe`` as ``key=value``; ``data.card`` selects a single task.
    """
    encoder = Encoder(run, checkpoint, device)
    check_scorable(encoder.run)
    root = data_root(data)
    recipes = _prepared(root, [f"training.device={device}", *settings])
    code = encoder.run.data().get("source_language")
    languages = {language(recipe.data.language) for recipe in recipes.values() if recipe.data.language}
    if code not in (None, "source") and languages - {language(code)}:  # "source": own files without a language
        warn(f"{encoder.run.name} translates from {code!r}, not from the language of the probed sentences")
    tasks, sizes = {}, {}
    with progress(f"probing {encoder.run.name}", len(recipes)) as advance:
        for card, recipe in recipes.items():
            prepared = PreparedData.find(recipe.data, root)
            if prepared.texts != 1 or not prepared.manifest["settings"].get("train_text"):
                raise DataError(
                    f"{prepared.folder} holds pairs, or no text of train, and encoders read single sentences: prepare "
                    f"a table with --recipe probe, a card with 'train_text: true': {prepared.command} --force"
                )
            predictions = predict(encoder, prepared, recipe)
            train = prepared.manifest["splits"]["train"]
            majority = prepared.labels.index(max(train["labels"], key=train["labels"].__getitem__))
            truth = torch.tensor(prepared.split("test").labels).tolist()
            figures = {
                "majority": accuracy([majority] * len(truth), truth),
                "run": accuracy(predictions["encoder"], truth),
                "bag": accuracy(predictions["embeddings"], truth),
            }
            tasks[card], sizes[card] = figures, int(train["kept"])
            advance(1)
    report = ProbingReport(encoder.run.name, encoder.checkpoint, tasks, sizes, recipe.model.pooling)
    write_record(encoder.run.results_folder / "probing.json", report.as_json())
    return report


def _prepared(root: Path, settings: Sequence[str]) -> dict[str, ProbingRecipe]:
    """Return the recipes of the probing cards whose data is prepared, or of the one that ``data.card`` names."""
    cards = [setting.partition("=")[2].strip() for setting in settings if setting.startswith("data.card=")]
    cards = cards[-1:] or [name for name in shipped_names("cards") if name.startswith("probing-")]
    recipes = {}
    for card in cards:
        defaults = [f"data.card={card}", *(["model.hidden=0"] if card == "probing-word-content" else [])]
        recipes[card] = expect(load_recipe("probe", [*defaults, *settings]), ProbingRecipe)
    prepared = {card: recipe for card, recipe in recipes.items() if trained_sizes(recipe.data, root) is not None}
    if not prepared:
        command = prepare_command(recipes[cards[0]].data, root)
        raise DataError(f"no probing task is prepared in {root}. For the first one, run: {command} --source DIR")
    return prepared


class Encoder:
    """A translator's frozen encoder. Raises RunError if the run is missing or not a translator."""

    def __init__(self, run: str | Path, checkpoint: str = "auto", device: str = "auto") -> None:
        self.run = Run.open(run)
        self.device = device
        self.recipe = self.run.recipe_of(TranslationRecipe)
        self.checkpoint = self.run.chosen(checkpoint)

    @cached_property
    def translator(self) -> Translator:
        """The translator, which is loaded only after the data is found."""
        decoding = change_decoding(self.recipe.decoding, precision="float32")
        translator = load_translator(self.run, self.checkpoint, self.device, decoding)
        translator.max_tokens = None  # read whole sentences
        return translator

    @torch.no_grad()
    def read(self, texts: Sequence[str], pooling: str) -> dict[str, Tensor]:
        """Return both kinds of vectors (N, d) of texts, in float32. A text without tokens gets zeros.

        Pooled encoder states include the end of sentence, mean embeddings do not.
        """
        model, device = self.translator.engine.model, self.translator.engine.device
        token_ids, _ = self.translator.token_ids(texts)
        vectors = {name: torch.zeros(len(token_ids), model.target_embedding.embedding_dim) for name in VECTORS}
        with progress(f"{self.run.name} reads", len(token_ids)) as advance:
            for rows in plan([len(ids) for ids in token_ids], self.recipe.decoding.batch_tokens):
                ids = pad([token_ids[row] for row in rows]).to(device)  # (B, S)
                mask = ids != PAD
                states, embeddings = model.encode(ids).states, model.source_embedding(ids)  # (B, S, d) both
                vectors["encoder"][rows] = POOLINGS[pooling](states, mask).float().cpu()
                vectors["embeddings"][rows] = mean_pool(embeddings, mask & (ids != EOS)).float().cpu()
                advance(len(rows))
        return vectors


def predict(encoder: Encoder, prepared: PreparedData, recipe: ProbingRecipe) -> dict[str, list[int]]:
    """Return the classes that the probe of each kind of vectors predicts for the test split."""
    training = recipe.training
    device = pick_device(training.device)
    vectors, labels, predictions = {}, {}, {}
    for split in ("train", "valid", "test"):
        vectors[split] = encoder.read(prepared.split(split).texts[0], recipe.model.pooling)
        labels[split] = torch.tensor(prepared.split(split).labels)
    for name in VECTORS:
        splits = {split: (vectors[split][name].to(device), labels[split].to(device)) for split in ("train", "valid")}
        with isolated(device, training.threads):
            model = fit_probe(recipe, splits, len(prepared.labels), device)
        with torch.inference_mode():
            predictions[name] = model(vectors["test"][name].to(device)).argmax(1).tolist()
    return predictions


def fit_probe(
    recipe: ProbingRecipe, splits: Mapping[str, tuple[Tensor, Tensor]], classes: int, device: torch.device
) -> nn.Module:
    """Return the probe with the highest accuracy on valid, or at equal accuracy the lowest loss.

    `splits` holds the vectors (N, d) and the classes (N,) of ``train`` and ``valid``, on the device. Raises
    NonFiniteError if the loss is NaN or infinite.
    """
    training = recipe.training
    vectors, labels = splits["train"]
    torch.manual_seed(training.seed)
    model = Probe(recipe.model, vectors.shape[1], classes, device)
    parameters = list(model.parameters())
    optimiser = torch.optim.LBFGS(parameters, max_iter=training.validate_every, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in parameters)
        loss = F.cross_entropy(model(vectors), labels) + training.weight_decay / 2 * penalty
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    best_score, best_weights, stale = (-1.0, -math.inf), model.state_dict(), 0
    for _ in range(0, training.steps, training.validate_every):
        optimiser.step(objective)  # type: ignore[no-untyped-call]
        score = _validate(model, *splits["valid"])
        if not math.isfinite(score[1]):
            raise NonFiniteError("the loss of a probe is NaN or infinite")
        stale += 1
        if score > best_score:
            best_score, best_weights, stale = score, deepcopy(model.state_dict()), 0
        if stale == training.patience > 0:
            break
    model.load_state_dict(best_weights)
    return to_dense(model.eval(), inplace=True)


@torch.no_grad()
def _validate(model: nn.Module, vectors: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the accuracy and the negative mean loss."""
    logits = model(vectors)  # (N, classes)
    correct = (logits.argmax(1) == labels).double().mean().item()
    return correct, -F.cross_entropy(logits, labels).item()


@dataclass(frozen=True)
class ProbingReport:
    run: str
    checkpoint: str
    tasks: dict[str, dict[str, Accuracy]]  # by the card of the data, the majority label's and the two probes' accuracy
    train: dict[str, int]  # number of training sentences by card
    pooling: str = "mean"  # how encoder states became a vector

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "averages": self._averages()}

    def tables(self) -> Iterator[Table]:
        """Yield a table with a row for each task, in per cent, and their average."""
        rows = []
        for card, figures in self.tasks.items():
            majority, run, bag = (f"{100 * figures[name].value:.1f}" for name in _SCORES)
            run += f" ({100 * figures['run'].lower:.1f}–{100 * figures['run'].upper:.1f})"
            rows.append([card.removeprefix("probing-"), majority, run, bag])
        rows.append(["average", *(f"{percent:.2f}" for percent in self._averages().values())])
        yield Table(
            f"probing: accuracy of {self.run}, {self.checkpoint}, in %, with 95 % intervals", ["", *_SCORES], rows
        )

    def _averages(self) -> dict[str, float]:
        """Return the mean accuracies in % over the tasks."""
        return {name: 100 * fmean(figures[name].value for figures in self.tasks.values()) for name in _SCORES}

    @property
    def notes(self) -> Iterator[str]:
        sizes = sorted(self.train.values())
        yield f"probes were fitted to {sizes[0]:,} to {sizes[-1]:,} sentences"
        yield f"vectors: {self.pooling} over the encoder's positions; bag: mean of the run's source embeddings"
