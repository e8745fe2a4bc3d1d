"""What a translator's run keeps of its data: tokenizers, and of each split but train its lines and extras."""

from phmctl.data.arrow import PARALLEL
from phmctl.data.copies import ADVICE, record_copies, refuse_damaged_copy
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import RunError
from phmctl.files import read_json_object, write_atomic, write_json
from phmctl.runs import Run

_EXTRAS = ".extras"  # a split's whole numbers by name, JSON


def write_copies(run: Run, prepared: PreparedData) -> None:
    """Write the tokenizers, the text of the evaluation splits and the manifest into a new run. Raises OutputError."""
    prepared.tokenizers.save(run.tokenizer_folder)
    for name in prepared.splits:
        if name != "train":
            for side, lines in zip(PARALLEL, prepared.split(name).texts, strict=True):
                write_atomic(run.text_folder / f"{name}.{side}", "".join(f"{line}\n" for line in lines))
            if extras := {key: values.tolist() for key, values in prepared.split(name).extras.items()}:
                write_json(run.text_folder / f"{name}{_EXTRAS}", extras)
    record_copies(run, prepared.manifest)


def read_extras(run: Run, split: str) -> dict[str, list[int]]:
    """Return the numbers by which a split's scores are broken down, by name; -1 is not known. Raises RunError."""
    path = run.text_folder / f"{split}{_EXTRAS}"
    if not path.is_file():
        return {}
    refuse_damaged_copy(run, path)
    found: dict[str, list[int]] = read_json_object(path, RunError, ADVICE)
    return found
