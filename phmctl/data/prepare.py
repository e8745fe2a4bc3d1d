"""Prepare a corpus: raw text to token ids on disk, once for each tokenizer setting.

Train is read several times: to count its rows, to learn each vocabulary, and to encode it. Memory holds one chunk of
rows, the digests of valid and test, and the word counts from which a vocabulary is learned. Because these counts grow
with the text, a vocabulary is learned from at most a million rows, spread evenly over train.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from phmctl.console import note, progress, warn
from phmctl.data import UNK, UNKNOWN, Row, RowSource
from phmctl.data.card import Card, Cleaning, RowFormat, is_card, labelled_format, load_card, parallel_format
from phmctl.data.corpus import Corpus, open_corpus, own_corpus
from phmctl.data.prepared import (
    LABELLED,
    MANIFEST,
    PARALLEL,
    TASK,
    PreparedData,
    Section,
    SectionT,
    card_section,
    data_root,
    prepare_command,
    prepared_folder,
    read_manifest,
    write_manifest,
    write_split,
    write_vectors,
)
from phmctl.data.rows import HELD_OUT, CleanRows, HeldOut, clean_line, describe_counts
from phmctl.data.tokenizer import OF_VOCABULARY, TokenizerPair, Vocabulary, train_pair
from phmctl.errors import DataError
from phmctl.recipe.documents import change
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import RECIPES, LabelledSection, ParallelSection, Recipe
from phmctl.storage import clear, damage, file_entry, leftovers, lock, replacing

MAX_LEARNED_ROWS = 1_000_000  # a vocabulary of more train rows is learned from every k-th row
CHUNK_ROWS = 4096  # rows that are tokenized at a time
_MIN_SHARE = 0.5  # share of the published rows below which a warning says that the source may be incomplete
_VECTORS = "vectors"  # split and side of word vectors in a manifest's sources
# Options of ``prepare-data``, and keys of the data section, that one kind of text has, and how to give own files.
_LABELLED_ONLY = {"table", "text", "label", "vectors"}
_PARALLEL_ONLY = {"columns", "languages", "joint", "direction", "copies"}
_FLAGS = {"joint": "--joint or --separate", "direction": "--reverse"}
_OWN_FILES = {
    True: "--table SPLIT=FILE --text COLUMN --label COLUMN",
    False: "--train FILE [--train FILE] --valid FILE [--valid FILE]",
}


def prepare_named(
    name: str,
    *,
    data: Path | None,
    recipe: str | None,
    settings: Mapping[str, Any],
    files: Mapping[str, Any],
    options: Mapping[str, Any],
    cleaning: Mapping[str, Any],
    vocabulary: Vocabulary | None,
    source: Path | None,
    force: bool,
    refetch: bool,
) -> PreparedData:
    """Prepare a card's corpus or the user's own. See :func:`phmctl.prepare`.

    Args:
        settings: keys of the data section.
        files: own parallel files by split.
        options: options for reading own files and word vectors.
        cleaning: fields of the cleaning that replace the card's.

    Raises DataError, RecipeError, OutputError.
    """
    if refetch and (source or files or "table" in options):
        raise DataError("--refetch downloads a card's files again; leave it out with --source or your own files")
    base_recipe = None if recipe is None else load_recipe(recipe)
    if files or "table" in options:
        labelled = "table" in options
    elif base_recipe is not None and not is_card(name):
        labelled = isinstance(getattr(base_recipe, "data", None), LabelledSection)
    else:
        labelled = load_card(name).labelled
    others = _PARALLEL_ONLY if labelled else _LABELLED_ONLY
    wrong = [_FLAGS.get(key, _option(key)) for key in (*options, *settings) if key in others]
    if wrong or (labelled and files):
        own_type, other_type = ("labelled", "parallel") if labelled else ("parallel", "labelled")
        named = ", ".join([*wrong, *(f"--{split}" for split in files if labelled)])
        raise DataError(f"{named} is for {other_type} text; {name} is {own_type} text: {_OWN_FILES[labelled]}")
    reading = {key: value for key, value in options.items() if key != "vectors"}
    corpus: Corpus | None = None
    own_settings: dict[str, Any] = {}
    if files or "table" in options:
        corpus, own_settings = _own(name, labelled, files, reading)
        if base_recipe is not None and base_recipe.task == "probing":
            corpus = replace(corpus, train_text=True)  # the probed encoder's tokenizer reads the text
    elif reading:
        named = ", ".join(map(_option, reading))
        raise DataError(f"{named} is for your own files: give those with {_OWN_FILES[labelled]}")
    section = choose_section(name, base_recipe, settings, LabelledSection if labelled else ParallelSection, vocabulary)
    return prepare(
        section,
        corpus,
        cleaning,
        root=data_root(data),
        source=source,
        settings=own_settings,
        vocabulary=vocabulary,
        vectors=options.get("vectors"),
        force=force,
        refetch=refetch,
    )


def choose_section(
    name: str,
    recipe: Recipe | None,
    options: Mapping[str, Any],
    section: type[SectionT],
    vocabulary: Vocabulary | None = None,
) -> SectionT:
    """Return the data section of a recipe, or else the defaults of the card and the vocabulary, changed by options."""
    if recipe is None:
        learned = vocabulary.settings_for(section) if vocabulary else {}
        defaults: Any = card_section(name, section)
        chosen: SectionT = change(defaults, {**learned, **options}, DataError)
        return chosen
    if not isinstance(recipe.data, section):
        recipe_type = next(cls for cls in RECIPES.values() if cls.model_fields["data"].annotation is section)
        expect(recipe, recipe_type)  # raises RecipeError
    copied: Any = recipe.data.model_copy(update={"card": name})
    changed: SectionT = change(copied, options, DataError)
    return changed


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _own(
    name: str, labelled: bool, files: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Corpus, dict[str, Any]]:
    """Return the corpus of a user's files, and the settings that say how they are read."""
    languages = None
    if labelled:
        files = {}
        for value in options["table"]:
            split, _, path = value.partition("=")
            if not split or not path or split in files:
                raise DataError(f"--table {value}: expected SPLIT=FILE, each split once")
            files[split] = [[Path(path)]]
        row_format: RowFormat | None = labelled_format(options)
    else:
        row_format, languages = parallel_format(options)
    skip = bool(options.get("skip_bad_lines"))
    corpus = own_corpus(
        name,
        files,
        row_format,
        skip=skip,
        languages=languages or ("source", "target"),
        columns_given=labelled or "columns" in options,
    )
    settings: dict[str, Any] = {}
    if "split" in options:
        corpus = corpus.with_held_out(options["split"])
        settings["split"] = options["split"]
    if row_format:
        settings["rows"] = row_format.model_dump(mode="json")
    if skip:
        settings["skip_bad_lines"] = True
    if languages:
        settings["languages"] = list(languages)
    return corpus, settings


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
    """Clean, tokenize and store a corpus unless its folder is up to date. See ``prepare-data``.

    Without a `corpus` of the user's files the card's corpus is prepared. The same text and settings give the same
    bytes. `cleaning` overrides fields of the card's cleaning. `settings` describe how the user's files are read. A
    change of them makes the folder out of date. Without `vectors`, a folder with word vectors can be up to date.
    """
    if corpus is not None and source is not None:
        raise DataError("--source is for a card's files; with files of your own leave it out")
    if vectors is not None and data.tokenizer != "word":
        raise DataError(f"--vectors: word vectors need --tokenizer word, not {data.tokenizer}")
    base = corpus or load_card(data.card)
    card = base if isinstance(base, Card) else None
    cleaned = card.cleaning if card else Cleaning()
    if vocabulary is not None:
        vocabulary_cleaning = {key: getattr(vocabulary.cleaning, key) for key in OF_VOCABULARY}
        cleaned = cleaned.model_copy(update=vocabulary_cleaning) if card else vocabulary.cleaning
    cleaned = change(cleaned, cleaning or {}, DataError)
    all_settings = {**data.model_dump(exclude={"card"}), "cleaning": cleaned.model_dump()}
    if isinstance(data, LabelledSection):
        all_settings["labels"] = list(base.labels)
        all_settings |= {flag: True for flag in ("symmetric", "train_text") if getattr(base, flag)}
    if vocabulary is not None:
        vocabulary.check(data, cleaned)
        all_settings["vocabulary_of"] = vocabulary.sha256
    content: dict[str, Any] = {"settings": {**all_settings, **(settings or {})}}
    if isinstance(base, Card):
        content["card_sha256"] = base.digest
    folder = prepared_folder(data, root)
    reopen = card is None or card.built_in or source or vectors or force or refetch
    if reopen or not _is_up_to_date(folder, content):  # published text does not change: the network is not needed
        opened = open_corpus(base, source, root / "raw" / base.id, refetch=refetch) if isinstance(base, Card) else base
        opened = _in_direction(opened, data)
        content |= _provenance(opened, vectors)

        def write(temporary: Path) -> None:
            _write(temporary, data, opened, cleaned, vectors, vocabulary, content)

        _build(folder, content, write, force=force)
    else:
        note(f"{folder} is up to date")
    prepared = PreparedData(folder, prepare_command(data, root))
    if card is not None:
        _report_differences(prepared.manifest, card)
    return prepared


