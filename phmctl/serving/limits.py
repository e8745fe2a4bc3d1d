"""Limits of the server. The command line shows the defaults, so this module imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of requests, batches and the queue."""

    body: int = 1 << 20  # bytes of a request's body
    texts: int = 128  # texts of a request
    characters: int = 10_000  # characters of a text
    beam: int = 16  # largest beam size of a request
    seconds: float = 10.0  # time to receive a body; idle connections are closed after the same time
    connections: int = 256  # open connections
    batch: int = 64  # texts of a batch
    batch_tokens: int = 2048  # tokens of a batch; a longer text gets its own batch
    queue: int = 1024  # waiting texts; a request that would exceed it is refused
    wait: float = 5.0  # milliseconds to wait for a batch to fill; a single client never waits
