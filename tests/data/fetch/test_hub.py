"""The hub, through ``datasets``: local folders take the same path as a hub's repositories."""

import json
import time
from types import SimpleNamespace

import pytest
from datasets import are_progress_bars_disabled

from phmctl.data.card import Hub, Sides
from phmctl.data.fetch.hub import HubRows, _version, load_rows
from phmctl.errors import DataError, DownloadError
from tests.data.helpers import texts

PAIRS = [("ein Haus", "a house"), ("zwei\u2028Häuser", "two houses"), ("drei", "")]


def make(tmp_path, kind, nested=False):
    """Write the three splits as json lines, csv or parquet, and return the card's entry."""
    import pandas
    import pyarrow
    import pyarrow.parquet

    repository = tmp_path / "repository"
    repository.mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"de": one, "en": other} for one, other in PAIRS]
        rows = [{"translation": row} for row in rows] if nested else rows
        path = repository / f"{split}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        elif kind == "csv":
            pandas.DataFrame(rows).to_csv(path, index=False)
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    columns = Sides(source="translation.de", target="translation.en") if nested else Sides(source="de", target="en")
    return Hub(id=str(repository), splits={"train": "train", "valid": "validation", "test": "test"}, columns=columns)


@pytest.mark.parametrize(("kind", "nested"), [("jsonl", True), ("parquet", True), ("parquet", False)])
def test_splits_and_columns(tmp_path, kind, nested):
    loaded = load_rows(make(tmp_path, kind, nested), tmp_path / "cache")
    assert not are_progress_bars_disabled()  # of the whole process
    assert {name: texts(pairs) for name, pairs in loaded.splits.items()} == dict.fromkeys(
        ("train", "valid", "test"), PAIRS
    )
    assert texts(loaded.splits["train"]) == PAIRS  # again
    assert loaded.origin.startswith("hub ")
    assert [file.split for file in loaded.files] == ["train", "valid", "test"]
    assert all(file.path.is_relative_to(tmp_path / "cache") and file.path.is_file() for file in loaded.files)


def test_what_was_fetched_once_is_kept(tmp_path, monkeypatch):
    """The second time neither the library nor the network is asked."""
    import datasets

    rows = datasets.Dataset.from_list([{"de": one, "en": other} for one, other in PAIRS])
    asked = []

    def fetch(*names, **options):
        asked.append((names, options["revision"], options["data_dir"]))
        return datasets.DatasetDict({"train": rows, "other": rows})

    monkeypatch.setattr(datasets, "load_dataset", fetch)
    monkeypatch.setattr("phmctl.data.fetch.hub._check_reachable", lambda name: None)
    columns = Sides(source="de", target="en")
    hub = Hub(id="a/b", config="c", revision="refs/x", folder="f", splits={"train": "train"}, columns=columns)
    for _ in range(2):
        loaded = load_rows(hub, tmp_path / "cache")
        assert texts(loaded.splits["train"]) == PAIRS
        assert [file.path.is_file() for file in loaded.files] == [True]
    assert asked == [(("a/b", "c"), "refs/x", "f")]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a--b--c--f--refs--x"]


def test_refetch_replaces_what_is_kept_once_the_new_is_whole(tmp_path, monkeypatch):
    """What killed fetches left is swept; a fetch that fails leaves what was there."""
    import datasets

    answers = [PAIRS[:1], None, PAIRS]

    def fetch(*names, **options):
        pairs = answers.pop(0)
        if pairs is None:
            raise OSError("cut off")
        return datasets.DatasetDict({"train": datasets.Dataset.from_list([{"de": de, "en": en} for de, en in pairs])})

    monkeypatch.setattr(datasets, "load_dataset", fetch)
    monkeypatch.setattr("phmctl.data.fetch.hub._check_reachable", lambda name: None)
    hub = Hub(id="a/b", splits={"train": "train"}, columns=Sides(source="de", target="en"))
    cache = tmp_path / "cache"

    def kept(**how):
        return texts(load_rows(hub, cache, **how).splits["train"])

    assert kept() == PAIRS[:1]
    with pytest.raises(DownloadError, match="cut off"):
        kept(refetch=True)
    assert kept() == PAIRS[:1]
    (cache / ".a--b.0123abcd.tmp" / ".cache").mkdir(parents=True)
    (cache / ".a--b.0123abcd.tmp" / ".cache" / "half").write_text("x")
    assert kept(refetch=True) == kept() == PAIRS
    assert [path.name for path in cache.iterdir()] == ["a--b"]
    assert answers == []


