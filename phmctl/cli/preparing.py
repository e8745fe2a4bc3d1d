"""The command ``prepare-data``: a prepared corpus, or the list of dataset cards."""

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import phmctl
from phmctl.cli.options import Data, Json
from phmctl.console import Shown, Table

SPLITS = ("train", "valid", "test")
TABLES = (".tsv", ".csv", ".jsonl", ".tmx")  # ends of the names of files that have both sides

Name = Annotated[str | None, Argument(metavar="NAME", help="Name of a dataset card, or a name for your own corpus.")]
Train = Annotated[
    list[str] | None,
    Option(metavar="FILE", help="Your own training text: a table of both sides, or --train SOURCE --train TARGET."),
]
Valid = Annotated[list[str] | None, Option(metavar="FILE", help="Your own validation text, as --train.")]
Test = Annotated[
    list[str] | None,
    Option(metavar="[NAME=]FILE", help="Your own test text, as --train; NAME makes a further test set."),
]
Labelled = Annotated[
    list[str] | None, Option(metavar="SPLIT=FILE", help="Your own labelled text: TSV, CSV or JSON lines. Repeatable.")
]
Source = Annotated[Path | None, Option(help="Folder with the card's files; without it they are downloaded.")]
Recipe = Annotated[str | None, Option(help="Read tokenizer, vocabulary and lengths from this recipe.")]
Columns = Annotated[
    str | None, Option(metavar="SRC,TGT", help="Columns of source and target in a table: names, or numbers from 0.")
]
Languages = Annotated[str | None, Option(metavar="SRC,TGT", help="Languages of your own files, by codes: de,en.")]
Text = Annotated[list[str] | None, Option(metavar="COLUMN", help="Column of the text in --table; twice for pairs.")]
Label = Annotated[str | None, Option(metavar="COLUMN", help="Column of the label in --table.")]
Quoting = Annotated[bool | None, Option(help="Whether table cells may be quoted (default: only in CSV).")]
Header = Annotated[bool | None, Option(help="Whether tables have a header; without one, columns are numbers from 0.")]
Extra = Annotated[
    list[str] | None,
    Option(metavar="COLUMN", help="Column of whole numbers; eval prints scores for each value. Repeatable."),
]
Vectors = Annotated[Path | None, Option(metavar="FILE", help="Word vectors for labelled text, in GloVe's text format.")]
SkipBadLines = Annotated[bool, Option("--skip-bad-lines", help="Skip and count unreadable lines of your own files.")]
Divide = Annotated[
    str | None,
    Option(
        metavar="VALID[,TEST]",
        help="Take valid and test from your train files: 1000,1000 rows or 5%,5%; equal sources stay together.",
    ),
]
VocabularyOf = Annotated[
    Path | None, Option(metavar="RUN", help="Use the vocabulary of a run or of a prepared folder.")
]
Tokenizer = Annotated[str | None, Option(help="bpe or word.")]
Vocabulary = Annotated[int | None, Option(help="Number of token types; of each side with --separate.")]
Joint = Annotated[
    bool | None, Option("--joint/--separate", help="Translation: one vocabulary for both sides, or one for each.")
]
Reverse = Annotated[
    bool, Option("--reverse", help="Translation: from the corpus' target language to its source language.")
]
Copies = Annotated[
    bool, Option("--copies", help="Translation: train on each target as its own source too (style transfer).")
]
MaxTokens = Annotated[int | None, Option(help="Length of the longest text kept in train, in tokens.")]
Lowercase = Annotated[bool | None, Option(help="Lower-case the text to tokenize (default: the card's).")]
Normalise = Annotated[bool | None, Option(help="Apply Unicode NFC; replace all kinds of white space by one blank.")]
Entities = Annotated[str | None, Option(help="decode: turn entities of Moses (&apos;) into characters; or keep.")]
MaxRatio = Annotated[float | None, Option(help="Largest ratio of the lengths of a train pair in tokens; 0 keeps all.")]
MinCount = Annotated[
    int | None, Option(min=1, help="Least number of occurrences of a word, or of a pair that BPE joins.")
]
Force = Annotated[bool, Option("--force", help="Prepare again even if nothing has changed.")]
Refetch = Annotated[bool, Option("--refetch", help="Download the card's files again.")]
List = Annotated[bool, Option("--list", help="List the dataset cards, or show the card NAME.")]


