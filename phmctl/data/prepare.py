"""Prepare a corpus: raw text to token ids on disk, once for each tokenizer setting.

Train is read several times: to count its rows, to learn each vocabulary, and to encode it. Memory holds one chunk of
rows, the digests of valid and test, and the word counts from which a vocabulary is learned. Because these counts grow
with the text, a vocabulary is learned from at most a million rows, spread evenly over train. If `split` takes valid and
test out of train, memory also holds a digest and the labels of each source of train.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from phmctl.console import note, progress, warn
from phmctl.data import UNK, UNKNOWN, RowSource
from phmctl.data.card import Card, Cleaning, load_card
from phmctl.data.corpus import Corpus, SourceFile, open_corpus, own_corpus
from phmctl.data.prepared import (
    LABELLED,
    MANIFEST,
    PARALLEL,
    TASK,
    VECTORS_FILE,
    PreparedData,
    Section,
    choose_section,
    prepare_command,
    prepared_folder,
    read_manifest,
    write_split,
    write_vectors,
)
from phmctl.data.rows import HELD_OUT, CleanRows, clean_splits, describe_counts
from phmctl.data.tokenizer import OF_VOCABULARY, TokenizerPair, Vocabulary, train_pair
from phmctl.errors import DataError
from phmctl.recipe.documents import change
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import LabelledSection, ParallelSection
from phmctl.storage import FORMAT, damage, replacing, seal, sole_writer, writing

MAX_LEARNED_ROWS = 1_000_000  # a vocabulary of more train rows is learned from every k-th row
CHUNK_ROWS = 4096  # rows that are tokenized at a time
_MIN_SHARE = 0.5  # share of the published rows below which a warning says that the source may be incomplete
_VECTORS = "vectors"  # split and side of word vectors in a manifest's sources
# Options of ``prepare-data``, and keys of the data section, that one kind of text has.
_LABELLED_ONLY = {"text", "label", "vectors"}
_PARALLEL_ONLY = {"columns", "languages", "joint", "direction", "copies"}


def prepare_named(
    name: str,
    *,
    root: Path,
    recipe: str | None,
    settings: Mapping[str, Any],
    files: Mapping[str, Sequence[Sequence[Path]]],
    labelled: bool,
    options: Mapping[str, Any],
    cleaning: Mapping[str, Any],
    vocabulary: Vocabulary | None,
    source: Path | None,
    vectors: Path | None,
    force: bool,
) -> PreparedData:
    """Prepare a card's corpus or the user's own. See :func:`phmctl.prepare`.

    Args:
        settings: keys of the data section.
        files: own files by split, `labelled` or parallel text.
        options: options for reading own files, as in :func:`phmctl.data.corpus.own_corpus`.
        cleaning: fields of the cleaning that replace the card's.

    Raises DataError, RecipeError, OutputError.
    """
    card = None if files else load_card(name)
    labelled = card.labelled if card else labelled
    used = [*options, *settings, *([] if vectors is None else ["vectors"])]
    wrong = [key for key in used if key in (_PARALLEL_ONLY if labelled else _LABELLED_ONLY)]
    if wrong:
        named = ", ".join("reverse" if key == "direction" else key for key in wrong)
        own_type, other_type = ("labelled", "parallel") if labelled else ("parallel", "labelled")
        raise DataError(f"{named} is for {other_type} text, but {name} is {own_type} text: leave it out")
    if card and options:
        raise DataError(f"{', '.join(options)} is for files of your own, and {name} is a card: leave it out")
    if source is not None and not card:
        raise DataError("source is for a card's files. With files of your own leave it out")
    base_recipe = None if recipe is None else load_recipe(recipe)
    section_type = LabelledSection if labelled else ParallelSection
    if vocabulary and not base_recipe:
        settings = {**vocabulary.settings_for(section_type), **settings}
    section = choose_section(name, section_type, base_recipe, settings)
    # The tokenizer of a probed encoder reads the text.
    train_text = base_recipe is not None and base_recipe.task == "probing"
    base = card or own_corpus(name, files, labelled=labelled, train_text=train_text, **options)
    return prepare(
        section, base, cleaning, root=root, source=source, vocabulary=vocabulary, vectors=vectors, force=force
    )


def prepare(
    data: Section,
    base: Card | Corpus,
    cleaning: Mapping[str, Any] | None = None,
    *,
    root: Path,
    source: Path | None = None,
    vocabulary: Vocabulary | None = None,
    vectors: Path | None = None,
    force: bool = False,
) -> PreparedData:
    """Clean, tokenize and store the corpus of a card or of a user unless its folder is up to date.

    The same text and settings give the same bytes. `cleaning` overrides fields of the card's cleaning. A folder with
    word vectors can be up to date without `vectors`.
    """
    if vectors is not None and data.tokenizer != "word":
        raise DataError(f"word vectors need tokenizer=word, not {data.tokenizer}")
    cleaned, content = _cleaning_and_settings(data, base, cleaning or {}, vocabulary)
    settings = content["settings"]
    card = base if isinstance(base, Card) else None
    folder = prepared_folder(data, root)
    place = folder.resolve() if folder.is_symlink() else folder  # data on another disk stays there
    opened_once = card is not None and not (card.built_in or source or vectors or force)
    if opened_once and _is_current(place, content):  # a card's text does not change: the network is not needed
        note(f"{folder} is up to date")
    else:
        corpus = base if isinstance(base, Corpus) else open_corpus(base, source, root / "raw" / base.id)
        corpus = corpus.turned(reverse=settings.get("direction") == "reverse", copies=settings.get("copies", False))
        content |= corpus.provenance()
        if vectors is not None:
            content["sources"].append(SourceFile(vectors, _VECTORS, _VECTORS).entry())
        with sole_writer(place):
            if _is_current(place, content) and not force:
                note(f"{folder} is up to date")
            else:
                if place.exists():
                    note(f"{place} is out of date: preparing again")
                if vectors is None and (place / VECTORS_FILE).exists():
                    warn(f"{place} loses its word vectors. Give --vectors to keep them")
                with replacing(place, MANIFEST, "settings") as temporary:
                    manifest = _write(temporary, data, corpus, cleaned, vocabulary, vectors)
                    with writing(temporary):
                        seal(temporary, MANIFEST, {"format": FORMAT, **content, **manifest})
                note(f"prepared in {folder}")
    command = prepare_command(data, root)
    prepared = PreparedData(folder, command)
    if card:
        _report_differences(prepared.manifest, card)
    return prepared


def _is_current(folder: Path, content: dict[str, Any]) -> bool:
    """Return whether a folder is complete, undamaged and has this content. Raises DataError for a damaged manifest."""
    if not (folder / MANIFEST).exists():
        return False
    manifest = read_manifest(folder)
    if not any(entry["side"] == _VECTORS for entry in content.get("sources", ())):
        # A folder with word vectors is up to date without them.
        manifest["sources"] = [entry for entry in manifest.get("sources", ()) if entry["side"] != _VECTORS]
    return manifest | content == manifest and not any(damage(folder, entry) for entry in manifest["files"])


def _cleaning_and_settings(
    data: Section, base: Card | Corpus, changes: Mapping[str, Any], vocabulary: Vocabulary | None
) -> tuple[Cleaning, dict[str, Any]]:
    """Return how the text is cleaned, and the manifest's keys that are known before the text is read."""
    cleaning = base.cleaning if isinstance(base, Card) else Cleaning()
    if vocabulary is not None:
        learned = {key: getattr(vocabulary.cleaning, key) for key in OF_VOCABULARY}
        cleaning = cleaning.model_copy(update=learned) if isinstance(base, Card) else vocabulary.cleaning
    cleaning = change(cleaning, changes, DataError)
    settings = {**data.model_dump(exclude={"card"}), "cleaning": cleaning.model_dump()}
    if isinstance(data, LabelledSection):
        settings["labels"] = list(base.labels)
        settings |= {flag: True for flag in ("symmetric", "train_text") if getattr(base, flag)}
    if vocabulary is not None:
        vocabulary.check(data, cleaning)
        settings["vocabulary_of"] = vocabulary.sha256
    if isinstance(base, Card):
        return cleaning, {"settings": settings, "card_sha256": base.digest}
    return cleaning, {"settings": {**settings, **base.settings}}


