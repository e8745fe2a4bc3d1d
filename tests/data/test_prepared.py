import json
from itertools import chain

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.data.prepared import (
    MANIFEST,
    PreparedData,
    Ragged,
    Split,
    prepare_command,
    prepared_folder,
    read_manifest,
    write_split,
)
from phmctl.errors import DataError
from phmctl.recipe.schema import LabelledSection, ParallelSection
from phmctl.storage import FORMAT

ROWS = [([5, 6], [7], "ein Hund", "a dog"), ([], [], "", ""), ([8], [9, 10, 11], "Äpfel\u2028", "<s>")]


def written(path, rows, *, with_text=True):
    write_split(path, ([row] for row in rows), with_text=with_text)
    return Split(path)


@given(st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=5), max_size=5), st.data())
def test_ragged_rows_come_back_from_any_chunks(chunks, data):
    rows = [row for chunk in chunks for row in chunk]
    ragged = Ragged(
        [(np.array([*chain(*chunk)], np.int32), np.cumsum([0, *map(len, chunk)], dtype=np.int32)) for chunk in chunks]
    )
    assert len(ragged) == len(rows)
    assert [ragged[i].tolist() for i in range(len(rows))] == rows
    assert ragged.values.tolist() == [*chain(*rows)]
    assert ragged.lengths.tolist() == list(map(len, rows))
    assert ragged.offsets.tolist() == [0, *np.cumsum(ragged.lengths)]
    picked = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=8)) if rows else []
    assert ragged.gather(np.array(picked, np.int64)).tolist() == [*chain(*(rows[i] for i in picked))]
    with pytest.raises(IndexError):
        ragged[len(rows)]


def test_a_split_comes_back_from_the_disk(tmp_path):
    split = written(tmp_path / "valid.arrow", ROWS)
    assert len(split) == 3
    assert [split.source[i].tolist() for i in range(3)] == [row[0] for row in ROWS]
    assert split.target[-1].tolist() == [9, 10, 11]
    assert split.texts[0] == [row[2] for row in ROWS]
    assert split.texts[1] == [row[3] for row in ROWS]
    assert split.source.values.dtype == np.int32
    assert not split.source.values.flags.owndata
    train = written(tmp_path / "train.arrow", ROWS, with_text=False)
    with pytest.raises(DataError, match=r"train\.arrow"):
        _ = train.texts[0]
    empty = written(tmp_path / "test.arrow", [])
    assert (len(empty), empty.texts[0]) == (0, [])
    dataset = datasets.Dataset.from_file(str(split.path))
    assert dataset[2] == {"source": [8], "target": [9, 10, 11], "source_text": "Äpfel\u2028", "target_text": "<s>"}


def test_the_folder_name_contains_the_settings(tmp_path):
    section = ParallelSection(card="multi30k-de-en", vocabulary=8000, max_tokens=128)
    assert prepared_folder(section, tmp_path) == tmp_path / "prepared" / "multi30k-de-en" / "bpe-8000-joint-128"
    own = ParallelSection(card="cards/own.yaml", tokenizer="word", vocabulary=50, joint=False)
    assert prepared_folder(own, tmp_path) == tmp_path / "prepared" / "own" / "word-50-256"
    with pytest.raises(DataError, match=r"'\.\./x'"):
        prepared_folder(ParallelSection(card="../x"), tmp_path)


@pytest.mark.parametrize(
    ("section", "command"),
    [
        (
            ParallelSection(card="mine", tokenizer="word", vocabulary=90, joint=False, max_tokens=50),
            "phmctl prepare-data mine --tokenizer word --vocabulary 90 --max-tokens 50 --separate "
            "--train SRC --train TGT --valid SRC --valid TGT --test SRC --test TGT",
        ),
        (
            ParallelSection(card="multi30k-de-en", direction="reverse"),
            "phmctl prepare-data multi30k-de-en --tokenizer bpe --vocabulary 8000 --max-tokens 256 --joint --reverse",
        ),
        (ParallelSection(card="multi30k-de-en"), "phmctl prepare-data multi30k-de-en"),
        (
            LabelledSection(card="mine", vocabulary=60, max_tokens=5),
            "phmctl prepare-data mine --tokenizer word --vocabulary 60 --max-tokens 5 "
            "--table train=FILE --table valid=FILE --text COLUMN --label COLUMN",
        ),
    ],
)
def test_the_command_that_prepares_missing_data(tmp_path, monkeypatch, section, command):
    monkeypatch.delenv("PHMCTL_DATA", raising=False)
    assert prepare_command(section) == command
    assert prepare_command(section, tmp_path / "my data").endswith(f" --data '{tmp_path}/my data'")
    for data in (f" --data {tmp_path}", ""):
        with pytest.raises(DataError) as caught:
            PreparedData.find(section, tmp_path)
        assert str(caught.value).endswith(f": {command}{data}")
        monkeypatch.setenv("PHMCTL_DATA", str(tmp_path))  # the default needs no option
    with pytest.raises(DataError, match=r"manifest\.json"):
        PreparedData(tmp_path)


FILES = [{"name": "train.arrow", "bytes": 1, "sha256": "0"}]
GOOD = {"format": FORMAT, "settings": {}, "token_types": {}, "splits": {}, "files": FILES}


@pytest.mark.parametrize("content", ["{", "[]", "{}", "\xff", json.dumps(GOOD | {"format": FORMAT + 1})])
def test_a_damaged_manifest_is_a_users_error(tmp_path, content):
    (tmp_path / MANIFEST).write_text(json.dumps(GOOD))
    assert read_manifest(tmp_path) == GOOD
    (tmp_path / MANIFEST).write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"manifest\.json.*move .* away"):
        PreparedData(tmp_path)
