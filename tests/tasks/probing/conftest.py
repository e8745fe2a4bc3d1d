"""A small probing task in the original layout, prepared once, and what probes need of a tiny translator."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from phmctl.data.prepared.folder import PreparedData
from phmctl.data.prepared.prepare import prepare_named
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import ProbingRecipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.training.train import train

LONG = 10  # words


@pytest.fixture(scope="session")
def probing_data(
    tmp_path_factory: pytest.TempPathFactory, miniature_data: Path, tiny_recipe: TranslationRecipe
) -> Path:
    """A data folder with the miniature's German sentences: NN where they are short, NNS where they are long."""
    split = PreparedData.find(tiny_recipe.data, miniature_data).split("valid")
    labelled = sorted(("NNS" if len(text.split()) >= LONG else "NN", text) for text in {*split.texts[0]})
    rows = {"tr": labelled[::2], "va": labelled[1::4], "te": labelled[3::4]}
    lines = [f"{part}\t{label}\t{text}\n" for part, own in rows.items() for label, text in own]
    folder, root = tmp_path_factory.mktemp("senteval"), tmp_path_factory.mktemp("probing")
    (folder / "subj_number.txt").write_text("".join(lines), encoding="utf-8")
    prepare_named(load_recipe("probe-subj-number").data, root=root, source=folder)
    return root


@pytest.fixture(scope="session")
def prepared(probing_data: Path) -> PreparedData:
    """The prepared sentences."""
    return PreparedData.find(load_recipe("probe-subj-number").data, probing_data)


@pytest.fixture(scope="session")
def probe_recipe(tiny_run: Run) -> Callable[..., ProbingRecipe]:
    """Make a recipe that probes the tiny translator; further settings as ``key=value``."""

    def make(*settings: str) -> ProbingRecipe:
        brief = ("steps=600", "validate_every=200", "save_every=600", "patience=0", "learning_rate=0.01", "device=cpu")
        common = [f"model.encoder={tiny_run.folder}", "data.language=null", *(f"training.{each}" for each in brief)]
        recipe = load_recipe("probe-subj-number", [*common, *settings])
        assert isinstance(recipe, ProbingRecipe)
        return recipe

    return make


@pytest.fixture(scope="session")
def probe_run(
    tmp_path_factory: pytest.TempPathFactory, probe_recipe: Callable[..., ProbingRecipe], probing_data: Path
) -> Run:
    """A trained probe. Shared: do not change it."""
    return train(probe_recipe(), data=probing_data, runs=tmp_path_factory.mktemp("probes"), quiet=True).run


@pytest.fixture
def copied_run(tiny_run: Run, tmp_path: Path) -> Run:
    """A copy of the tiny translator, to be changed."""
    return Run.open(shutil.copytree(tiny_run.folder, tmp_path / "copy" / "v001"))


@pytest.fixture
def copied_data(probing_data: Path, tmp_path: Path) -> Path:
    """A copy of the prepared sentences, without vectors."""
    return shutil.copytree(probing_data, tmp_path / "data", ignore=shutil.ignore_patterns("vectors"))
