"""The corpus: sentences in both languages, none twice, split in three."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from phmctl.miniature import english_clause, german_clause
from phmctl.miniature.dice import Dice
from phmctl.miniature.lexicon import Adjective, Adverbial, Name, Noun, Verb
from phmctl.miniature.sentences import Sentences
from phmctl.miniature.structure import NounPhrase, Sentence

Pair = tuple[str, str]
MIN_WORDS, MAX_WORDS = 4, 22
# A tiny training split cannot hold every lemma; after this many draws a sentence the others take what comes.
_PATIENCE = 400


def generate(seed: int = 1, sizes: tuple[int, int, int] = (8000, 500, 500)) -> dict[str, list[Pair]]:
    """Return the miniature as ``{"train": …, "valid": …, "test": …}``, lists of (German, English).

    The same seed and sizes give the same text on every platform. No German sentence occurs twice, and every lemma of
    valid and test occurs in train (unless train is too small to hold them).
    """
    drawn = _sentences(Sentences(Dice(seed)))
    seen: set[str] = set()
    known: set[str] = set()
    train = [pair for pair, _ in _fresh(drawn, seen, known, sizes[0], learn=True)]
    valid = [pair for pair, _ in _fresh(drawn, seen, known, sizes[1], learn=False)]
    test = [pair for pair, _ in _fresh(drawn, seen, known, sizes[2], learn=False)]
    return {"train": train, "valid": valid, "test": test}


def _fresh(
    drawn: Iterator[tuple[Pair, list[str]]], seen: set[str], known: set[str], count: int, *, learn: bool
) -> Iterator[tuple[Pair, list[str]]]:
    """Yield `count` unseen sentences; `learn` adds their lemmas to `known`, else only known lemmas may occur."""
    patience = _PATIENCE * count
    while count:
        pair, names = next(drawn)
        patience -= 1
        if pair[0] in seen or (not learn and patience > 0 and not known.issuperset(names)):
            continue
        seen.add(pair[0])
        if learn:
            known.update(names)
        count -= 1
        yield pair, names


def _sentences(source: Sentences) -> Iterator[tuple[Pair, list[str]]]:
    """Yield sentences of good length in which no word occurs twice in either language, with their lemmas."""
    while True:
        sentence = source.draw()
        if sentence is None:
            continue
        words = lemmas(sentence)
        if len({english for _, english in words}) < len(words):
            continue
        pair = render(sentence)
        if all(text[0].isalpha() and MIN_WORDS <= len(text.split()) <= MAX_WORDS for text in pair):
            yield pair, [german for german, _ in words if german]


def render(sentence: Sentence) -> Pair:
    """Return the sentence in both languages."""
    mark = "?" if sentence.question else "."
    return write(german_clause.render(sentence), mark), write(english_clause.render(sentence), mark)


def write(words: list[str], mark: str) -> str:
    """Join words and commas as people write them: commas close up, double or final ones go, a capital begins."""
    text = ""
    for word in words:
        if word != ",":
            text += word if not text else f" {word}"
        elif text and not text.endswith(","):
            text += ","
    text = text.rstrip(",") + mark
    return text[0].upper() + text[1:]


def lemmas(value: Any) -> list[tuple[str, str]]:
    """Return the nouns, verbs, adjectives and names of an abstract sentence, in both languages, with repetitions.

    Fixed adverbials, which are no lemmas, come with an empty German side.
    """
    match value:
        case None | str() | int():
            return []
        case Noun() | Adjective() | Name():
            return [(value.german, value.english)]
        case Adverbial():
            return [("", value.english)]
        case Verb():
            return [(value.german, f"{value.english} {value.particle}")]
        case tuple():
            return [pair for entry in value for pair in lemmas(entry)]
        case NounPhrase(determiner="own") | NounPhrase(determiner="whose"):
            return [(value.noun.german, value.noun.english), *lemmas((value.adjectives, value.relative))]
    if dataclasses.is_dataclass(value):
        return [pair for field in dataclasses.fields(value) for pair in lemmas(getattr(value, field.name))]
    return []
