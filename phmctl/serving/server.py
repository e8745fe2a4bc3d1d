"""The HTTP of a service, JSON in and JSON out with a page to type into; and its process: socket, signals, end.

``GET /`` is the page; ``GET /health`` the server's state; ``POST /…`` is what the model answers: ``/translate`` and
``/score``, or ``/classify``.

Every error is ``{"error": "…"}`` with its status. Nothing tells a browser to let other sites in (no CORS), a request
must be declared as JSON, which browsers let no other site do unasked, and a server on localhost answers only to names
of localhost, so that no name of another site can be pointed at it.
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

from phmctl.console import note, warn
from phmctl.errors import BusyError, RequestError, UserError
from phmctl.options import Limits
from phmctl.serving.batching import Answer, Service

PAGE = Path(__file__).with_name("page.html")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def build_app(service: Service, names: Sequence[str] | None = None) -> Any:
    """The ASGI application; `names` are the server's, as a Host header gives them, without the port (None: any)."""
    html = PAGE.read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    for tag, inner in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL):  # nothing else runs
        policy += f"; {tag}-src 'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'"
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}

    async def page(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    async def health(request: Request) -> Response:
        return JSONResponse(service.health())

    routes = [Route("/", page), Route("/health", health)]
    routes += [Route(f"/{name}", partial(_ask, service, name), methods=["POST"]) for name in service.verbs]
    paths = ", ".join(route.path for route in routes)

    async def refused(request: Request, error: Any) -> Response:
        """Answer what Starlette refuses: an unknown path, a wrong method."""
        return _error(
            f"{error.detail}; this model ({service.model.task}) has {paths}", error.status_code, error.headers
        )

    app = Starlette(routes=routes, exception_handlers={HTTPException: refused})
    app.router.redirect_slashes = False
    refusal = _error(f"this server answers to {', '.join(names or ())}; --allow-host adds a name", 421)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        host = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1").lower()
        elsewhere = names is not None and scope["type"] == "http" and re.sub(r":\d*$", "", host) not in names
        await (refusal if elsewhere else app)(scope, receive, send)

    return guarded


async def _ask(service: Service, name: str, request: Request) -> Response:
    try:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("send JSON with the header Content-Type: application/json", 415)
        body = await _read_body(request, service.limits)
        futures = await asyncio.to_thread(service.ask, name, body)  # the loop would keep others waiting for long texts
        return JSONResponse({"model": service.model.name, "answers": await _wait(request, futures)})
    except BusyError as error:
        return _error(str(error), 503, {"retry-after": str(error.retry_after)})
    except UserError as error:
        status = error.status if isinstance(error, RequestError) else 400
        return _error(str(error), status, {"connection": "close"} if status in (408, 413) else None)
    except ClientDisconnect:
        return Response(status_code=499)  # as nginx counts clients that did not wait; nobody is there to see it
    except asyncio.CancelledError:
        return _error("the server stopped before this was answered", 503)
    except Exception as error:
        warn(f"/{name}: {type(error).__name__}: {error}")
        return _error(f"the server failed: {type(error).__name__}: {error}", 500)


async def _read_body(request: Request, limits: Limits) -> bytes:
    """Return the body. What is too large is read to its end, so that the client hears why it is refused; not kept."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limits.body:
                    body += chunk
    except TimeoutError:
        raise RequestError(f"the body did not come within {limits.seconds:g} seconds", 408) from None
    if size > limits.body:
        raise RequestError(f"the body is larger than the {limits.body} bytes of a request", 413)
    return bytes(body)


async def _wait(request: Request, futures: "Sequence[Future[Answer]]") -> list[Answer]:
    """Return the answers; raise ClientDisconnect, and drop what was asked, when the client does not wait for them."""
    answers = asyncio.gather(*map(asyncio.wrap_future, futures))
    gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())  # behind the body there is nothing but the end
    both: set[asyncio.Future[Any]] = {answers, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientDisconnect
        return answers.result()
    finally:
        gone.cancel()
        for future in futures:
            future.cancel()


def _error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait in it until :func:`serve` is called."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = ":" in host and socket.has_dualstack_ipv6()  # "::" takes IPv4 as well; it changes no other address
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host!r}, port {port}: {reason}; "
            "--host takes an address of this machine, --port a free port, or 0 to find one"
        ) from error


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
    """Serve until SIGINT or SIGTERM; then take nothing new, answer what waits, and return 128 + the signal's number.

    A second signal ends the process at once.
    """
    for logger in ("uvicorn.error", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)  # what matters of it, the application says
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
        headers=[("x-content-type-options", "nosniff")],
        timeout_graceful_shutdown=grace,
        backlog=_BACKLOG,
    )
    server = _Server(config, service, ready)
    server.run(sockets=[sock])
    if service.batcher.running:  # a thread amid a batch would be torn off in the middle of the interpreter's end
        sys.stderr.flush()
        os._exit(server.code)
    return server.code


class _Server(uvicorn.Server):  # type: ignore[misc]  # mypy is not shown uvicorn
    """A server that tells when it has started, and what it waits for when it ends."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready, self.code = service, ready, 1
        self._ignored = [each for each in signal.Signals if signal.getsignal(each) is signal.SIG_IGN]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig in self._ignored:  # as a shell's background job ignores SIGINT
            return
        if self.code > 1:
            os._exit(128 + sig)
        self.code = 128 + sig
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if left := self._service.batcher.queued + self._service.batcher.running:
            why = signal.Signals(self.code - 128).name
            note(f"{why}: answering the {left} texts that wait, then stopping; once more to stop at once")
        for connection in self.server_state.connections:
            if connection.cycle and connection.cycle.more_body:  # a request that is not all here: it is not waited for
                connection.transport.close()
        await super().shutdown(sockets)
