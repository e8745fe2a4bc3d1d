"""A card's downloads: files and their SHA-256, archives, datasets of the hub."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from functools import partial

import datasets
import pytest

from phmctl.data.card import Hub, Url, load_card
from phmctl.data.corpus import EXTRACTED, extract, fetch_all, hub_rows, load_rows
from phmctl.errors import DataError, DownloadError, OutputError
from tests.data.helpers import cut, files_below, flip, texts

CONTENT = {"set/train.de": b"eins\n", "set/deep/train.en": b"one\n", "./readme": b"", "a..b": b"fine"}


def tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def packed(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.xz", "a.zip"])
def test_archives_are_unpacked(tmp_path, name):
    path = tmp_path / name
    packed(path, CONTENT) if name == "a.zip" else tar(path, CONTENT, {"a.tgz": "w:gz", "a.tar.xz": "w:xz"}[name])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError):
        extract(path, tmp_path / "file" / "out")
    folder = tmp_path / "out" / "set"
    folder.parent.mkdir()
    extract(path, folder)
    unpacked = files_below(folder)
    del unpacked[EXTRACTED]
    assert unpacked == {name.removeprefix("./"): content for name, content in CONTENT.items()}
    assert [entry.name for entry in folder.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("evil", ["../evil", "set/../../evil", ("set/out", "../../evil"), ("set/out", "/etc/passwd")])
def test_nothing_is_unpacked_outside_the_folder(tmp_path, evil):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    member = {evil: b"evil"} if isinstance(evil, str) else {"set/out": link(*evil)}
    path = tar(tmp_path / "x.tar", {"good": b"x", **member}, "w")
    with pytest.raises(DataError):
        extract(path, inside / "out")
    assert files_below(tmp_path).keys() == {"x.tar"}
    if isinstance(evil, str):
        extract(packed(tmp_path / "x.zip", {"good": b"x", evil: b"evil"}), inside / "out")
        assert all(name.startswith(("a/b/out/", "x.")) for name in files_below(tmp_path))


@pytest.mark.parametrize("damage", [cut, lambda path: flip(path, path.stat().st_size // 2)])
@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_damaged_archives_leave_nothing(tmp_path, name, damage):
    path = tmp_path / name
    members = {f"file{number}": bytes(range(256)) * 40 for number in range(5)}
    packed(path, members) if name == "a.zip" else tar(path, members)
    damage(path)
    with pytest.raises(DataError, match=name):
        extract(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.fixture
def server(tmp_path):
    """Serve a folder; return the folder and the address of its files."""
    (tmp_path / "server").mkdir()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "server")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield tmp_path / "server", f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def card_of(*urls, **options):
    return load_card("multi30k-de-en").model_copy(update={"urls": tuple(Url(**url, **options) for url in urls)})


def test_files_are_fetched_once_and_checked(server, tmp_path):
    folder, address = server
    (folder / "a.de").write_bytes(b"eins")
    digest = hashlib.sha256(b"eins").hexdigest()
    item, cache = {"url": f"{address}/a.de", "file": "a.de"}, tmp_path / "cache"
    fetch_all(card_of(item, sha256=digest), cache)
    assert (cache / "a.de").read_bytes() == b"eins"
    (folder / "a.de").write_bytes(b"zwei")
    fetch_all(card_of(item), cache)  # it is there
    assert (cache / "a.de").read_bytes() == b"eins"
    with pytest.raises(DownloadError, match=hashlib.sha256(b"zwei").hexdigest()[:12]):
        fetch_all(card_of(item, sha256=hashlib.sha256(b"drei").hexdigest()), cache)
    assert (cache / "a.de").read_bytes() == b"eins"
    fetch_all(card_of(item, sha256=hashlib.sha256(b"zwei").hexdigest()), cache)
    assert (cache / "a.de").read_bytes() == b"zwei"
    with pytest.raises(DownloadError, match=r"b\.de"):
        fetch_all(card_of({"url": f"{address}/b.de", "file": "b.de"}), cache)
    assert not (cache / "b.de").exists()


def test_an_archive_that_cannot_be_unpacked_is_named(tmp_path):
    served, cache = tmp_path / "a.tgz", tmp_path / "cache"
    item = Url.model_construct(url=served.as_uri(), file="a.tgz", extract=True)
    card = load_card("multi30k-de-en").model_copy(update={"urls": (item,)})
    served.write_bytes(b"<html>busy</html>")
    with pytest.raises(DataError, match=str(cache / "a.tgz")):
        fetch_all(card, cache)
    tar(served, {"train.de": b"x"})
    (cache / "a.tgz").unlink()
    fetch_all(card, cache)
    assert files_below(cache / "a.tgz.extracted").keys() == {"train.de", EXTRACTED}


COMMIT = "0123456789" * 4
PAIRS = [("ein Haus", "a house"), ("zwei\u2028Häuser", "two houses"), ("drei", "")]


def write_repository(folder, kind, nested=False):
    """Write the three splits as JSON lines or parquet, and return the card's entry."""
    rows = [{"de": de, "en": en} for de, en in PAIRS]
    dataset = datasets.Dataset.from_list([{"translation": row} for row in rows] if nested else rows)
    folder.mkdir()
    for split in ("train", "validation", "test"):
        path = str(folder / f"{split}.{kind}")
        dataset.to_json(path) if kind == "jsonl" else dataset.to_parquet(path)
    columns = ("translation.de", "translation.en") if nested else ("de", "en")
    splits = {"train": "train", "valid": "validation", "test": "test"}
    return Hub.model_construct(id=f"{folder}/", splits=splits, texts=columns)


