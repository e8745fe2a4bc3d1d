"""Where recipes and cards are found, in a checkout and in an installed wheel."""

from pathlib import Path

import pytest

from phmctl.shipped import shipped, shipped_names


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
