"""The built-in corpus, on which every published figure of the miniature was measured."""

import hashlib
import re

import pytest

from phmctl.shipped import SIZES, Pair, read_miniature

SHA256 = "29c50b624fc9a2ccc98a34cf32d10196d66c94935b12f5981b8f5bc675ddbacb"


@pytest.fixture(scope="module")
def miniature() -> dict[str, list[Pair]]:
    return read_miniature()


def test_the_text_is_the_one_that_figures_were_measured_on(miniature: dict[str, list[Pair]]) -> None:
    lines = (f"{german}\t{english}\n" for pairs in miniature.values() for german, english in pairs)
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == SHA256
    assert {split: len(pairs) for split, pairs in miniature.items()} == SIZES


def test_no_sentence_occurs_twice(miniature: dict[str, list[Pair]]) -> None:
    german = [pair[0] for pairs in miniature.values() for pair in pairs]
    assert len(set(german)) == len(german)


def test_words_of_valid_and_test_are_known_from_train(miniature: dict[str, list[Pair]]) -> None:
    train, *others = ([re.findall(r"\w+", english.lower()) for _, english in pairs] for pairs in miniature.values())
    known = {word for words in train for word in words}
    for split in others:
        words = [word for sentence in split for word in sentence]
        assert sum(word not in known for word in words) / len(words) < 0.002
