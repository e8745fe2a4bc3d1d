"""Preparation: raw text to token ids on disk, once for each corpus and tokenizer setting.

Train is gone through once to be counted, once for each vocabulary and once more to be encoded, so memory holds the
lines of valid and test, one record batch, and what learning a vocabulary takes. That grows with the number of distinct
words, so a vocabulary is learned from a million pairs at most, spread evenly over the corpus. The folder appears under
its name only when it is complete.
"""

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from phmctl.console import note, progress, warn
from phmctl.data import building
from phmctl.data.building import build, chunks, current, memory_of
from phmctl.data.catalog import SPLITS, Card, Cleaning, card_names, load_card
from phmctl.data.cleaning import CleanPairs, HeldOut, clean_pairs
from phmctl.data.corpus import Corpus, corpus_from_files, open_corpus
from phmctl.data.manifest import write_manifest
from phmctl.data.provenance import Sources
from phmctl.data.readers import PairSource
from phmctl.data.special import UNK
from phmctl.data.store import PreparedData, SplitWriter, corpus_name, prepared_folder
from phmctl.data.tokenization import Tokenizer, TokenizerPair, train_pair
from phmctl.errors import DataError
from phmctl.recipe.documents import change
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import ParallelSection, TranslationRecipe

_FEW = 0.5  # of the published pairs: with fewer, the source is hardly the whole corpus


def prepare_named(
    data: ParallelSection,
    *,
    root: Path,
    source: Path | None = None,
    files: Mapping[str, Sequence[Path]] | None = None,
    workers: int = 1,
    force: bool = False,
) -> PreparedData:
    """Prepare a card's corpus, or a user's own files under a name of their own.

    Args:
        data: the corpus' name and the tokenizer settings.
        root: the folder for raw and prepared data.
        source: a folder with the card's files; otherwise they are downloaded.
        files: the user's own files by split, each (source, target) or one tab-separated file; excludes `source`.
        workers: threads of the tokenizer.
        force: prepare even if nothing has changed.

    Raises:
        DataError: no such card, or its files are missing or malformed.
        OutputError: the folder cannot be written.
    """
    if files:
        corpus = _own_corpus(data.card, source, files)
        return prepare(data, corpus, Cleaning(), root=root, workers=workers, force=force)
    card = load_card(data.card)
    folder = prepared_folder(data, root)
    known = source is None and not card.built_in and not force  # published text does not change: ask no network for it
    if known and current(folder, _settings(data, card.cleaning), None):
        prepared = PreparedData.open(folder)
    else:
        corpus = open_corpus(card, source, root / "raw" / card.id)
        prepared = prepare(data, corpus, card.cleaning, root=root, workers=workers, force=force)
    _tell_of_division(prepared)
    _warn_of_parts(prepared, card)
    return prepared


def _tell_of_division(prepared: PreparedData) -> None:
    """Say which splits are not the publishers', since their scores compare with nobody else's."""
    held_out = prepared.manifest.get("held_out", {})
    if held_out:
        parts = "; ".join(f"{split} is {pairs}" for split, pairs in held_out.items())
        name = prepared.manifest["corpus"]
        note(f"{name} as read has no {' and '.join(held_out)} of its own: {parts} of its pairs, train the others")


def _warn_of_parts(prepared: PreparedData, card: Card) -> None:
    """Say which splits have far fewer pairs than were published: a cut-off download, or a sample."""
    for split, published in card.sizes.items():
        read = prepared.manifest["splits"].get(split, {}).get("read", 0)
        if read < _FEW * published:
            warn(f"{split} of {card.id} has {read:,} pairs where {published:,} were published; is the source whole?")


def choose_section(name: str, recipe: str | None, given: Mapping[str, Any]) -> ParallelSection:
    """Return a corpus' data section: what is given, else what a recipe says, else what the card proposes.

    Args:
        name: the corpus.
        recipe: a recipe's path or shipped name, or None.
        given: fields of the section that were set by hand.

    Raises:
        RecipeError: there is no such recipe, or it is not valid.
        DataError: a value that was given cannot be, or the card is not valid.
    """
    base = expect(load_recipe(recipe), TranslationRecipe).data if recipe is not None else _proposed(name)
    return change(base.model_copy(update={"card": name}), given, DataError)


def _proposed(name: str) -> ParallelSection:
    """Return a card's own proposal; the schema's defaults for a name that is no card."""
    if name in card_names() or name != corpus_name(name):
        return ParallelSection(card=name, **load_card(name).defaults.model_dump())
    return ParallelSection(card=name)


def prepare(
    data: ParallelSection, corpus: Corpus, cleaning: Cleaning, *, root: Path, workers: int = 1, force: bool = False
) -> PreparedData:
    """Clean, tokenize and store a corpus. The same text and settings give the same bytes, whatever the workers.

    Where it is prepared already, from the same sources, nothing is done.

    Args:
        data: the tokenizer settings.
        corpus: the text.
        cleaning: the card's settings.
        root: the folder for raw and prepared data.
        workers: threads of the tokenizer. Its pool is made at its first use in a process and keeps its size.
        force: prepare even if nothing has changed.

    Raises:
        DataError: the text is malformed, or nothing of it is left to train on.
        OutputError: the folder cannot be written.
    """
    folder = prepared_folder(data, root)
    settings = _settings(data, cleaning)
    sources = Sources(corpus, memory_of(folder))

    def write(temporary: Path, provenance: dict[str, Any]) -> None:
        _write(temporary, data, corpus, cleaning, provenance)

    build(folder, settings, sources, write, workers=workers, force=force)
    return PreparedData.open(folder)


