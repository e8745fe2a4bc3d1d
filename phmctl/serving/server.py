"""The process around a service: its socket, its signals, its end."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from phmctl.console import note, warn
from phmctl.errors import UserError
from phmctl.serving.app import LOCAL_NAMES, build_app
from phmctl.serving.batching import Service
from phmctl.serving.requests import Limits

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 1024
_LAST_WORDS = 1.0  # seconds to send what was answered, when all is answered
_LAST_REQUESTS = 0.5  # seconds of them in which requests still come, by connections that are open


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait in it until :func:`serve` is called."""
    sock = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, number)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        if sock is not None:
            sock.close()
        reason = getattr(error, "strerror", None) or error
        known = {
            errno.EADDRINUSE: f"port {port} of {host} is in use; take another with --port, or --port 0 for a free one",
            errno.EACCES: f"port {port} of {host} is not allowed; take one above 1023 with --port",
        }
        usual = f"cannot listen on {host!r}, port {port}: {reason}; --host takes an address of this machine"
        raise UserError(known.get(getattr(error, "errno", None) or 0, usual)) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the address of a socket that listens, for a browser of this machine."""
    host, port = sock.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def names_of(sock: socket.socket, more: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Return the names that a Host header may have: localhost's, the printed address and those given.

    None, which is any, where others can connect and none is given.
    """
    if not more and not ip_address(sock.getsockname()[0]).is_loopback:
        return None
    printed = url_of(sock).removeprefix("http://").rpartition(":")[0]
    return tuple(dict.fromkeys([*LOCAL_NAMES, printed, *(name.lower() for name in more)]))


def serve(
    service: Service,
    sock: socket.socket,
    *,
    names: Sequence[str] | None = None,
    grace: float = 30.0,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGINT or SIGTERM; then take nothing new, answer what waits, and return. A second signal ends it."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # what matters of it, the application says
    config = uvicorn.Config(
        build_app(service, names),
        http=_limited(service.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_LAST_WORDS,
        backlog=1,  # connections that asyncio accepts at a time: where descriptors run out, it tries as often in vain
    )
    return asyncio.run(_serve(_Server(config, ready), service, sock, grace))


async def _serve(server: "_Server", service: Service, sock: socket.socket, grace: float) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda _, what: warn(f"{what['message']}: {what.get('exception')}"))  # no tracebacks
    received: list[int] = []

    def hear(number: int) -> None:
        if received:
            _leave(128 + number)
        received.append(number)
        stop.set()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, hear, number)
    serving, stopping = asyncio.create_task(server.serve(sockets=[sock])), asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    why, batcher = signal.Signals(received[0]).name if received else "the server ended", service.batcher
    batcher.stop()
    if left := batcher.queued + batcher.running:
        note(f"{why}: answering the {left} texts that wait, then stopping; once more to stop at once")
    if unanswered := await asyncio.to_thread(batcher.close, grace):
        note(f"{unanswered} texts were not answered within {grace:g} seconds")
    server.should_exit = True
    stopping.cancel()
    await serving
    code = 128 + received[0] if received else 1
    if batcher.alive():
        _leave(code)  # a thread amid a batch would be torn off in the middle of the interpreter's end
    return code


def _leave(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)


class _Server(uvicorn.Server):  # type: ignore[misc]  # mypy is not shown uvicorn
    """A server that leaves the signals to us, and tells when it has started."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_BACKLOG)  # uvicorn has made it as short as what is accepted at a time
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        while select.select(sockets or (), (), (), 0)[0]:  # who is connected is answered: 503
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _limited(limits: Limits) -> type[H11Protocol]:
    """Return a protocol with what uvicorn's lacks: a limit of connections, one of time for a head, errors as JSON."""

    class Limited(H11Protocol):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self._refuse("503 Service Unavailable", "too many connections are open")
                return
            self._watch()

        def send_400_response(self, msg: str) -> None:
            self._refuse("400 Bad Request", msg)

        def _refuse(self, status: str, message: str) -> None:
            """Answer what never came to be a request, and hang up."""
            body = json.dumps({"error": message}).encode()
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            head += f"content-length: {len(body)}\r\n" + ("retry-after: 1\r\n" if status.startswith("503") else "")
            self.transport.write(head.encode() + b"\r\n" + body)
            self.transport.close()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._watch()
            elif self._late is not None:
                self._late.cancel()
                self._late = None

        def _watch(self) -> None:
            if self._late is None:
                self._late = self.loop.call_later(limits.seconds, self._close_if_idle)

        def shutdown(self) -> None:
            """Close, a little later: a request may be on its way, and is answered."""
            end = super().shutdown
            self.loop.call_later(_LAST_REQUESTS, lambda: self.transport.is_closing() or end())

        def _close_if_idle(self) -> None:
            if self.conn.their_state is h11.IDLE:
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._late is not None:
                self._late.cancel()
            super().connection_lost(exc)

    return Limited
