from pathlib import Path

import pytest

from phmctl.answering.opening import CTRANSLATE2, ONNX, Export
from phmctl.export.verb import Exported, export
from phmctl.runs import Run
from phmctl.storage import file_entry, write_json
from tests.tasks.translation.runs import make_run

LIBRARIES = {CTRANSLATE2: ["ctranslate2"], ONNX: ["onnx", "onnxruntime"]}


def needs(to: str) -> None:
    """Skip the test if the libraries of an export are not installed."""
    for library in LIBRARIES.get(to, []):
        pytest.importorskip(library)


def reseal(folder: Path) -> None:
    """Write the digests of an export's files as they are now into its manifest."""
    manifest = Export.open(folder).manifest
    entries = [file_entry(folder, entry["name"]) for entry in manifest["files"]]
    write_json(folder / "export.json", manifest | {"files": entries})


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a random model with seven lines of text. Shared: do not change it."""
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def exported(tiny_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An export of the tiny run to CTranslate2. Shared: do not change it."""
    pytest.importorskip("ctranslate2")
    return export(tiny_run, CTRANSLATE2, Path(tmp_path_factory.mktemp("exports") / "ct2"), texts=16)
