"""Two small labelled corpora that can be learned, prepared once, and a run of each."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.tasks import classification
from phmctl.tasks.classification import ClassifierReport
from tests.data.helpers import prepare_tables

NOUNS = ["cat", "dog", "key", "tree", "house", "road", "bird", "stone"]


def filler(draw: random.Random) -> str:
    """A word that hardly another example has: without it, all of train would stand in test."""
    return f"w{draw.randrange(10_000)}"


def prefixes(count: int, seed: int) -> list[str]:
    """Singular or plural by the first noun, whatever stands behind it."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label, middle = draw.choice(["VBZ", "VBP"]), draw.randint(0, 3)
        ending = "s" if label == "VBP" else ""
        distractors = [f"near the {draw.choice(NOUNS)}{draw.choice(['', 's'])}" for _ in range(middle)]
        text = " ".join([f"{filler(draw)} the {draw.choice(NOUNS)}{ending}", *distractors])
        rows.append("\t".join([label, text, str(middle)]))
    return rows


def pairs(count: int, seed: int) -> list[str]:
    """Whether the second text has the noun of the first."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        noun = draw.choice(NOUNS)
        other = draw.choice([each for each in NOUNS if each != noun])
        label = draw.choice(["same", "other"])
        rows.append(f"{label}\t{filler(draw)} see the {noun}\tthe {noun if label == 'same' else other} is here")
    return rows


def write_tables(folder: Path, header: str, splits: dict[str, Sequence[str]]) -> dict[str, Path]:
    paths = {name: folder / f"{name}.tsv" for name in splits}
    for name, rows in splits.items():
        paths[name].write_text("".join(f"{row}\n" for row in [header, *rows]))
    return paths


@pytest.fixture(scope="session")
def labelled_data(tmp_path_factory: pytest.TempPathFactory, small: Callable[..., ClassificationRecipe]) -> Path:
    """A data folder with ``prefixes`` (one text, an extra) and ``pairs``."""
    root = tmp_path_factory.mktemp("labelled")
    counts = {"train": (600, 1), "valid": (60, 2), "test": (90, 3)}
    texts = {name: prefixes(*count) for name, count in counts.items()} | {"test_other": prefixes(40, 4)}
    folder = tmp_path_factory.mktemp("texts")
    tables = write_tables(folder, "label\ttext\tdistractors", texts)
    prepare_tables(small("encoder").data, root=root, tables=tables, text=["text"], extra=["distractors"])
    folder = tmp_path_factory.mktemp("pairs")
    tables = write_tables(folder, "label\tone\ttwo", {name: pairs(*count) for name, count in counts.items()})
    prepare_tables(small("lstm-pair").data, root=root, tables=tables, text=["one", "two"])
    return root


@pytest.fixture(scope="session")
def small() -> Callable[..., ClassificationRecipe]:
    """Make a recipe of a model that trains in a second; further settings as ``key=value``."""
    shapes = {
        "encoder": ("agreement-resplit", "prefixes", "model.feed_forward=64", "model.layers=1"),
        "lstm-pair": ("snli-counterfactual", "pairs", "model.embedding_width=16", "model.hidden=32"),
    }

    def make(kind: str = "encoder", *settings: str) -> ClassificationRecipe:
        recipe, card, *shape = shapes[kind]
        common = ["training.steps=6", "training.validate_every=3", "training.save_every=3", "training.batch_size=32"]
        common += ["model.width=32", "model.algebra=phm", "model.n=4", "data.vocabulary=60", "training.device=cpu"]
        loaded = load_recipe(recipe, [f"data.card={card}", *shape, *common, *settings])
        assert isinstance(loaded, ClassificationRecipe)
        return loaded

    return make


@pytest.fixture(scope="session")
def runs(
    tmp_path_factory: pytest.TempPathFactory, small: Callable[..., ClassificationRecipe], labelled_data: Path
) -> dict[str, Run]:
    """A run of each kind. Shared: do not change them."""
    from phmctl.training.train import train

    root = tmp_path_factory.mktemp("runs")
    kinds = ("encoder", "lstm-pair")
    return {kind: train(small(kind), data=labelled_data, runs=root).run for kind in kinds}


def evaluate(run: Run, split: str = "test") -> ClassifierReport:
    return classification.evaluate(run, split, "best", "cpu")
