"""Preparation: raw text to token ids on disk, once for each corpus and tokenizer setting.

Train is gone through once to be counted, once for each vocabulary and once more to be encoded, so memory holds digests
of valid and test, one record batch, and what learning a vocabulary takes. That grows with the number of distinct words,
so a vocabulary is learned from a million rows at most, spread evenly over the corpus. The folder appears under its name
only when it is complete.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from phmctl.console import note, progress, warn
from phmctl.data.arrow import LABELLED, PARALLEL, SplitWriter
from phmctl.data.card import Card, Cleaning, is_card, load_card
from phmctl.data.clean import HELD_OUT, SAME_SIDES, CleanRows, HeldOut, clean_texts, in_words
from phmctl.data.corpus import Corpus, copied_corpus, open_corpus, reversed_corpus
from phmctl.data.prepared.build import build, current, memory_of
from phmctl.data.prepared.folder import (
    TASK,
    VECTORS_FILE,
    PreparedData,
    Section,
    Split,
    has_copies,
    is_reversed,
    prepare_command,
    prepared_folder,
)
from phmctl.data.prepared.manifest import read_manifest, write_manifest
from phmctl.data.prepared.provenance import Sources
from phmctl.data.prepared.vocabulary import Vocabulary
from phmctl.data.rows import UNKNOWN, Row, RowSource
from phmctl.data.special import SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import Tokenizer, TokenizerPair, train_pair
from phmctl.data.vectors import read_vectors
from phmctl.errors import DataError
from phmctl.files import write_atomic
from phmctl.recipe.documents import change
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import RECIPES, LabelledSection, ParallelSection

LEARNED = 1_000_000  # rows that a vocabulary is learned from, at most
CHUNK = 4096  # rows that are tokenized at a time
_FEW = 0.5  # of what was published: with less, the source is hardly the whole corpus
_STRANGE = 0.2  # of unknown words: with more, another's vocabulary hardly is of this text

SectionT = TypeVar("SectionT", ParallelSection, LabelledSection)


def choose_section(
    name: str,
    recipe: str | None,
    given: Mapping[str, Any],
    section: type[SectionT],
    vocabulary: Vocabulary | None = None,
) -> SectionT:
    """Return a corpus' data section: what is given, else what a recipe says, else what the card proposes.

    Args:
        name: the corpus.
        recipe: a recipe's path or shipped name, or None.
        given: fields of the section that were set by hand.
        section: the section's class, which tells what the recipe must be; its defaults are for a name that is no card.
        vocabulary: one that is there already: its settings stand instead of the card's.

    Raises:
        RecipeError: there is no such recipe, it is not valid, or it is of another task.
        DataError: a value that was given cannot be, or the card is not valid, or the vocabulary is another.
    """
    kind = next(each for each in RECIPES.values() if each.model_fields["data"].annotation is section)
    loaded = None if recipe is None else load_recipe(recipe)
    base = loaded and (loaded if isinstance(loaded.data, section) else expect(loaded, kind)).data
    if not isinstance(base, section):
        proposed = load_card(name).defaults.model_dump(exclude_none=True) if is_card(name) else {}
        told = {} if vocabulary is None else vocabulary.settings_for(section)
        base = section(card=name, **{**proposed, **told})
    chosen = change(base.model_copy(update={"card": name}), given, DataError)
    if vocabulary is not None:
        vocabulary.check(chosen)
    return chosen


def prepare_named(
    data: Section,
    *,
    root: Path,
    source: Path | None = None,
    own: Corpus | None = None,
    settings: Mapping[str, Any] | None = None,
    cleaning: Mapping[str, Any] | None = None,
    vocabulary: Vocabulary | None = None,
    extra: Mapping[str, Path] | None = None,
    vectors: Path | None = None,
    workers: int = 1,
    force: bool = False,
    refetch: bool = False,
) -> PreparedData:
    """Prepare a card's corpus, or a user's own.

    Args:
        data: the corpus' name and the tokenizer settings.
        root: the folder for raw and prepared data.
        source: a folder with the card's files; otherwise they are downloaded.
        own: the user's own corpus; excludes `source` and `extra`.
        settings: other settings that decide on the content of that.
        cleaning: fields of :class:`~phmctl.data.card.Cleaning` that were set by hand, instead of the card's.
        vocabulary: one that is there already, which is not learned.
        extra: folders of the splits that a card borrows from others.
        vectors: word vectors in GloVe's text format, for labelled text. Without them, those of an earlier preparation
            stay.
        workers: threads of the tokenizer.
        force: prepare even if nothing has changed.
        refetch: download the card's files again.

    Raises:
        DataError: no such card, or its files are missing or malformed.
        OutputError: the folder cannot be written.
    """
    do = partial(prepare, data, root=root, vectors=vectors, vocabulary=vocabulary, workers=workers, force=force)
    if own is not None:
        if source is not None:
            raise DataError("--source is for a card's files; with files of your own leave it out")
        return do(own, _cleaning(Cleaning(), vocabulary, cleaning), more=settings)
    card = load_card(data.card)
    chosen = _cleaning(card.cleaning, vocabulary, cleaning)
    folder = prepared_folder(data, root)
    unchanged = source is None and not (card.built_in or extra or vectors or force or refetch)  # published text stays
    wanted = _settings(data, chosen, card, vocabulary)
    if unchanged and current(folder, wanted, None, card=card.digest):
        prepared = PreparedData.open(folder, prepare_command(data, root))
    else:
        prepared = do(open_corpus(card, source, root / "raw" / card.id, extra, refetch=refetch), chosen)
    _tell_of_division(prepared.manifest)
    _warn_of_parts(prepared.manifest, card)
    return prepared


def prepare(
    data: Section,
    corpus: Corpus,
    cleaning: Cleaning,
    *,
    root: Path,
    vectors: Path | None = None,
    vocabulary: Vocabulary | None = None,
    more: Mapping[str, Any] | None = None,
    workers: int = 1,
    force: bool = False,
) -> PreparedData:
    """Clean, tokenize and store a corpus. The same text and settings give the same bytes, whatever the workers.

    Where it is prepared already, from the same sources, nothing is done.

    Args:
        data: the tokenizer settings.
        corpus: the text.
        cleaning: the card's settings.
        root: the folder for raw and prepared data.
        vectors, vocabulary: see :func:`prepare_named`.
        more: other settings that decide on the content.
        workers: threads of the tokenizer. Its pool is made at its first use in a process and keeps its size.
        force: prepare even if nothing has changed.

    Raises:
        DataError: the text is malformed, a split is empty, or the label sets do not fit.
        OutputError: the folder cannot be written.
    """
    if vectors is not None:
        _check_vectors(data, vectors)
    folder = prepared_folder(data, root)
    settings = {**_settings(data, cleaning, corpus, vocabulary), **(more or {})}
    corpus = reversed_corpus(corpus) if is_reversed(data) else corpus
    corpus = copied_corpus(corpus) if has_copies(data) else corpus
    sources = Sources(corpus, memory_of(folder), vectors)

    def write(temporary: Path, provenance: dict[str, Any]) -> None:
        _warn_of_lost_vectors(folder, vectors)
        _write(temporary, data, corpus, cleaning, vectors, vocabulary, provenance)

    build(folder, settings, sources, write, workers=workers, force=force)
    return PreparedData.open(folder, prepare_command(data, root))


def _cleaning(base: Cleaning, vocabulary: Vocabulary | None, given: Mapping[str, Any] | None) -> Cleaning:
    """Return the cleaning that is asked for; with another's vocabulary it is that one's where nothing is said."""
    chosen = change(vocabulary.cleaning if vocabulary else base, given or {}, DataError)
    if vocabulary is not None and chosen.lowercase != vocabulary.cleaning.lowercase:
        cased = "lower-cased" if vocabulary.cleaning.lowercase else "cased"
        raise DataError(f"--lowercase: the vocabulary of {vocabulary.origin} is {cased}; leave it out")
    if vocabulary is not None and chosen.min_count != vocabulary.cleaning.min_count:
        raise DataError(f"--min-count: the vocabulary of {vocabulary.origin} is learned already; leave it out")
    return chosen


def _settings(
    data: Section, cleaning: Cleaning, of: Card | Corpus, vocabulary: Vocabulary | None = None
) -> dict[str, Any]:
    """Return what decides on a folder's content beside its sources; folders of before a setting do not name it."""
    new = {"direction": is_reversed(data), "copies": has_copies(data)}
    left_out = {"card", *(key for key, used in new.items() if not used)}
    settings = {**data.model_dump(exclude=left_out), "cleaning": cleaning.model_dump()}
    if isinstance(data, LabelledSection):
        settings["labels"] = list(of.labels)
        settings |= {flag: True for flag in ("symmetric", "train_text") if getattr(of, flag)}
    if vocabulary is not None:
        settings["vocabulary_of"] = vocabulary.sha256
    return settings


