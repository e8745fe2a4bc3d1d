import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

pytest.importorskip("uvicorn")

from phmctl.errors import UserError
from phmctl.serving.server import listen, url_of
from tests.serving.fake import as_json, until
from tests.serving.processes import SECONDS, Server, fake_server, head

TEN_MB = 10_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server(connections=12) as server:
        yield server


def works(server: Server) -> bool:
    """Return whether the server answers; False if it refuses the connection or is busy."""
    try:
        return server.ask("a").json()["answers"][0]["translations"] == [as_json("a")]
    except (httpx.HTTPError, KeyError):
        return False


# ---------------------------------------------------------------------------------------------------- the socket


def test_an_address_that_cannot_be_used_is_a_user_error() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        addresses = [("127.0.0.1", port), ("192.0.2.1", 0), ("no such host", 0), ("x..y", 0), ("x" * 300, 0)]
        if os.geteuid():
            addresses.append(("127.0.0.1", 1))
        for host, number in addresses:
            with pytest.raises(UserError):
                listen(host, number)


def test_the_address_of_a_socket() -> None:
    with listen("localhost", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) in (f"http://127.0.0.1:{port}", f"http://[::1]:{port}")
    with listen("0.0.0.0", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    if socket.has_dualstack_ipv6():
        with listen("::", 0) as sock, socket.create_connection(("127.0.0.1", sock.getsockname()[1])):
            assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


# -------------------------------------------------------------------------------------------------- other clients


def test_ten_megabytes_do_not_stop_the_server(server: Server) -> None:
    with suppress(httpx.TransportError):  # the server may close the connection while the client sends
        headers = {"content-type": "application/json"}
        assert httpx.post(f"{server.url}/translate", content=b"x" * TEN_MB, headers=headers).status_code == 413
    assert works(server)


def test_too_many_connections_are_503(server: Server) -> None:
    connections = [server.connect() for _ in range(12)]
    until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
    for connection in connections:
        connection.close()
    until(lambda: works(server))


def test_requests_of_disconnected_clients_are_dropped(server: Server) -> None:
    before = server.health()["counts"]
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.ask, "SLOW")
        until(lambda: server.health()["queue"]["running"] == 1)
        body = json.dumps({"texts": ["x", "y", "z"]}).encode()
        for request in (head(length=len(body)) + body, head(length=len(body)) + body[:5], head()[:20]):
            connection = server.connect()
            connection.sendall(request)
            if request.endswith(body):
                until(lambda: server.health()["queue"]["waiting"] == 3)
            connection.close()
        until(lambda: server.health()["queue"]["waiting"] == 0)
        assert slow.result(SECONDS).json()["answers"][0]["translations"] == [as_json("SLOW")]
    after = server.health()["counts"]
    assert after["dropped"] - before["dropped"] == 3
    assert works(server)


# ------------------------------------------------------------------------------------------------------- the end


def test_a_stop_signal_answers_open_requests() -> None:
    with fake_server() as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.ask, text) for text in ("SLOW", "SLOW b")]
        until(lambda: sum(map(server.health()["queue"].get, ("running", "waiting"))) == 2)
        server.process.send_signal(signal.SIGTERM)
        for future, text in zip(waiting, ("SLOW", "SLOW b"), strict=True):
            assert future.result(SECONDS).json()["answers"][0]["translations"] == [as_json(text)]
        assert server.process.wait(SECONDS) == -signal.SIGTERM  # uvicorn raises the signal again


def test_a_request_that_exceeds_the_grace_period_is_given_up() -> None:
    with fake_server(grace=0.2) as server, ThreadPoolExecutor(1) as pool:
        hung = pool.submit(server.ask, "SLOW " * 4)
        until(lambda: server.health()["queue"]["running"] == 1)
        server.end()
        with suppress(httpx.TransportError):
            assert hung.result(SECONDS).status_code == 500
