"""The command ``prepare-data``: a prepared corpus, or the list of dataset cards."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import phmctl
from phmctl.cli.options import Data, File, Flag, Json, Number, Text, Texts
from phmctl.console import Shown, Table
from phmctl.data import TABLES
from phmctl.errors import DataError
from phmctl.shipped import shipped_names

SPLITS = ("train", "valid", "test")


def prepare_data(
    name: Annotated[Text, Argument(metavar="NAME", help="Dataset card, or a name for your own corpus.")] = None,
    data: Data = None,
    source: Annotated[File, Option(help="Folder with the card's files. Without it they are downloaded.")] = None,
    recipe: Annotated[Text, Option(help="Read tokenizer, vocabulary and lengths from this recipe.")] = None,
    train: Annotated[Texts, Option(metavar="FILE", help="Training text: source, then target, or a table.")] = None,
    valid: Annotated[Texts, Option(metavar="FILE", help="Validation text, as --train.")] = None,
    test: Annotated[Texts, Option(metavar="[NAME=]FILE", help="Test text, as --train. NAME is a further set.")] = None,
    table: Annotated[Texts, Option(metavar="SPLIT=FILE", help="Labelled text: TSV, CSV or JSON lines.")] = None,
    columns: Annotated[Text, Option(metavar="SRC,TGT", help="Columns of a table: names, or numbers from 0.")] = None,
    languages: Annotated[Text, Option(metavar="SRC,TGT", help="Languages of your files, by codes: de,en.")] = None,
    text: Annotated[Texts, Option(metavar="COLUMN", help="Column of the text in --table, twice for pairs.")] = None,
    label: Annotated[Text, Option(metavar="COLUMN", help="Column of the label in --table.")] = None,
    quoting: Annotated[Flag, Option(help="Whether table cells may be quoted (default: only in CSV).")] = None,
    header: Annotated[Flag, Option(help="Whether tables have a header. Without one, columns are numbers.")] = None,
    extra: Annotated[Texts, Option(metavar="COLUMN", help="Whole numbers, each value of which eval scores.")] = None,
    vectors: Annotated[File, Option(metavar="FILE", help="Word vectors of labelled text, in GloVe's format.")] = None,
    split: Annotated[Text, Option(metavar="VALID[,TEST]", help="Take rows (1000) or a part (5%) of train.")] = None,
    vocabulary_of: Annotated[File, Option(metavar="RUN", help="Use the vocabulary of a run or a folder.")] = None,
    tokenizer: Annotated[Text, Option(help="bpe or word.")] = None,
    vocabulary: Annotated[Number, Option(help="Number of token types, with --separate of each side.")] = None,
    joint: Annotated[Flag, Option("--joint/--separate", help="One vocabulary for both sides, or one for each.")] = None,
    reverse: Annotated[bool, Option("--reverse", help="Translate from the corpus' target to its source.")] = False,
    copies: Annotated[bool, Option("--copies", help="Train on each target as its own source too.")] = False,
    max_tokens: Annotated[Number, Option(help="Length of the longest text kept in train, in tokens.")] = None,
    lowercase: Annotated[Flag, Option(help="Lower-case the text to tokenize (default: the card's).")] = None,
    normalise: Annotated[Flag, Option(help="Apply Unicode NFC, and turn all white space into blanks.")] = None,
    entities: Annotated[Text, Option(help="decode: turn entities of Moses (&apos;) into characters, or keep.")] = None,
    max_ratio: Annotated[float | None, Option(help="Largest ratio of a pair's lengths in tokens, 0 for all.")] = None,
    min_count: Annotated[Number, Option(min=1, help="Least occurrences of a word, or of a pair of BPE.")] = None,
    force: Annotated[bool, Option("--force", help="Prepare again even if nothing has changed.")] = False,
    list_: Annotated[bool, Option("--list", help="List the dataset cards, or show the card NAME.")] = False,
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
        table=tables_by_split(table or ()),
        columns=columns,
        languages=languages,
        text=text,
        label=label,
        quoting=quoting,
        header=header,
        extra=extra,
        vectors=vectors,
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
        quiet=False,
    )
    document = {"folder": str(prepared.folder), **prepared.manifest}
    notes = [prepared.coverage] if prepared.coverage else []
    return Shown(document, [prepared_table(prepared.manifest)], notes=notes)


def tables_by_split(options: Sequence[str]) -> dict[str, str]:
    """Return the tables of ``--table SPLIT=FILE``."""
    tables: dict[str, str] = {}
    for option in options:
        split, _, path = option.partition("=")
        if not split or not path or split in tables:
            raise DataError(f"--table {option}: expected SPLIT=FILE, each split once")
        tables[split] = path
    return tables


def files_by_split(options: dict[str, list[str] | None]) -> dict[str, list[tuple[str, ...]]]:
    """Return the tables and pairs of files of each split. ``news=FILE`` of test is in ``test_news``."""
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


def prepared_table(manifest: Mapping[str, Any]) -> Table:
    """Return a table of each split's counts."""
    from phmctl.data.rows import describe_counts

    labels = manifest.get("labels", ())
    sides = ("text",) if labels else ("source", "target")
    titles = ["split", "read", "kept", "dropped", "noted", *(["commonest label"] if labels else [])]
    titles += [f"{manifest.get(f'{side}_language', '')} tokens".strip() for side in sides]
    rows = []
    for name, counts in manifest["splits"].items():
        row = [name, f"{counts['read']:,}", f"{counts['kept']:,}"]
        row += [describe_counts(counts[key]) or "–" for key in ("dropped", "noted")]
        if labels:
            label = max(counts["labels"], key=counts["labels"].__getitem__)
            row.append(f"{label} {counts['labels'][label] / counts['kept']:.1%}")
        for side in sides:
            tokens = counts[side]["tokens"]
            unknown = counts[side]["unknown"] / max(tokens, 1)
            row.append(f"{tokens:,} ({unknown:.1%} unknown)" if unknown else f"{tokens:,}")
        rows.append(row)
    classes = f"{', '.join(labels) if len(labels) <= 6 else f'{len(labels)} labels'}; " if labels else ""
    sizes = [f"{size:,}" for size in manifest["token_types"].values()]
    vocabulary = f"{manifest['settings']['tokenizer']} vocabulary of"
    if manifest["settings"].get("joint"):
        vocabulary, sizes = f"joint {vocabulary}", sizes[:1]
    title = f"{manifest['corpus']}: {classes}{vocabulary} {' and '.join(sizes)}"
    return Table(title, titles, rows, text=(3, 4))