def _check_vectors(data: Section, vectors: Path) -> None:
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
        name = manifest["corpus"]
        note(f"{name} as read has no {' and '.join(held_out)} of its own: {parts}, train the others")


def _warn_of_parts(manifest: Mapping[str, Any], card: Card) -> None:
    """Say which splits have far fewer rows than were published: a cut-off download, or a sample."""
    rows = "rows" if card.labelled else "pairs"
    for split, number in card.sizes.items():
        if card.labelled and split not in manifest["splits"]:
            continue  # not everybody has all
        read = manifest["splits"].get(split, {}).get("read", 0)
        if read < _FEW * number:
            warn(f"{split} of {card.id} has {read:,} {rows} where {number:,} were published; is the source whole?")


# ------------------------------------------------------------------------------------------------ writing a folder


def _write(
    folder: Path,
    data: Section,
    corpus: Corpus,
    cleaning: Cleaning,
    vectors: Path | None,
    vocabulary: Vocabulary | None,
    provenance: Mapping[str, Any],
) -> None:
    """Write everything of a prepared folder, its manifest last."""
    labels = (list(corpus.labels) or labels_of(corpus.splits["train"])) if corpus.labelled else None
    splits = _clean_splits(corpus, cleaning, data.max_tokens, labels)
    if vocabulary is None:
        tokenizers, told = _learn(corpus, splits["train"], data, cleaning)
    else:
        tokenizers, told = vocabulary.tokenizers, {"vocabulary_from": vocabulary.origin}
    tokenizers.save(folder)
    extras = sorted({name for rows in corpus.splits.values() for row in islice(rows, 1) for name in row.extras})
    columns = LABELLED[: corpus.texts] if corpus.labelled else PARALLEL
    numbers = (*(("label",) if corpus.labelled else ()), *extras)
    counts = {}
    for name, rows in splits.items():
        with_text = corpus.train_text or name != "train"
        with SplitWriter(folder / f"{name}.arrow", columns, numbers, with_text=with_text) as writer:
            counts[name] = _encode(writer, name, rows, tokenizers, extras)
    _refuse_nothing(counts["train"], corpus.row)
    if vocabulary is not None:
        _warn_of_unknown(counts["train"], vocabulary)
    types: dict[str, int] = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    kind: dict[str, Any] = {"extras": extras} if extras else {}
    if labels is None:
        _warn_of_same_sides({name: split for name, split in counts.items() if name != "train" or not has_copies(data)})
    else:
        _check_classes(corpus, counts)
        _check_taught(corpus, labels, splits["train"])
        types, kind = {"text": tokenizers.source.size}, {"task": TASK, "labels": labels, "extras": extras}
    found = {"vectors": _write_vectors(folder, vectors, tokenizers.source, [*splits])} if vectors else {}
    write_manifest(folder, {**provenance, **kind, **told, "token_types": types, "splits": counts, **found})


