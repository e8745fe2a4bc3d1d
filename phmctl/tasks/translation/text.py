"""The text of a translation run: its splits, files in their place, and BLEU's tokenizer for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phmctl.console import note
from phmctl.data.clean import clean_line
from phmctl.data.readers import guess_format, read_sentences
from phmctl.errors import DataError, RunError
from phmctl.files import read_json_object, sha256_text
from phmctl.languages import language
from phmctl.metrics.text import usual_tokenizer
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.copies import ADVICE, load_cleaning, read_text, refuse_damaged_copy

EXTRAS = ".extras"  # suffix of a split's file of whole numbers by name, JSON


@dataclass(frozen=True)
class Text:
    """Sentences and references to score: a split of the run's own text, or files."""

    name: str  # of the split or the file
    source: Sequence[str]
    references: Sequence[Sequence[str]]  # each with a line for each sentence
    extras: Mapping[str, Sequence[int]] = field(default_factory=dict)  # numbers for breakdowns; -1: not known
    origin: Mapping[str, Any] = field(default_factory=dict)  # SHA-256 of files, for the key of the result


def text_of(run: Run, split: str) -> Text:
    """Return a split of the run's own text. Raises RunError."""
    source = read_text(run, split, "source")
    target = read_text(run, split, "target")
    if len(source) != len(target):
        raise RunError(f"{run.folder}: {split} has {len(source):,} sources and {len(target):,} targets; {ADVICE}")
    path = run.text_folder / f"{split}{EXTRAS}"
    extras: dict[str, list[int]] = {}
    if path.is_file():
        refuse_damaged_copy(run, path)
        extras = read_json_object(path, RunError, ADVICE)
    return Text(split, source, [target], extras)


def text_of_files(run: Run, source: Path | str | None, references: Sequence[Path | str] | None) -> Text:
    """Return the text of files, cleaned like the run's own text. Raises DataError."""
    if source is None or not references:
        raise DataError("your own text needs both --source FILE and --reference FILE (repeatable)")
    cleaning = load_cleaning(run)
    paths = [Path(source), *map(Path, references)]
    texts = [[clean_line(line, cleaning) for line in read_sentences(path, guess_format(path))] for path in paths]
    for path, lines in zip(paths[1:], texts[1:], strict=True):
        if len(lines) != len(texts[0]) or not lines:
            raise DataError(f"{source} has {len(texts[0]):,} lines, and {path} has {len(lines):,}")
    source_sha256, *reference_sha256 = (sha256_text(f"{line}\n" for line in lines) for lines in texts)
    name = paths[0].name
    if name in ("test", "valid", *run.splits()):
        name = f"file-{name}"  # the name of a split is that of the run's own text
    origin = {"source_sha256": source_sha256, "references_sha256": reference_sha256}
    return Text(name, texts[0], texts[1:], origin=origin)


def bleu_tokenizer(recipe: TranslationRecipe, manifest: Mapping[str, Any]) -> str:
    """Return BLEU's tokenizer: the recipe's, or the usual one for the target language in the data's manifest."""
    return recipe.training.bleu_tokenizer or usual_tokenizer(manifest.get("target_language"))


def note_unknown_languages(*codes: object) -> None:
    """Name the languages whose tokenizer is not known, with the tokenizer that BLEU uses."""
    for code in codes:
        if language(code) is None and code not in (None, "source", "target"):  # own files without languages
            tokenizer = usual_tokenizer(code)
            note(f"language {code!r} is not known: BLEU of its text uses the tokenizer {tokenizer}")
