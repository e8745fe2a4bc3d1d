"""Serve a model over HTTP: the application, and the process with its socket and signals.

``GET /`` is a page to type into, ``GET /health`` the state of the server, ``POST /translate``, ``/score`` or
``/classify`` the model's answers. Every error is ``{"error": "…"}`` with its status.

Other web sites cannot use the server: it sends no CORS headers, requires a JSON content type, which browsers refuse to
other sites, and on localhost answers only to host names of localhost, which stops DNS rebinding.
"""

import asyncio
import base64
import hashlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from ipaddress import ip_address
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from phmctl.console import note, warn
from phmctl.errors import BusyError, RequestError, UserError
from phmctl.serving.batching import Answer, Service
from phmctl.serving.limits import Limits

PAGE = Path(__file__).with_name("page.html")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_ABSOLUTE_TARGET = re.compile(r"https?://(?P<host>[^/]*)(?P<path>.*)", re.DOTALL | re.IGNORECASE)
_BACKLOG = 1024  # connections that wait to be accepted


def build_app(service: Service, names: Sequence[str] | None = None) -> Any:
    """Return the ASGI application.

    `names` are the host names, without port, to which the server answers; None: any.
    """
    html = PAGE.read_text(encoding="utf-8")
    headers = {"content-security-policy": _content_policy(html), "referrer-policy": "no-referrer"}

    async def page(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    async def health(request: Request) -> Response:
        return JSONResponse(service.health())

    routes = [Route("/", page), Route("/health", health)]
    for name in service.methods:
        routes.append(Route(f"/{name}", partial(_answer, service, name), methods=["POST"]))
    paths = ", ".join(route.path for route in routes)

    async def unknown_route(request: Request, error: Any) -> Response:
        """Answer a request with an unknown path or a wrong method."""
        message = f"{error.detail}; this model ({service.model.task}) has {paths}"
        return _error(message, error.status_code, error.headers)

    app = Starlette(routes=routes, exception_handlers={HTTPException: unknown_route})
    app.router.redirect_slashes = False
    wrong_host = _error(f"this server answers to {', '.join(names or ())}; --allow-host adds a name", 421)
    # A proxy that goes by the other length would take the rest of the body for the next request (RFC 9112, §6.3).
    two_lengths = _error("send either Content-Length or Transfer-Encoding", 400, {"connection": "close"})

    async def check_headers(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"").decode("latin-1")
        if absolute := _ABSOLUTE_TARGET.match(scope.get("path", "")):  # its host replaces the Host header
            host = absolute["host"]
            scope = {**scope, "path": absolute["path"] or "/"}
        host = re.sub(r":\d*$", "", host.lower())
        answer = app if names is None or scope["type"] != "http" or host in names else wrong_host
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            answer = two_lengths
        await answer(scope, receive, send)

    return check_headers


def _content_policy(html: str) -> str:
    """Return a Content-Security-Policy that allows the page's inline scripts and styles only."""
    policy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    policy += "; frame-ancestors 'none'"
    for tag, content in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return policy


async def _answer(service: Service, name: str, request: Request) -> Response:
    try:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RequestError("send JSON with the header Content-Type: application/json", 415)
        body = await _read_body(request, service.limits)
        futures = await asyncio.to_thread(service.submit, name, body)  # tokenizing long texts would block the loop
        answers = await _wait(request, futures)
        return JSONResponse({"model": service.model.name, "answers": answers})
    except BusyError as error:
        return _error(str(error), 503, {"retry-after": str(error.retry_after)})
    except UserError as error:
        status = error.status if isinstance(error, RequestError) else 400
        return _error(str(error), status, {"connection": "close"} if status in (408, 413) else None)
    except ClientDisconnect:
        return Response(status_code=499)  # nginx's status for a closed connection; the client cannot see it
    except asyncio.CancelledError:
        return _error("the server stopped before the request was answered", 503)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        warn(f"/{name}: {message}")
        return _error(f"the server failed: {message}", 500)


async def _read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request; raise RequestError if it is too slow (408) or too large (413).

    A body that is too large is read to its end, so that the client sees the response, but not stored.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limits.body:
                    body += chunk
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {limits.seconds:g} seconds", 408) from None
    if size > limits.body:
        raise RequestError(f"the body is larger than the {limits.body} bytes allowed", 413)
    return bytes(body)


async def _wait(request: Request, futures: "Sequence[Future[Answer]]") -> list[Answer]:
    """Return the answers; if the client disconnects first, cancel them and raise ClientDisconnect."""
    answers = asyncio.gather(*map(asyncio.wrap_future, futures))
    disconnected: asyncio.Future[Any] = asyncio.ensure_future(request.receive())  # the body was read already
    tasks: set[asyncio.Future[Any]] = {answers, disconnected}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientDisconnect
        return answers.result()
    finally:
        disconnected.cancel()
        for future in futures:
            future.cancel()


def _error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; its connections wait until :func:`serve` is called. Raises UserError."""
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    dualstack = is_ipv6 and socket.has_dualstack_ipv6()  # "::" accepts IPv4 too
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host name is malformed
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host!r}, port {port}: {reason}; "
            "--host takes an address of this machine, --port a free port, or 0 to find one"
        ) from error


def url_of(sock: socket.socket) -> str:
    """Return the URL at which a browser on this machine reaches a listening socket."""
    host, port = sock.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def names_of(sock: socket.socket, extra: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Return the accepted host names: localhost's names, the socket's address and `extra`.

    None, which accepts any name, if other machines can connect and `extra` is empty.
    """
    if not extra and not ip_address(sock.getsockname()[0]).is_loopback:
        return None
    address = url_of(sock).removeprefix("http://").rpartition(":")[0]
    return tuple(dict.fromkeys([*LOCAL_NAMES, address, *(name.lower() for name in extra)]))


def run_server(
    service: Service,
    sock: socket.socket,
    *,
    names: Sequence[str] | None = None,
    grace: float = 30.0,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGINT or SIGTERM, then answer the waiting requests and return 128 + the signal number.

    A second signal ends the process immediately. `grace` is the time in seconds for the waiting requests; `ready` is
    called once the server accepts requests.
    """
    for logger in ("uvicorn.error", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)  # the application reports errors itself
    config = uvicorn.Config(
        build_app(service, names),
        http=_Connection,
        limit_concurrency=service.limits.connections + 1,  # uvicorn answers 503 when it is reached
        timeout_keep_alive=ceil(service.limits.seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=[("x-content-type-options", "nosniff")],
        timeout_graceful_shutdown=grace,
        backlog=_BACKLOG,
    )
    server = _Server(config, service, ready)
    server.run(sockets=[sock])
    if service.batcher.running:  # the interpreter must not shut down while a worker thread computes
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(server.code)
    return server.code


class _Connection(H11Protocol):  # type: ignore[misc]
    """A connection that is closed unless a request begins within uvicorn's keep-alive time.

    uvicorn starts the timer after a response only, and stops it at the next byte.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._close_at(self.loop.time() + self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        timer, request = self.timeout_keep_alive_task, self.cycle
        super().data_received(data)
        if timer and self.cycle is request:  # the head of the next request is incomplete
            self._close_at(timer.when())

    def _close_at(self, time: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(time, self.timeout_keep_alive_handler)


class _Server(uvicorn.Server):  # type: ignore[misc]  # mypy does not see uvicorn
    """A uvicorn server with a start callback and exit codes by signal."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.code = 1
        self._service = service
        self._ready = ready
        self._ignored_signals = [number for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig in self._ignored_signals:  # a shell's background job ignores SIGINT
            return
        if self.code > 1:
            os._exit(128 + sig)
        self.code = 128 + sig
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        unanswered = self._service.batcher.queued + self._service.batcher.running
        if unanswered:
            name = signal.Signals(self.code - 128).name
            note(f"{name}: answering {unanswered} waiting texts, then stopping; another signal stops at once")
        for connection in self.server_state.connections:
            if connection.cycle and connection.cycle.more_body:  # the request is incomplete: do not wait for it
                connection.transport.close()
        await super().shutdown(sockets)
