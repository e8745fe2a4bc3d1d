"""``phmctl serve``: a trained model behind HTTP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def serve(
    run: Path, host: str, port: int, allow_host: Sequence[str] | None, *, json: bool, grace: float, **given: Any
) -> None:
    """Answer over HTTP: /translate and /score, or /classify; /health; and a page to type into.

    Prints the address. On Ctrl-C or SIGTERM it answers waiting texts, then stops (exit code 130 or 143).
    """
    from phmctl.extras import require

    for library in ("starlette", "uvicorn"):
        require(library, "serve")
    from phmctl.console import Shown, note
    from phmctl.devices import set_threads
    from phmctl.export.engines import with_engine
    from phmctl.exports import open_model
    from phmctl.inference.loading import load
    from phmctl.serving.batching import BatchLimits
    from phmctl.serving.requests import Limits
    from phmctl.serving.server import listen, names_of, url_of
    from phmctl.serving.server import serve as run_server
    from phmctl.serving.service import Service

    checkpoint, precision, most = (
        given["checkpoint"],
        given["precision"],
        {name.removeprefix("max_"): value for name, value in given.items() if name.startswith("max_")},
    )
    with listen(host, port) as sock:
        set_threads(given["threads"])
        opened = with_engine(open_model(run), given["engine"], checkpoint, given["quantize"], precision)
        model = load(opened.folder, checkpoint=checkpoint, device=given["device"] or "auto", precision=precision)
        batching = BatchLimits(most["batch"], most["batch_tokens"], most["queue"], most["wait"] / 1000)
        limits = Limits(most["body"], most["texts"], most["characters"], most["beam"], connections=most["connections"])
        service = Service(model, limits, batching, workers=given["workers"], cut=given["cut"])
        url, names = url_of(sock), names_of(sock, allow_host or ())

        def ready() -> None:
            note(f"serving {model.name}; Ctrl-C stops")
            Shown({"url": url, "model": model.name, "task": model.task}, text=f"{url}\n").show(as_json=json)

        raise typer.Exit(run_server(service, sock, names=names, grace=grace, ready=ready))
