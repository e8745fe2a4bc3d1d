"""The true map in a run: a run that was moved is judged by what it was trained on, whatever torch draws there."""

from safetensors import SafetensorError
from safetensors.torch import load, save

from phmctl.data.copies import ADVICE, record_copies, refuse_damaged_copy
from phmctl.errors import RunError
from phmctl.files import write_atomic
from phmctl.recipe.schema import RuleDataSection
from phmctl.runs import Run
from phmctl.tasks.rule_learning.truth import Truth

TRUTH = "truth.safetensors"


def write_truth(run: Run, data: RuleDataSection, truth: Truth) -> None:
    """Write the true map into a new run, and ``data.json`` with its SHA-256.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_atomic(run.folder / TRUTH, save({"A": truth.A.contiguous(), "S": truth.S.contiguous()}))
    record_copies(run, data.model_dump(), run.folder / TRUTH)


def read_truth(run: Run) -> Truth:
    """Return the true map that a run was trained on.

    Raises:
        RunError: it is missing or damaged.
    """
    path = run.folder / TRUTH
    refuse_damaged_copy(run, path)
    try:
        return Truth(**load(path.read_bytes()))
    except (OSError, SafetensorError, TypeError) as error:
        raise RunError(f"{path} cannot be used ({error}); {ADVICE}") from error
