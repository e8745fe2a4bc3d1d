import json

import pytest

from phmctl.shipped import shipped_names
from tests.calls import call, rows_of


@pytest.fixture
def files(tmp_path):
    train = [(f"Hund {i} läuft .", f"dog {i} runs .") for i in range(100)] + [("", "x")]
    for name, pairs in (("train", train), ("valid", train[:5]), ("test", [("ein Haus", "a house")])):
        for side, suffix in enumerate(("de", "en")):
            (tmp_path / f"{name}.{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return [
        part
        for name in ("train", "valid", "test")
        for part in (f"--{name}", str(tmp_path / f"{name}.de"), str(tmp_path / f"{name}.en"))
    ]


def prepare(tmp_path, *arguments):
    return call("prepare-data", *arguments, "--data", tmp_path / "data")


def test_a_table_tells_what_was_kept_and_dropped(tmp_path, files):
    result = prepare(tmp_path, "mine", *files, "--tokenizer", "word", "--vocabulary", "50", "--separate")
    cells = rows_of(result.stdout)
    assert cells["train"][:4] == ["101", "1", "5", "95"]
    assert cells["valid"][:4] == ["5", "0", "0", "5"]
    assert "mine: word vocabularies of 50 and 50" in result.stdout
    assert "2 (100.0% unknown)" in cells["test"]


def test_json_is_the_manifest_and_nothing_else(tmp_path, files):
    result = prepare(tmp_path, "mine", *files, "--vocabulary", "300", "--max-tokens", "30", "--json")
    document = json.loads(result.stdout)
    assert document["folder"] == str(tmp_path / "data" / "prepared" / "mine" / "bpe-300-joint-30")
    assert document["splits"]["train"]["dropped"] == {"empty_side": 1, "in_valid_or_test": 5}
    assert document["settings"]["max_tokens"] == 30
    again = prepare(tmp_path, "mine", *files, "--vocabulary", "300", "--max-tokens", "30", "--json")
    assert json.loads(again.stdout) == document
    assert "up to date" in again.stderr


def test_the_list_tells_of_every_card_and_what_was_done_here(tmp_path):
    for folder in ("wmt18-en-et/bpe-32000-joint-256", "wmt18-en-et/word-100-20", "wmt18-en-et/.bpe-8-8.new"):
        (tmp_path / "data" / "prepared" / folder).mkdir(parents=True)
        (tmp_path / "data" / "prepared" / folder / "manifest.json").write_text("{}")
    (tmp_path / "data" / "prepared" / "wmt14-en-de" / "bpe-9-9").mkdir(parents=True)  # nothing in it
    (tmp_path / "data" / "raw" / "multi30k-de-en" / "urls-0123").mkdir(parents=True)
    document = json.loads(prepare(tmp_path, "--list", "--json").stdout)
    cards = {card["name"]: card for card in document["cards"]}
    assert set(cards) == set(shipped_names("cards"))
    assert cards["wmt18-en-et"]["prepared"] == ["bpe-32000-joint-256", "word-100-20"]
    assert cards["wmt14-en-de"]["prepared"] == []
    assert cards["wmt14-en-de"]["sizes"] == {"train": 4_508_785, "valid": 3_000, "test": 3_003}
    assert cards["setimes-en-mk"]["divided"] == ["valid", "test"]
    assert cards["multi30k-de-en"]["origins"] == ["urls", "hub"]  # asked in this order
    assert cards["iwslt14-de-en"]["origins"] == ["hub", "urls"]
    result = prepare(tmp_path, "--list")
    rows = rows_of(result.stdout)
    told = ["en → mk", "203,622 / 2,077* / 2,078*", "CC BY-SA 4.0", "hub, urls", "never tried"]
    assert rows["setimes-en-mk"] == told
    assert [rows[name][-1] for name in ("wmt18-en-et", "multi30k-de-en", "miniature")] == ["prepared", "fetched", "–"]
    assert rows["snli"][:2] == ["pair → 3", "550,152 / 10,000 / 10,000"]
    assert "* held out of train" in result.stderr
    assert "held out" not in prepare(tmp_path, "miniature", "--list").stderr
