import pytest

from phmctl.runs import Run
from tests.tasks.translation.runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a random model. Shared: do not change it."""
    return make_run(tmp_path_factory.mktemp("runs"))
