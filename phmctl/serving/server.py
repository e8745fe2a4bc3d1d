"""The HTTP of a service, JSON in and JSON out with a page to type into; and its process: socket, signals, end.

``GET /`` is the page; ``GET /health`` the server's state, 200 when it is ready and 503 when it is stopping; ``POST /…``
is what the model answers: ``/translate`` and ``/score``, or ``/classify``.

Every error is ``{"error": "…"}`` with its status. Nothing tells a browser to let other sites in (no CORS), a request
must be declared as JSON, which browsers let no other site do unasked, and a server on localhost answers only to names
of localhost, so that no name of another site can be pointed at it.
"""

import asyncio
import base64
import contextlib
import errno
import hashlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from ipaddress import ip_address
from math import ceil
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from phmctl.console import note, warn
from phmctl.errors import BusyError, RequestError, UserError
from phmctl.serving.batching import Answer, Service
from phmctl.serving.requests import Limits

PAGE = Path(__file__).with_name("page.html")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
VERBS = ("translate", "classify", "score")

_DRAIN = 32  # bodies of the largest size that are read and thrown away, so that a client hears why it is refused
_MANY_CHARACTERS = 20_000  # from here on a request is read on a thread: it would keep the others waiting
_HUNG_UP = 499  # as nginx counts clients that did not wait; nobody is there to see it


def build_app(service: Service, names: Sequence[str] | None = None) -> Any:
    """The ASGI application; `names` are the server's, as a Host header gives them, without the port (None: any)."""
    html = PAGE.read_text(encoding="utf-8")
    digests = []  # the page's script and its style run by their digests; nothing else does
    for tag in ("script", "style"):
        inner = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = hashlib.sha256((inner[1] if inner else "").encode()).digest()
        digests.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    policy = (
        f"default-src 'none'; script-src {digests[0]}; style-src {digests[1]}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}

    async def page(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    async def health(request: Request) -> Response:
        found = service.health()
        return JSONResponse(found, 200 if found["ready"] else 503)

    routes = [Route("/", page), Route("/health", health)]
    routes += [Route(f"/{name}", partial(_ask, service, name), methods=["POST"]) for name in VERBS]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})
    app.router.redirect_slashes = False

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        """What stands before every route: the Host header, common headers, the count of replies, the last resort."""
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                service.replies[str(message["status"])] += 1
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
        elsewhere = names is not None and re.sub(r":\d*$", "", host) not in names
        refusal = _error(f"this server answers to {', '.join(names or ())}; --allow-host adds a name", 421)
        try:
            await (refusal if elsewhere else app)(scope, receive, counting)
        except Exception as error:  # the client has been told
            warn(f"{scope['method']} {scope['path']!r}: {type(error).__name__}: {error}")

    return guarded


async def _ask(service: Service, name: str, request: Request) -> Response:
    try:
        if name not in service.verbs:
            known = ", ".join(f"/{verb}" for verb in service.verbs)
            raise RequestError(f"this model ({service.model.task}) has no /{name}; it has {known}", 404)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("send JSON with the header Content-Type: application/json", 415)
        body = await _read_body(request, service.limits)
        if len(body) < _MANY_CHARACTERS:
            future = service.ask(name, body)
        else:
            future = await asyncio.to_thread(service.ask, name, body)
        return JSONResponse({"model": service.model.name, "answers": await _wait(request, future)})
    except BusyError as error:
        return _error(str(error), 503, {"retry-after": str(error.retry_after)})
    except RequestError as error:
        return _error(str(error), error.status, {"connection": "close"} if error.status in (408, 413) else None)
    except UserError as error:
        return _error(str(error), 400)
    except ClientDisconnect:
        return _error("the client hung up", _HUNG_UP)


async def _read_body(request: Request, limits: Limits) -> bytes:
    too_large = RequestError(f"the body is larger than the {limits.body_bytes} bytes of a request", 413)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes and "expect" in request.headers:
        raise too_large  # before it is sent
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limits.body_bytes:
                    body += chunk
                elif size > _DRAIN * limits.body_bytes:
                    break
                else:
                    body.clear()
    except TimeoutError:
        if size <= limits.body_bytes:
            raise RequestError(f"the body did not come within {limits.seconds:g} seconds", 408) from None
    if size > limits.body_bytes:
        raise too_large
    return bytes(body)


async def _wait(request: Request, future: "Future[list[Answer]]") -> list[Answer]:
    """Return the answers; raise ClientDisconnect, and drop what was asked, when the client does not wait for them."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answers = asyncio.wrap_future(future)
    gone: asyncio.Future[Any] = asyncio.ensure_future(hang_up())
    both: set[asyncio.Future[Any]] = {answers, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientDisconnect
        return answers.result()
    finally:
        gone.cancel()
        answers.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    """Answer what Starlette refuses: an unknown path, a wrong method."""
    status = getattr(error, "status_code", 500)
    known = ", ".join(("/", "/health", *(f"/{name}" for name in VERBS)))
    words = {404: f"there is no such path; there are {known}", 405: "this path does not take this method"}
    return _error(words.get(status, str(error)), status, getattr(error, "headers", None))


async def _failed(request: Request, error: Exception) -> Response:
    return _error(f"the server failed: {type(error).__name__}: {error}", 500)


def _error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 1024
_LAST_WORDS = 1.0  # seconds to send what was answered, when all is answered


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
        http="h11",
        limit_concurrency=service.limits.connections + 1,  # from which on uvicorn answers 503
        timeout_keep_alive=ceil(service.limits.seconds),
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