def prepare_data(
    name: Name = None,
    data: Data = None,
    source: Source = None,
    recipe: Recipe = None,
    train: Train = None,
    valid: Valid = None,
    test: Test = None,
    table: Labelled = None,
    columns: Columns = None,
    languages: Languages = None,
    text: Text = None,
    label: Label = None,
    quoting: Quoting = None,
    header: Header = None,
    extra: Extra = None,
    vectors: Vectors = None,
    skip_bad_lines: SkipBadLines = False,
    split: Divide = None,
    vocabulary_of: VocabularyOf = None,
    tokenizer: Tokenizer = None,
    vocabulary: Vocabulary = None,
    joint: Joint = None,
    reverse: Reverse = False,
    copies: Copies = False,
    max_tokens: MaxTokens = None,
    lowercase: Lowercase = None,
    normalise: Normalise = None,
    entities: Entities = None,
    max_ratio: MaxRatio = None,
    min_count: MinCount = None,
    force: Force = False,
    refetch: Refetch = False,
    list_: List = False,
    json: Json = False,
) -> Shown:
    """Clean and tokenize a corpus, once for all runs that use it."""
    if list_:
        return card_list(name, data)
    prepared = phmctl.prepare(
        name,
        data=data,
        source=source,
        recipe=recipe,
        files=files_by_split({"train": train, "valid": valid, "test": test}),
        table=table,
        columns=columns,
        languages=languages,
        text=text,
        label=label,
        quoting=quoting,
        header=header,
        extra=extra,
        vectors=vectors,
        skip_bad_lines=skip_bad_lines,
        split=split,
        vocabulary_of=vocabulary_of,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        joint=joint,
        reverse=reverse,
        copies=copies,
        max_tokens=max_tokens,
        lowercase=lowercase,
        normalise=normalise,
        entities=entities,
        max_ratio=max_ratio,
        min_count=min_count,
        force=force,
        refetch=refetch,
        quiet=False,
    )
    from phmctl.data.prepared import prepared_table

    document = {"folder": str(prepared.folder), **prepared.manifest}
    notes = [prepared.coverage] if prepared.coverage else []
    return Shown(document, [prepared_table(prepared.manifest)], notes=notes)


def files_by_split(options: dict[str, list[str] | None]) -> dict[str, list[tuple[str, ...]]]:
    """Return the tables and pairs of files of each split; ``news=FILE`` of test is in ``test_news``."""
    splits: dict[str, list[tuple[str, ...]]] = {}
    for option, files in options.items():
        for file in files or ():
            name, equals, path = file.partition("=")
            is_named = equals and "/" not in name and not Path(file).exists()
            groups = splits.setdefault(f"{option}_{name}" if is_named else option, [])
            path = path if is_named else file
            last = groups[-1] if groups else ()
            if len(last) == 1 and not is_table(last[0]) and not is_table(path):
                groups[-1] = (*last, path)
            else:
                groups.append((path,))
    return splits


def is_table(path: str) -> bool:
    return path.lower().removesuffix(".gz").endswith(TABLES)


def card_list(name: str | None, data: Path | None) -> Shown:
    """List the shipped cards, or the card with this name."""
    from phmctl.data.card import list_cards
    from phmctl.data.prepared import data_root

    root = data_root(data)
    cards = list_cards(root, name)
    titles = ["name", "what", "train / valid / test", "licence", "from", "here"]
    tables = [
        Table(task, titles, [_card_cells(card) for card in group], text=(1, 3, 4, 5))
        for task, group in groupby(cards, key=itemgetter("task"))
    ]
    note = f"prepared data is in {root}"
    if any(card["divided"] for card in cards):
        note = f"* held out of train, because the publishers have no such split; {note}"
    return Shown({"data": str(root), "cards": cards}, tables, notes=[note])


def _card_cells(card: dict[str, Any]) -> list[str]:
    """Return the row of a card in the list of cards."""
    texts = "pair" if card["texts"] == 2 else "text"
    content = " → ".join(card["languages"]) or f"{texts} → {len(card['labels']) or '?'}"
    sizes = []
    for split in SPLITS:
        if split in card["sizes"]:
            mark = "*" if split in card["divided"] else ""
            sizes.append(f"{card['sizes'][split]:,}{mark}")
    licence = card["licence"].partition(" (")[0].partition(",")[0].removesuffix(" by the publishers")
    state = "not fetched"
    if card["prepared"]:
        state = "prepared"
    elif card["fetched"]:
        state = "fetched"
    elif not {"hub", "urls"} & {*card["origins"]}:  # local files only
        state = "–"
    return [card["name"], content, " / ".join(sizes) or "not known", licence, ", ".join(card["origins"]), state]
