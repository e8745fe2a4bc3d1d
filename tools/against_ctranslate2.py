"""A run's own decoding against CTranslate2 on the same weights: sentences a second and one line's answer, in turns.

    python tools/against_ctranslate2.py RUN --sentences 300 --rounds 5 --output against.json

Ours is one process with all threads, and as many workers of one thread (`decode --workers`; one line is the first
one's alone), in float32 and with `--precision bfloat16`. CTranslate2 gets the same token ids in float32 with the
settings that suit it: as many translators of one thread, batches of 32. All take raw text and give raw text, of the
test split. Ratios are to CTranslate2's seconds, in one round, median and quartiles.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from phmctl.backends.machine import processor
from phmctl.benchmarks.timing import Timing, compare, watched
from phmctl.data.copies import read_text
from phmctl.decoding.ctranslate2_engine import load_library
from phmctl.devices import has_bfloat16, set_threads
from phmctl.export.verb import export
from phmctl.exports import CTRANSLATE2, MODEL
from phmctl.files import write_json
from phmctl.inference.workers import Loading, with_workers
from phmctl.runs import Run
from phmctl.tasks.base import Predictor

THEIRS = "CTranslate2"
BATCH = 32

Translate = Callable[[Sequence[str]], object]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write all figures here too, as JSON")
    given = parser.parse_args()
    set_threads(given.threads)
    run = Run.open(given.run)
    lines = read_text(run, "test", "source")[: given.sentences]
    found: dict[str, dict[str, Timing]] = {}
    with TemporaryDirectory() as folder:
        export(run, CTRANSLATE2, Path(folder) / "export", checkpoint=given.checkpoint, texts=50)
        for beam in (5, 1):
            with ExitStack() as stack:
                sides = candidates(run, given.checkpoint, Path(folder), beam, given.threads, stack)
                found[f"{len(lines)} sentences, beam {beam}"] = timed(sides, lines, given.rounds)
                found[f"one line, beam {beam}"] = timed(sides, lines[:1], 4 * given.rounds)
    if given.output:
        write_json(given.output, {what: {k: v.as_json() for k, v in each.items()} for what, each in found.items()})
    sys.stdout.write(f"{processor()}, {given.threads} threads; {run.name}\n\n{as_markdown(found)}")


def candidates(
    run: Run, checkpoint: str, folder: Path, beam: int, threads: int, stack: ExitStack
) -> dict[str, Translate]:
    """Return what translates, by name."""

    def side_by_side(precision: str) -> tuple[Predictor, Predictor]:
        parted = Loading(run.folder, checkpoint, "cpu", (("beam", beam), ("precision", precision)), True, 1)
        own = parted.of(run)
        return own, stack.enter_context(with_workers(OnThreads(own, 1), parted, threads))

    own, workers = side_by_side("float32")
    alone = OnThreads(own, threads)
    library = load_library().Translator(
        str(folder / "export" / MODEL), compute_type="float32", inter_threads=threads, intra_threads=1
    )
    found: dict[str, Translate] = {
        THEIRS: theirs(library, own, beam),
        f"one process, {threads} threads": lambda lines: alone.predict(lines, advance=_nothing),
        f"{threads} workers": lambda lines: workers.predict(lines, advance=_nothing),
    }
    if has_bfloat16(torch.device("cpu")):
        _, lower = side_by_side("bfloat16")
        found[f"{threads} workers, bfloat16"] = lambda lines: lower.predict(lines, advance=_nothing)
    return found


class OnThreads:
    """This process's predictor on so many threads. CTranslate2 leaves OpenMP, which torch uses too, with one."""

    def __init__(self, own: Predictor, threads: int) -> None:
        self.own, self.threads = own, threads
        self.verb, self.about, self.origin, self.lines, self.as_json = "", own.about, own.origin, own.lines, own.as_json

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[Any]:
        """Answer."""
        torch.set_num_threads(self.threads)
        return self.own.predict(lines, numbers=numbers, advance=advance)


def theirs(library: Any, own: Any, beam: int) -> Translate:
    """Return CTranslate2's way from text to text, by the run's tokenizers."""
    translator = own.translator
    source, target = translator.tokenizers.source.vocabulary, translator.tokenizers.target
    ids = {token: index for index, token in enumerate(target.vocabulary)}

    def translate(lines: Sequence[str]) -> list[str]:
        encoded, _ = translator.encode(lines, strict=False)
        words = [[source[index] for index in row] for row in encoded]
        found = library.translate_batch(
            words, max_batch_size=BATCH, beam_size=beam, length_penalty=translator.settings.alpha
        )
        return [target.decode([ids[word] for word in one.hypotheses[0]]) for one in found]

    return translate


def timed(sides: dict[str, Translate], lines: Sequence[str], rounds: int) -> dict[str, Timing]:
    """Time all in turns."""
    calls = {name: (lambda each=each: each(lines)) for name, each in sides.items()}
    with watched("translations", len(calls), rounds) as advance:
        return compare(calls, rounds=rounds, baseline=THEIRS, warmup=2, advance=advance)


def as_markdown(found: dict[str, dict[str, Timing]]) -> str:
    """Return the seconds of each, and their ratio to CTranslate2's."""
    rows = ["| what | by | ms | seconds / CTranslate2's |", "|---|---|---|---|"]
    for what, timings in found.items():
        rows += [f"| {what} | {name} | {each.seconds.milliseconds} | {each.ratio} |" for name, each in timings.items()]
    return "\n".join(rows) + "\n"


def _nothing(count: int) -> None:
    pass


if __name__ == "__main__":
    main()
