"""Preparation of labelled text: tables and JSON lines to token ids and class numbers on disk.

It is built as translation's is (:mod:`phmctl.data.prepared.build`): the same text and settings give the same bytes, a
second time nothing is done, and the folder appears under its name only when it is complete. Memory holds one record
batch, digests of the texts of valid and test, and what learning a vocabulary takes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phmctl.console import note, progress, warn
from phmctl.data.clean import clean_line, in_words
from phmctl.data.labelled.catalog import LabelledCleaning, Rows, load_labelled_card
from phmctl.data.labelled.cleaning import CleanExamples, HeldOutTexts
from phmctl.data.labelled.corpus import LabelledCorpus, corpus_of_tables, open_labelled_corpus
from phmctl.data.labelled.readers import UNKNOWN, Example, ExampleSource
from phmctl.data.labelled.store import (
    TASK,
    VECTORS_FILE,
    LabelledData,
    LabelledSplit,
    LabelledWriter,
    labelled_command,
    labelled_folder,
)
from phmctl.data.prepared.build import build, chunks, current, memory_of
from phmctl.data.prepared.folder import corpus_name
from phmctl.data.prepared.manifest import read_manifest, write_manifest
from phmctl.data.prepared.provenance import Sources
from phmctl.data.prepared.steps import (
    TokenCounts,
    check_own_files,
    choose,
    files_of,
    learning_period,
    refuse_nothing,
    warn_of_parts,
)
from phmctl.data.special import SPECIAL_TOKENS
from phmctl.data.tokenizer import JOINT_FILE, Tokenizer, train_tokenizer
from phmctl.data.vectors import read_vectors
from phmctl.errors import DataError
from phmctl.files import write_atomic
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import ClassificationRecipe, LabelledSection


def choose_labelled_section(name: str, recipe: str | None, given: Mapping[str, Any]) -> LabelledSection:
    """Return a corpus' data section: what is given, else what a recipe says, else what the card proposes.

    Args:
        name: the corpus.
        recipe: a classifier's recipe by path or shipped name, or None.
        given: fields of the section that were set by hand.

    Raises:
        RecipeError: there is no such recipe, it is not valid, or it is of another task.
        DataError: a value that was given cannot be, or the card is not valid.
    """
    base = None if recipe is None else expect(load_recipe(recipe), ClassificationRecipe).data
    return choose(name, base, given, LabelledSection, lambda card: load_labelled_card(card).defaults)


def prepare_labelled(
    data: LabelledSection,
    *,
    root: Path,
    source: Path | None = None,
    tables: Mapping[str, Path] | None = None,
    rows: Rows | None = None,
    quoting: bool | None = None,
    extra: Mapping[str, Path] | None = None,
    vectors: Path | None = None,
    workers: int = 1,
    force: bool = False,
    refetch: bool = False,
) -> LabelledData:
    """Prepare a card's labelled corpus, or a user's own tables under a name of their own.

    Args:
        data: the corpus' name and the tokenizer settings.
        root: the folder for raw and prepared data.
        source: a folder with the card's files; otherwise they are downloaded.
        tables: the user's own tables by split; excludes `source` and `extra`.
        rows, quoting: how those are read (:func:`phmctl.data.labelled.corpus.corpus_of_tables`).
        extra: folders of the splits that a card borrows from others.
        vectors: word vectors in GloVe's text format. Without them, those of an earlier preparation stay.
        workers: threads of the tokenizer.
        force: prepare even if nothing has changed.
        refetch: download the card's files again.

    Raises:
        DataError: no such card, or its files are missing or malformed.
        OutputError: the folder cannot be written.
    """
    if tables:
        corpus = _own_corpus(data.card, source, tables, rows, quoting)
        settings = {"rows": rows.model_dump(mode="json"), "quoting": quoting} if rows else {}
        return prepare_corpus(
            data, corpus, LabelledCleaning(), root=root, vectors=vectors, workers=workers, force=force, more=settings
        )
    card = load_labelled_card(data.card)
    folder = labelled_folder(data, root)
    more = {key: True for key in ("symmetric", "train_text") if getattr(card, key)}
    unchanged = source is None and not (extra or vectors or force or refetch)  # published text stays
    settings = {**_settings(data, card.cleaning, card.labels), **more}
    if unchanged and current(folder, settings, None, card=card.digest):
        prepared = LabelledData.open(folder, labelled_command(data, root))
    else:
        corpus = open_labelled_corpus(card, source, root / "raw" / card.id, extra, refetch=refetch)
        prepared = prepare_corpus(
            data, corpus, card.cleaning, root=root, vectors=vectors, workers=workers, force=force, more=more
        )
    _tell_of_division(prepared.manifest)
    sizes = {split: size for split, size in card.sizes.items() if split in prepared.splits}  # not everybody has all
    warn_of_parts(prepared.manifest, card.id, sizes, "rows")
    return prepared


def prepare_corpus(
    data: LabelledSection,
    corpus: LabelledCorpus,
    cleaning: LabelledCleaning,
    *,
    root: Path,
    vectors: Path | None = None,
    workers: int = 1,
    force: bool = False,
    more: Mapping[str, Any] | None = None,
) -> LabelledData:
    """Clean, tokenize and store a labelled corpus. What is there already is left alone.

    Args:
        data, root, vectors, workers, force: see :func:`prepare_labelled`.
        corpus: the text.
        cleaning: the card's settings.
        more: other settings that decide on the content.

    Raises:
        DataError: the text is malformed, a split is empty, or the label sets do not fit.
        OutputError: the folder cannot be written.
    """
    folder = labelled_folder(data, root)
    settings = {**_settings(data, cleaning, corpus.labels), **(more or {})}
    if vectors is not None:
        _check_vectors(data, vectors)
    sources = Sources(corpus, memory_of(folder), vectors)

    def write(temporary: Path, provenance: dict[str, Any]) -> None:
        _warn_of_lost_vectors(folder, vectors)
        _write(temporary, data, corpus, cleaning, vectors, provenance)

    build(folder, settings, sources, write, workers=workers, force=force)
    return LabelledData.open(folder, labelled_command(data, root))


def _settings(data: LabelledSection, cleaning: LabelledCleaning, labels: Sequence[str]) -> dict[str, Any]:
    return {**data.model_dump(exclude={"card"}), "cleaning": cleaning.model_dump(), "labels": list(labels)}


def _own_corpus(
    name: str, source: Path | None, tables: Mapping[str, Path], rows: Rows | None, quoting: bool | None
) -> LabelledCorpus:
    check_own_files(name, source, tables, form="--table {}=FILE", options="--table", what="tables")
    if rows is None:
        raise DataError("a corpus of your own tables wants --text COLUMN (twice for pairs) and --label COLUMN")
    return corpus_of_tables(corpus_name(name), tables, rows, quoting=quoting)


def _check_vectors(data: LabelledSection, vectors: Path) -> None:
    if not vectors.is_file():
        raise DataError(f"--vectors: no file {vectors}")
    if data.tokenizer != "word":
        raise DataError(f"word vectors want --tokenizer word, not {data.tokenizer}")


def _warn_of_lost_vectors(folder: Path, vectors: Path | None) -> None:
    try:
        before = read_manifest(folder) or {}
    except DataError:
        return
    if vectors is None and before.get("vectors"):
        warn(f"prepared anew without the vectors of {before['vectors']['file']}; give --vectors again to have them")


def _tell_of_division(manifest: Mapping[str, Any]) -> None:
    """Say which splits are not the publishers', since their scores compare with nobody else's."""
    held_out = manifest.get("held_out", {})
    if held_out:
        parts = "; ".join(f"{split} is {rows}" for split, rows in held_out.items())
        note(f"{manifest['corpus']} as read is divided here: {parts}")


def _write(
    folder: Path,
    data: LabelledSection,
    corpus: LabelledCorpus,
    cleaning: LabelledCleaning,
    vectors: Path | None,
    provenance: Mapping[str, Any],
) -> None:
    """Write everything of a prepared folder, its manifest last."""
    labels = list(corpus.labels) or _labels_of(corpus.splits["train"])
    splits = _clean_splits(corpus, cleaning, data.max_tokens, labels)
    extras = sorted(next(iter(corpus.splits["train"])).extras)
    tokenizer, learned = _learn(splits["train"], data, cleaning)
    tokenizer.save(folder / JOINT_FILE)
    writers = {
        name: LabelledWriter(
            folder / f"{name}.arrow", corpus.texts, extras, with_text=corpus.train_text or name != "train"
        )
        for name in splits
    }
    counts = {name: _encode(writers[name], name, splits[name], tokenizer, extras) for name in splits}
    _check_classes(corpus, counts)
    _check_taught(corpus, labels, splits["train"])
    content = {
        **provenance,
        "task": TASK,
        "labels": labels,
        "extras": extras,
        **({"learned_from": learned} if learned else {}),
        "token_types": {"text": tokenizer.size},
        "splits": counts,
        **({"vectors": _write_vectors(folder, vectors, tokenizer, [*splits], extras)} if vectors else {}),
    }
    write_manifest(folder, content)


def _labels_of(train: ExampleSource) -> list[str]:
    """Return the labels that occur in train, sorted; whole numbers by their value.

    Raises:
        DataError: one holds a tab or a line's end, which would break the rows of the predictions' table.
    """
    found: set[str] = set()
    for example in train:
        if example.label is None or example.label in found:
            continue
        if any(mark in example.label for mark in "\t\n\r"):
            raise DataError(f"{example.named()}: the label {example.label!r} holds a tab or a line's end; replace it")
        found.add(example.label)
    numeric = all(re.fullmatch(r"-?\d{1,18}", label) for label in found)
    return sorted(found, key=(lambda label: (int(label), label)) if numeric else None)


def _clean_splits(
    corpus: LabelledCorpus, cleaning: LabelledCleaning, max_tokens: int, labels: Sequence[str]
) -> dict[str, CleanExamples]:
    if [*corpus.splits][:2] != ["train", "valid"]:
        raise DataError(f"{corpus.name!r} has the splits {', '.join(corpus.splits)}; train and valid are needed")
    held_out = HeldOutTexts(symmetric=corpus.symmetric)
    for name in corpus.splits:
        some = False
        for example in corpus.splits[name] if name != "train" else islice(corpus.splits[name], 1):
            some = some or example.label is not None or name == "train"
            if name != "train" and example.label is not None:
                held_out.add([clean_line(text, cleaning) for text in example.texts])
        if not some:
            raise _empty(corpus, name)
    return {
        name: CleanExamples(examples, cleaning, max_tokens, labels, held_out if name == "train" else None)
        for name, examples in corpus.splits.items()
    }


def _empty(corpus: LabelledCorpus, split: str) -> DataError:
    files = files_of(corpus, split)
    return DataError(f"{split} of {corpus.name!r} is empty: no example with a label ({files}); check the files")


def _learn(train: CleanExamples, data: LabelledSection, cleaning: LabelledCleaning) -> tuple[Tokenizer, str]:
    """Return the tokenizer, and in words which part of train it was learned from, if not all."""
    period, learned = learning_period(sum(1 for _ in train), "example", data.vocabulary)
    texts = (text for example in islice(train, 0, None, period) for text in example.texts)
    return train_tokenizer(texts, data.tokenizer, data.vocabulary, lowercase=cleaning.lowercase), learned


def _encode(
    writer: LabelledWriter, name: str, examples: CleanExamples, tokenizer: Tokenizer, extras: Sequence[str]
) -> dict[str, Any]:
    """Tokenize a split, write it, and return its counts."""
    counts = TokenCounts()
    with writer, progress(f"tokenizing {name}", None) as advance:
        for chunk in chunks(examples):
            rows = list(_rows(chunk, examples, tokenizer, extras))
            counts.add([text for _, texts in rows for text in texts])
            writer.add([row for row, _ in rows])
            advance(len(chunk))
    return {**examples.tally.as_dict(), "labels": dict(sorted(examples.classes.items())), "text": counts.as_dict()}


def _rows(
    chunk: Sequence[Example], examples: CleanExamples, tokenizer: Tokenizer, extras: Sequence[str]
) -> Iterator[tuple[list[Any], list[Sequence[int]]]]:
    """Yield the columns of each example that stays, and its token ids once more."""
    sides = [tokenizer.encode(column) for column in zip(*(example.texts for example in chunk), strict=True)]
    for example, ids in zip(chunk, zip(*sides, strict=True), strict=True):
        stored = examples.fit(example, ids)
        if stored is not None:
            values = (example.extras.get(extra, UNKNOWN) for extra in extras)
            yield [*stored, examples.number(example), *values, *example.texts], stored


def _check_classes(corpus: LabelledCorpus, counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a class that train never shows; tell of those that a test set lacks."""
    train = counts["train"]
    refuse_nothing(train, "example")
    for name, split in counts.items():
        unseen = [label for label in split["labels"] if label not in train["labels"]]
        if unseen:
            raise DataError(
                f"{name} of {corpus.name!r} has the label {', '.join(map(repr, unseen))}, and train has not; "
                f"train has {', '.join(train['labels'])}"
            )
        absent = [label for label in train["labels"] if label not in split["labels"]]
        if absent:
            warn(f"{name} of {corpus.name} has no example of {', '.join(map(repr, absent))}, which train has")


