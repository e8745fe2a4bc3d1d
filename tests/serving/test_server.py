import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

pytest.importorskip("uvicorn")

from phmctl.errors import UserError
from phmctl.serving.server import listen, names_of, url_of
from tests.serving.fake import as_json, until
from tests.serving.processes import SECONDS, Server, fake_server, head, read_all

TEN_MB = 10_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server(limits={"seconds": 0.5, "connections": 12}) as server:
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


def test_addresses_and_names() -> None:
    with listen("localhost", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) in (f"http://127.0.0.1:{port}", f"http://[::1]:{port}")
        assert names_of(sock) == ("localhost", "127.0.0.1", "[::1]")
        assert names_of(sock, ("MT.example",))[-1] == "mt.example"
    with listen("127.0.0.2", 0) as sock:
        assert names_of(sock) == ("localhost", "127.0.0.1", "[::1]", "127.0.0.2")
    with listen("0.0.0.0", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert names_of(sock) is None
    if socket.has_dualstack_ipv6():
        with listen("::", 0) as sock, socket.create_connection(("127.0.0.1", sock.getsockname()[1])):
            assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


# ----------------------------------------------------------------------------------------- hostile clients


def test_ten_megabytes_are_413_and_the_client_gets_the_response(server: Server) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{server.url}/translate", content=b"x" * TEN_MB, headers=headers)
    assert response.status_code == 413
    assert "larger than" in response.json()["error"]
    assert works(server)


def test_a_slow_body_is_408(server: Server) -> None:
    with server.connect() as slow:
        slow.sendall(head(length=100) + b'{"text"')
        assert works(server)
        assert read_all(slow).startswith(b"HTTP/1.1 408")


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("beginning", "more"),
    [(b"", b""), (GET[:9], b"x"), (GET + GET[:9], b"x"), (head("/health", 1000), b"x")],
    ids=["nothing", "part of a head", "part of a second head", "part of the body of an answered request"],
)
def test_a_connection_is_closed_if_no_request_arrives_in_time(server: Server, beginning: bytes, more: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(beginning)
        connection.settimeout(0.2)
        for _ in range(20):  # a byte from time to time does not keep it open
            with suppress(TimeoutError):
                try:
                    connection.sendall(more)
                    if not connection.recv(65536):
                        return
                except ConnectionError:
                    return
    raise AssertionError("the connection is still open")


def test_a_body_with_two_lengths_is_refused_and_its_connection_closed(server: Server) -> None:
    body = json.dumps({"text": "a"}).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with server.connect() as connection:
        connection.sendall(head("/translate", len(body), "Transfer-Encoding: chunked") + chunked)
        connection.sendall(head("/translate", len(body), "Connection: close") + body)
        response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.count(b"HTTP/1.1") == 1
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


def test_more_connections_than_descriptors_do_not_fill_the_log() -> None:
    with fake_server(descriptors=40) as server:
        connections = [server.connect() for _ in range(80)]
        time.sleep(3)
        for connection in connections:
            connection.close()
        until(lambda: works(server))
        code, stderr = server.end()
    assert code == 143
    assert len(stderr) < 4000


# ------------------------------------------------------------------------------------------------------- the end


def _refuses(server: Server) -> bool:
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_signal_answers_waiting_requests_and_refuses_new_connections(number: int, code: int) -> None:
    with fake_server() as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.ask, text) for text in ("SLOW", "SLOW b")]
        until(lambda: sum(map(server.health()["queue"].get, ("running", "waiting"))) == 2)
        server.process.send_signal(number)
        until(lambda: _refuses(server))
        for future, text in zip(waiting, ("SLOW", "SLOW b"), strict=True):
            assert future.result(SECONDS).json()["answers"][0]["translations"] == [as_json(text)]
        assert server.process.wait(SECONDS) == code
        (line,) = server.process.stderr.read().splitlines()
    assert line.startswith(f"{signal.Signals(number).name}: answering 2 ")


def test_an_idle_server_stops_at_once_and_prints_nothing() -> None:
    with fake_server() as server, server.connect():
        assert server.end() == (143, "")


def test_an_ignored_signal_stays_ignored() -> None:
    with fake_server(ignore=signal.SIGINT) as server:
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert works(server)
        assert server.end() == (143, "")


def test_a_request_that_exceeds_the_grace_period_is_503() -> None:
    with fake_server(grace=0.2) as server, ThreadPoolExecutor(1) as pool:
        hung = pool.submit(server.ask, "HANG")
        until(lambda: server.health()["queue"]["running"] == 1)
        began = time.monotonic()
        code, stderr = server.end()
        assert hung.result(SECONDS).status_code == 503
    assert code == 143
    assert time.monotonic() - began < 10
    assert stderr.startswith("SIGTERM: answering 1 ")


def test_a_second_signal_stops_the_server_at_once() -> None:
    with fake_server() as server, ThreadPoolExecutor(1) as pool:
        hung = pool.submit(server.ask, "HANG")
        until(lambda: server.health()["queue"]["running"] == 1)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(server))
        assert server.end(signal.SIGINT)[0] == 130
        with pytest.raises(httpx.HTTPError):
            hung.result(SECONDS)


def test_an_incomplete_request_does_not_delay_the_stop() -> None:
    with fake_server() as server, server.connect() as connection:
        connection.sendall(head(length=100) + b"{")
        assert works(server)
        began = time.monotonic()
        assert server.end()[0] == 143
        assert time.monotonic() - began < 8
