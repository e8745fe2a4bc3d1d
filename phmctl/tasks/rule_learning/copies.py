"""The true map in a run: a run that was moved is judged by what it was trained on, whatever torch draws there."""

from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from phmctl.errors import RunError
from phmctl.files import are_file_entries, damage, file_entry, write_atomic, write_json
from phmctl.recipe.schema import RuleDataSection
from phmctl.runs import DATA, Run
from phmctl.tasks.rule_learning.truth import Truth

TRUTH = "truth.safetensors"
_COPIES = "copies"
_ADVICE = "copy the run again"


def write_truth(run: Run, data: RuleDataSection, truth: Truth) -> None:
    """Write the true map into a new run, and ``data.json`` with its SHA-256.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_atomic(run.folder / TRUTH, save({"A": truth.A.contiguous(), "S": truth.S.contiguous()}))
    write_json(run.folder / DATA, {**data.model_dump(), _COPIES: [file_entry(run.folder, TRUTH)]})


def read_truth(run: Run) -> Truth:
    """Return the true map that a run was trained on.

    Raises:
        RunError: it is missing or damaged.
    """
    path = run.folder / TRUTH
    entries: list[dict[str, Any]] = run.data().get(_COPIES, [])
    if not are_file_entries(entries):
        raise RunError(f"{run.folder / DATA} is damaged: {_COPIES!r} is no list of files; {_ADVICE}")
    wrong = damage(run.folder, entries, TRUTH)
    if wrong is not None:
        raise RunError(f"{path} {wrong}; {_ADVICE}")
    try:
        return Truth(**load(path.read_bytes()))
    except (OSError, SafetensorError, TypeError) as error:
        raise RunError(f"{path} cannot be used ({error}); {_ADVICE}") from error
