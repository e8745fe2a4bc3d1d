"""Serve a model over HTTP: requests, the batches that they share, the application and the process.

``GET /`` is a page to type into, ``GET /health`` the state of the server. The JSON body of a request is::

    /translate   {"text": "…"} or {"texts": ["…", …]}, optionally with "beam", "alpha", "n_best", "cut"
    /classify    {"text": "…"} or {"texts": ["…", …]}, optionally with "cut" (pairs: ["…", "…"] is a text)
    /score       {"source": "…", "target": "…"} or {"sources": […], "targets": […]}

Other web sites cannot use the server: it sends no CORS headers, requires a JSON content type, which browsers refuse to
other sites, and on localhost answers only to host names of localhost, which stops DNS rebinding.
"""

import asyncio
import base64
import hashlib
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import uvicorn
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from phmctl.answering.base import Document
from phmctl.answering.classifier import Classifier
from phmctl.answering.translator import Translator, as_json
from phmctl.console import warn
from phmctl.errors import RequestError, UserError
from phmctl.version import __version__

PAGE = Path(__file__).with_name("page.html")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_BODY = 1 << 20  # bytes of a request's body
_MAX_BEAM = 64  # memory grows with the beam

# Line breaks within a text become blanks, as in ``decode``.
Line = Annotated[str, AfterValidator(lambda text: re.sub("\r\n?|\n", " ", text))]
T = TypeVar("T")
Key = tuple[str, tuple[tuple[str, Any], ...]]  # method and options: texts with equal keys may share a batch


# ---------------------------------------------------------------------------------------------------------- requests


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Classify(Body, Generic[T]):
    text: T | None = None
    texts: list[T] | None = None
    cut: bool | None = None  # whether to truncate long texts (None: as the server does)

    def items(self) -> list[T]:
        if self.text is not None and self.texts is None:
            return [self.text]
        if self.texts is not None and self.text is None:
            return self.texts
        raise RequestError('give either "text" or "texts"')


class Translate(Classify[Line]):
    beam: Annotated[int, Field(ge=1, le=_MAX_BEAM)] | None = None
    alpha: Annotated[float, Field(ge=0, le=10)] | None = None
    n_best: Annotated[int, Field(ge=1)] = 1


class Score(Body):
    cut: ClassVar[bool] = False  # the score of a truncated text would be wrong
    source: Line = ""
    target: Line = ""
    sources: list[Line] = []
    targets: list[Line] = []

    def items(self) -> list[tuple[str, str]]:
        if self.model_fields_set == {"source", "target"}:
            return [(self.source, self.target)]
        if self.model_fields_set != {"sources", "targets"} or len(self.sources) != len(self.targets):
            raise RequestError('give "source" and "target", or "sources" and "targets" of equal length')
        return list(zip(self.sources, self.targets, strict=True))


# ----------------------------------------------------------------------------------------------------------- batches


