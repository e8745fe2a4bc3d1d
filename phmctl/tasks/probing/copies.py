"""What a probe's run keeps: the evaluation splits with their vectors, and which encoder made them."""

from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from phmctl.data.copies import ADVICE, record_copies, refuse_damaged_copy
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import RunError
from phmctl.files import write_atomic
from phmctl.runs import DATA, Run
from phmctl.tasks.classification.copies import write_examples

ENCODER = "encoder"


def write_copies(run: Run, prepared: PreparedData, vectors: Mapping[str, Tensor], encoder: Mapping[str, Any]) -> None:
    """Write the evaluation splits, their vectors by split, the manifest and the encoder's name into a new run.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_examples(run, prepared)
    for name, rows in vectors.items():
        write_atomic(run.text_folder / f"{name}.safetensors", save({"vectors": rows}))
    record_copies(run, {**prepared.manifest, ENCODER: dict(encoder)})


def read_vectors(run: Run, split: str) -> Tensor:
    """Return the vectors (N, d) of a split that a probe's run keeps. Raises RunError if they are missing or damaged."""
    path = run.text_folder / f"{split}.safetensors"
    refuse_damaged_copy(run, path)
    try:
        vectors: Tensor = load(path.read_bytes())["vectors"]
    except (OSError, SafetensorError, LookupError) as error:
        raise RunError(f"{path} cannot be read ({error}); {ADVICE}") from error
    return vectors


def encoder_of(run: Run) -> dict[str, Any]:
    """Return what a probe's run says of its encoder. Raises RunError if it does not say."""
    found = run.data().get(ENCODER)
    if not isinstance(found, dict) or not {"run", "name", "checkpoint", "sha256", "pooling", "width"} <= found.keys():
        raise RunError(f"{run.folder / DATA} does not say which encoder was probed; {ADVICE}")
    return found
