"""``phmctl serve``: a trained model behind HTTP."""

from typing import Annotated

import typer

from phmctl.cli.options import Checkpoint, Device, Engine, Json, ModelArgument, Precision, Quantize, Threads


def serve(
    run: ModelArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one, which is printed.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Further host name that requests may use. Repeatable.")
    ] = None,
    checkpoint: Checkpoint = "auto",
    engine: Engine = None,
    quantize: Quantize = None,
    precision: Precision = None,
    device: Device = None,
    threads: Threads = 0,
    workers: Annotated[int, typer.Option(help="Number of batches answered at once.", min=1, max=64)] = 1,
    max_batch: Annotated[int, typer.Option(help="Largest number of texts in a batch.", min=1)] = 64,
    max_batch_tokens: Annotated[int, typer.Option(help="Largest number of tokens in a batch.", min=1)] = 2048,
    max_wait: Annotated[
        float, typer.Option(help="Milliseconds that a batch waits to be as large as the one before.", min=0, max=1000)
    ] = 5.0,
    max_queue: Annotated[int, typer.Option(help="Largest number of waiting texts; more get 503.", min=1)] = 1024,
    max_texts: Annotated[int, typer.Option(help="Largest number of texts in a request.", min=1)] = 128,
    max_characters: Annotated[int, typer.Option(help="Largest number of characters in a text.", min=1)] = 10_000,
    max_body: Annotated[int, typer.Option(help="Largest number of bytes in a request's body.", min=1)] = 1 << 20,
    max_beam: Annotated[int, typer.Option(help="Largest beam that a request may ask for.", min=1)] = 16,
    max_connections: Annotated[int, typer.Option(help="Largest number of open connections.", min=1)] = 256,
    cut: Annotated[
        bool, typer.Option("--cut", help="Answer the beginning of a text longer than the model knows, instead of 413.")
    ] = False,
    grace: Annotated[float, typer.Option(help="Seconds for waiting texts when the server stops.", min=0)] = 30.0,
    json: Json = False,
) -> None:
    """Answer over HTTP: /translate and /score, or /classify; /health; and a page to type into.

    Prints the address. On Ctrl-C or SIGTERM it answers waiting texts, then stops (exit code 130 or 143).
    """
    from phmctl.extras import require

    for library in ("starlette", "uvicorn"):
        require(library, "serve")
    from phmctl.console import emit, emit_json, note
    from phmctl.devices import set_threads
    from phmctl.export.engines import with_engine
    from phmctl.exports import open_model
    from phmctl.inference.loading import load
    from phmctl.serving.batching import BatchLimits
    from phmctl.serving.requests import Limits
    from phmctl.serving.server import listen, names_of, url_of
    from phmctl.serving.server import serve as run_server
    from phmctl.serving.service import Service

    with listen(host, port) as sock:
        set_threads(threads)
        opened = with_engine(open_model(run), engine, checkpoint, quantize, precision)
        model = load(opened.folder, checkpoint=checkpoint, device=device or "auto", precision=precision)
        batching = BatchLimits(max_batch, max_batch_tokens, max_queue, max_wait / 1000)
        limits = Limits(max_body, max_texts, max_characters, max_beam, connections=max_connections)
        service = Service(model, limits, batching, workers=workers, cut=cut)
        url, names = url_of(sock), names_of(sock, allow_host or ())

        def ready() -> None:
            note(f"serving {model.name}; Ctrl-C stops")
            if json:
                emit_json({"url": url, "model": model.name, "task": model.task})
            else:
                emit(f"{url}\n")

        raise typer.Exit(run_server(service, sock, names=names, grace=grace, ready=ready))