def labels_of(train: RowSource) -> list[str]:
    """Return the labels that occur in train, sorted; whole numbers by their value.

    Raises:
        DataError: one holds a tab or a line's end, which would break the rows of the predictions' table.
    """
    found: set[str] = set()
    for row in train:
        if row.label is None or row.label in found:
            continue
        if any(mark in row.label for mark in "\t\n\r"):
            raise DataError(f"{row.named()}: the label {row.label!r} holds a tab or a line's end; replace it")
        found.add(row.label)
    numeric = all(re.fullmatch(r"-?\d{1,18}", label) for label in found)
    return sorted(found, key=(lambda label: (int(label), label)) if numeric else None)


def _clean_splits(
    corpus: Corpus, cleaning: Cleaning, max_tokens: int, labels: Sequence[str] | None
) -> dict[str, CleanRows]:
    if [*corpus.splits][:2] != ["train", "valid"]:
        names = ", ".join(corpus.splits) or "none"
        raise DataError(f"{corpus.name!r} has the splits {names}; train and valid are needed")
    held_out = HeldOut(symmetric=corpus.symmetric, sides=not corpus.labelled)
    for name in [*corpus.splits][1:]:
        some = False
        for row in corpus.splits[name]:
            if not corpus.labelled or row.label is not None:
                some = some or corpus.labelled or all(text.strip() for text in row.texts)
                held_out.add(clean_texts(row.texts, cleaning))
        if not some:
            raise _empty(corpus, name)
    if corpus.labelled and not any(True for _ in corpus.splits["train"]):
        raise _empty(corpus, "train")
    return {
        name: CleanRows(rows, cleaning, max_tokens, labels, held_out if name == "train" else None)
        for name, rows in corpus.splits.items()
    }