@dataclass(frozen=True, eq=False)
class _Item:
    key: Hashable
    value: Any
    cost: int
    future: "Future[Any]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Answer items in batches on worker threads, `workers` batches at once.

    A batch holds items of one key, at most `largest`, whose costs are at most `largest_cost` unless it is a single
    item. It waits `wait` seconds to become as large as the batch before, so that a single client never waits.
    `answer(key, values)` returns the answers in order. If it raises, the batch is split in halves and tried again, so
    that only the faulty items fail.
    """

    def __init__(
        self,
        answer: Callable[[Any, Sequence[Any]], Sequence[Any]],
        *,
        largest: int = 64,
        largest_cost: int = 2048,
        wait: float = 0.005,
        workers: int = 1,
    ) -> None:
        self.counts = dict.fromkeys(("answered", "failed", "dropped", "batches"), 0)  # items, and batches
        self.running = 0  # items
        self._answer = answer
        self._largest, self._largest_cost, self._wait = largest, largest_cost, wait
        self._waiting: list[_Item] = []  # oldest first
        self._last_size = 1  # items of the last batch
        self._closed = False
        self._changed = threading.Condition()
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def queued(self) -> int:
        """Drop the cancelled items and return the number of waiting ones."""
        with self._changed:
            active = [item for item in self._waiting if not item.future.cancelled()]
            self.counts["dropped"] += len(self._waiting) - len(active)
            self._waiting = active
            return len(active)

    def submit(self, key: Hashable, values: Sequence[Any], costs: Sequence[int]) -> "list[Future[Any]]":
        """Queue values of one key and return a future for each answer. To cancel it drops a waiting value."""
        items = [_Item(key, value, cost) for value, cost in zip(values, costs, strict=True)]
        with self._changed:
            self._waiting += items
            self._changed.notify_all()  # the items may be batches for several workers
        return [item.future for item in items]

    def close(self) -> None:
        """End the workers after the batches that they compute: Python must not end while torch computes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            self._solve(batch)
            with self._changed:
                self.counts["batches"] += 1
                self.running -= len(batch)

    def _next_batch(self) -> list[_Item]:
        """Wait for a batch and return it, or an empty list if the batcher is closed."""
        with self._changed:
            while not self._closed:
                if not self.queued():
                    self._changed.wait()
                    continue
                first = self._waiting[0]
                candidates = [item for item in self._waiting if item.key == first.key][: self._largest]
                remaining = first.arrived + self._wait - time.monotonic()
                if remaining > 0 and len(candidates) < min(self._last_size, self._largest):
                    self._changed.wait(remaining)
                    continue  # the queue may have changed
                costs = accumulate(item.cost for item in candidates)
                fitting = [item for item, cost in zip(candidates, costs, strict=True) if cost <= self._largest_cost]
                selected = fitting or [first]  # one item always fits
                removed = set(selected)
                self._waiting = [item for item in self._waiting if item not in removed]
                batch = [item for item in selected if item.future.set_running_or_notify_cancel()]
                if batch:
                    self.running += len(batch)
                    self._last_size = len(batch)
                    return batch
        return []

    def _solve(self, batch: Sequence[_Item]) -> None:
        """Answer a batch, or both halves if that fails."""
        try:
            answers = list(self._answer(batch[0].key, [item.value for item in batch]))
            if len(answers) != len(batch):
                raise RuntimeError(f"the model returned {len(answers)} answers for {len(batch)} items")
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                self._solve(batch[:middle])
                self._solve(batch[middle:])
                return
            with self._changed:
                self.counts["failed"] += not isinstance(error, UserError)
            batch[0].future.set_exception(error)
            return
        with self._changed:
            self.counts["answered"] += len(batch)
        for item, answer in zip(batch, answers, strict=True):
            item.future.set_result(answer)


class Service:
    """Validate requests, and let a model answer the texts in batches.

    `cut` says whether texts longer than the model's limit are truncated if a request does not say. `batching` are the
    arguments of :class:`Batcher`.
    """

    def __init__(self, model: Translator | Classifier, *, cut: bool = False, **batching: Any) -> None:
        self.model: Any = model  # whose methods are named in `about`
        self.cut = cut
        self.about = {key: value for key, value in model.about().items() if key != "folder"}  # paths stay private
        classify = Classify[tuple[Line, Line]] if self.about.get("texts") == 2 else Classify[Line]
        bodies: dict[str, Any] = {"translate": Translate, "score": Score, "classify": classify}
        self.methods = {name: body for name, body in bodies.items() if name in self.about["methods"]}
        self._began = time.monotonic()
        self.batcher = Batcher(self._answer, **batching)

    def submit(self, name: str, content: bytes) -> "list[Future[Document]]":
        """Queue the texts of a request body and return a future for each answer.

        Raises RequestError if the request is malformed (400) or a text is too long (413).
        """
        try:
            body = self.methods[name].model_validate_json(content)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise RequestError(f"{place}: {problem['msg']}" if place else problem["msg"]) from None
        texts, options = body.items(), body.model_dump(include={"beam", "alpha", "n_best"})
        lengths, most_tokens = self.model.lengths(texts), self.model.max_tokens
        if most_tokens is not None:
            truncate = self.cut if body.cut is None else body.cut
            for number, length in enumerate(lengths, start=1):
                if length > most_tokens and not truncate:
                    advice = "split it" if name == "score" else 'split it, or send "cut": true'
                    raise RequestError(
                        f"text {number} has {length} tokens, more than the {most_tokens} allowed; {advice}", 413
                    )
            lengths = [min(length, most_tokens) for length in lengths]
        return self.batcher.submit((name, tuple(options.items())), texts, lengths)

    def health(self) -> Document:
        return {
            "model": self.model.name,
            "task": self.model.task,
            "version": __version__,
            "answers": [f"/{name}" for name in self.methods],
            "about": self.about,
            "limits": {"body": MAX_BODY, "beam": _MAX_BEAM, "tokens": self.model.max_tokens, "cut": self.cut},
            "queue": {"waiting": self.batcher.queued(), "running": self.batcher.running},
            "counts": self.batcher.counts,
            "seconds": round(time.monotonic() - self._began, 3),
        }

    def _answer(self, key: Key, texts: Sequence[Any]) -> list[Document]:
        method, options = key
        if method == "translate":
            translations = self.model.translate(texts, **dict(options))
            return [{**as_json(n_best), "cut": n_best[0].cut} for n_best in translations]
        if method == "score":
            scores = self.model.score(*zip(*texts, strict=True))
            return [{"log_prob": score if math.isfinite(score) else None} for score in scores]  # JSON has no −∞
        return [
            {"label": label.label or None, "probabilities": dict(label.probabilities), "cut": label.cut}
            for label in self.model.classify(texts)
        ]