def _write(
    folder: Path,
    data: Section,
    corpus: Corpus,
    cleaning: Cleaning,
    vocabulary: Vocabulary | None,
    vectors: Path | None,
) -> dict[str, Any]:
    """Write the tokenizers, the splits and the word vectors. Return what the manifest says about them."""
    manifest: dict[str, Any] = {}
    labels = None
    columns: Sequence[str] = PARALLEL
    sides: Sequence[str] = PARALLEL
    if corpus.labelled:
        labels = list(corpus.labels) or labels_of(corpus.splits["train"])
        columns = LABELLED[: corpus.texts]
        sides = ("text",) * corpus.texts  # the tokens of all texts are counted together
        manifest |= {"task": TASK, "labels": labels}
    first_rows = [row for rows in corpus.splits.values() for row in islice(rows, 1)]
    extras = sorted({name for row in first_rows for name in row.extras})
    if labels is not None or extras:
        manifest["extras"] = extras
    splits = clean_splits(
        corpus.splits, cleaning, data.max_tokens, labels, symmetric=corpus.symmetric, corpus=corpus.name
    )
    if vocabulary is not None:
        tokenizers = vocabulary.pair(data)
        manifest["vocabulary_from"] = vocabulary.origin
    else:
        period = max(1, math.ceil(sum(1 for _ in corpus.splits["train"]) / MAX_LEARNED_ROWS))
        part = f"one train row in {period}"
        if period > 1:
            manifest["learned_from"] = part
        note(f"learning {data.vocabulary:,} token types{f' from {part}' if period > 1 else ''} ...")
        tokenizers = train_pair(
            splits["train"].sample(period),
            data.tokenizer,
            data.vocabulary,
            joint=getattr(data, "joint", True),
            lowercase=cleaning.lowercase,
            min_count=cleaning.min_count,
        )
    tokenizers.save(folder)
    sizes = (tokenizers.source.size, tokenizers.target.size)
    manifest["token_types"] = dict(zip(dict.fromkeys(sides), sizes, strict=False))
    counts = manifest["splits"] = {}
    for name, rows in splits.items():
        tokens = {side: {"tokens": 0, "unknown": 0, "longest": 0} for side in sides}  # without the end of sentence
        chunks = _encoded(name, rows, tokenizers, extras, [tokens[side] for side in sides])
        numbers = [*([] if labels is None else ["label"]), *extras]
        with_text = corpus.train_text or name != "train"
        write_split(folder / f"{name}.arrow", chunks, columns, numbers, with_text=with_text)
        counts[name] = {**rows.counts(), **tokens}
    train = counts["train"]
    if not train["kept"]:
        hint = ". Was the same file given for train and for another split?" if HELD_OUT in train["dropped"] else ""
        dropped = describe_counts(train["dropped"])
        raise DataError(f"all {train['read']:,} train rows were dropped ({dropped}). Check the files{hint}")
    if labels is not None:
        _check_classes(corpus, labels, counts)
    if vectors is not None:
        manifest["vectors"] = write_vectors(folder, vectors, tokenizers.source.vocabulary, [*splits])
    return manifest


