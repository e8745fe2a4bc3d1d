"""Preparation: raw text to token ids on disk, once for each corpus and tokenizer setting.

Train is gone through once to be counted, once for each vocabulary and once more to be encoded, so memory holds digests
of valid and test, one record batch, and what learning a vocabulary takes. That grows with the number of distinct words,
so a vocabulary is learned from a million rows at most, spread evenly over the corpus. The folder appears under its name
only when it is complete.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from phmctl.console import note, progress, warn
from phmctl.data.card import Card, Cleaning, is_card, load_card
from phmctl.data.clean import HELD_OUT, CleanRows, HeldOut, clean_line, describe_counts
from phmctl.data.corpus import Corpus, copied_corpus, open_corpus, reversed_corpus
from phmctl.data.prepared.folder import (
    LABELLED,
    PARALLEL,
    TASK,
    VECTORS_FILE,
    PreparedData,
    Section,
    Split,
    prepare_command,
    prepared_folder,
    read_manifest,
    write_manifest,
    write_split,
)
from phmctl.data.prepared.provenance import CARD, OF_VOCABULARY, Vocabulary, build, changes, provenance
from phmctl.data.readers import read_lines
from phmctl.data.rows import UNKNOWN, RowSource
from phmctl.data.special import PAD, SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import Tokenizer, TokenizerPair, train_pair
from phmctl.errors import DataError
from phmctl.files import write_atomic
from phmctl.recipe.documents import change
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import RECIPES, LabelledSection, ParallelSection

LEARNED = 1_000_000  # rows that a vocabulary is learned from, at most
CHUNK = 4096  # rows that are tokenized at a time
_FEW = 0.5  # of what was published: with less, the source is hardly the whole corpus
_REAL = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")

Floats = npt.NDArray[np.float32]

SectionT = TypeVar("SectionT", ParallelSection, LabelledSection)


def choose_section(
    name: str,
    recipe: str | None,
    given: Mapping[str, Any],
    section: type[SectionT],
    vocabulary: Vocabulary | None = None,
) -> SectionT:
    """Return a data section: what is given, else a recipe's, else a vocabulary's that is there, else the card's."""
    kind = next(each for each in RECIPES.values() if each.model_fields["data"].annotation is section)
    loaded = None if recipe is None else load_recipe(recipe)
    base = loaded and (loaded if isinstance(loaded.data, section) else expect(loaded, kind)).data
    if not isinstance(base, section):
        proposed: Any = load_card(name).defaults if is_card(name) else {}
        told = {} if vocabulary is None else vocabulary.settings_for(section)
        base = change(section(card=name), {**proposed, **told}, DataError)
    return change(base.model_copy(update={"card": name}), given, DataError)


