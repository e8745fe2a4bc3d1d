"""The commands: each calls one function of the library and returns its output."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli.build import Files, NamedFiles, app, command
from phmctl.console import Shown, note, progress
from phmctl.devices import set_threads, world
from phmctl.errors import UserError, require
from phmctl.options import (
    Alpha,
    BatchTokens,
    Beam,
    Call,
    Checkpoint,
    Device,
    Jobs,
    Json,
    Precision,
    RunName,
    Threads,
    combinations,
)

if TYPE_CHECKING:
    from phmctl.data.prepared import PreparedData
    from phmctl.tasks.base import Report
    from phmctl.training.train import TrainingResult


@command(app, "prepare-data", target="prepare")
def prepare_data(
    call: Call["PreparedData"],
    train: Files = None,
    valid: Files = None,
    test: NamedFiles = None,
    list_: bool = False,
) -> Shown:
    """Clean and tokenize a corpus, once for all runs that use it.

    Args:
        train: Your own training files, or one table of both sides.
        valid: Your own validation files.
        test: Your own test files; NAME makes a further test set.
        list_: List the dataset cards, or show the card NAME.
    """
    from phmctl.cli.preparing import card_list, prepared_output

    if list_:
        return card_list(call["name"], call["data"])
    files: dict[str, list[tuple[str, ...]]] = {}
    for split, groups in (("train", train), ("valid", valid), ("test", test)):
        for first, *second in groups or ():
            name, equals, path = first.partition("=")
            if equals and "/" not in name and not Path(first).exists():  # `--test news=FILE` is of `test_news`
                files.setdefault(f"{split}_{name}", []).append((path, *second))
            else:
                files.setdefault(split, []).append((first, *second))
    return prepared_output(call(files=files, quiet=False))


@command(app, "train", target="train", sweeps=True)
def train(
    call: Call["TrainingResult"],
    jobs: Jobs = None,
    list_: bool = False,
    dry_run: bool = False,
) -> Shown:
    """Train a recipe's model on its prepared data; print the run directory at the end.

    Several values train every combination: --n 1,4 --seed 1,2,3 --set model.dropout=0.1,0.3. Finished trainings are
    skipped, stopped trainings are continued. Quotes keep a comma in a value: --set 'description="one, two"'.

    Args:
        jobs: Number of trainings of a sweep that run at once; they share the threads.
        list_: Print one command for each training, for a job array; train nothing.
        dry_run: Print recipe and parameters; train nothing.
    """
    calls = combinations(call)
    if len(calls) > 1 or jobs is not None or list_:
        from phmctl.sweeps import sweep_trainings

        if dry_run:
            raise UserError("--dry-run is for one training; leave it out of a sweep")
        return sweep_trainings(calls, jobs, list_only=list_)
    (call,) = calls
    if dry_run:
        from phmctl.cli.planning import training_plan

        return training_plan(call)
    result = call(quiet=False)
    if world().rank > 0:
        raise typer.Exit(result.exit_code)
    if result.exit_code:
        return Shown(result.as_json(), code=result.exit_code)
    total = f" ({result.steps} in all)" if result.steps_now < result.steps else ""
    line = f"{result.steps_now} steps in {result.seconds:.1f} s{total}; the run is in:"
    return Shown(result.as_json(), notes=[line], text=f"{result.run.folder}\n")


@command(app, "decode")
def decode(
    run: RunName,
    input_: Path | None = None,
    output: Path | None = None,
    split: str | None = None,
    checkpoint: Checkpoint = "auto",
    n_best: Annotated[int | None, typer.Option(min=1)] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = None,
    window: Annotated[int, typer.Option(min=1)] = 1024,
    device: Device = None,
    threads: Threads = 0,
    strict: bool = False,
    json: Json = False,
) -> None:
    """Translate or label text: one line out for each line in, in order.

    --beam, --alpha, --n-best, --batch-tokens, --precision and --strict are for translators.

    Args:
        input_: Text file with one sentence in each line (default: stdin).
        output: Write the answers to this file as they come (default: stdout).
        split: Decode this split of the run's own text: test or valid.
        n_best: Number of hypotheses to print for each line: its number, rank, score, text.
        window: Largest number of lines that are answered together.
        strict: Refuse over-long lines instead of cutting them.
        json: Print one JSON object for each line of input.
    """
    from phmctl.inference.lines import answer, arriving_lines, in_groups, open_answers, refuse_same_file
    from phmctl.inference.opening import ModelOptions, open_model

    set_threads(threads)
    if input_ is not None and split is not None:
        raise UserError("--input and --split exclude each other; leave one out")
    if output is not None and split is None:
        refuse_same_file(input_, output)
    task_options = {
        "beam": beam,
        "alpha": alpha,
        "batch_tokens": batch_tokens,
        "precision": precision,
        "n_best": n_best,
        "strict": strict or None,
    }
    options = ModelOptions(checkpoint, device or "auto", task=task_options)
    opened = open_model(run, options, split=split)
    model, lines = opened.model, opened.lines
    groups = arriving_lines(input_, limit=window) if lines is None else in_groups(lines, window)
    typed = lines is None and input_ is None and sys.stdin is not None and sys.stdin.isatty()
    bar: AbstractContextManager[Any] = nullcontext(lambda amount: None)
    if output is not None and not json and not typed:  # otherwise the answers themselves are on the terminal
        bar = progress(model.verb, None if lines is None else len(lines), plain=False)
    if typed:
        note("reading lines from the terminal; Ctrl-D ends them")
    file = nullcontext() if output is None else open_answers(output)
    with file as answers, bar as advance:
        answer(model, groups, output=answers, as_json=json, advance=advance)


@command(app, "eval", target="evaluate", sweeps=True)
def evaluate(
    call: Call["Report"],
    threads: Threads = 0,
    every: Annotated[bool, typer.Option("--all")] = False,
    jobs: Jobs = None,
    list_: bool = False,
) -> Shown:
    """Score a run on a split of its text: translators by BLEU, chrF and TER, classifiers by accuracy.

    Translations are kept in the run. --beam, --alpha, --batch-tokens, --precision, --lowercase, --tokenize, --source
    and --reference are for translators.

    Several runs or values (--beam 1,4 --checkpoint best,average) are scored one by one.

    --probing trains a probe for each probing task prepared in --data; a probe is trained once and its answers are kept.

    Args:
        every: Score every run that RUN names, not only the newest.
        jobs: Number of scorings that run at once; they share the threads.
        list_: Print one command for each scoring, for a job array; score nothing.
    """
    from phmctl.sweeps import score_once, scoring_calls, sweep_scorings

    calls = scoring_calls(call, every=every)
    if len(calls) > 1 or jobs is not None or list_:
        return sweep_scorings(calls, jobs, list_only=list_, threads=threads)
    set_threads(threads)
    (call,) = calls
    return score_once(call)


@command(app, "distil", target="distil")
def distil(call: Call["TrainingResult"]) -> Shown:
    """Train a small model on a trained model's answers; print the student's run directory at the end.

    A translator translates its training text by beam search, once for all its students; a student of a classifier
    learns the classifier's probabilities and the labels.
    """
    result = call(quiet=False)
    return Shown(result.as_json(), text=f"{result.run.folder}\n", code=result.exit_code)


@command(app, "serve")
def serve(
    run: RunName,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    checkpoint: Checkpoint = "auto",
    precision: Precision = None,
    device: Device = None,
    threads: Threads = 0,
    workers: Annotated[int, typer.Option(min=1, max=64)] = 1,
    max_batch: Annotated[int, typer.Option(min=1)] = 64,
    max_batch_tokens: Annotated[int, typer.Option(min=1)] = 2048,
    max_connections: Annotated[int, typer.Option(min=1)] = 256,
    cut: bool = False,
    grace: Annotated[float, typer.Option(min=0)] = 30.0,
    json: Json = False,
) -> None:
    """Answer over HTTP: /translate and /score, or /classify; /health; and a page to type into.

    Prints the address. On Ctrl-C or SIGTERM it answers open requests, then stops (exit code 130 or 143).

    Args:
        host: Address to listen on; 0.0.0.0 lets other machines in.
        port: Port; 0 takes a free port, which is printed.
        allow_host: Further host name that requests may use.
        workers: Number of batches answered at once.
        max_batch: Largest number of texts in a batch.
        max_batch_tokens: Largest number of tokens in a batch.
        max_connections: Largest number of requests at once; more get 503.
        cut: Answer the beginning of a text longer than the model knows, instead of 413.
        grace: Seconds for open requests when the server stops.
    """
    for module in ("starlette", "uvicorn"):
        require(module, "serve")
    from phmctl.inference.opening import ModelOptions, open_model
    from phmctl.serving.server import Service, listen, run_server, url_of

    set_threads(threads)
    options = ModelOptions(checkpoint, device or "auto", task={"precision": precision})
    with listen(host, port) as sock:
        model = open_model(run, options).model
        service = Service(model, cut=cut, workers=workers, largest=max_batch, largest_cost=max_batch_tokens)
        url = url_of(sock)
        note(f"serving {model.name}; Ctrl-C stops")
        document = {"url": url, "model": model.name, "task": model.task}
        Shown(document, text=f"{url}\n").show("json" if json else "table")
        run_server(service, sock, allow_hosts=allow_host or (), connections=max_connections, grace=grace)


@command(app, "export")
def export(
    run: RunName,
    to: str,
    output: Annotated[Path, typer.Option("--output", "-o")],
    checkpoint: Checkpoint = "auto",
    weights: str | None = None,
    quantize: str | None = None,
    texts: Annotated[int | None, typer.Option(min=1)] = None,
    force: bool = False,
    threads: Threads = 0,
) -> Shown:
    """Export a run's model with its tokenizer, settings and model card.

    decode, eval and serve take the folder as a run.

    The export is compared with the run on the run's validation text.

    Args:
        run: Run, or folder of versions (its newest run is used).
        to: ctranslate2, onnx or safetensors.
        output: Folder to write.
        weights: phm: A and S of each map (the default of onnx and safetensors); or dense.
        quantize: Type of the stored numbers: float32, float16, int8, int4; or a type of CTranslate2.
        texts: Number of validation texts to compare (default: all).
        force: Replace an export in the folder.
    """
    from phmctl.export.verb import export as export_run
    from phmctl.runs import Run

    set_threads(threads)
    opened = Run.open(run)
    exported = export_run(
        opened, to, output, checkpoint=checkpoint, weights=weights, quantize=quantize, force=force, texts=texts
    )
    return Shown(exported.as_json(), exported.tables())
