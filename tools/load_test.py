"""Measure ``phmctl serve`` beside ``phmctl decode``, and try it with clients of every kind.

``python tools/load_test.py speed RUN LINES`` starts a server of the run and, in turns, decodes the lines and asks for
them one by one from 1, 8 and 64 clients: sentences a second, the time of an answer, processor time a sentence.

``python tools/load_test.py storm RUN LINES`` sends 10,000 requests from 64 clients; some hang up, send garbage, invalid
UTF-8, ten megabytes, or a byte now and then. Each answer is compared with what ``decode`` says to the same line.

Clients and server share the machine's cores. Options behind ``--`` are the server's.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from phmctl.console import emit, emit_json, note

PHMCTL = [sys.executable, "-c", "from phmctl.cli.main import run; run()"]
CLIENTS = (1, 8, 64)
BEST = 3  # translations wanted of a line
_TEN_MB = b"x" * 10_000_000
_TICK = os.sysconf("SC_CLK_TCK")


# -------------------------------------------------------------------------------------------- decode and the server


@dataclass
class Decoded:
    """What ``decode`` says to lines, best first; how long all but the first took, once that was answered."""

    answers: list[list[str]]
    seconds: float
    processor: float


def decode(run: str, lines: Sequence[str], *options: str) -> Decoded:
    """Decode lines in a process of its own: the first alone, so that it has started, then the others."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [*PHMCTL, "decode", run, *options], text=True, encoding="utf-8", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    if process.stdin is None or process.stdout is None:
        raise SystemExit("decode has no pipes")
    process.stdin.write(f"{lines[0]}\n")
    process.stdin.flush()
    rows = [process.stdout.readline()]
    began, start = time.perf_counter(), processor_of(process.pid)
    feeder = threading.Thread(target=_feed, args=(process.stdin, lines[1:]))
    feeder.start()
    rest = process.stdout.read()
    feeder.join()
    process.wait()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    process.stdout.close()
    if process.returncode:
        raise SystemExit(f"decode ended with {process.returncode}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - start
    return Decoded(_by_line((rows[0] + rest).split("\n")[:-1], len(lines), "--n-best" in options), seconds, used)


def _feed(stdin: IO[str], lines: Sequence[str]) -> None:
    stdin.writelines(f"{line}\n" for line in lines)
    stdin.close()


def _by_line(rows: Sequence[str], lines: int, n_best: bool) -> list[list[str]]:
    if not n_best:
        return [[row] for row in rows]
    found: list[list[str]] = [[] for _ in range(lines)]
    for number, _, _, answer in (row.split("\t", 3) for row in rows):
        found[int(number) - 1].append(answer)
    return found


def processor_of(pid: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


@dataclass
class Server:
    """A server's process and its address."""

    process: "subprocess.Popen[str]"
    host: str
    port: int

    def processor(self) -> float:
        """Return the seconds of processor time that it has taken."""
        return processor_of(self.process.pid)

    def peak(self) -> float:
        """Return the largest resident size that it had, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def serving(run: str, options: Sequence[str]) -> Iterator[Server]:
    """Serve a run while the block lasts; it must end as it should."""
    command = [*PHMCTL, "serve", run, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or not (url := process.stdout.readline().strip()):
            raise SystemExit("the server did not start")
        parts = urlsplit(url)
        yield Server(process, str(parts.hostname), int(parts.port or 0))
    finally:
        process.terminate()
        code = process.wait(60)
    if code != 143:
        raise SystemExit(f"the server ended with {code}")


# --------------------------------------------------------------------------------------------------------- clients


@dataclass
class Reply:
    """An answer of HTTP."""

    status: int
    body: Any
    again: float = 0.0


class Client:
    """A connection that is kept, with as little between us and the socket as there can be."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, unless the connection still stands."""
        if self.reader is None or self.writer is None or self.writer.is_closing() or self.reader.at_eof():
            self.reader, self.writer = await asyncio.open_connection(self.server.host, self.server.port)
        return self.reader, self.writer

    def close(self) -> None:
        """Hang up."""
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def send(self, content: bytes) -> None:
        """Send bytes."""
        _, writer = await self.open()
        writer.write(content)
        await writer.drain()

    async def reply(self) -> Reply:
        """Read an answer."""
        reader, _ = await self.open()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        is_json = headers.get("content-type", "").startswith("application/json")
        body = json.loads(content) if is_json else content
        return Reply(int(head[0].split()[1]), body, float(headers.get("retry-after", 0)))

    async def ask(self, body: Any, path: str = "/translate", *more: str) -> Reply:
        """Send a request and read its answer; once more where a kept connection was closed meanwhile."""
        content = request(body, path, *more)
        for _ in range(2):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self.send(content)
                return await self.reply()
            self.close()
        raise SystemExit(f"no answer to {content[:200]!r}")


def request(body: Any, path: str = "/translate", *more: str, length: int | None = None) -> bytes:
    """Return a request as it goes over the wire."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", *(more or ("Content-Type: application/json",))]
    head.append(f"Content-Length: {len(content) if length is None else length}")
    return "\r\n".join([*head, "", ""]).encode() + content


# ----------------------------------------------------------------------------------------------------------- speed


@dataclass
class Round:
    """One round: how many sentences a second, milliseconds of processor time a sentence, seconds of each answer."""

    rate: float
    processor: float
    waits: list[float] = field(default_factory=list)


async def ask_all(server: Server, lines: Sequence[str], expected: Sequence[Sequence[str]], clients: int) -> Round:
    """Ask for all lines, one a request, from so many clients."""
    rest = iter(range(len(lines)))
    waits: list[float] = []
    different = 0

    async def client() -> None:
        nonlocal different
        mine = Client(server)
        await mine.open()
        for place in rest:
            began = time.perf_counter()
            reply = await mine.ask({"text": lines[place], "cut": True})
            waits.append(time.perf_counter() - began)
            different += reply.body["answers"][0]["translations"][0]["text"] != expected[place][0]
        mine.close()

    before, began = server.processor(), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds, used = time.perf_counter() - began, server.processor() - before
    if different:
        note(f"{clients} clients: {different} of {len(lines)} answers are not those of decode")
    return Round(len(lines) / seconds, 1000 * used / len(lines), waits)


def speed(run: str, lines: Sequence[str], options: Sequence[str], rounds: int) -> None:
    """Print the table of speed."""
    found: dict[str, list[Round]] = {}
    threads = [*options[options.index("--threads") :][:2]] if "--threads" in options else []
    with serving(run, options) as server:
        expected = decode(run, lines, *threads).answers
        asyncio.run(ask_all(server, lines[:64], expected, 8))  # to be warm
        for _ in range(rounds):
            whole, others = decode(run, lines, *threads), len(lines) - 1
            one = Round(others / whole.seconds, 1000 * whole.processor / others)
            found.setdefault("`decode`, all at once", []).append(one)
            for clients in CLIENTS:
                some = lines[: max(64, len(lines) // 4)] if clients == 1 else lines
                words = f"`serve`, {clients} client{'s' * (clients > 1)}"
                found.setdefault(words, []).append(asyncio.run(ask_all(server, some, expected, clients)))
    emit("| | sentences/s | p50, ms | p95, ms | processor, ms a sentence |\n|---|---|---|---|---|\n")
    for words, each in found.items():
        cells = (spread([one.rate for one in each]), share(each, 50), share(each, 95))
        emit(f"| {words} | {' | '.join(cells)} | {spread([one.processor for one in each])} |\n")


def spread(values: Sequence[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def share(rounds: Sequence[Round], percent: int) -> str:
    """Return a percentile of the times of an answer, in milliseconds: its median over the rounds, and their range."""
    if not rounds[0].waits:
        return "–"
    return spread([1000 * statistics.quantiles(one.waits, n=100)[percent - 1] for one in rounds])


# ----------------------------------------------------------------------------------------------------------- storm


class Storm:
    """Clients of every kind, and what they were answered.

    Args:
        server: where to.
        lines: what is asked.
        known: what ``decode`` says, by beam.
        seed: of who does what.
    """

    def __init__(self, server: Server, lines: Sequence[str], known: dict[int, list[list[str]]], seed: int) -> None:
        self.server, self.lines, self.known = server, lines, known
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        kinds: dict[Callable[[Client], Awaitable[None]], float] = {
            self.one: 74, self.several: 8, self.hang_up: 9, self.garbage: 2, self.not_utf8: 2, self.not_json: 2,
            self.wrong_method: 1, self.wrong_type: 0.5, self.too_long: 1, self.ten_megabytes: 0.4, self.slow: 0.1,
        }  # fmt: skip
        self.kinds, self.shares = list(kinds), list(kinds.values())

    async def run(self, requests: int, clients: int) -> None:
        """Let so many clients send so many requests."""
        rest = iter(self.random.choices(self.kinds, self.shares, k=requests))

        async def client() -> None:
            mine = Client(self.server)
            for kind in rest:
                self.counts[kind.__name__] += 1
                try:
                    await kind(mine)
                except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                    self.wrong.append(f"{kind.__name__}: {error!r}")
                    mine.close()
            mine.close()

        await asyncio.gather(*(client() for _ in range(clients)))

    def _options(self) -> dict[str, Any]:
        return {"beam": self.random.choice(list(self.known)), "cut": True}

    def _texts(self, places: Sequence[int]) -> list[str]:
        return [self.lines[place] for place in places]

    async def _right(self, client: Client, places: Sequence[int], body: dict[str, Any]) -> None:
        """Ask until the server is not too busy; every answer must be the one of its line."""
        reply = await client.ask(body)
        while reply.status == 503:
            self.counts["asked again after 503"] += 1
            await asyncio.sleep(reply.again * self.random.random())
            reply = await client.ask(body)
        if reply.status != 200 or len(reply.body["answers"]) != len(places):
            self.wrong.append(f"{body}: {reply}")
            return
        for place, answer in zip(places, reply.body["answers"], strict=True):
            self._compare(place, body, [each["text"] for each in answer["translations"]])

    def _compare(self, place: int, body: dict[str, Any], found: Sequence[str]) -> None:
        known = self.known[body["beam"]]
        self.counts["texts compared"] += 1
        if found[0] == known[place][0]:
            return
        self.counts["texts that differ from decode's"] += 1
        if found[0] in known[place] or known[place][0] in found:
            self.counts["of which two of decode's own that are as good"] += 1
        else:
            self.wrong.append(f"{self.lines[place]!r}: {found} instead of {known[place]}")

    async def _refused(self, client: Client, reply: Reply, status: int) -> None:
        told = reply.body["error"] if isinstance(reply.body, dict) else reply.body
        if reply.status != status or not told:
            self.wrong.append(f"{status} wanted: {reply}")

    async def one(self, client: Client) -> None:
        place = self.random.randrange(len(self.lines))
        await self._right(client, [place], {"text": self.lines[place], **self._options()})

    async def several(self, client: Client) -> None:
        places = [self.random.randrange(len(self.lines)) for _ in range(self.random.randint(2, 6))]
        options = self._options()
        options["n_best"] = self.random.randint(1, min(BEST, options["beam"]))
        await self._right(client, places, {"texts": self._texts(places), **options})

    async def hang_up(self, client: Client) -> None:
        content = request({"texts": self._texts(range(3)), "beam": self.random.choice(list(self.known))})
        cut = self.random.choice([20, len(content) - 10, len(content)])
        with suppress(ConnectionError):
            await client.send(content[:cut])
            await asyncio.sleep(self.random.choice([0, 0, 0.01, 0.1]))
        client.close()

    async def garbage(self, client: Client) -> None:
        client.close()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await client.send(self.random.randbytes(200) + b"\r\n\r\n")
            await self._refused(client, await client.reply(), 400)
        client.close()

    async def not_utf8(self, client: Client) -> None:
        body = b'{"text": "' + bytes([self.random.randint(0xF8, 0xFF)]) + b'"}'
        await self._refused(client, await client.ask(body), 400)

    async def not_json(self, client: Client) -> None:
        bodies = [
            b"",
            b"{",
            b"[" * 5000,
            b"null",
            b'{"text": 1}',
            b'{"text": "a", "beam": 1e9}',
            b'{"text": "\\ud800"}',
        ]
        await self._refused(client, await client.ask(self.random.choice(bodies)), 400)

    async def wrong_method(self, client: Client) -> None:
        path, status = self.random.choice([("/health", 405), ("/", 405), ("/nothing", 404), ("/classify", 404)])
        await self._refused(client, await client.ask({"text": "a"}, path), status)

    async def wrong_type(self, client: Client) -> None:
        reply = await client.ask({"text": "a"}, "/translate", "Content-Type: text/plain")
        await self._refused(client, reply, 415)

    async def too_long(self, client: Client) -> None:
        body = self.random.choice([{"text": "a b " * 2000}, {"text": "a" * 20_000}, {"texts": ["a"] * 1000}])
        await self._refused(client, await client.ask(body), 413)

    async def ten_megabytes(self, client: Client) -> None:
        await self._refused(client, await client.ask(_TEN_MB), 413)

    async def slow(self, client: Client) -> None:
        client.close()
        await client.send(request(b"", length=100))
        reply, (_, writer) = asyncio.ensure_future(client.reply()), await client.open()
        while not reply.done():
            writer.write(b" ")
            await asyncio.wait([reply], timeout=0.5)
        await self._refused(client, await reply, 408)
        client.close()


def storm(run: str, lines: Sequence[str], options: Sequence[str], requests: int, clients: int) -> None:
    """Send the requests, and print what came of them."""
    known = {beam: decode(run, lines, "--beam", str(beam), "--n-best", str(min(beam, BEST))).answers for beam in (1, 3)}
    with serving(run, options) as server:
        asyncio.run(Storm(server, lines, known, 0).run(300, 8))  # to be warm
        first = server.peak()
        wild, began = Storm(server, lines, known, 1), time.perf_counter()
        asyncio.run(wild.run(requests, clients))
        seconds = time.perf_counter() - began
        health = asyncio.run(_health(server))
        peaks = {"after 300 requests": round(first), "after all": round(server.peak())}
        result = {"requests": requests, "clients": clients, "seconds": round(seconds, 1), "sent": dict(wild.counts)}
        result |= {"lost, mixed up or answered wrongly": len(wild.wrong), "peak, MB": peaks}
        emit_json(result | {"server": {key: health[key] for key in ("queue", "texts", "batches", "replies")}})
    for each in wild.wrong[:20]:
        note(each)
    if wild.wrong:
        raise SystemExit(1)


async def _health(server: Server) -> dict[str, Any]:
    client = Client(server)
    await asyncio.sleep(1)  # those that hung up are seen
    await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    found = (await client.reply()).body
    client.close()
    return dict(found)


def main() -> None:
    """Read the command line."""
    words, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "storm"))
    parser.add_argument("run", help="a run or an export")
    parser.add_argument("lines", type=Path, help="a text file, one sentence a line")
    parser.add_argument("--first", type=int, default=500, help="lines taken of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args(words.split())
    lines = given.lines.read_text(encoding="utf-8").split("\n")[: given.first]
    if given.what == "speed":
        speed(given.run, [line for line in lines if line.strip()], options.split(), given.rounds)
    else:
        storm(given.run, [line for line in lines if line.strip()], options.split(), given.requests, given.clients)


if __name__ == "__main__":
    main()
