"""Limits of the server, which are options of ``phmctl serve``: this module does not import the server."""

from dataclasses import dataclass
from typing import Annotated

import typer

from phmctl.options import LIBRARY_ONLY


@dataclass(frozen=True)
class Limits:
    """Limits of requests, batches and the queue.

    A text longer than `batch_tokens` gets its own batch. A single client never waits for a batch to fill.

    Args:
        batch: Largest number of texts in a batch.
        batch_tokens: Largest number of tokens in a batch.
        wait: Milliseconds that a batch waits for more texts.
        queue: Largest number of waiting texts; more get 503.
        texts: Largest number of texts in a request.
        characters: Largest number of characters in a text.
        body: Largest number of bytes in a request's body.
        beam: Largest beam that a request may ask for.
        connections: Largest number of open connections.
        seconds: Time to receive a body; idle connections are closed after the same time.
    """

    batch: Annotated[int, typer.Option("--max-batch", min=1)] = 64
    batch_tokens: Annotated[int, typer.Option("--max-batch-tokens", min=1)] = 2048
    wait: Annotated[float, typer.Option("--max-wait", min=0, max=1000)] = 5.0
    queue: Annotated[int, typer.Option("--max-queue", min=1)] = 1024
    texts: Annotated[int, typer.Option("--max-texts", min=1)] = 128
    characters: Annotated[int, typer.Option("--max-characters", min=1)] = 10_000
    body: Annotated[int, typer.Option("--max-body", min=1)] = 1 << 20
    beam: Annotated[int, typer.Option("--max-beam", min=1)] = 16
    connections: Annotated[int, typer.Option("--max-connections", min=1)] = 256
    seconds: Annotated[float, LIBRARY_ONLY] = 10.0