def _build(folder: Path, content: Mapping[str, Any], write: Callable[[Path], None], *, force: bool) -> None:
    """Let `write` fill a new folder unless the folder has this content. Rename it when it is complete."""
    folder = folder.resolve() if folder.is_symlink() else folder  # data on another disk stays there
    lock_path = folder.with_name(f".{folder.name}.lock")
    killed = lock_path.exists() or leftovers(folder)  # a process was killed here
    if force or killed or not _is_up_to_date(folder, content):
        with lock(lock_path, remove=True):  # a second process waits
            clear(folder)  # removes incomplete folders, and restores a replaced one without successor
            if force or not _is_up_to_date(folder, content):
                with suppress(DataError):  # there is no folder, or it is damaged
                    before = read_manifest(folder).get("vectors")
                    note(f"{folder} is out of date: preparing again")
                    if before and all(entry["side"] != _VECTORS for entry in content["sources"]):
                        warn(f"it loses the word vectors of {before['file']}; give --vectors to keep them")
                with replacing(folder, MANIFEST, "settings") as temporary:
                    write(temporary)
                note(f"prepared in {folder}")
                return
    note(f"{folder} is up to date")


def _is_up_to_date(folder: Path, content: Mapping[str, Any]) -> bool:
    """Return whether a folder is complete and undamaged, and its manifest has this content."""
    try:
        manifest = read_manifest(folder)
    except DataError:  # missing or damaged
        return False
    sources = content.get("sources", ())
    if not any(entry["side"] == _VECTORS for entry in sources):  # a folder with vectors can be up to date without them
        manifest["sources"] = [entry for entry in manifest["sources"] if entry.get("side") != _VECTORS]
    if any(manifest.get(key) != value for key, value in content.items()):
        return False
    return not any(damage(folder, entry) for entry in manifest["files"])


