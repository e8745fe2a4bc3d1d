"""Cards of labelled text."""

import re

import pytest
import yaml

from phmctl.data.card import card_names, card_task, load_card
from phmctl.errors import DataError

LABELLED = [name for name in card_names() if card_task(name) == "classification"]

MINIMAL = {
    "id": "own",
    "task": "classification",
    "title": "Own",
    "description": "A card of one's own.",
    "licence": "none",
    "texts": 1,
    "local": [
        {
            "name": "tables",
            "rows": {"texts": ["text"], "label": "label"},
            "splits": {"train": ["train.tsv"], "valid": ["valid.tsv"]},
        }
    ],
}


def load(tmp_path, **changes):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | changes))
    return load_card(str(path))


def test_the_cards_of_the_paper_and_the_probing_tasks_are_there():
    wanted = {"snli", "mnli", "quora", "dialogue-nli", "scitail", "agreement", "agreement-resplit"}
    assert wanted <= set(LABELLED)
    assert sum(name.startswith("probing-") for name in LABELLED) == 10


@pytest.mark.parametrize("name", LABELLED)
def test_shipped_cards_are_whole(name):
    card = load_card(name)
    assert card.labelled
    assert card.id == name
    assert card.local
    for layout in card.local:
        made = {*layout.makes, *(card.divide.places if card.divide else ())}
        assert {"train", "valid", "test"} <= set(layout.splits) | made
        assert set(layout.parts) <= set(layout.splits)
        assert set(layout.rows.names.values()) <= set(card.labels)
    if card.hub:
        assert len(card.hub.texts) == card.texts
        assert set(card.hub.names.values()) <= set(card.labels)


def test_published_sizes():
    sizes = {name: load_card(name).sizes for name in LABELLED}
    assert sizes["snli"] == {"train": 550_152, "valid": 10_000, "test": 10_000}
    assert sizes["mnli"]["train"] + sizes["mnli"]["valid"] == 392_702
    assert (sizes["mnli"]["test"], sizes["mnli"]["test_mismatched"]) == (9_815, 9_832)
    assert sizes["mnli"]["valid"] == len(range(40, 392_702 + 1, 40))
    assert sizes["quora"] == {"train": 384_348, "valid": 10_000, "test": 10_000}
    assert sizes["scitail"] == {"train": 23_596, "valid": 1_304, "test": 2_126}
    assert sum(sizes["agreement-resplit"].values()) == 15_772 + 52_599 + 9_380 + 2_051 + 561 + 159


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": 2}, "layout 'tables' reads another number of texts than 2"),
        ({"label": ["a"]}, "unknown key 'label'.*'labels'"),
        ({"sizes": {"dev": 3}}, "dev"),
    ],
)
def test_a_card_that_cannot_be(tmp_path, changes, message):
    with pytest.raises(DataError) as caught:
        load(tmp_path, **changes)
    assert re.search(message, str(caught.value))