def test_what_is_kept_and_damaged_names_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "a--b").mkdir()
    hub = Hub(id="a/b", splits={"train": "train"}, columns=Sides(source="de", target="en"))
    with pytest.raises(DataError, match=r"a--b is damaged .*; fetch it anew: --refetch"):
        load_rows(hub, tmp_path)


def test_a_fetch_that_fails_leaves_nothing(tmp_path, monkeypatch):
    import datasets

    def fail(*_, **__):
        raise RuntimeError("Dataset scripts are no longer supported, but found b.py")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr("phmctl.data.fetch.hub._check_reachable", lambda name: None)
    hub = Hub(id="a/b", splits={"train": "train"}, columns=Sides(source="de", target="en"))
    with pytest.raises(DownloadError, match="the hub does not give 'a/b': Dataset scripts are no longer supported"):
        load_rows(hub, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_column_that_is_not_there(tmp_path):
    hub = make(tmp_path, "jsonl").model_copy(update={"columns": Sides(source="de", target="fr")})
    with pytest.raises(DataError, match="has no column 'fr'; it has de, en"):
        load_rows(hub, tmp_path / "cache")


def test_a_split_that_is_not_there(tmp_path):
    hub = make(tmp_path, "jsonl").model_copy(update={"splits": {"train": "training"}})
    with pytest.raises(DataError, match="has no split 'training'; it has test, train, validation"):
        load_rows(hub, tmp_path / "cache")


def test_rows_that_are_no_text(tmp_path):
    rows = [{"de": "eins\nzwei\r\n", "en": "one"}, {"de": None, "en": "two"}]
    hub = Hub(id="a/b", splits={}, columns=Sides(source="de", target="en"))
    pairs = iter(HubRows(rows, hub, "set (train)"))
    assert next(pairs).texts == ("eins zwei ", "one")
    with pytest.raises(DataError, match=r"set \(train\), row 2: column 'de' holds None, not text"):
        next(pairs)


def test_what_the_library_refuses_is_a_clear_word(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    hub = Hub(id=str(empty), splits={"train": "train"}, columns=Sides(source="de", target="en"))
    with pytest.raises(DownloadError, match=r"the hub does not give .*empty.*\n.*--source DIR") as caught:
        load_rows(hub, tmp_path / "cache")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://nowhere.invalid", "nonsense"])
def test_a_hub_that_cannot_be_reached_is_told_at_once(tmp_path, monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub = Hub(id="a/b", splits={"train": "train"}, columns=Sides(source="de", target="en"))
    begun = time.monotonic()
    with pytest.raises(DownloadError, match=r"cannot be reached .*\n.*--source DIR"):
        load_rows(hub, tmp_path)
    assert time.monotonic() - begun < 15


def test_the_commit_that_was_fetched_is_told():
    commit = "0123456789" * 4
    info = SimpleNamespace(download_checksums={f"hf://datasets/a/b@{commit}/train.parquet": None})
    hub = Hub(id="a/b", revision="main", splits={}, columns=Sides(source="de", target="en"))
    assert _version(hub, {"train": SimpleNamespace(info=info)}) == f" at {commit}"
    assert _version(hub, {"train": SimpleNamespace(info=SimpleNamespace(download_checksums=None))}) == " at main"