def _encoded(
    name: str, rows: CleanRows, tokenizers: TokenizerPair, extras: Sequence[str], counts: Sequence[dict[str, int]]
) -> Iterator[list[list[Any]]]:
    """Yield a split's rows in chunks. Add the tokens of each text to its entry of `counts`."""
    remaining = iter(rows)
    with progress(f"tokenizing {name}", None) as advance:
        while chunk := list(islice(remaining, CHUNK_ROWS)):
            encoded = [tokenizers.source.encode([row.texts[0] for row in chunk])]
            if len(chunk[0].texts) == 2:
                encoded.append(tokenizers.target.encode([row.texts[1] for row in chunk]))
            kept: list[list[Any]] = []
            for row, sides in zip(chunk, zip(*encoded, strict=True), strict=True):
                fitted = rows.fit(row, sides)
                if fitted is None:
                    continue
                label = [rows.label_number(row)] if rows.labelled else []
                kept.append([*fitted, *label, *(row.extras.get(extra, UNKNOWN) for extra in extras), *row.texts])
                for count, ids in zip(counts, fitted, strict=True):
                    count["tokens"] += len(ids)
                    count["unknown"] += ids.count(UNK)
                    count["longest"] = max(count["longest"], len(ids))
            yield kept
            advance(len(chunk))


def labels_of(train: RowSource) -> list[str]:
    """Return train's labels, sorted, integers by value. Raises DataError for a label with a tab or line end."""
    labels: set[str] = set()
    for row in train:
        if row.label is None or row.label in labels:
            continue
        if any(mark in row.label for mark in "\t\n\r"):
            raise DataError(f"{row.location}: the label {row.label!r} contains a tab or a line end. Replace it")
        labels.add(row.label)
    if all(re.fullmatch(r"-?\d{1,18}", label) for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def _check_classes(corpus: Corpus, labels: Sequence[str], counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise DataError for a class without train examples, or warn if the card declares it and no split has it."""
    for label in labels:
        if label in counts["train"]["labels"]:
            continue
        splits = ", ".join(name for name, split in counts.items() if label in split["labels"])
        dropped = describe_counts(counts["train"]["dropped"])
        problem = f"no example of the label {label!r} remains in train of {corpus.name!r} (of all rows: {dropped})"
        if splits:
            problem += f", but {splits} has examples"
        if splits or not corpus.labels:
            raise DataError(f"{problem}. Remove the label's rows, or add examples to train")
        warn(f"{problem}: it is not learned")


def _report_differences(manifest: Mapping[str, Any], card: Card) -> None:
    """Report splits that were taken from train, and splits with far fewer rows than were published."""
    held_out = manifest.get("held_out", {})
    if held_out:  # scores on these splits cannot be compared with published scores
        parts = "; ".join(f"{split} is {rows}" for split, rows in held_out.items())
        note(f"{card.id} lacks {' and '.join(held_out)}: {parts}, and train is the remaining rows")
    for split, counts in manifest["splits"].items():
        published = card.sizes.get(split, 0)
        if counts["read"] < _MIN_SHARE * published:
            warn(
                f"{split} of {card.id} has {counts['read']:,} rows, but {published:,} were published. "
                "Check that the source is complete"
            )
