"""Preparation: raw text to token ids on disk, once for each corpus and tokenizer setting.

Train is read several times: to count its rows, to learn each vocabulary, and to encode it. Memory holds one chunk of
rows, the digests of valid and test, and the word counts from which a vocabulary is learned. Because these counts grow
with the text, a vocabulary is learned from at most a million rows, spread evenly over train.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phmctl.console import note, progress, warn
from phmctl.data import PAD, SPECIAL_TOKENS, UNK
from phmctl.data.card import Card, Cleaning, load_card
from phmctl.data.clean import HELD_OUT, CleanRows, HeldOut, clean_line, describe_counts
from phmctl.data.corpus import Corpus, copied_corpus, open_corpus, reversed_corpus
from phmctl.data.prepared import (
    LABELLED,
    PARALLEL,
    TASK,
    VECTORS_FILE,
    PreparedData,
    Section,
    SectionT,
    Split,
    card_section,
    prepare_command,
    prepared_folder,
    read_manifest,
    write_manifest,
    write_split,
)
from phmctl.data.provenance import CARD, OF_VOCABULARY, Vocabulary, build, changes, provenance
from phmctl.data.readers import read_lines
from phmctl.data.rows import UNKNOWN, Row, RowSource
from phmctl.data.tokenizer import Tokenizer, TokenizerPair, train_pair
from phmctl.errors import DataError
from phmctl.recipe.documents import change
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import RECIPES, LabelledSection, ParallelSection
from phmctl.storage import write_atomic

MAX_LEARNED_ROWS = 1_000_000  # a vocabulary of more train rows is learned from every k-th row
CHUNK_ROWS = 4096  # rows that are tokenized at a time
_MIN_SHARE = 0.5  # share of the published rows below which a warning says that the source may be incomplete
# A word can end in a space and an integer ("sept 11"); a number of this form belongs to the vector instead.
_REAL = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")

Floats = npt.NDArray[np.float32]


def choose_section(
    name: str,
    recipe: str | None,
    options: Mapping[str, Any],
    section: type[SectionT],
    vocabulary: Vocabulary | None = None,
) -> SectionT:
    """Return the data section of a recipe, or else the defaults of the card and the vocabulary, changed by options."""
    if recipe is not None:
        loaded = load_recipe(recipe)
        if not isinstance(loaded.data, section):
            recipe_type = next(cls for cls in RECIPES.values() if cls.model_fields["data"].annotation is section)
            expect(loaded, recipe_type)  # raises RecipeError
        data: Any = loaded.data.model_copy(update={"card": name})
    else:
        data = card_section(name, section)
        if vocabulary is not None:
            data = change(data, vocabulary.settings_for(section), DataError)
    chosen: SectionT = change(data, options, DataError)
    return chosen


def prepare(
    data: Section,
    corpus: Corpus | None = None,
    cleaning: Mapping[str, Any] | None = None,
    *,
    root: Path,
    source: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    vocabulary: Vocabulary | None = None,
    vectors: Path | None = None,
    force: bool = False,
    refetch: bool = False,
) -> PreparedData:
    """Clean, tokenize and store a corpus unless its folder is up to date; see ``prepare-data``.

    Without a `corpus` of the user's files the card's corpus is prepared. The same text and settings give the same
    bytes. `cleaning` overrides fields of the card's cleaning. `settings` describe how the user's files are read; a
    change of them makes the folder out of date. Without `vectors`, a folder with word vectors can be up to date.
    """
    if corpus is not None and source is not None:
        raise DataError("--source is for a card's files; with files of your own leave it out")
    if vectors is not None and data.tokenizer != "word":
        raise DataError(f"--vectors: word vectors need --tokenizer word, not {data.tokenizer}")
    base = corpus or load_card(data.card)
    cleaning_settings = _choose_cleaning(base, vocabulary, cleaning or {})
    if vocabulary is not None:
        vocabulary.check(data, cleaning_settings)
    folder = prepared_folder(data, root)
    all_settings = {**_settings(data, cleaning_settings, base, vocabulary), **(settings or {})}
    reopen = source or vectors or force or refetch or (isinstance(base, Card) and base.built_in)
    if isinstance(base, Card) and not reopen and not changes(folder, all_settings, {CARD: base.digest}):
        note(f"{folder} is up to date")  # published text does not change, so the network is not needed
    else:
        corpus = _open(base, data, source, root / "raw", refetch=refetch)
        origin = provenance(corpus, vectors)

        def write(temporary: Path) -> None:
            if vectors is None:
                _warn_of_lost_vectors(folder)
            content = {"settings": all_settings, **origin}
            _write(temporary, data, corpus, cleaning_settings, vectors, vocabulary, content)

        build(folder, all_settings, origin, write, force=force)
    prepared = PreparedData(folder, prepare_command(data, root))
    if isinstance(base, Card):
        _report_differences(prepared.manifest, base)
    return prepared


def _open(base: Card | Corpus, data: Section, source: Path | None, cache: Path, *, refetch: bool) -> Corpus:
    """Return the corpus in the section's direction and with its copies. Raises DataError without train or valid."""
    corpus = open_corpus(base, source, cache / base.id, refetch=refetch) if isinstance(base, Card) else base
    if [*corpus.splits][:2] != ["train", "valid"]:
        names = ", ".join(corpus.splits) or "no split"
        remedy = "; or take valid and test out of train: --split 1000,1000" if "train" in corpus.splits else ""
        raise DataError(f"{corpus.name!r} has {names}; --train and --valid, or --table of both, are needed{remedy}")
    if isinstance(data, ParallelSection):
        if data.direction == "reverse":
            corpus = reversed_corpus(corpus)
        if data.copies:
            corpus = copied_corpus(corpus)
    return corpus