def _empty(corpus: Corpus, split: str) -> DataError:
    files = " and ".join(str(each.path) for each in corpus.files if each.split == split) or corpus.origin
    what = "is empty: no example with a label" if corpus.labelled else "has no pair with text on both sides"
    advice = "; leave test out if there is none" if split == "test" else ""
    return DataError(f"{split} of {corpus.name!r} {what} ({files}); check the files{advice}")


def _learn(corpus: Corpus, train: CleanRows, data: Section, cleaning: Cleaning) -> tuple[TokenizerPair, dict[str, str]]:
    """Return what is learned from train, and for the manifest from which part of it, if not all."""
    rows = corpus.splits["train"]
    count = len(rows) if isinstance(rows, Sized) else sum(1 for _ in rows)
    period = -(-count // LEARNED) or 1
    learned = f"one train {corpus.row} in {period}" if period > 1 else ""
    note(f"learning {data.vocabulary:,} token types{f' from {learned}' if learned else ''} ...")
    tokenizers = train_pair(
        train.sample(period),
        data.tokenizer,
        data.vocabulary,
        joint=getattr(data, "joint", True),
        lowercase=cleaning.lowercase,
        min_count=cleaning.min_count,
    )
    return tokenizers, {"learned_from": learned} if learned else {}


def _encode(
    writer: SplitWriter, name: str, rows: CleanRows, tokenizers: TokenizerPair, extras: Sequence[str]
) -> dict[str, Any]:
    """Tokenize a split, write it, and return its counts: of labelled text those of all texts together."""
    sides = ("text",) if rows.labelled else PARALLEL
    counts = {side: {"tokens": 0, "unknown": 0, "longest": 0} for side in sides}  # without the end of sentence
    remaining = iter(rows)
    with progress(f"tokenizing {name}", None) as advance:
        while chunk := list(islice(remaining, CHUNK)):
            kept = list(_fitting(chunk, rows, tokenizers))
            for side, column in zip(cycle(sides), zip(*(ids for _, ids in kept), strict=True), strict=False):
                _count_tokens(counts[side], column)
            writer.add([[*ids, *_numbers(row, rows, extras), *row.texts] for row, ids in kept])
            advance(len(chunk))
    classes = {"labels": dict(sorted(rows.classes.items()))} if rows.labelled else {}
    return {**rows.tally.as_dict(), **classes, **counts}


def _count_tokens(counts: dict[str, int], rows: Sequence[Sequence[int]]) -> None:
    counts["tokens"] += sum(map(len, rows))
    counts["unknown"] += sum(row.count(UNK) for row in rows)
    counts["longest"] = max(counts["longest"], *map(len, rows))


def _fitting(
    chunk: Sequence[Row], rows: CleanRows, tokenizers: TokenizerPair
) -> Iterator[tuple[Row, Sequence[Sequence[int]]]]:
    """Yield the rows that stay, and the token ids of each text."""
    columns = zip(*(row.texts for row in chunk), strict=True)
    both = (tokenizers.source, tokenizers.target)  # of which a single text wants the first
    sides = [tokenizer.encode(column) for tokenizer, column in zip(both, columns, strict=False)]
    for row, ids in zip(chunk, zip(*sides, strict=True), strict=True):
        stored = rows.fit(row, ids)
        if stored is not None:
            yield row, stored


def _numbers(row: Row, rows: CleanRows, extras: Sequence[str]) -> list[int]:
    """Return an example's class, if it has one, and a row's extras."""
    return [*([rows.number(row)] if rows.labelled else []), *(row.extras.get(extra, UNKNOWN) for extra in extras)]


def _refuse_nothing(train: Mapping[str, Any], row: str) -> None:
    """Refuse (DataError) a train split of which nothing was kept, given its counts and what a row is called."""
    if train["kept"]:
        return
    twice = 2 * train["dropped"].get(HELD_OUT, 0) > train["read"]
    advice = "was the same file given for train and for another split?" if twice else "check the files"
    raise DataError(f"no train {row} is left of {train['read']:,} read ({in_words(train['dropped'])}); {advice}")


def _warn_of_unknown(train: Mapping[str, Any], vocabulary: Vocabulary) -> None:
    """Say of which sides another's vocabulary knows little."""
    for side in [name for name in ("text", *PARALLEL) if name in train]:
        unknown, tokens = train[side]["unknown"], train[side]["tokens"]
        if unknown > _STRANGE * tokens:
            ask = "is it of this language" + (", and of this direction (--reverse)?" if side in PARALLEL else "?")
            whose = f"{unknown / tokens:.0%} of train's {side} tokens are unknown to"
            warn(f"{whose} the vocabulary of {vocabulary.origin}: {ask}")


def _warn_of_same_sides(counts: Mapping[str, Mapping[str, Any]]) -> None:
    for name, split in counts.items():
        same = split["noted"].get(SAME_SIDES, 0)
        if 2 * same > split["read"]:
            warn(f"{same:,} of {split['read']:,} {name} pairs have the same text on both sides; is it a translation?")


def _check_classes(corpus: Corpus, counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a class that train never shows; tell of those that a test set lacks."""
    train = counts["train"]
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


def _check_taught(corpus: Corpus, labels: Sequence[str], train: CleanRows) -> None:
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


def _write_vectors(folder: Path, path: Path, tokenizer: Tokenizer, splits: Sequence[str]) -> dict[str, Any]:
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
        "tokens": {name: _covered_tokens(folder / f"{name}.arrow", found.covered) for name in splits},
    }


def _covered_tokens(path: Path, covered: npt.NDArray[np.bool_]) -> float:
    """Return the share of a split's tokens that have a vector."""
    sides = [side.values for side in Split(path).sides]
    total = sum(map(len, sides))
    return round(sum(int(covered[side].sum()) for side in sides) / total, 6) if total else 0.0
