"""Dataset cards: every shipped card is valid; errors name the key of an invalid card."""

import re

import pytest
import yaml

from phmctl.data.card import Card, load_card
from phmctl.data.rows import SPECIAL_CARDS
from phmctl.errors import DataError
from phmctl.shipped import shipped_names

SPLITS = ("train", "valid", "test")
MINIMAL = {
    "id": "own",
    "title": "Own",
    "source_language": "de",
    "target_language": "en",
    "description": "A user's card.",
    "licence": "none",
    "sizes": {"train": 3, "valid": 2, "test": 1},
}


def load(tmp_path, card=MINIMAL, **changes) -> Card:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(card | changes))
    return load_card(str(path))


def refusal(tmp_path, card=MINIMAL, **changes) -> str:
    with pytest.raises(DataError) as caught:
        load(tmp_path, card, **changes)
    return str(caught.value)


TRANSLATION = [name for name in shipped_names("cards") if load_card(name).task == "translation"]
LABELLED = [name for name in shipped_names("cards") if name not in TRANSLATION]
UNKNOWN_SIZES = {"iwslt14-ro-en"}


@pytest.mark.parametrize("name", TRANSLATION)
def test_shipped_cards_are_complete(name):
    card = load_card(name)
    assert card.id == name
    assert set(card.sizes) == set(SPLITS) or name in UNKNOWN_SIZES
    origins = [layout.splits for layout in card.local] + ([card.hub.splits] if card.hub else [])
    assert all(set(SPLITS) - set(card.divide) <= set(splits) <= set(SPLITS) for splits in origins)
    assert card.built_in or card.hub or card.urls


@pytest.mark.parametrize("name", TRANSLATION)
def test_a_layout_reads_the_files_of_the_urls(name):
    card = load_card(name)
    downloads = {url.file.removesuffix(".gz") for url in card.urls if not url.extract}
    layouts = [{name for files in layout.splits.values() for name in files.names} for layout in card.local]
    assert not downloads or downloads in layouts


@pytest.mark.parametrize("name", [name for name in TRANSLATION if name.startswith(("iwslt", "setimes", "wmt"))])
def test_no_card_swaps_its_sides(name):
    """Published files name their languages in either order, but a card's source is its first language."""
    source, target = name.split("-")[1:]
    card = load_card(name)
    assert (card.source_language, card.target_language) == (source, target)
    if card.hub:
        assert [text.removeprefix("translation.") for text in card.hub.texts] == [source, target]
    for layout in card.local:
        for files in layout.splits.values():
            assert all(_has_language(name, source) for name in files.source)
            assert all(_has_language(name, target) for name in files.target)


def _has_language(name: str, language: str) -> bool:
    prefix = "src-" if language == "en" else "tgt-"
    return name.startswith(prefix) or re.search(rf"\.{language}(\.(xml|sgm|txt))?$", name) is not None


def test_invalid_divisions(tmp_path):
    for divide in ({"valid": 5}, {"period": 100, "valid": 0}, {"period": 5, "train": 1}, {"period": 5, "valid": 6}):
        assert "divide" in refusal(tmp_path, divide=divide)
    assert "divide" in refusal(tmp_path, divide={"period": 5, "valid": 2, "test": 2})


def test_all_problems_at_once_with_nearest_names(tmp_path):
    message = refusal(tmp_path, licens="x", cleaning={"lowercase": "yes", "entities": "decoded"}, sizes={"trian": 3})
    assert all(name in message for name in ("'licens'", "'licence'", "cleaning.lowercase", "'decode'", "'train'"))
    lines = [re.search(r"own\.yaml:(\d+): ", line) for line in message.splitlines()]
    text = (tmp_path / "own.yaml").read_text().splitlines()
    keys = [text[int(line[1]) - 1].split(":")[0].strip() for line in lines]
    assert sorted(keys) == ["entities", "licens", "lowercase", "trian"]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"source": ["a"]},
        {"source": ["a"], "target": ["b", "c"]},
        {"source": ["a"], "target": ["b"], "tables": ["c"]},
    ],
)
def test_a_split_has_two_sides_or_tables(tmp_path, files):
    assert "local.0.splits.train" in refusal(tmp_path, local=[{"name": "x", "splits": {"train": files}}])


def test_downloads_have_no_folders(tmp_path):
    for name in ("a/b", "../x", "/etc/passwd", ".lock", ""):
        assert "urls.0.file" in refusal(tmp_path, urls=[{"url": "http://127.0.0.1/x", "file": name}])


def test_only_http_addresses(tmp_path):
    for address in ("/etc/passwd", "file:///etc/passwd", "FILE:///x", "ftp://h/x"):
        assert "urls.0.url" in refusal(tmp_path, urls=[{"url": address, "file": "x"}])


@pytest.mark.parametrize(
    ("key", "value"),
    [("folder", "/etc"), ("folder", "../etc"), *(("id", name) for name in ("text", "/etc", "../etc", "a/b/c"))],
)
def test_a_cards_hub_cannot_be_a_local_folder(tmp_path, key, value):
    hub = {"id": "a/b", "splits": {"train": "train"}, "texts": ["de", "en"], key: value}
    assert f"hub.{key}" in refusal(tmp_path, hub=hub)


TABLES = {
    "name": "tables",
    "rows": {"texts": ["text"], "label": "label"},
    "splits": {"train": ["train.tsv"], "valid": ["valid.tsv"]},
}
LABELLED_CARD = MINIMAL | {"task": "classification", "texts": 1, "local": [TABLES]}


@pytest.mark.parametrize("name", LABELLED)
def test_shipped_labelled_cards_are_complete(name):
    card = load_card(name)
    assert card.labelled
    assert card.id == name
    assert card.local
    for layout in card.local:
        derived = {
            *card.divide,
            *(("valid", "test") if card.id in SPECIAL_CARDS else ()),
        }
        assert set(SPLITS) <= set(layout.splits) | derived
        assert set(layout.parts) <= set(layout.splits)
        assert set(layout.rows.names.values()) <= set(card.labels)
    if card.hub:
        assert len(card.hub.texts) == card.texts
        assert set(card.hub.names.values()) <= set(card.labels)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"texts": 2}, "layout 'tables'"),
        ({"texts": None}, "'texts'"),
        ({"label": ["a"]}, "'labels'"),
        ({"sizes": {"dev": 3}}, "dev"),
    ],
)
def test_invalid_labelled_cards(tmp_path, changes, place):
    assert place in refusal(tmp_path, LABELLED_CARD, **changes)