def _choose_cleaning(base: Card | Corpus, vocabulary: Vocabulary | None, options: Mapping[str, Any]) -> Cleaning:
    if isinstance(base, Card):
        cleaning = base.cleaning
        if vocabulary is not None:
            cleaning = cleaning.model_copy(update={key: getattr(vocabulary.cleaning, key) for key in OF_VOCABULARY})
    else:
        cleaning = Cleaning() if vocabulary is None else vocabulary.cleaning
    return change(cleaning, options, DataError)


def _warn_of_lost_vectors(folder: Path) -> None:
    with suppress(DataError):  # the earlier folder can be missing or damaged
        vectors = read_manifest(folder).get("vectors")
        if vectors:
            warn(f"prepared again without the vectors of {vectors['file']}; give --vectors to keep them")


def _report_differences(manifest: Mapping[str, Any], card: Card) -> None:
    """Report splits that were taken from train, and splits with far fewer rows than were published."""
    held_out = manifest.get("held_out", {})
    if held_out:  # scores on these splits cannot be compared with published scores
        parts = "; ".join(f"{split} is {rows}" for split, rows in held_out.items())
        note(f"{card.id} lacks {' and '.join(held_out)}: {parts}; train is the remaining rows")
    for split, counts in manifest["splits"].items():
        published = card.sizes.get(split, 0)
        if counts["read"] < _MIN_SHARE * published:
            warn(
                f"{split} of {card.id} has {counts['read']:,} rows, but {published:,} were published; "
                "check that the source is complete"
            )


