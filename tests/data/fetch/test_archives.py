"""Unpacking: what is inside comes out whole, and nothing is ever written outside."""

import gzip
import io
import tarfile
import tracemalloc
import zipfile

import pytest

from phmctl.data.card import Url
from phmctl.data.fetch import archives
from phmctl.data.fetch.archives import DamagedError, extract, fetch_all
from phmctl.errors import DataError, OutputError

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


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.tar.xz", "a.zip"])
def test_content_comes_out(tmp_path, name):
    modes = {"a.tgz": "w:gz", "a.tar": "w", "a.tar.xz": "w:xz"}
    path = tmp_path / name
    packed(path, CONTENT) if name == "a.zip" else tar(path, CONTENT, modes[name])
    folder = extract(path, tmp_path / "out" / "set")
    assert files(folder) == {name.removeprefix("./"): content for name, content in CONTENT.items()}
    assert [entry.name for entry in folder.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_of_names_are_not_read_into_memory_without_limit(tmp_path, kind):
    path = tmp_path / "a.tar.gz"
    head = link("x", "", kind)
    head.size = 1 << 28
    with gzip.open(path, "wb", 1) as file:
        file.write(head.tobuf())
        for _ in range(1 << 8):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="bytes of names"):
            extract(path, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


OUTSIDE = [
    "../evil",
    "set/../../evil",
    "/tmp/phmctl-evil",
    "..\\evil",
    "C:\\evil",
    "C:/evil",
    "..",
    "\\\\host\\share\\evil",
]


@pytest.mark.parametrize("evil", OUTSIDE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_out_stop_everything(tmp_path, kind, evil):
    members = {"good": b"x", evil: b"evil", "later": b"y"}
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    path = (tar if kind == "tar" else packed)(tmp_path / f"x.{kind}", members)
    with pytest.raises(DataError, match="leads out of the archive's folder; nothing was extracted"):
        extract(path, inside / "out")
    assert files(tmp_path).keys() == {path.name}


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
    with pytest.raises(DataError, match="is a link or a device; nothing was extracted"):
        extract(path, tmp_path / "out")
    assert files(tmp_path).keys() == {"x.tar"}


def test_links_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("out")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "../../evil")
    with pytest.raises(DataError, match="'out' is a link"):
        extract(tmp_path / "x.zip", tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_damaged_archives_leave_nothing(tmp_path, name, damage):
    path = tmp_path / name
    members = {f"file{number}": bytes(range(256)) * 40 for number in range(5)}
    packed(path, members) if name == "a.zip" else tar(path, members)
    content = bytearray(path.read_bytes())
    match damage:
        case "cut":
            content = content[: len(content) // 2]
        case "flip":
            content[len(content) // 2] ^= 255
        case "other":
            content = bytearray(b"<html>404</html>")
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="not a whole tar or zip archive"):
        extract(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_an_extracted_folder_is_left_alone(tmp_path):
    path = tar(tmp_path / "a.tar", CONTENT, "w")
    folder = extract(path, tmp_path / "out")
    path.unlink()
    assert extract(path, tmp_path / "out") == folder


def test_a_folder_that_cannot_be_written(tmp_path):
    path = tar(tmp_path / "a.tar", CONTENT, "w")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write"):
        extract(path, tmp_path / "file" / "out")


def bomb(path, size):
    """Write an archive of one member, all zeros: it packs a thousand times."""
    return (
        packed(path, {"zeros": bytes(size)}, zipfile.ZIP_DEFLATED)
        if path.suffix == ".zip"
        else tar(path, {"zeros": bytes(size)})
    )


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_an_archive_that_unpacks_to_too_much_leaves_nothing(tmp_path, name, monkeypatch):
    monkeypatch.setattr(archives, "_ALWAYS", 1 << 20)
    path = bomb(tmp_path / name, 1 << 24)
    with pytest.raises(DataError, match=r"holds more than 3?\d,?\d*,\d+ bytes: .*\n.*unpacked: BYTES") as caught:
        extract(path, tmp_path / "out")
    assert not isinstance(caught.value, DamagedError)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert (extract(path, tmp_path / "out", limit=1 << 25) / "zeros").stat().st_size == 1 << 24


def test_the_limit_is_two_hundred_times_the_archive(tmp_path):
    """3 MB that became 1 GB: the archive is refused, and what is small in any case is not."""
    path = bomb(tmp_path / "a.tgz", 1 << 24)
    assert extract(path, tmp_path / "out").is_dir()
    limits = archives._Limits(path, None, 10)
    limits.take(256 << 20)
    with pytest.raises(DataError, match="holds more than 268,435,456 bytes"):
        limits.take(1)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_an_archive_of_too_many_members_leaves_nothing(tmp_path, name):
    members = {f"file{number}": b"" for number in range(5)}
    path = packed(tmp_path / name, members) if name == "a.zip" else tar(tmp_path / name, members)
    with pytest.raises(DataError, match="holds more than 4 members"):
        extract(path, tmp_path / "out", members=4)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert extract(path, tmp_path / "out", members=5).is_dir()


@pytest.mark.parametrize("second", ["a", "a/b", "A/../a"])
def test_members_in_each_others_place_are_refused(tmp_path, second):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a", second):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError, match=r"stands where another does|leads out"):
        extract(path, tmp_path / "out")


def test_a_damaged_archive_is_fetched_again_once_the_server_has_a_whole_one(tmp_path):
    served, cache = tmp_path / "server" / "a.tgz", tmp_path / "cache"
    served.parent.mkdir()
    item = Url(url=served.as_uri(), file="a.tgz", extract=True)
    served.write_bytes(b"<html>busy</html>")
    with pytest.raises(DataError, match="not a whole tar or zip archive"):
        fetch_all([item], cache)
    assert not list(cache.iterdir())
    tar(served, CONTENT)
    fetch_all([item], cache)
    assert files(cache / "a.tgz.extracted").keys() == {"set/train.de", "set/deep/train.en", "readme", "a..b"}


def test_an_archive_that_was_damaged_in_the_cache_is_fetched_again(tmp_path):
    served, cache = tar(tmp_path / "a.tgz", CONTENT), tmp_path / "cache"
    cache.mkdir()
    (cache / "a.tgz").write_bytes(served.read_bytes()[:100])
    (cache / ".a.tgz.extracted.0123abcd.tmp").mkdir()
    fetch_all([Url(url=served.as_uri(), file="a.tgz", extract=True)], cache)
    assert sorted(path.name for path in cache.iterdir()) == ["a.tgz", "a.tgz.extracted"]
    assert (cache / "a.tgz").read_bytes() == served.read_bytes()


def test_refetch_unpacks_anew(tmp_path):
    served, cache = tar(tmp_path / "a.tgz", CONTENT), tmp_path / "cache"
    item = Url(url=served.as_uri(), file="a.tgz", extract=True)
    fetch_all([item], cache)
    tar(served, {"new": b"x"})
    fetch_all([item], cache)
    assert "new" not in files(cache / "a.tgz.extracted")
    fetch_all([item], cache, refetch=True)
    assert files(cache / "a.tgz.extracted") == {"new": b"x"}