def _provenance(corpus: Corpus, vectors: Path | None) -> dict[str, Any]:
    """Return the manifest's keys about a corpus' origin, with the SHA-256 of its files.

    The entry of a file contains its split and side, so that exchanged files are noticed.
    """
    content: dict[str, Any] = {"corpus": corpus.name}
    if corpus.languages:
        content["source_language"], content["target_language"] = corpus.languages
    else:
        content["texts"] = corpus.texts
    content["origin"] = corpus.origin
    if corpus.held_out:
        content["held_out"] = dict(corpus.held_out)
    files = [(file.path, file.split, file.side) for file in corpus.files]
    if vectors is not None:
        files.append((vectors, _VECTORS, _VECTORS))
    content["sources"] = []
    for path, split, side in files:
        try:
            content["sources"].append({**file_entry(path.parent, path.name), "split": split, "side": side})
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
    return content


def _in_direction(corpus: Corpus, data: Section) -> Corpus:
    """Return the corpus in the section's direction and with its copies. Raises DataError without train or valid."""
    if [*corpus.splits][:2] != ["train", "valid"]:
        names = ", ".join(corpus.splits) or "no split"
        remedy = "; or take valid and test out of train: --split 1000,1000" if "train" in corpus.splits else ""
        raise DataError(f"{corpus.name!r} has {names}; --train and --valid, or --table of both, are needed{remedy}")
    if isinstance(data, ParallelSection):
        if data.direction == "reverse":
            corpus = corpus.reversed()
        if data.copies:
            corpus = corpus.with_copies()
    return corpus


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
        manifest["vectors"] = write_vectors(folder, vectors, tokenizers.source.vocabulary, [*splits])
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
    """Yield a split's rows in chunks. Add the tokens of each text to its entry of `counts`."""
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
