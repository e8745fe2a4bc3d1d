"""What a translator's run keeps of its data: the tokenizers, and the lines of each split but train, a file a side."""

from phmctl.data.arrow import PARALLEL
from phmctl.data.copies import record_copies
from phmctl.data.prepared.folder import PreparedData
from phmctl.files import write_atomic
from phmctl.runs import Run


def write_copies(run: Run, prepared: PreparedData) -> None:
    """Write the tokenizers, the text of the evaluation splits and the manifest into a new run.

    Raises:
        OutputError: the folder cannot be written.
    """
    prepared.tokenizers.save(run.tokenizer_folder)
    for name in prepared.splits:
        if name != "train":
            for side, lines in zip(PARALLEL, prepared.split(name).texts, strict=True):
                write_atomic(run.text_folder / f"{name}.{side}", "".join(f"{line}\n" for line in lines))
    record_copies(run, prepared.manifest)
