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
from phmctl.data.card import SPLITS, Cleaning, load_card
from phmctl.data.clean import SAME_SIDES, CleanPairs, HeldOut, clean_pairs
from phmctl.data.corpus import Corpus, corpus_from_files, open_corpus, turned_round
from phmctl.data.prepared.build import build, chunks, current, memory_of
from phmctl.data.prepared.folder import PreparedData, SplitWriter, corpus_name, prepared_folder
from phmctl.data.prepared.manifest import write_manifest
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
from phmctl.data.readers import PairSource
from phmctl.data.tokenizer import TokenizerPair, train_pair
from phmctl.errors import DataError
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import ParallelSection, TranslationRecipe


def prepare_named(
    data: ParallelSection,
    *,
    root: Path,
    source: Path | None = None,
    files: Mapping[str, Sequence[Path]] | None = None,
    workers: int = 1,
    force: bool = False,
    refetch: bool = False,
) -> PreparedData:
    """Prepare a card's corpus, or a user's own files under a name of their own.

    Args:
        data: the corpus' name and the tokenizer settings.
        root: the folder for raw and prepared data.
        source: a folder with the card's files; otherwise they are downloaded.
        files: the user's own files by split, each (source, target) or one tab-separated file; excludes `source`.
        workers: threads of the tokenizer.
        force: prepare even if nothing has changed.
        refetch: download the card's files again.

    Raises:
        DataError: no such card, or its files are missing or malformed.
        OutputError: the folder cannot be written.
    """
    if files:
        corpus = _directed(_own_corpus(data.card, source, files), data)
        return prepare(data, corpus, Cleaning(), root=root, workers=workers, force=force)
    card = load_card(data.card)
    folder = prepared_folder(data, root)
    known = source is None and not (card.built_in or force or refetch)  # published text stays
    if known and current(folder, _settings(data, card.cleaning), None, card=card.digest):
        prepared = PreparedData.open(folder)
    else:
        corpus = _directed(open_corpus(card, source, root / "raw" / card.id, refetch=refetch), data)
        prepared = prepare(data, corpus, card.cleaning, root=root, workers=workers, force=force)
    _tell_of_division(prepared)
    warn_of_parts(prepared.manifest, card.id, card.sizes, "pairs")
    return prepared


def _directed(corpus: Corpus, data: ParallelSection) -> Corpus:
    return turned_round(corpus) if data.direction == "reverse" else corpus


def _tell_of_division(prepared: PreparedData) -> None:
    """Say which splits are not the publishers', since their scores compare with nobody else's."""
    held_out = prepared.manifest.get("held_out", {})
    if held_out:
        parts = "; ".join(f"{split} is {pairs}" for split, pairs in held_out.items())
        name = prepared.manifest["corpus"]
        note(f"{name} as read has no {' and '.join(held_out)} of its own: {parts} of its pairs, train the others")


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
    base = None if recipe is None else expect(load_recipe(recipe), TranslationRecipe).data
    return choose(name, base, given, ParallelSection, lambda card: load_card(card).defaults)


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
    # Folders of before there was a direction do not name it.
    left_out = {"card", "direction"} if data.direction == "forward" else {"card"}
    return {**data.model_dump(exclude=left_out), "cleaning": cleaning.model_dump()}


def _own_corpus(name: str, source: Path | None, files: Mapping[str, Sequence[Path]]) -> Corpus:
    options = "--train, --valid and --test"
    check_own_files(name, source, files, form="--{}", options=options, what="files")
    return corpus_from_files(corpus_name(name), files["train"], files["valid"], files.get("test"))


def _write(
    folder: Path, data: ParallelSection, corpus: Corpus, cleaning: Cleaning, provenance: Mapping[str, Any]
) -> None:
    """Write everything of a prepared folder, its manifest last."""
    splits = _clean_splits(corpus, cleaning, data.max_tokens)
    period, learned = learning_period(_count(corpus.splits["train"]), "pair", data.vocabulary)
    tokenizers = train_pair(
        splits["train"].sample(period), data.tokenizer, data.vocabulary, joint=data.joint, lowercase=cleaning.lowercase
    )
    tokenizers.save(folder)
    counts = {name: _encode(folder / f"{name}.arrow", pairs, tokenizers) for name, pairs in splits.items()}
    refuse_nothing(counts["train"], "pair")
    for name, split in counts.items():
        same = split["noted"].get(SAME_SIDES, 0)
        if 2 * same > split["read"]:
            warn(f"{same:,} of {split['read']:,} {name} pairs have the same text on both sides; is it a translation?")
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
    files = files_of(corpus, split)
    advice = "; leave test out if there is none" if split == "test" else ""
    raise DataError(
        f"{split} of {corpus.name!r} has no pair with text on both sides ({files}); check the files{advice}"
    )


def _encode(path: Path, pairs: CleanPairs, tokenizers: TokenizerPair) -> dict[str, Any]:
    """Tokenize a split, leave out of train what is too long, write the rest, and return its counts."""
    train = path.stem == "train"
    sides = (tokenizers.source, tokenizers.target)
    counts = {"source": TokenCounts(), "target": TokenCounts()}
    with SplitWriter(path, with_text=not train) as writer, progress(f"tokenizing {path.stem}", None) as advance:
        for chunk in chunks(pairs):
            columns = [*zip(*chunk, strict=True)]
            encoded = [side.encode(texts) for side, texts in zip(sides, columns, strict=True)]
            rows = [row for row in zip(*encoded, *columns, strict=True) if pairs.fits(len(row[0]), len(row[1]))]
            for index, count in enumerate(counts.values()):
                count.add([row[index] for row in rows])
            writer.add(rows)
            advance(len(chunk))
    return {**pairs.tally.as_dict(), **{side: count.as_dict() for side, count in counts.items()}}