# -------------------------------------------------------------------------------------------------- the application


def build_app(service: Service, names: Sequence[str] | None = None) -> Starlette:
    """Return the ASGI application. `names` are the host names to which it answers, without port (None: any)."""
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
        message = f"{error.detail}; this model ({service.model.task}) has {paths}"
        return JSONResponse({"error": message}, error.status_code, error.headers)

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["*"] if names is None else names, www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts], exception_handlers={HTTPException: unknown_route})


def _content_policy(html: str) -> str:
    """Return a Content-Security-Policy that allows the page's inline scripts and styles only."""
    policy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    policy += "; frame-ancestors 'none'"
    for tag, content in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return policy


async def _answer(service: Service, name: str, request: Request) -> Response:
    futures: list[Future[Document]] = []
    try:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RequestError("send JSON with the header Content-Type: application/json", 415)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise RequestError(f"the body is larger than the {MAX_BODY} bytes allowed", 413)
        # Tokenizing long texts would block the event loop.
        futures = await asyncio.to_thread(service.submit, name, bytes(body))
        # Exceptions as results: asyncio would report the one of a client that has left.
        answers = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
        disconnected = asyncio.ensure_future(request.receive())  # the body was read already
        tasks: set[asyncio.Future[Any]] = {answers, disconnected}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        disconnected.cancel()
        if not answers.done():
            raise ClientDisconnect
        for answer in answers.result():
            if isinstance(answer, BaseException):
                raise answer
        return JSONResponse({"model": service.model.name, "answers": answers.result()})
    except UserError as error:
        return JSONResponse({"error": str(error)}, error.status if isinstance(error, RequestError) else 400)
    except ClientDisconnect:
        return Response(status_code=499)  # nginx's status for a closed connection, which the client cannot see
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        warn(f"/{name}: {message}")
        return JSONResponse({"error": f"the server failed: {message}"}, 500)
    finally:
        for future in futures:
            future.cancel()


# ------------------------------------------------------------------------------------------------------- the process


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, whose connections wait until :func:`run_server` is called. Raises UserError."""
    is_ipv6 = ":" in host
    dualstack = is_ipv6 and socket.has_dualstack_ipv6()  # "::" accepts IPv4 too
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if is_ipv6 else socket.AF_INET, dualstack_ipv6=dualstack
        )
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


def run_server(
    service: Service,
    sock: socket.socket,
    *,
    allow_hosts: Sequence[str] = (),
    connections: int = 256,
    grace: float = 30.0,
) -> None:
    """Serve until SIGINT or SIGTERM, answer open requests for up to `grace` seconds, then raise the signal again.

    On localhost the server answers to the names of localhost and `allow_hosts`, on other addresses to any name, or to
    `allow_hosts` if there are some. Requests above `connections` at once get status 503.
    """
    names = None
    if allow_hosts or ip_address(sock.getsockname()[0]).is_loopback:
        address = url_of(sock).removeprefix("http://").rpartition(":")[0]
        names = [*LOCAL_NAMES, address, *allow_hosts]
    config = uvicorn.Config(
        build_app(service, names),
        http="h11",
        h11_max_incomplete_event_size=1 << 14,  # bytes of a request's head
        limit_concurrency=connections + 1,  # uvicorn answers 503 when it is reached
        timeout_graceful_shutdown=grace,
        ws="none",
        lifespan="off",
        log_config=None,
        server_header=False,
        proxy_headers=False,
        headers=[("x-content-type-options", "nosniff")],
    )
    try:
        uvicorn.Server(config).run(sockets=[sock])
    finally:
        service.batcher.close()
