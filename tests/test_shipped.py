"""Where recipes and cards are found, in a checkout and in an installed wheel, and the built-in corpus."""

import hashlib
import re
from pathlib import Path

import pytest

from phmctl.shipped import SIZES, Pair, read_miniature, shipped, shipped_names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package beside its recipes, as in a checkout."""
    folder = tmp_path / "phmctl"
    for place in ("phmctl", "recipes", "data/cards"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr("phmctl.shipped._PACKAGE", folder)
    return folder


def test_a_checkout_has_them_beside_the_package(package: Path) -> None:
    assert shipped("recipes") == package.parent / "recipes"
    assert shipped("cards") == package.parent / "data" / "cards"


def test_a_wheel_has_them_inside(package: Path) -> None:
    for kind in ("recipes", "cards"):
        (package / "_shipped" / kind).mkdir(parents=True)
        assert shipped(kind) == package / "_shipped" / kind


def test_names_are_the_sorted_stems_of_yaml_files(package: Path) -> None:
    for name in ("b.yaml", "a.yaml", "notes.md"):
        (package.parent / "recipes" / name).touch()
    assert shipped_names("recipes") == ["a", "b"]


# -------------------------------------------------------------------------------------------------------- the miniature

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