def card_list(name: str | None, data: Path | None) -> Shown:
    """List the shipped cards, or the card with this name.

    ``origins`` are listed in the order in which they are tried. ``prepared`` lists the card's prepared folders, one for
    each tokenizer setting.
    """
    from phmctl.data.card import load_card
    from phmctl.data.prepared import data_root

    root = data_root(data)
    cards = []
    for card in sorted(map(load_card, [name] if name else shipped_names("cards")), key=attrgetter("task", "id")):
        prepared = (root / "prepared" / card.id).glob("[!.]*/manifest.json")  # incomplete folders begin with "."
        cards.append(
            {
                "name": card.id,
                **card.model_dump(include={"title", "task", "labels", "sizes", "licence"}),
                "languages": [] if card.labelled else [card.source_language, card.target_language],
                "texts": card.texts or 0,
                "origins": ["built in"] if card.built_in else card.download_origins or ["local"],
                "divided": [split for split in card.divide if split != "period"],
                "prepared": sorted(path.parent.name for path in prepared),
            }
        )
    titles = ["name", "what", "train / valid / test", "licence", "from", "prepared"]
    tables = [
        Table(task, titles, [_card_cells(card) for card in group], text=(1, 3, 4, 5))
        for task, group in groupby(cards, key=itemgetter("task"))
    ]
    note = f"prepared data is in {root}"
    if any(card["divided"] for card in cards):
        note = f"* held out of train, because the publishers have no such split. {note}"
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
    state = "yes" if card["prepared"] else "no"
    return [card["name"], content, " / ".join(sizes) or "not known", licence, ", ".join(card["origins"]), state]