def _settings(data: Section, cleaning: Cleaning, base: Card | Corpus, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Return the settings that, with the sources, determine a folder's content."""
    settings = {**data.model_dump(exclude={"card"}), "cleaning": cleaning.model_dump()}
    if isinstance(data, LabelledSection):
        settings["labels"] = list(base.labels)
        settings |= {flag: True for flag in ("symmetric", "train_text") if getattr(base, flag)}
    if vocabulary is not None:
        settings["vocabulary_of"] = vocabulary.sha256
    return settings


# ------------------------------------------------------------------------------------------------ writing a folder


def _write(
    folder: Path,
    data: Section,
    corpus: Corpus,
    cleaning: Cleaning,
    vectors: Path | None,
    vocabulary: Vocabulary | None,
    content: Mapping[str, Any],
) -> None:
    """Write the tokenizers, the splits, the word vectors and the manifest, which begins with `content`."""
    labels = None
    columns: Sequence[str] = PARALLEL
    sides: Sequence[str] = PARALLEL
    if corpus.labelled:
        labels = list(corpus.labels) or labels_of(corpus.splits["train"])
        columns = LABELLED[: corpus.texts]
        sides = ("text",) * corpus.texts  # the tokens of all texts are counted together
    splits = _clean_splits(corpus, cleaning, data.max_tokens, labels)
    if vocabulary is None:
        tokenizers, source = _learn(corpus, splits["train"], data, cleaning)
    else:
        tokenizers, source = vocabulary.pair(data), {"vocabulary_from": vocabulary.origin}
    tokenizers.save(folder)
    first_rows = [row for rows in corpus.splits.values() for row in islice(rows, 1)]
    extras = sorted({name for row in first_rows for name in row.extras})
    numbers = ["label", *extras] if corpus.labelled else extras
    counts = {}
    for name, rows in splits.items():
        with_text = corpus.train_text or name != "train"
        tokens = {side: {"tokens": 0, "unknown": 0, "longest": 0} for side in sides}  # without the end of sentence
        chunks = _encoded(name, rows, tokenizers, extras, [tokens[side] for side in sides])
        write_split(folder / f"{name}.arrow", chunks, columns, numbers, with_text=with_text)
        counts[name] = {**rows.counts(), **tokens}
    train = counts["train"]
    if not train["kept"]:
        hint = "; was the same file given for train and for another split?" if HELD_OUT in train["dropped"] else ""
        dropped = describe_counts(train["dropped"])
        raise DataError(f"all {train['read']:,} train rows were dropped ({dropped}); check the files{hint}")
    manifest = dict(content)
    if labels is not None:
        _check_classes(corpus, labels, counts)
        types = {"text": tokenizers.source.size}
        manifest |= {"task": TASK, "labels": labels, "extras": extras}
    else:
        types = {"source": tokenizers.source.size, "target": tokenizers.target.size}
        if extras:
            manifest["extras"] = extras
    manifest |= {**source, "token_types": types, "splits": counts}
    if vectors:
        manifest["vectors"] = _write_vectors(folder, vectors, tokenizers.source, [*splits])
    write_manifest(folder, manifest)


def labels_of(train: RowSource) -> list[str]:
    """Return train's labels, sorted; integers by value. Raises DataError for a label with a tab or line end."""
    labels: set[str] = set()
    for row in train:
        if row.label is None or row.label in labels:
            continue
        if any(mark in row.label for mark in "\t\n\r"):
            raise DataError(f"{row.location}: the label {row.label!r} contains a tab or a line end; replace it")
        labels.add(row.label)
    if all(re.fullmatch(r"-?\d{1,18}", label) for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def _clean_splits(
    corpus: Corpus, cleaning: Cleaning, max_tokens: int, labels: Sequence[str] | None
) -> dict[str, CleanRows]:
    """Return the splits as cleaned rows, train without the texts of the others. Raises DataError for an empty split."""
    held_out = HeldOut(symmetric=corpus.symmetric, sides=not corpus.labelled)
    for name, rows in corpus.splits.items():
        _check_not_empty(corpus, name)
        if name == "train":
            continue
        for row in rows:
            if not corpus.labelled or row.label is not None:
                held_out.add([clean_line(text, cleaning) for text in row.texts])
    return {
        name: CleanRows(rows, cleaning, max_tokens, labels, held_out if name == "train" else None)
        for name, rows in corpus.splits.items()
    }


def _check_not_empty(corpus: Corpus, name: str) -> None:
    """Raise DataError unless a split has an example with a label, or a pair with text on both sides."""
    for row in corpus.splits[name]:
        if row.label is not None or (not corpus.labelled and all(map(str.strip, row.texts))):
            return
    files = " and ".join(str(file.path) for file in corpus.files if file.split == name) or corpus.origin
    lacks = "no example with a label" if corpus.labelled else "no pair with text on both sides"
    advice = "" if name in ("train", "valid") else ", or leave a test set out"
    raise DataError(f"{name} of {corpus.name!r} has {lacks} ({files}); check the files{advice}")


def _learn(corpus: Corpus, train: CleanRows, data: Section, cleaning: Cleaning) -> tuple[TokenizerPair, dict[str, str]]:
    """Return the tokenizers learned from train and, if only a part was used, a description for the manifest."""
    row_count = sum(1 for _ in corpus.splits["train"])
    period = max(1, math.ceil(row_count / MAX_LEARNED_ROWS))
    source = {}
    from_part = ""
    if period > 1:
        source["learned_from"] = f"one train row in {period}"
        from_part = f" from {source['learned_from']}"
    note(f"learning {data.vocabulary:,} token types{from_part} ...")
    tokenizers = train_pair(
        train.sample(period),
        data.tokenizer,
        data.vocabulary,
        joint=getattr(data, "joint", True),
        lowercase=cleaning.lowercase,
        min_count=cleaning.min_count,
    )
    return tokenizers, source


def _encoded(
    name: str, rows: CleanRows, tokenizers: TokenizerPair, extras: Sequence[str], counts: Sequence[dict[str, int]]
) -> Iterator[list[list[Any]]]:
    """Yield a split's rows in chunks; add the tokens of each text to its entry of `counts`."""
    remaining = iter(rows)
    with progress(f"tokenizing {name}", None) as advance:
        while chunk := list(islice(remaining, CHUNK_ROWS)):
            encoded = [tokenizers.source.encode([row.texts[0] for row in chunk])]
            if len(chunk[0].texts) == 2:
                encoded.append(tokenizers.target.encode([row.texts[1] for row in chunk]))
            kept = []
            for row, sides in zip(chunk, zip(*encoded, strict=True), strict=True):
                fitted = rows.fit(row, sides)
                if fitted is None:
                    continue
                kept.append(_columns(row, fitted, rows, extras))
                for count, ids in zip(counts, fitted, strict=True):
                    count["tokens"] += len(ids)
                    count["unknown"] += ids.count(UNK)
                    count["longest"] = max(count["longest"], len(ids))
            yield kept
            advance(len(chunk))


def _columns(row: Row, ids: Sequence[Sequence[int]], rows: CleanRows, extras: Sequence[str]) -> list[Any]:
    label = [rows.label_number(row)] if rows.labelled else []
    return [*ids, *label, *(row.extras.get(name, UNKNOWN) for name in extras), *row.texts]


def _check_classes(corpus: Corpus, labels: Sequence[str], counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise DataError for a class without train examples; only warn if the card declares it and no split has it."""
    for label in labels:
        if label in counts["train"]["labels"]:
            continue
        splits = ", ".join(name for name, split in counts.items() if label in split["labels"])
        dropped = describe_counts(counts["train"]["dropped"])
        problem = f"no example of the label {label!r} remains in train of {corpus.name!r} (of all rows: {dropped})"
        if splits:
            problem += f", but {splits} has examples"
        if splits or not corpus.labels:
            raise DataError(f"{problem}; remove the label's rows, or add examples to train")
        warn(f"{problem}: it is not learned")


# ---------------------------------------------------------------------------------------------------- word vectors


def _write_vectors(folder: Path, path: Path, tokenizer: Tokenizer, splits: Sequence[str]) -> dict[str, Any]:
    """Write the word vectors of the vocabulary; return their entry of the manifest."""
    import torch
    from safetensors.torch import save

    note(f"reading {path} ...")
    table, covered = read_vectors(path, tokenizer.vocabulary)
    write_atomic(folder / VECTORS_FILE, save({"vectors": torch.from_numpy(table)}))
    shares = {}
    for name in splits:
        sides = [side.values for side in Split(folder / f"{name}.arrow").sides]
        total = sum(map(len, sides))
        shares[name] = round(sum(int(covered[side].sum()) for side in sides) / total, 6) if total else 0.0
    return {
        "file": path.name,
        "width": table.shape[1],
        "covered": int(covered.sum()),
        "types": tokenizer.size - len(SPECIAL_TOKENS),
        "tokens": shares,
    }


def read_vectors(path: Path, vocabulary: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the vectors of a word tokenizer's vocabulary, (V, d), and whether the file has each token type, (V,).

    If the file lacks a word, its lower-case form is used, or else the mean of the other vectors; PAD is zero. The
    format is GloVe's: on each line a word and its numbers, plain or ``.gz``. A first line of two integers (word2vec's
    header) is skipped.
    """
    words = [token.strip() for token in vocabulary[len(SPECIAL_TOKENS) :]]
    by_word: dict[str, Floats] = {}
    for word, numbers in _rows_of_words(path, {*words, *map(str.lower, words)}):
        by_word.setdefault(word, numbers)
    vectors: list[Floats | None] = [None] * len(SPECIAL_TOKENS)
    vectors += [by_word.get(word, by_word.get(word.lower())) for word in words]
    known = [vector for vector in vectors if vector is not None]
    if not known:
        raise DataError(f"{path} lacks all {len(vocabulary):,} words of the vocabulary; is it a file of word vectors?")
    mean = np.stack(known).mean(axis=0, dtype=np.float64).astype(np.float32)
    table = np.stack([mean if vector is None else vector for vector in vectors])  # (V, d)
    table[PAD] = 0
    covered = np.array([vector is not None for vector in vectors])
    return table, covered


def _rows_of_words(path: Path, words: set[str]) -> Iterator[tuple[str, Floats]]:
    """Yield the vectors of these words in the order of the file; the width of all rows is checked."""
    width = 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.rstrip(" ")
        if number == 1 and re.fullmatch(r"[0-9]+ [0-9]+", text):
            continue
        width = width or text.count(" ")
        word, *numbers = text.rsplit(" ", width)  # words of GloVe's 840B release contain spaces
        if len(numbers) < max(width, 1) or (" " in word and _REAL.fullmatch(word.rpartition(" ")[2])):
            raise DataError(
                f"{path}, line {number}: {text.count(' ')} numbers after the word, but the first row has {width}; "
                "check that the file is complete and all vectors have one width"
            )
        if word not in words:
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.array(numbers, np.float32)
        except ValueError:
            values = np.full(1, np.nan, np.float32)  # refused below
        if not np.isfinite(values).all():
            raise DataError(f"{path}, line {number}: not all fields after the word are finite numbers")
        yield word, values
