"""Models to ask: a translator of random weights, and the classifiers of the tests of that task."""

import pytest

from phmctl.decoding.model import Model
from phmctl.runs import Run
from tests.tasks.classification.conftest import labelled_data, runs, small
from tests.tasks.translation.runs import make_run

__all__ = ["labelled_data", "runs", "small"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A translator's run. Shared: do not change it."""
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def translator(run: Run) -> Model:
    """The same, loaded."""
    import phmctl

    return phmctl.load(run.folder, device="cpu")
