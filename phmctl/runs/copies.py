"""Copies of data in a run, so that it can be used anywhere: tokenizers, raw evaluation text, the manifest.

The manifest of the prepared data is the run's ``data.json``.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.data.card import Cleaning
from phmctl.data.tokenizer import TokenizerPair, Vocabulary
from phmctl.errors import DataError, RunError, nearest
from phmctl.runs import DATA, Run, Trained
from phmctl.runs.run import find_run

if TYPE_CHECKING:  # an export answers without numpy
    from phmctl.data.prepared import PreparedData

EXTRAS = ".extras"  # suffix of a split's file of whole numbers by name, JSON
ADVICE = "copy the run again"


def load_tokenizers(run: Trained) -> TokenizerPair:
    try:
        return TokenizerPair.load(run.tokenizer_folder)
    except DataError as error:
        raise RunError(f"{run.folder} is not a complete run: {ADVICE}: {error}") from error


def load_labels(run: Trained) -> list[str]:
    return list(run.data()["labels"])


def load_cleaning(run: Trained) -> Cleaning:
    return Cleaning(**run.data()["settings"]["cleaning"])


def read_text(run: Trained, split: str, side: str) -> list[str]:
    """Return the cleaned lines of a split's ``source`` or ``target`` that are stored in a run."""
    path = run.text_path(f"{split}.{side}")
    if not path.exists():
        splits = run.splits()
        has = ", ".join(splits) or "none (an export has text if it was made with --with-text)"
        raise RunError(
            f"{path} is missing: the run lacks {side} text of split {split!r}{nearest(split, splits)}, it has {has}"
        )
    try:
        lines = [line.removesuffix("\r") for line in path.read_bytes().decode("utf-8").split("\n")[:-1]]
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error}): {ADVICE}") from error
    rows = run.data().get("splits", {}).get(split, {}).get("kept", len(lines))
    if len(lines) != rows:
        raise RunError(f"{path} has {len(lines)} lines, but {DATA} counts {rows}: {ADVICE}")
    return lines


def vocabulary_of(path: Path) -> Vocabulary:
    """Return the vocabulary of a prepared folder or of a run. Raises DataError, RunError."""
    if (path / "manifest.json").is_file():
        from phmctl.data.prepared import PreparedData  # imports numpy

        prepared = PreparedData(path)
        settings = prepared.manifest["settings"]
        return Vocabulary(str(path), prepared.tokenizers, Cleaning(**settings["cleaning"]), settings)
    folders = sorted(str(manifest.parent) for manifest in path.glob("[!.]*/manifest.json"))
    if folders:
        raise DataError(f"{path} is the folder of a corpus: name a folder in it: {', '.join(folders)}")
    run = Run.open(find_run(path))
    settings = run.data().get("settings", {})
    if "vocabulary" not in settings:
        raise DataError(f"{run.name} was not trained on text and lacks a vocabulary: name another run")
    return Vocabulary(run.name, load_tokenizers(run), load_cleaning(run), settings)


def check_same_vocabulary(run: Run, prepared: "PreparedData", key: str = "training.initialise_from") -> None:
    """Raise RunError if the tokenizers of a run, the value of the recipe's `key`, differ from the prepared data's."""
    if load_tokenizers(run) != prepared.tokenizers:
        raise RunError(
            f"{key}: {run.folder} has another vocabulary than {prepared.folder}, so the embeddings "
            "belong to other tokens: use a run that was trained on this data"
        )


def check_same_data(run: Run, prepared: "PreparedData") -> None:
    """Raise RunError if the prepared data differs from the data on which a run was trained."""
    before, now = run.data(), prepared.manifest
    changed = [key for key in ("settings", "sources", "token_types", "labels") if before.get(key) != now.get(key)]
    if not changed and load_tokenizers(run) != prepared.tokenizers:
        changed = ["tokenizers"]
    if changed:
        raise RunError(
            f"{prepared.folder} differs from the data of {run.folder}: {', '.join(changed)} "
            f"(see {DATA} and manifest.json)\nprepare the earlier data again, or train a new run on this data"
        )