def prepare(
    data: Section,
    own: Corpus | None = None,
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
    """Clean, tokenize and store a card's corpus, or one's own, unless it is there; see ``prepare-data``.

    The same text and settings give the same bytes. The `settings` decide on the content of one's own corpus. The
    cleaning has the fields that were set by hand, instead of the card's. Without vectors those of an earlier
    preparation stay while it is up to date.
    """
    if own is not None and source is not None:
        raise DataError("--source is for a card's files; with files of your own leave it out")
    if vectors is not None and data.tokenizer != "word":
        raise DataError(f"word vectors want --tokenizer word, not {data.tokenizer}")
    of = load_card(data.card) if own is None else own
    usual = of.cleaning if isinstance(of, Card) else vocabulary.cleaning if vocabulary else Cleaning()
    if vocabulary is not None:  # what it was made by is its own
        usual = usual.model_copy(update={key: getattr(vocabulary.cleaning, key) for key in OF_VOCABULARY})
    chosen = change(usual, cleaning or {}, DataError)
    if vocabulary is not None:
        vocabulary.check(data, chosen)
    folder = prepared_folder(data, root)
    wanted = {**_settings(data, chosen, of, vocabulary), **(settings or {})}
    anew = source or vectors or force or refetch or (isinstance(of, Card) and of.built_in)
    if isinstance(of, Card) and not anew and not changes(folder, wanted, {CARD: of.digest}):
        note(f"{folder} is up to date")  # what was published stays as it is: the network need not be asked again
    else:
        corpus = open_corpus(of, source, root / "raw" / of.id, refetch=refetch) if isinstance(of, Card) else of
        if [*corpus.splits][:2] != ["train", "valid"]:
            names = ", ".join(corpus.splits) or "none"
            raise DataError(f"{corpus.name!r} has {names}; --train and --valid, or --table of both, are needed")
        if isinstance(data, ParallelSection):
            corpus = reversed_corpus(corpus) if data.direction == "reverse" else corpus
            corpus = copied_corpus(corpus) if data.copies else corpus
        made = provenance(corpus, vectors)

        def write(temporary: Path) -> None:
            with suppress(DataError):  # what was there may be missing or damaged
                before = read_manifest(folder).get("vectors")
                if before and vectors is None:
                    warn(f"prepared anew without the vectors of {before['file']}; give --vectors again to have them")
            _write(temporary, data, corpus, chosen, vectors, vocabulary, {"settings": wanted, **made})

        build(folder, wanted, made, write, force=force)
    prepared = PreparedData(folder, prepare_command(data, root))
    if isinstance(of, Card):
        _compare(prepared.manifest, of)
    return prepared


def _compare(manifest: Mapping[str, Any], card: Card) -> None:
    """Say which splits of a card were held out of train, and where there is much less text than was published."""
    splits, held_out = manifest["splits"], manifest.get("held_out", {})
    if held_out:  # their scores compare with nobody else's
        parts = "; ".join(f"{split} is {rows}" for split, rows in held_out.items())
        note(f"{card.id} has no {' and '.join(held_out)} of its own: {parts}; train is the rest")
    for split, counts in splits.items():
        read, number = counts["read"], card.sizes.get(split, 0)
        if read < _FEW * number:
            warn(f"{split} of {card.id} has {read:,} rows where {number:,} were published; is the source whole?")


def _settings(data: Section, cleaning: Cleaning, of: Card | Corpus, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Return what decides on a folder's content beside its sources."""
    settings = {**data.model_dump(exclude={"card"}), "cleaning": cleaning.model_dump()}
    if isinstance(data, LabelledSection):
        settings["labels"] = list(of.labels)
        settings |= {flag: True for flag in ("symmetric", "train_text") if getattr(of, flag)}
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
    made: Mapping[str, Any],
) -> None:
    labels = (list(corpus.labels) or labels_of(corpus.splits["train"])) if corpus.labelled else None
    splits = _clean_splits(corpus, cleaning, data.max_tokens, labels)
    if vocabulary is None:
        tokenizers, told = _learn(corpus, splits["train"], data, cleaning)
    else:
        tokenizers, told = vocabulary.pair(data), {"vocabulary_from": vocabulary.origin}
    tokenizers.save(folder)
    extras = sorted({name for rows in corpus.splits.values() for row in islice(rows, 1) for name in row.extras})
    columns = LABELLED[: corpus.texts] if corpus.labelled else PARALLEL
    numbers = (*(("label",) if corpus.labelled else ()), *extras)
    counts = {}
    for name, rows in splits.items():
        with_text = corpus.train_text or name != "train"
        sides = ("text",) if corpus.labelled else PARALLEL
        tokens = {side: {"tokens": 0, "unknown": 0, "longest": 0} for side in sides}  # without the end of sentence
        chunks = _encoded(name, rows, tokenizers, extras, tokens)
        write_split(folder / f"{name}.arrow", chunks, columns, numbers, with_text=with_text)
        counts[name] = {**rows.counts(), **tokens}
    train = counts["train"]
    if not train["kept"]:
        advice = "; was the same file given for train and for another split?" * (HELD_OUT in train["dropped"])
        what = f"no train row is left of {train['read']:,} read ({describe_counts(train['dropped'])})"
        raise DataError(f"{what}; check the files{advice}")
    types: dict[str, int] = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    kind: dict[str, Any] = {"extras": extras} if extras else {}
    if labels is not None:
        _check_classes(corpus, labels, counts)
        types, kind = {"text": tokenizers.source.size}, {"task": TASK, "labels": labels, "extras": extras}
    covered = {"vectors": _write_vectors(folder, vectors, tokenizers.source, [*splits])} if vectors else {}
    write_manifest(folder, {**made, **kind, **told, "token_types": types, "splits": counts, **covered})


def labels_of(train: RowSource) -> list[str]:
    """Return train's labels, sorted; whole numbers by value. DataError for what would break the predictions' table."""
    found: set[str] = set()
    for row in train:
        if row.label is None or row.label in found:
            continue
        if any(mark in row.label for mark in "\t\n\r"):
            raise DataError(f"{row.location}: the label {row.label!r} contains a tab or a line end; replace it")
        found.add(row.label)
    numeric = all(re.fullmatch(r"-?\d{1,18}", label) for label in found)
    return sorted(found, key=(lambda label: (int(label), label)) if numeric else None)


def _clean_splits(
    corpus: Corpus, cleaning: Cleaning, max_tokens: int, labels: Sequence[str] | None
) -> dict[str, CleanRows]:
    held_out = HeldOut(symmetric=corpus.symmetric, sides=not corpus.labelled)
    for name, rows in corpus.splits.items():
        if not any(row.label is not None if corpus.labelled else all(map(str.strip, row.texts)) for row in rows):
            files = " and ".join(str(each.path) for each in corpus.files if each.split == name) or corpus.origin
            what = "is empty: no example with a label" if corpus.labelled else "has no pair with text on both sides"
            advice = "" if name in ("train", "valid") else ", or leave a test set out"
            raise DataError(f"{name} of {corpus.name!r} {what} ({files}); check the files{advice}")
        for row in rows if name != "train" else ():
            if not corpus.labelled or row.label is not None:
                held_out.add([clean_line(text, cleaning) for text in row.texts])
    return {
        name: CleanRows(rows, cleaning, max_tokens, labels, held_out if name == "train" else None)
        for name, rows in corpus.splits.items()
    }


def _learn(corpus: Corpus, train: CleanRows, data: Section, cleaning: Cleaning) -> tuple[TokenizerPair, dict[str, str]]:
    """Return what is learned from train, and for the manifest from which part of it, if not all."""
    rows = corpus.splits["train"]
    period = -(-sum(1 for _ in rows) // LEARNED) or 1
    learned = f"one train row in {period}" if period > 1 else ""
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


def _encoded(
    name: str, rows: CleanRows, tokenizers: TokenizerPair, extras: Sequence[str], counts: dict[str, dict[str, int]]
) -> Iterator[list[list[Any]]]:
    """Tokenize a split and yield what is stored of it, in chunks; count tokens by side, or of all texts together."""
    both = (tokenizers.source, tokenizers.target)  # of which a single text wants the first
    remaining = iter(rows)
    with progress(f"tokenizing {name}", None) as advance:
        while chunk := list(islice(remaining, CHUNK)):
            columns = zip(*(row.texts for row in chunk), strict=True)
            encoded = [tokenizer.encode(column) for tokenizer, column in zip(both, columns, strict=False)]
            judged = [(row, rows.fit(row, ids)) for row, ids in zip(chunk, zip(*encoded, strict=True), strict=True)]
            kept = [(row, ids) for row, ids in judged if ids is not None]
            for side, column in zip(cycle(counts), zip(*(ids for _, ids in kept), strict=True), strict=False):
                counts[side]["tokens"] += sum(map(len, column))
                counts[side]["unknown"] += sum(ids.count(UNK) for ids in column)
                counts[side]["longest"] = max(counts[side]["longest"], *map(len, column))
            number = [rows.label_number] if rows.labelled else []
            yield [
                [*ids, *(each(row) for each in number), *(row.extras.get(x, UNKNOWN) for x in extras), *row.texts]
                for row, ids in kept
            ]
            advance(len(chunk))


def _check_classes(corpus: Corpus, labels: Sequence[str], counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a class of which train keeps no example: nothing trains its output. Of a card's own classes, only tell."""
    for label in labels:
        if label in counts["train"]["labels"]:
            continue
        has = ", ".join(name for name, split in counts.items() if label in split["labels"])
        why = describe_counts(counts["train"]["dropped"])
        lost = f"train of {corpus.name!r} has no example of the label {label!r} left (of all rows: {why})"
        if has or not corpus.labels:
            raise DataError(f"{lost}{f', and {has} has' if has else ''}; leave the label's rows out, or give others")
        warn(f"{lost}: it is not learned")


# ---------------------------------------------------------------------------------------------------- word vectors


def _write_vectors(folder: Path, path: Path, tokenizer: Tokenizer, splits: Sequence[str]) -> dict[str, Any]:
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
    """Read the vectors of a word tokenizer's vocabulary: (V, d), and which token types the file has, (V,).

    Where a word is missing its lower-case form is taken. What the file lacks has the mean of the others; PAD is zero.
    GloVe's text format: a word and its numbers a line, plain or ``.gz``. The 840B release has words with spaces in
    them, so the vector is the last numbers of a line. A first line with two whole numbers (word2vec's) is passed over.
    """
    words = [token.strip() for token in vocabulary[len(SPECIAL_TOKENS) :]]
    there: dict[str, Floats] = {}
    for word, numbers in _wanted_rows(path, {*words, *map(str.lower, words)}):
        there.setdefault(word, numbers)
    forms = enumerate((word if word in there else word.lower() for word in words), start=len(SPECIAL_TOKENS))
    found = {index: there[form] for index, form in forms if form in there}
    if not found:
        raise DataError(
            f"{path} has none of the {len(vocabulary):,} words of the vocabulary; are they vectors of words?"
        )
    size = len(vocabulary)
    rows = np.fromiter(found, np.int64, len(found))
    vectors = np.stack([*found.values()])  # (covered, d)
    covered = np.zeros(size, np.bool_)
    covered[rows] = True
    table = np.tile(vectors.mean(axis=0, dtype=np.float64).astype(np.float32), (size, 1))  # (V, d)
    table[rows] = vectors
    table[PAD] = 0
    return table, covered


def _wanted_rows(path: Path, wanted: set[str]) -> Iterator[tuple[str, Floats]]:
    """Yield the rows of the words that are wanted, in the order of the file; the width of all rows is checked."""
    width = 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.rstrip(" ")
        if number == 1 and re.fullmatch(r"[0-9]+ [0-9]+", text):
            continue
        width = width or text.count(" ")
        word, *numbers = text.rsplit(" ", width)
        # a word may have spaces in it, and end in a whole number: "sept 11"
        if len(numbers) < max(width, 1) or (" " in word and _REAL.fullmatch(word.rpartition(" ")[2])):
            raise DataError(
                f"{path}, line {number}: {text.count(' ')} numbers behind the word, but the first row has {width}; "
                "is the file whole, and of one width?"
            )
        if word not in wanted:
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.array(numbers, np.float32)
        except ValueError:
            values = np.full(1, np.nan, np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path}, line {number}: not all fields behind the word are finite numbers")
        yield word, values
