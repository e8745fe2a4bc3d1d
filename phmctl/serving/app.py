"""The HTTP of a service: an ASGI application. JSON in, JSON out, and a page to type into.

==========  =========================================================================================
``GET /``        the page
``GET /health``  the server's state: 200 when it is ready, 503 when it is stopping
``POST /…``      what the model answers: ``/translate`` and ``/score``, or ``/classify``
==========  =========================================================================================

Every error is ``{"error": "…"}`` with its status. Nothing tells a browser to let other sites in (no CORS), a request
must be declared as JSON, which browsers let no other site do unasked, and a server on localhost answers only to names
of localhost, so that no name of another site can be pointed at it.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from phmctl.console import warn
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
    headers = {"content-security-policy": _policy(html), "referrer-policy": "no-referrer"}

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
        # A body with two lengths ends elsewhere for a proxy that believes the other one: nothing follows it.
        two_lengths = {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}
        more = [(b"x-content-type-options", b"nosniff"), *([(b"connection", b"close")] if two_lengths else [])]

        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                service.replies[str(message["status"])] += 1
                message["headers"] = [*message["headers"], *more]
            await send(message)

        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
        elsewhere = names is not None and re.sub(r":\d*$", "", host) not in names
        refusal = _error(f"this server answers to {', '.join(names or ())}; --allow-host adds a name", 421)
        try:
            await (refusal if elsewhere else app)(scope, receive, counting)
        except Exception as error:  # the client has been told
            warn(f"{scope['method']} {scope['path']!r}: {type(error).__name__}: {error}")

    return guarded


def _policy(html: str) -> str:
    """The page's script and its style run by their digests; nothing else does."""
    script, style = (_digest(html, tag) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(html: str, tag: str) -> str:
    inner = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    found = hashlib.sha256((inner[1] if inner else "").encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


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