@pytest.mark.parametrize(("kind", "nested"), [("jsonl", True), ("parquet", False)])
def test_splits_and_columns(tmp_path, monkeypatch, kind, nested):
    hub = write_repository(tmp_path / "repository", kind, nested)
    monkeypatch.setattr("phmctl.data.corpus.Path.exists", lambda _: False)  # the folder stands for the hub
    splits, files, origin = load_rows(hub, tmp_path / "cache")
    monkeypatch.undo()
    assert {name: texts(pairs) for name, pairs in splits.items()} == dict.fromkeys(("train", "valid", "test"), PAIRS)
    assert texts(splits["train"]) == PAIRS  # again
    assert origin.startswith("hub ")
    assert [file.split for file in files] == ["train", "valid", "test"]
    assert all(file.path.is_relative_to(tmp_path / "cache") and file.path.is_file() for file in files)


@pytest.mark.parametrize(("addresses", "version"), [(None, "refs/x"), ({f"hf://datasets/a/b@{COMMIT}/x": {}}, COMMIT)])
def test_the_library_is_asked_for_the_cards_dataset(tmp_path, monkeypatch, addresses, version):
    rows = datasets.Dataset.from_list([{"de": de, "en": en} for de, en in PAIRS])
    rows.info.download_checksums = addresses
    asked = []

    def load(*names, **options):
        asked.append((names, options["revision"], options["data_dir"]))
        return datasets.DatasetDict({"train": rows, "other": rows})

    monkeypatch.setattr(datasets, "load_dataset", load)
    hub = Hub(id="a/b", config="c", revision="refs/x", folder="f", splits={"train": "train"}, texts=("de", "en"))
    splits, _, origin = load_rows(hub, tmp_path / "cache")
    assert (origin, texts(splits["train"])) == (f"hub a/b at {version}", PAIRS)
    assert asked == [(("a/b", "c"), "refs/x", "f")]


def test_errors_of_the_hub(tmp_path, monkeypatch):
    hub = Hub(id="a/b", splits={"train": "training"}, texts=("de", "en"))
    rows = hub_rows([{"de": "eins\nzwei\r\n", "en": "one"}, {"de": None, "en": "two"}], hub, "set")
    assert next(iter(rows)).texts == ("eins zwei ", "one")
    with pytest.raises(DataError, match=r"set, line 2: 'de' .*None"):
        list(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": []})
    with pytest.raises(DataError, match="'training'"):
        load_rows(hub, tmp_path / "cache")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {}["a"])
    with pytest.raises(DownloadError, match="'a/b'"):
        load_rows(hub, tmp_path / "cache")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # a local folder with the name of the dataset
    with pytest.raises(DataError, match=r"'a/b'.*source"):
        load_rows(hub, tmp_path / "cache")
