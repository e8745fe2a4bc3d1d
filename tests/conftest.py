"""Shared fixtures: the prepared miniature corpus, and a run trained on it for a few steps."""

import os
import shutil
import signal

# Background shells ignore SIGINT and nohup ignores SIGHUP, but some tests send these signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# One thread per test process, set before torch creates its thread pools; the second one of a few tests does not spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from pathlib import Path

import pytest
from hypothesis import settings

from phmctl import shipped
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run

# Hypothesis uses the same few examples in every run. To search for new ones: PHMCTL_EXPLORE=1 make test.
settings.register_profile("same", derandomize=True, max_examples=25, deadline=None)
settings.register_profile("explore", max_examples=200, deadline=None)
settings.load_profile("explore" if os.environ.get("PHMCTL_EXPLORE") else "same")

TINY = (
    "model.width=32",
    "model.feed_forward=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.steps=6",
    "training.validate_every=3",
    "training.save_every=3",
    "training.keep=2",
    "training.average=2",
    "training.precision=float32",
)


@pytest.fixture(scope="session")
def tiny_recipe() -> TranslationRecipe:
    """The miniature recipe with a model that trains in a second."""
    return load_recipe("miniature", ["model.algebra=phm", "model.n=4", *TINY])


@pytest.fixture(scope="session")
def miniature_data(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: TranslationRecipe) -> Path:
    """A data folder with the first 2,000 training pairs of the miniature prepared."""
    from phmctl.data.card import load_card
    from phmctl.data.prepare import prepare

    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shipped.SIZES, "train", 2000)
        prepare(tiny_recipe.data, load_card("miniature"), root=root)
    return root


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: TranslationRecipe, miniature_data: Path) -> Run:
    """A run of the tiny recipe. Tests share it and must not change it."""
    from phmctl.training.train import train

    return train(tiny_recipe, data=miniature_data, runs=tmp_path_factory.mktemp("runs")).run


@pytest.fixture
def copied_run(tiny_run: Run, tmp_path: Path) -> Run:
    """A copy of the tiny run that a test may change."""
    return Run.open(shutil.copytree(tiny_run.folder, tmp_path / "run"))


@pytest.fixture(scope="session")
def copying_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data root of the prepared copying corpus."""
    from tests.training.copying import prepare_copying

    root = tmp_path_factory.mktemp("copying")
    prepare_copying(root)
    return root


@pytest.fixture
def copying_file(tmp_path: Path) -> Path:
    """A recipe file with four steps on the copying corpus."""
    from phmctl.recipe.loading import dump_recipe
    from tests.training.copying import copying_recipe

    path = tmp_path / "copying.yaml"
    path.write_text(dump_recipe(copying_recipe(n=2, steps=4)))
    return path


@pytest.fixture
def train_copying(copying_file: Path, copying_data: Path, tmp_path: Path) -> list[object]:
    """The command that trains on the copying corpus; its folder of runs is ``runs`` in `tmp_path`."""
    return ["train", copying_file, "--data", copying_data, "--runs", tmp_path / "runs"]