def _settings(data: ParallelSection, cleaning: Cleaning) -> dict[str, Any]:
    return {**data.model_dump(exclude={"card"}), "cleaning": cleaning.model_dump()}


def _own_corpus(name: str, source: Path | None, files: Mapping[str, Sequence[Path]]) -> Corpus:
    if name in card_names():
        raise DataError(f"{name!r} is a card; give your files a name of their own, or point --source at the card's")
    if source is not None:
        raise DataError("--source is for a card's files; with --train, --valid and --test leave it out")
    missing = [f"--{split}" for split in ("train", "valid") if split not in files]
    if missing:
        raise DataError(f"a corpus of your own files wants {' and '.join(missing)} too")
    return corpus_from_files(corpus_name(name), files["train"], files["valid"], files.get("test"))


def _write(
    folder: Path, data: ParallelSection, corpus: Corpus, cleaning: Cleaning, provenance: Mapping[str, Any]
) -> None:
    """Write everything of a prepared folder, its manifest last."""
    splits = _clean_splits(corpus, cleaning, data.max_tokens)
    period = -(-_count(corpus.splits["train"]) // building.LEARNED) or 1
    learned = f"one train pair in {period}" if period > 1 else ""
    note(f"learning {data.vocabulary:,} token types{f' from {learned}' if learned else ''} ...")
    tokenizers = train_pair(
        splits["train"].sample(period), data.tokenizer, data.vocabulary, joint=data.joint, lowercase=cleaning.lowercase
    )
    tokenizers.save(folder)
    counts = {name: _encode(folder / f"{name}.arrow", pairs, tokenizers) for name, pairs in splits.items()}
    _refuse_nothing(counts["train"])
    content = {
        **provenance,
        **({"learned_from": learned} if learned else {}),
        "token_types": {"source": tokenizers.source.size, "target": tokenizers.target.size},
        "splits": counts,
    }
    write_manifest(folder, content)


def _count(pairs: PairSource) -> int:
    return len(pairs) if isinstance(pairs, Sized) else sum(1 for _ in pairs)


def _clean_splits(corpus: Corpus, cleaning: Cleaning, max_tokens: int) -> dict[str, CleanPairs]:
    names = [name for name in SPLITS if name in corpus.splits]
    if names[:2] != ["train", "valid"]:
        raise DataError(f"{corpus.name!r} has the splits {', '.join(names) or 'none'}; train and valid are needed")
    for name in names[1:]:
        _refuse_empty(corpus, name)
    held_out = HeldOut(pair for name in names[1:] for pair in clean_pairs(corpus.splits[name], cleaning))
    return {
        name: CleanPairs(corpus.splits[name], cleaning, max_tokens, held_out if name == "train" else None)
        for name in names
    }


def _refuse_empty(corpus: Corpus, split: str) -> None:
    """Refuse valid or test where not one pair has text on both sides; normally one pair is read."""
    if any(source.strip() and target.strip() for source, target in corpus.splits[split]):
        return
    files = " and ".join(str(each.path) for each in corpus.files if each.split == split) or corpus.origin
    advice = "; leave test out if there is none" if split == "test" else ""
    raise DataError(
        f"{split} of {corpus.name!r} has no pair with text on both sides ({files}); check the files{advice}"
    )


def _encode(path: Path, pairs: CleanPairs, tokenizers: TokenizerPair) -> dict[str, Any]:
    """Tokenize a split, leave out of train what is too long, write the rest, and return its counts."""
    train = path.stem == "train"
    sides = {"source": _Side(tokenizers.source), "target": _Side(tokenizers.target)}
    with SplitWriter(path, with_text=not train) as writer, progress(f"tokenizing {path.stem}", None) as advance:
        for chunk in chunks(pairs):
            columns = [*zip(*chunk, strict=True)]
            encoded = [side.tokenizer.encode(texts) for side, texts in zip(sides.values(), columns, strict=True)]
            rows = [row for row in zip(*encoded, *columns, strict=True) if pairs.fits(len(row[0]), len(row[1]))]
            for index, side in enumerate(sides.values()):
                side.count([row[index] for row in rows])
            writer.add(rows)
            advance(len(chunk))
    return {**pairs.tally.as_dict(), **{name: side.as_dict() for name, side in sides.items()}}


class _Side:
    """A side's tokenizer, and the counts of what it made."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._tokens = self._unknown = self._longest = 0

    def count(self, rows: Sequence[Sequence[int]]) -> None:
        """Add rows of token ids to the counts."""
        self._tokens += sum(map(len, rows))
        self._longest = max(self._longest, max(map(len, rows), default=0))
        self._unknown += sum(row.count(UNK) for row in rows)

    def as_dict(self) -> dict[str, int]:
        """Return the counts for the manifest; the end of sentence is not among them."""
        return {"tokens": self._tokens, "unknown": self._unknown, "longest": self._longest}


def _refuse_nothing(train: Mapping[str, Any]) -> None:
    if train["kept"]:
        return
    dropped = ", ".join(f"{reason}: {number:,}" for reason, number in train["dropped"].items())
    raise DataError(
        f"no train pair is left of {train['read']:,} read ({dropped or 'nothing dropped'}); check the files"
    )
