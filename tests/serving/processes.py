"""Server processes and raw connections to them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

SECONDS = 30
ROOT = Path(__file__).parents[2]
FAKE = "import sys; from tests.serving.fake import main; main(sys.argv[1:])"


class Server:
    """A server process that has printed its address.

    Args:
        command: arguments of Python.
        json_lines: lines of the JSON document that the process prints; 0: it prints only its address.
    """

    def __init__(self, command: Sequence[str], *, json_lines: int = 0) -> None:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self.process = subprocess.Popen([sys.executable, *command], text=True, env=environment, **pipes)
        assert self.process.stdout
        output = "".join(self.process.stdout.readline() for _ in range(json_lines or 1))
        self.about = json.loads(output) if json_lines and output else {"url": output.strip()}
        self.url = self.about["url"]
        if not self.url.startswith("http"):
            self.process.kill()
            raise AssertionError(self.process.communicate())

    def ask(self, *texts: str, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/translate", json={"texts": texts, **options}, timeout=SECONDS)

    def health(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/health", timeout=SECONDS).json()

    def connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=SECONDS)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and return the exit code and stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            _, stderr = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, stderr


@contextmanager
def fake_server(**settings: Any) -> Iterator[Server]:
    """Serve a fake model; see :func:`tests.serving.fake.main`."""
    server = Server(["-c", FAKE, json.dumps(settings)])
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)


def head(path: str = "/translate", length: int | None = None, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()
