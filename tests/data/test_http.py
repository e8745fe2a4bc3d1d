"""Downloads from a local server: resumed, verified, refused."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from phmctl.data import fetch as fetching
from phmctl.data.fetch import download
from phmctl.errors import DownloadError, OutputError

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serve `content`, with Range, and fail as configured."""

    content: ClassVar[bytes]
    cuts: ClassVar[list[int]]  # for each connection to come: bytes sent before it is cut
    answers: ClassVar[list[int]]  # for each connection to come: an error status
    ranges: ClassVar[bool]
    seen: ClassVar[list[str | None]]  # the Range header of each connection

    def do_GET(self):
        requested = self.headers.get("Range")
        self.seen.append(requested)
        if self.answers:
            return self.send_error(self.answers.pop(0))
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested and self.ranges else 0
        if start >= len(self.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.content)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else None
        self.wfile.write(self.content[start:end])
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetching, "_PAUSE", 0.01)
    Server.content, Server.cuts, Server.answers, Server.ranges, Server.seen = CONTENT, [], [], True, []
    instance = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=instance.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Server.url = f"http://127.0.0.1:{instance.server_port}/train.de"
    yield Server
    instance.shutdown()
    instance.server_close()
    thread.join()


def fetch(server, tmp_path, **options):
    download(server.url, tmp_path / "raw" / "train.de", **options)
    return tmp_path / "raw" / "train.de"


def test_a_file_of_too_many_bytes_is_refused_and_dropped(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "LARGEST", len(CONTENT) - 1)
    with pytest.raises(DownloadError, match=f"{len(CONTENT) - 1:,}"):
        fetch(server, tmp_path)
    assert list((tmp_path / "raw").glob("*.part")) == []
    monkeypatch.setattr(fetching, "LARGEST", len(CONTENT))
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_file_is_fetched_completely_and_once(server, tmp_path):
    for _ in range(2):
        assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert server.seen == [None]
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["train.de"]


@pytest.mark.parametrize(("sha256", "seen"), [(SHA256, [None, "bytes=300000-", "bytes=500000-"]), (None, [None] * 3)])
def test_a_cut_connection_is_resumed_if_the_sha256_is_known(server, tmp_path, sha256, seen):
    server.cuts = [300_000, 200_000]
    assert fetch(server, tmp_path, sha256=sha256).read_bytes() == CONTENT
    assert server.seen == seen


def test_a_later_call_resumes(server, tmp_path, monkeypatch):
    server.cuts = [300_000]
    monkeypatch.setattr(fetching, "_ATTEMPTS", 1)
    with pytest.raises(DownloadError, match=r"train\.de.*300,000"):
        fetch(server, tmp_path, sha256=SHA256)
    assert not (tmp_path / "raw" / "train.de").exists()
    assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert server.seen == [None, "bytes=300000-"]
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["train.de"]


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [("train.de.part", CONTENT + b"x", [f"bytes={len(CONTENT) + 1}-", None]), ("train.de", b"old", [None])],
    ids=["too long", "of another SHA-256"],
)
def test_existing_files(server, tmp_path, name, content, seen):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / name).write_bytes(content)
    assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert server.seen == seen


def test_content_with_another_sha256_is_deleted(server, tmp_path):
    with pytest.raises(DownloadError, match=rf"{SHA256[:12]}.*000000000000"):
        fetch(server, tmp_path, sha256="0" * 64)
    assert not list((tmp_path / "raw").iterdir())


@pytest.mark.parametrize("failure", [{"answers": [503, 429]}, {"cuts": [300_000], "ranges": False}])
def test_a_busy_server_and_a_server_without_ranges(server, tmp_path, monkeypatch, failure):
    for name, value in failure.items():
        monkeypatch.setattr(server, name, value)
    assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT


def test_a_permanent_error_is_not_repeated(server, tmp_path):
    server.answers = [404]
    with pytest.raises(DownloadError, match=r"train\.de.*404.*\n.*--source DIR"):
        fetch(server, tmp_path)
    assert len(server.seen) == 1
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9"):
        download("http://127.0.0.1:9/x", tmp_path / "train.de")


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "raw").write_bytes(b"a file")
    with pytest.raises(OutputError, match=r"train\.de"):
        fetch(server, tmp_path)


def test_a_link_at_the_name_of_a_partial_download_is_not_written_through(server, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(CONTENT[:9])
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train.de.part").symlink_to(foreign)
    for sha256 in (None, SHA256):
        with pytest.raises(OutputError, match="part"):
            fetch(server, tmp_path, sha256=sha256)
    assert foreign.read_bytes() == CONTENT[:9]
