"""The commands that use a trained model: ``decode``, ``eval``, ``probe``, ``serve`` and ``export``."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import phmctl
from phmctl.cli import options
from phmctl.cli.options import File, Flag, Number, Text, Texts
from phmctl.console import Shown, Table, note, progress
from phmctl.errors import require
from phmctl.threads import set_threads

if TYPE_CHECKING:
    from phmctl.answering.base import Advance
    from phmctl.tasks.base import Report


def decode(
    run: options.ModelName,
    input_: Annotated[File, Option("--input", help="Text, one sentence a line (default: stdin).")] = None,
    output: Annotated[File, Option(help="Write the answers to this file as they come (default: stdout).")] = None,
    checkpoint: options.Checkpoint = "auto",
    n_best: Annotated[Number, Option(min=1, help="Hypotheses a line: its number, rank, score, text.")] = None,
    beam: options.Beam = None,
    alpha: options.Alpha = None,
    batch_tokens: options.BatchTokens = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    strict: Annotated[bool, Option("--strict", help="Refuse over-long lines instead of cutting them.")] = False,
    json: options.Json = False,
) -> None:
    """Translate or label text: one line out for each line in, in order. --json prints an object for each line.

    --beam, --alpha, --n-best, --batch-tokens, --precision and --strict are for translators.
    """
    from phmctl.answering.lines import answer, arriving_lines, open_answers, refuse_same_file
    from phmctl.answering.opening import find
    from phmctl.tasks import load_model

    set_threads(threads)
    if output is not None:
        refuse_same_file(input_, output)
    model = load_model(
        find(run),
        checkpoint,
        device,
        beam=beam,
        alpha=alpha,
        batch_tokens=batch_tokens,
        precision=precision,
        n_best=n_best,
        strict=strict or None,
    )
    typed = input_ is None and sys.stdin is not None and sys.stdin.isatty()
    bar: AbstractContextManager[Advance] = nullcontext(lambda amount: None)
    if output is not None and not json and not typed:  # otherwise the answers themselves are on the terminal
        bar = progress(model.verb, None, plain=False)
    if typed:
        note("reading lines from the terminal; Ctrl-D ends them")
    file = nullcontext() if output is None else open_answers(output)
    with file as write, bar as advance:
        answer(model, arriving_lines(input_), output=write, as_json=json, advance=advance)


def evaluate(
    runs: Annotated[list[str], Argument(metavar="RUN", help="Runs, folders of versions or exports.")],
    split: options.Split = "test",
    checkpoint: options.Checkpoint = "auto",
    beam: options.Beam = None,
    alpha: options.Alpha = None,
    batch_tokens: options.BatchTokens = None,
    precision: options.Precision = None,
    lowercase: Annotated[Flag, Option("--lowercase/--cased", help="Score in lower case or cased.")] = None,
    tokenize: Annotated[Text, Option(help="Tokenizer of BLEU: 13a, zh, ja-mecab, flores200, …")] = None,
    source: Annotated[File, Option(metavar="FILE", help="Source text to score instead of a split.")] = None,
    reference: Annotated[list[Path] | None, Option(metavar="FILE", help="References of --source.")] = None,
    table: Annotated[File, Option(metavar="FILE", help="Labelled text to score instead of a split.")] = None,
    text: Annotated[Texts, Option(metavar="COLUMN", help="Column of the text in --table; twice for pairs.")] = None,
    label: Annotated[Text, Option(metavar="COLUMN", help="Column of the label in --table.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    json: options.Json = False,
) -> Shown:
    """Score runs on a split: translators by BLEU, chrF and TER, classifiers by accuracy.

    Translations are kept in the run. --beam, --alpha, --batch-tokens, --precision, --lowercase, --tokenize, --source
    and --reference are for translators.
    """
    from phmctl.answering.opening import find
    from phmctl.runs.results import scores_of
    from phmctl.tasks import evaluate as evaluate_run
    from phmctl.tasks import requested_splits

    set_threads(threads)
    search = {"beam": beam, "alpha": alpha, "batch_tokens": batch_tokens, "precision": precision}
    scoring = {"lowercase": lowercase, "tokenize": tokenize, "source": source, "reference": reference}
    labels = {"table": table, "text": text, "label": label}
    reports: list[tuple[str, Report]] = []
    for name in runs:
        run = find(name)
        for part in [split] if source is not None or table is not None else requested_splits([run], split):
            report = evaluate_run(run, part, checkpoint, device, **search, **scoring, **labels)
            reports.append((f"{run.folder} {part}", report))
    documents = [report.as_json() for _, report in reports]
    if len(reports) == 1:
        return Shown(documents[0], reports[0][1].tables())
    scores = [{key: f"{value:.4g}" for key, value in scores_of(document).items()} for document in documents]
    columns = list(dict.fromkeys(key for run_scores in scores for key in run_scores))
    rows = [
        (label, document.get("checkpoint", "–"), *(run_scores.get(key, "–") for key in columns))
        for (label, _), document, run_scores in zip(reports, documents, scores, strict=True)
    ]
    return Shown({"reports": documents}, [Table("", ("run", "checkpoint", *columns), rows, text=(1,))])


def probe(
    run: options.RunName,
    checkpoint: options.Checkpoint = "auto",
    settings: Annotated[Texts, Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe 'probe'.")] = None,
    data: options.Data = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> Shown:
    """Train a probe of a translator's encoder for each prepared probing task, and store the scores in the run."""
    from phmctl.probes import probe as probe_run

    report = probe_run(run, checkpoint=checkpoint, device=device, data=data, settings=settings or ())
    return Shown(report.as_json(), report.tables(), notes=report.notes)


