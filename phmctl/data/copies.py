"""What a run keeps of its data, so that it can be used anywhere: tokenizers, raw evaluation text, the manifest.

The manifest of the prepared data is the run's ``data.json``. Its ``copies`` are the files of ``tokenizer/`` and
``text/`` with their SHA-256, which is compared before a file is used. A run of an earlier version records none; nothing
is compared there.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from phmctl.data.card import Cleaning
from phmctl.data.prepared.manifest import migrated
from phmctl.data.tokenizer import JOINT_FILE, SIDE_FILES, TokenizerPair
from phmctl.errors import DataError, RunError, nearest
from phmctl.files import are_file_entries, damage, file_entry, write_json
from phmctl.runs import DATA, Run

_COPIES = "copies"
ADVICE = "copy the run again"

T = TypeVar("T")


def record_copies(run: Run, manifest: Mapping[str, Any]) -> None:
    """Write a new run's ``data.json``: the data's manifest, and the SHA-256 of all that lies in the run's folders.

    Raises:
        OutputError: the folder cannot be written.
    """
    folders = (run.tokenizer_folder, run.text_folder)
    record_files(run, manifest, [path for folder in folders for path in sorted(folder.glob("*"))])


def record_files(run: Run, manifest: Mapping[str, Any], paths: Iterable[Path]) -> None:
    """Write a new run's ``data.json``: what its data is, and the SHA-256 of the files of the run that hold some of it.

    Raises:
        OutputError: the folder cannot be written.
    """
    entries = [file_entry(run.folder, str(path.relative_to(run.folder))) for path in paths]
    write_json(run.folder / DATA, {**manifest, _COPIES: entries})


def load_tokenizers(run: Run) -> TokenizerPair:
    """Return the tokenizers that a run was trained with.

    Raises:
        RunError: one is missing or damaged.
    """
    return load_copy(run, (JOINT_FILE, *SIDE_FILES), TokenizerPair.load)


def load_copy(run: Run, names: Iterable[str], load: Callable[[Path], T]) -> T:
    """Return what `load` makes of a run's folder of tokenizers.

    Args:
        run: the run.
        names: the files that are used, of which not all need be there.
        load: gets the folder.

    Raises:
        RunError: a file is missing or damaged.
    """
    for name in names:
        refuse_damaged_copy(run, run.tokenizer_folder / name)
    try:
        return load(run.tokenizer_folder)
    except DataError as error:
        raise RunError(f"{run.folder} is no complete run, {ADVICE}: {error}") from error


def load_cleaning(run: Run) -> Cleaning:
    """Return what the text that a run was trained on went through before it was tokenized.

    Raises:
        RunError: the run does not say.
    """
    try:
        return Cleaning(**run.data()["settings"]["cleaning"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.folder / DATA} does not say how the text was cleaned; {ADVICE}") from error


def read_text(run: Run, split: str, side: str) -> list[str]:
    """Return the lines that a run keeps of a split's ``source`` or ``target``: cased, and cleaned as the card says.

    Raises:
        RunError: the run has no such text (the message names the nearest split), or it is damaged.
    """
    path = run.text_folder / f"{split}.{side}"
    refuse_damaged_copy(run, path)
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except FileNotFoundError as error:
        splits = sorted({other.stem for other in run.text_folder.glob(f"*.{side}")})
        has = ", ".join(splits) or "none"
        raise RunError(
            f"{path} is missing: the run has no {side} text of a split {split!r}{nearest(split, splits)}; it has {has}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error}); {ADVICE}") from error


def refuse_damaged_copy(run: Run, path: Path) -> None:
    """Refuse (RunError) a file of a run that is not what the run recorded of it."""
    wrong = damage(run.folder, _entries(run), str(path.relative_to(run.folder)))
    if wrong:
        raise RunError(f"{path} {wrong}; {ADVICE}")


def _entries(run: Run) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = run.data().get(_COPIES, [])
    if not are_file_entries(entries):
        raise RunError(f"{run.folder / DATA} is damaged: {_COPIES!r} is no list of files; {ADVICE}")
    return entries


def check_same_vocabulary(run: Run, folder: Path, same: bool) -> None:
    """Refuse to begin with the tensors of a run whose tokenizers are not those of the prepared data.

    Raises:
        RunError: they are not.
    """
    if not same:
        raise RunError(
            f"training.initialise_from: {run.folder} has another vocabulary than {folder}, so its tables mean other "
            "tokens; take a run that was trained on this data"
        )


def check_same_data(run: Run, folder: Path, manifest: Mapping[str, Any], same_tokenizers: Callable[[], bool]) -> None:
    """Refuse to continue a run on data other than its own.

    Args:
        run: the run.
        folder: the prepared data, for messages.
        manifest: its manifest.
        same_tokenizers: compares its tokenizers with the run's; asked if all else is equal.

    Raises:
        RunError: the corpus was prepared anew from other files or with other settings, or the run does not say what it
            was trained on.
    """
    before = migrated(run.data())
    changed = [key for key in ("settings", "sources", "token_types", "labels") if before.get(key) != manifest.get(key)]
    if not changed and not same_tokenizers():
        changed = ["tokenizers"]
    if changed:
        raise RunError(
            f"{folder} is not what {run.folder} was trained on: {', '.join(changed)} differ "
            f"(see {DATA} and manifest.json)\nprepare it as it was, or leave --resume out to start a new run"
        )
