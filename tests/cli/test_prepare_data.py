import json
from pathlib import Path

import pytest

from phmctl.data.prepared import PreparedData
from phmctl.errors import DataError
from phmctl.shipped import shipped_names
from tests.calls import call, rows_of
from tests.data.helpers import put


@pytest.fixture
def files(tmp_path):
    train = [(f"Hund {i} läuft .", f"dog {i} runs .") for i in range(100)] + [("", "x")]
    options = []
    for name, pairs in (("train", train), ("valid", train[:5]), ("test", [("ein Haus", "a house")])):
        sides = zip(("de", "en"), zip(*pairs, strict=True), strict=True)
        options += [f"--{name}={put(tmp_path / f'{name}.{suffix}', *lines)}" for suffix, lines in sides]
    return options


def prepare(tmp_path, *arguments):
    return call("prepare-data", *arguments, "--data", tmp_path / "data")


def test_the_table_counts_kept_and_dropped_pairs(tmp_path, files):
    result = prepare(tmp_path, "mine", *files, "--tokenizer", "word", "--vocabulary", "50", "--separate")
    cells = rows_of(result.stdout)
    assert cells["train"][:3] == ["101", "95", "1 empty side, 5 in valid or test"]
    assert cells["valid"][:3] == ["5", "5", "–"]
    assert "mine: word vocabulary of 50 and 50" in result.stdout
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


def test_the_list_shows_every_card_and_which_are_prepared(tmp_path):
    for folder in ("wmt18-en-et/bpe-32000-joint-256", "wmt18-en-et/word-100-20", "wmt18-en-et/.bpe-8-8.new"):
        (tmp_path / "data" / "prepared" / folder).mkdir(parents=True)
        (tmp_path / "data" / "prepared" / folder / "manifest.json").write_text("{}")
    (tmp_path / "data" / "prepared" / "wmt14-en-de" / "bpe-9-9").mkdir(parents=True)  # empty
    document = json.loads(prepare(tmp_path, "--list", "--json").stdout)
    cards = {card["name"]: card for card in document["cards"]}
    assert set(cards) == set(shipped_names("cards"))
    assert cards["wmt18-en-et"]["prepared"] == ["bpe-32000-joint-256", "word-100-20"]
    assert cards["wmt14-en-de"]["prepared"] == []
    assert cards["wmt14-en-de"]["sizes"] == {"train": 4_508_785, "valid": 3_000, "test": 3_003}
    assert cards["setimes-en-mk"]["divided"] == ["valid", "test"]
    assert cards["multi30k-de-en"]["origins"] == ["urls", "hub"]  # in the order of download
    assert cards["iwslt14-de-en"]["origins"] == ["hub", "urls"]
    result = prepare(tmp_path, "--list")
    rows = rows_of(result.stdout)
    cells = ["en → mk", "203,622 / 2,077* / 2,078*", "CC BY-SA 4.0", "hub, urls", "no"]
    assert rows["setimes-en-mk"] == cells
    assert [rows[name][-1] for name in ("wmt18-en-et", "wmt14-en-de")] == ["yes", "no"]
    assert rows["snli"][:2] == ["pair → 3", "550,152 / 10,000 / 10,000"]
    assert "* held out of train" in result.stderr
    assert "held out" not in prepare(tmp_path, "miniature", "--list").stderr


def test_a_card_with_vectors(tmp_path):
    for name in ("train", "dev", "test"):
        put(tmp_path / "all_combined" / f"{name}.tsv", "sentence1\tsentence2\tgold_label", f"{name} a\tb\tneutral")
    arguments = ("--source", tmp_path / "all_combined", "--vectors", put(tmp_path / "v.txt", "a 0.1 0.2"))
    result = prepare(tmp_path, "snli-counterfactual", *arguments)
    assert "v.txt" in result.stderr
    assert "33.3%" in result.stderr


def test_extra_columns_break_scores_down(tmp_path):
    for name in ("train", "valid"):
        lines = ["gold\ttext\tlength", *(f"{'yes' if n % 2 else 'no'}\t{name} {n}\t{n % 3}" for n in range(12))]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    tables = [part for name in ("train", "valid") for part in ("--table", f"{name}={tmp_path / name}.tsv")]
    columns = ["--text", "text", "--label", "gold", "--extra", "length"]
    document = json.loads(prepare(tmp_path, "mine", *tables, *columns, "--json").stdout)
    assert document["extras"] == ["length"]
    split = PreparedData(Path(document["folder"])).split("valid")
    assert split.extras["length"].tolist() == [n % 3 for n in range(12)]
    with pytest.raises(DataError, match=r"'lenght' \(.*'length\'"):
        prepare(tmp_path, "mine", *tables, *columns[:-1], "lenght")
    for name in ("predicted", "label", "gold", "first_text"):
        with pytest.raises(DataError, match=f"extra={name}: "):
            prepare(tmp_path, "mine", *tables, *columns[:-1], name)