def serve(
    run: options.ModelName,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free port, which is printed.")] = 8000,
    allow_host: Annotated[Texts, Option(metavar="NAME", help="Further host name of requests.")] = None,
    checkpoint: options.Checkpoint = "auto",
    precision: options.Precision = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    workers: Annotated[int, Option(min=1, max=64, help="Number of batches answered at once.")] = 1,
    max_batch: Annotated[int, Option(min=1, help="Largest number of texts in a batch.")] = 64,
    max_batch_tokens: Annotated[int, Option(min=1, help="Largest number of tokens in a batch.")] = 2048,
    max_connections: Annotated[int, Option(min=1, help="Largest number of requests at once; more get 503.")] = 256,
    cut: Annotated[bool, Option("--cut", help="Cut a too long text instead of answering 413.")] = False,
    grace: Annotated[float, Option(min=0, help="Seconds for open requests when the server stops.")] = 30.0,
    json: options.Json = False,
) -> None:
    """Answer over HTTP: /translate and /score, or /classify. Also /health and a page to type into.

    Prints the address. On Ctrl-C or SIGTERM it answers open requests, then stops (exit code 130 or 143).
    """
    for module in ("starlette", "uvicorn"):
        require(module, "serve")
    from phmctl.serving.server import Service, listen, run_server, url_of

    set_threads(threads)
    with listen(host, port) as sock:
        model = phmctl.load(run, checkpoint=checkpoint, device=device, precision=precision)
        service = Service(model, cut=cut, workers=workers, largest=max_batch, largest_cost=max_batch_tokens)
        url = url_of(sock)
        note(f"serving {model.name}; Ctrl-C stops")
        document = {"url": url, "model": model.name, "task": model.task}
        Shown(document, text=f"{url}\n").show(json)
        run_server(service, sock, allow_hosts=allow_host or (), connections=max_connections, grace=grace)


def export(
    run: options.RunName,
    to: Annotated[str, Option(help="ctranslate2, onnx or safetensors.")],
    output: Annotated[Path, Option("--output", "-o", help="Folder to write.")],
    checkpoint: options.Checkpoint = "auto",
    weights: Annotated[Text, Option(help="phm: A and S of each map; or dense.")] = None,
    quantize: Annotated[Text, Option(help="float32, float16, int8, int4; or a type of CTranslate2.")] = None,
    texts: Annotated[Number, Option(min=0, help="Number of validation texts to compare (default: all).")] = None,
    with_text: Annotated[bool, Option("--with-text", help="Copy valid and test text too, for eval.")] = False,
    force: Annotated[bool, Option("--force", help="Replace an export in the folder.")] = False,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> Shown:
    """Export a run's model with tokenizer, settings and model card.

    decode, eval and serve take the folder as a run. The export is compared with the run on the run's validation text.
    """
    from phmctl.export.verb import export as export_run
    from phmctl.runs import Run

    set_threads(threads)
    exported = export_run(
        Run.open(run),
        to,
        output,
        checkpoint=checkpoint,
        weights=weights,
        quantize=quantize,
        force=force,
        texts=texts,
        with_text=with_text,
    )
    return Shown(exported.as_json(), exported.tables())
