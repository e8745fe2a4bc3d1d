"""``bench decode RUN``: a trained run's engines side by side, on its own text.

Each engine translates the same lines with the same search: tokenising, searching and detokenising are timed, loading
is not. Those other than torch's are exports that are made in passing and kept in the run. They take turns, and a ratio
is taken within a round.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from phmctl.benchmarks.timing import Spread, compare, watched
from phmctl.console import Table, silence
from phmctl.data.copies import read_text
from phmctl.decoding.engine import CTRANSLATE2, ENGINES, TORCH
from phmctl.decoding.loading import load_translator
from phmctl.decoding.translator import Translation, Translator
from phmctl.errors import UserError, check_known
from phmctl.export.engines import with_engine
from phmctl.metrics.text import bleu
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import Run


@dataclass(frozen=True)
class EngineRow:
    """One engine's speed.

    Attributes:
        engine: its name, with the type that CTranslate2 computes in.
        seconds: for all sentences.
        sentences_per_second: at the median.
        speed: relative to the first engine's, within a round.
        same: how many best translations are those of the first engine.
        bleu: of the best translations.
    """

    engine: str
    seconds: Spread
    sentences_per_second: float
    speed: Spread
    same: int
    bleu: float


@dataclass(frozen=True)
class EnginesBench:
    """What was measured: of which run, on how many sentences of which split, with how many threads."""

    run: str
    split: str
    sentences: int
    threads: int
    decoding: DecodingSection
    signature: str
    rows: Sequence[EngineRow]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return {**asdict(self), "decoding": self.decoding.model_dump()}

    def table(self) -> Table:
        """Return the table of ``bench decode RUN --engine …``."""
        return Table(
            f"{self.run}: {self.sentences} sentences of {self.split}, beam {self.decoding.beam}, "
            f"{self.threads} threads; BLEU {self.signature}",
            ("engine", "seconds", "sentences/s", f"speed / {self.rows[0].engine}", "same outputs", "BLEU"),
            [
                (
                    row.engine,
                    f"{row.seconds.median:.2f}",
                    f"{row.sentences_per_second:.0f}",
                    row.speed,
                    f"{row.same:,}",
                    f"{row.bleu:.2f}",
                )
                for row in self.rows
            ],
        )


def bench_engines(
    run: Run,
    engines: Sequence[str] = (TORCH, CTRANSLATE2),
    *,
    checkpoint: str = "best",
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
) -> EnginesBench:
    """Measure a run's engines.

    Args:
        run: a translator's run.
        engines: ``torch``, ``onnx``, ``ctranslate2`` or ``ctranslate2:int8``; the first is what the others are compared
            with.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``.
        split: whose sources are translated.
        sentences: how many, evenly chosen.
        rounds: samples of each engine.

    Raises:
        UserError: no such engine.
        MissingExtraError: one is not installed.
        RunError: something of the run is missing or damaged.
    """
    settings = run.recipe_of(TranslationRecipe).decoding
    rows = _rows(len(read_text(run, split, "source")), sentences)
    lines, references = ([read_text(run, split, side)[row] for row in rows] for side in ("source", "target"))
    translators = {name: _translator(run, name, checkpoint) for name in dict.fromkeys(engines)}
    found: dict[str, list[list[Translation]]] = {}

    def candidate(name: str, translator: Translator) -> Any:
        def translate() -> None:
            with silence():
                found[name] = translator.translate(lines)

        return translate

    first = next(iter(translators))
    candidates = {name: candidate(name, translator) for name, translator in translators.items()}
    with watched("engines", len(candidates), rounds) as advance:
        timings = compare(candidates, rounds=rounds, baseline=first, warmup=1, advance=advance)
    best = {name: [each[0].text for each in translations] for name, translations in found.items()}
    scores = {name: bleu(texts, references) for name, texts in best.items()}
    return EnginesBench(
        run=run.name,
        split=split,
        sentences=len(lines),
        threads=torch.get_num_threads(),
        decoding=settings,
        signature=scores[first].signature,
        rows=[
            EngineRow(
                engine=name,
                seconds=timing.seconds,
                sentences_per_second=len(lines) / timing.seconds.median,
                speed=timing.ratio.inverse,
                same=sum(one == other for one, other in zip(best[name], best[first], strict=True)),
                bleu=scores[name].value,
            )
            for name, timing in timings.items()
        ],
    )


def _rows(total: int, count: int) -> list[int]:
    return list(range(total)) if count >= total else [row * total // count for row in range(count)]


def _translator(run: Run, name: str, checkpoint: str) -> Translator:
    engine, _, quantize = name.partition(":")
    check_known("engine", engine, ENGINES)
    if quantize and engine != CTRANSLATE2:
        raise UserError(f"{name}: only ctranslate2 has types; write {engine}")
    chosen = with_engine(run, engine, checkpoint, quantize or None)
    return load_translator(chosen, checkpoint if chosen is run else "best", "cpu", cleaned=True, threads=_threads())


def _threads() -> int:
    return int(torch.get_num_threads())
