"""Unpacking of archives, completely and never outside their folder; datasets of the hub."""

import gzip
import io
import tarfile
import tracemalloc
import zipfile
from types import SimpleNamespace

import datasets
import pytest

from phmctl.data import fetch as archives
from phmctl.data.card import Hub, Url
from phmctl.data.fetch import EXTRACTED, LARGEST, extract, fetch_all
from phmctl.data.hub import hub_rows, load_rows
from phmctl.errors import DataError, DownloadError, OutputError
from tests.data.helpers import cut, files_below, flip, texts

CONTENT = {"set/train.de": b"eins\n", "set/deep/train.en": b"one\n", "./readme": b"", "a..b": b"fine"}


def tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def packed(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def flip_the_middle(path):
    flip(path, path.stat().st_size // 2)


def replace_by_page(path):
    path.write_bytes(b"<html>404</html>")


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.tar.xz", "a.zip"])
def test_archives_are_unpacked(tmp_path, name):
    modes = {"a.tgz": "w:gz", "a.tar": "w", "a.tar.xz": "w:xz"}
    path = tmp_path / name
    packed(path, CONTENT) if name == "a.zip" else tar(path, CONTENT, modes[name])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="file"):
        extract(path, tmp_path / "file" / "out")
    folder = tmp_path / "out" / "set"
    extract(path, folder)
    marked = files_below(folder)
    assert b"sha256" in marked.pop(EXTRACTED)
    assert marked == {name.removeprefix("./"): content for name, content in CONTENT.items()}
    assert [entry.name for entry in folder.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("evil", ["../evil", "set/../../evil", "/tmp/phmctl-evil", ".."])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_outside_the_folder_are_refused(tmp_path, kind, evil):
    members = {"good": b"x", evil: b"evil", "later": b"y"}
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    path = (tar if kind == "tar" else packed)(tmp_path / f"x.{kind}", members)
    with pytest.raises(DataError, match=evil):
        extract(path, inside / "out")
    assert files_below(tmp_path).keys() == {path.name}


@pytest.mark.parametrize(
    "member",
    [
        link("set/out", "../../evil"),
        link("set/out", "/etc/passwd"),
        link("set/hard", "../evil", tarfile.LNKTYPE),
        link("fifo", "", tarfile.FIFOTYPE),
        link("device", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
def test_links_and_devices_are_refused(tmp_path, member):
    path = tar(tmp_path / "x.tar", {"good": b"x", member.name: member, "set/out/file": b"evil"}, "w")
    with pytest.raises(DataError, match=repr(member.name)):
        extract(path, tmp_path / "out")
    assert files_below(tmp_path).keys() == {"x.tar"}
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("out")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "../../evil")
    with pytest.raises(DataError, match="'out'"):
        extract(tmp_path / "x.zip", tmp_path / "out")


def test_long_names_are_unpacked(tmp_path):
    name = "/".join(["folder" * 20] * 20)
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{tar_format}.tar"
        with tarfile.open(path, "w", format=tar_format) as archive:
            archive.addfile(tarfile.TarInfo(name))
        extract(path, tmp_path / str(tar_format))
        assert (tmp_path / str(tar_format) / name).is_file()


@pytest.mark.parametrize("damage", [cut, flip_the_middle, replace_by_page])
@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_damaged_archives_leave_nothing(tmp_path, name, damage):
    path = tmp_path / name
    members = {f"file{number}": bytes(range(256)) * 40 for number in range(5)}
    packed(path, members) if name == "a.zip" else tar(path, members)
    damage(path)
    with pytest.raises(DataError, match=name):
        extract(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_an_archive_with_too_much_content_leaves_nothing(tmp_path, name, monkeypatch):
    """Zeros compress a thousand times."""
    path, members = tmp_path / name, {"zeros": bytes(1 << 24), **{f"file{number}": b"" for number in range(5)}}
    packed(path, members, zipfile.ZIP_DEFLATED) if name == "a.zip" else tar(path, members)
    for bytes_allowed, members_allowed in ((1 << 20, 6), (1 << 25, 5)):
        monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", bytes_allowed)
        monkeypatch.setattr(archives, "_MOST_MEMBERS", members_allowed)
        with pytest.raises(DataError, match=f" {members_allowed} "):
            extract(path, tmp_path / "out")
        assert [entry.name for entry in tmp_path.iterdir()] == [name]
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 6)
    extract(path, tmp_path / "out")
    assert (tmp_path / "out" / "zeros").stat().st_size == 1 << 24


def pax(records):
    """Return the records of a pax header."""
    return b"".join(b"%d %s\n" % (len(record) + 4, record) for record in records)


HEADERS = {
    "pax": (tarfile.XHDTYPE, 1 << 27),
    "global pax": (tarfile.XGLTYPE, 1 << 27),
    "Solaris pax": (tarfile.SOLARIS_XHDTYPE, 1 << 27),
    "GNU name": (tarfile.GNUTYPE_LONGNAME, 1 << 27),
    "GNU link": (tarfile.GNUTYPE_LONGLINK, 1 << 27),
    "GNU sparse": (tarfile.GNUTYPE_SPARSE, 0),
    "pax sparse": (tarfile.REGTYPE, 1 << 27),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_tar_headers_are_not_read_into_memory_without_limit(tmp_path, kind):
    path = tmp_path / "a.tar.gz"
    header_type, size = HEADERS[kind]
    header = link("x", "", header_type)
    header.size = size
    block = bytearray(header.tobuf())
    content = bytes(1 << 20)
    if kind == "GNU sparse":
        block[482] = 1  # more blocks of the map follow
        block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]
        content = ((b"%011o\0" % 1) * 42).ljust(504, b"\0") + b"\1" * 8
        content *= 1 << 11
    with gzip.open(path, "wb", 1) as file:
        if kind == "pax sparse":
            records = pax([b"GNU.sparse.major=1", b"GNU.sparse.minor=0"])
            extension = link("pax", "", tarfile.XHDTYPE)
            extension.size = len(records)
            file.write(extension.tobuf() + records.ljust(512, b"\0"))
            content = b"1\n" * (1 << 19)
            block += b"99999999\n".ljust(512, b"1")[:-1] + b"\n"
        file.write(block)
        for _ in range(1 << 7):
            file.write(content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"a\.tar\.gz .* too long"):
            extract(path, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_attributes_of_all_members_are_few(tmp_path):
    """Each member gets a copy of them."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", pax_headers={"path": "x" * 5000 + "/"}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(DataError, match="too long"):
        extract(path, tmp_path / "out")


def test_many_long_names_are_unpacked(tmp_path):
    names = ["/".join([f"{number:03}" * 60] * 5) for number in range(99)]
    extract(tar(tmp_path / "a.tgz", dict.fromkeys(names, b"x")), tmp_path / "out")
    assert files_below(tmp_path / "out").keys() == {*names, EXTRACTED}


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_members_are_counted_before_the_first_is_unpacked(tmp_path, monkeypatch, name):
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 5)
    monkeypatch.setattr(tarfile.TarFile, "extract", lambda *_, **__: pytest.fail("unpacked"))
    monkeypatch.setattr(zipfile.ZipFile, "extract", lambda *_, **__: pytest.fail("unpacked"))
    members = {f"file{number}": b"" for number in range(6)}
    with pytest.raises(DataError, match=" 5 "):
        extract((packed if name == "a.zip" else tar)(tmp_path / name, members), tmp_path / "out")


def test_refetch_replaces_a_damaged_or_earlier_archive(tmp_path):
    served, cache = tmp_path / "a.tgz", tmp_path / "cache"
    item = Url.model_construct(url=served.as_uri(), file="a.tgz", extract=True)
    served.write_bytes(b"<html>busy</html>")
    with pytest.raises(DataError, match="--refetch"):
        fetch_all([item], cache)
    tar(served, {"old": b"x"})
    (cache / ".a.tgz.extracted.0123abcd.tmp").mkdir()
    fetch_all([item], cache, refetch=True)
    tar(served, {"new": b"x"})
    fetch_all([item], cache)
    assert files_below(cache / "a.tgz.extracted")["old"] == b"x"
    fetch_all([item], cache, refetch=True)
    assert files_below(cache / "a.tgz.extracted").keys() == {"new", EXTRACTED}
    assert sorted(path.name for path in cache.iterdir()) == ["a.tgz", "a.tgz.extracted"]
    (cache / "a.tgz.extracted" / EXTRACTED).unlink()  # a folder of the user's
    with pytest.raises(OutputError, match="extracted"):
        fetch_all([item], cache, refetch=True)
    assert files_below(cache / "a.tgz.extracted") == {"new": b"x"}


COMMIT = "0123456789" * 4
PAIRS = [("ein Haus", "a house"), ("zwei\u2028Häuser", "two houses"), ("drei", "")]


def dataset_of(pairs, nested=False):
    rows = [{"de": de, "en": en} for de, en in pairs]
    return datasets.Dataset.from_list([{"translation": row} for row in rows] if nested else rows)


def write_repository(folder, kind, nested=False):
    """Write the three splits as JSON lines or parquet, and return the card's entry."""
    dataset = dataset_of(PAIRS, nested)
    folder.mkdir()
    for split in ("train", "validation", "test"):
        path = str(folder / f"{split}.{kind}")
        dataset.to_json(path) if kind == "jsonl" else dataset.to_parquet(path)
    columns = ("translation.de", "translation.en") if nested else ("de", "en")
    splits = {"train": "train", "valid": "validation", "test": "test"}
    return Hub.model_construct(id=str(folder), splits=splits, texts=columns)


class WithoutTerminal:
    """A stream of an embedding program, without ``isatty``."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


@pytest.mark.usefixtures("local_hub")
@pytest.mark.parametrize("stream", [None, WithoutTerminal()], ids=["none", "without isatty"])
def test_a_dataset_is_loaded_without_a_terminal(tmp_path, monkeypatch, stream):
    hub = write_repository(tmp_path / "repository", "jsonl", nested=True)
    monkeypatch.setattr("sys.stderr", stream)
    splits, _, _ = load_rows(hub, tmp_path / "cache")
    assert texts(splits["train"]) == PAIRS
    assert not datasets.are_progress_bars_disabled()


@pytest.mark.usefixtures("local_hub")
@pytest.mark.parametrize(("kind", "nested"), [("jsonl", True), ("parquet", True), ("parquet", False)])
def test_splits_and_columns(tmp_path, capsys, kind, nested):
    hub = write_repository(tmp_path / "repository", kind, nested)
    capsys.readouterr()
    splits, files, origin = load_rows(hub, tmp_path / "cache")
    assert capsys.readouterr().err == f"loading {hub.id} through datasets ...\n"  # no progress bar without a terminal
    assert not datasets.are_progress_bars_disabled()  # a setting of the whole process
    assert {name: texts(pairs) for name, pairs in splits.items()} == dict.fromkeys(("train", "valid", "test"), PAIRS)
    assert texts(splits["train"]) == PAIRS  # again
    assert origin.startswith("hub ")
    assert [file.split for file in files] == ["train", "valid", "test"]
    assert all(file.path.is_relative_to(tmp_path / "cache") and file.path.is_file() for file in files)


@pytest.mark.usefixtures("local_hub")
@pytest.mark.parametrize(("addresses", "version"), [(None, "refs/x"), ({f"hf://datasets/a/b@{COMMIT}/x": {}}, COMMIT)])
def test_a_fetched_dataset_is_kept(tmp_path, monkeypatch, capsys, addresses, version):
    """The second time neither the library nor the network is used."""
    rows = dataset_of(PAIRS)
    rows.info.download_checksums = addresses
    requests = []

    def fetch(*names, **options):
        requests.append((names, options["revision"], options["data_dir"]))
        return datasets.DatasetDict({"train": rows, "other": rows})

    monkeypatch.setattr(datasets, "load_dataset", fetch)
    hub = Hub(id="a/b", config="c", revision="refs/x", folder="f", splits={"train": "train"}, texts=("de", "en"))
    for _ in range(2):
        splits, files, origin = load_rows(hub, tmp_path / "cache")
        assert origin == f"hub a/b at {version}"
        assert texts(splits["train"]) == PAIRS
        assert [file.path.is_file() for file in files] == [True]
    assert capsys.readouterr().err == "loading a/b through datasets ...\n"
    assert requests == [(("a/b", "c"), "refs/x", "f")]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a--b--c--f--refs--x"]


@pytest.mark.usefixtures("local_hub")
def test_refetch_replaces_a_dataset_only_by_a_complete_one(tmp_path, monkeypatch):
    """Leftovers of killed processes are removed; a failed fetch keeps the earlier dataset."""
    answers = [None, PAIRS[:1], None, PAIRS]

    def fetch(*names, **options):
        pairs = answers.pop(0)
        if pairs is None:
            raise OSError("cut off")
        return datasets.DatasetDict({"train": dataset_of(pairs)})

    monkeypatch.setattr(datasets, "load_dataset", fetch)
    hub = Hub(id="a/b", splits={"train": "train"}, texts=("de", "en"))
    cache = tmp_path / "cache"

    def load(**options):
        return texts(load_rows(hub, cache, **options)[0]["train"])

    with pytest.raises(DownloadError, match="'a/b': cut off"):
        load()
    assert not list(cache.iterdir())
    assert load() == PAIRS[:1]
    with pytest.raises(DownloadError, match="cut off"):
        load(refetch=True)
    assert load() == PAIRS[:1]
    (cache / ".a--b.0123abcd.tmp" / ".cache").mkdir(parents=True)
    (cache / ".a--b.0123abcd.tmp" / ".cache" / "half").write_text("x")
    assert load(refetch=True) == load() == PAIRS
    assert [path.name for path in cache.iterdir()] == ["a--b"]
    assert answers == []


@pytest.mark.usefixtures("local_hub")
def test_errors_of_the_hub(tmp_path, monkeypatch):
    hub = write_repository(tmp_path / "repository", "jsonl")
    rows = hub_rows([{"de": "eins\nzwei\r\n", "en": "one"}, {"de": None, "en": "two"}], hub, "set")
    assert next(iter(rows)).texts == ("eins zwei ", "one")
    with pytest.raises(DataError, match=r"set, line 2: 'de' .*None"):
        list(rows)

    def refuse(error_type, place, **changes):
        with pytest.raises(error_type, match=place):
            load_rows(hub.model_copy(update=changes), tmp_path / "cache")

    refuse(DataError, "'training'", splits={"train": "training"})
    (tmp_path / "empty").mkdir()
    refuse(DownloadError, r"^.*empty.*\n.*--source DIR$", id=str(tmp_path / "empty"))
    (tmp_path / "cache" / "c--d").mkdir(parents=True)
    refuse(DataError, r"c--d .*--refetch", id="c/d")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # a local folder with the name of the dataset
    refuse(DataError, "'a/b'.*--source DIR", id="a/b")
    files = [SimpleNamespace(size=size, rfilename="x") for size in (LARGEST, 1)]
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: SimpleNamespace(siblings=files))
    refuse(DownloadError, f"{LARGEST + 1:,}", id="e/f")