def _check_taught(corpus: LabelledCorpus, labels: Sequence[str], train: CleanExamples) -> None:
    """Refuse a class of which train keeps no example: nothing trains its output. Of a card's own, only tell."""
    for label in labels:
        if label in train.classes:
            continue
        why = in_words(train.lost[label])
        if not corpus.labels:
            raise DataError(
                f"train of {corpus.name!r} has no example of the label {label!r} left ({why}); "
                "leave the label's rows out, or give others"
            )
        warn(f"train of {corpus.name} has no example of {label!r} ({why}): it is not learned")


def _write_vectors(
    folder: Path, path: Path, tokenizer: Tokenizer, splits: Iterable[str], extras: list[str]
) -> dict[str, Any]:
    """Write the vectors of the vocabulary, and return what the manifest says of them."""
    import torch
    from safetensors.torch import save

    note(f"reading {path} ...")
    found = read_vectors(path, tokenizer.vocabulary)
    write_atomic(folder / VECTORS_FILE, save({"vectors": torch.from_numpy(found.table)}))
    return {
        "file": path.name,
        "width": found.table.shape[1],
        "covered": int(found.covered.sum()),
        "types": tokenizer.size - len(SPECIAL_TOKENS),
        "tokens": {name: _covered_tokens(folder / f"{name}.arrow", found.covered, extras) for name in splits},
    }


def _covered_tokens(path: Path, covered: npt.NDArray[np.bool_], extras: list[str]) -> float:
    """Return the share of a split's tokens that have a vector."""
    split = LabelledSplit(path, extras)
    sides = [side.values for side in (split.first, split.second) if side is not None]
    total = sum(map(len, sides))
    return round(sum(int(covered[side].sum()) for side in sides) / total, 6) if total else 0.0
