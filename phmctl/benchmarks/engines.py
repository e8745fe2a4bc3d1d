"""``bench decode RUN``: a trained run's engines side by side, on its own text.

Each engine translates the same lines with the same search: tokenising, searching and detokenising are timed, loading
is not. Those other than torch's are exports that are made in passing and kept in the run. They take turns, and a ratio
is taken within a round.
"""

from collections.abc import Callable, Sequence

import torch

from phmctl.benchmarks.decoding import evenly
from phmctl.benchmarks.ratios import Bench, compare, machine
from phmctl.console import silence
from phmctl.data.copies import read_text
from phmctl.decoding.engine import CTRANSLATE2, ENGINES, TORCH
from phmctl.decoding.loading import load_translator
from phmctl.decoding.translator import Translation, Translator
from phmctl.errors import UserError, check_known
from phmctl.export.engines import with_engine
from phmctl.metrics.text import bleu
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run


def bench_engines(
    run: Run,
    engines: Sequence[str] = (TORCH, CTRANSLATE2),
    *,
    checkpoint: str = "best",
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
) -> Bench:
    """Measure a run's engines.

    Args:
        run: a translator's run.
        engines: ``torch``, ``onnx``, ``ctranslate2`` or ``ctranslate2:int8``; the first is what the others are compared
            with.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``.
        split: whose sources are translated.
        sentences: how many, evenly chosen.
        rounds: samples of each engine.

    Returns:
        a row for each engine: `speed` is to the first engine's; `same` counts the best translations that equal the
        first engine's, `bleu` is of the best translations.

    Raises:
        UserError: no such engine.
        MissingExtraError: one is not installed.
        RunError: something of the run is missing or damaged.
    """
    settings = run.recipe_of(TranslationRecipe).decoding
    rows = evenly(len(read_text(run, split, "source")), sentences)
    lines, references = ([read_text(run, split, side)[row] for row in rows] for side in ("source", "target"))
    translators = {name: _translator(run, name, checkpoint) for name in dict.fromkeys(engines)}
    found: dict[str, list[list[Translation]]] = {}

    def candidate(name: str, translator: Translator) -> Callable[[], object]:
        def translate() -> None:
            with silence():
                found[name] = translator.translate(lines)

        return translate

    first = next(iter(translators))
    candidates = {name: candidate(name, translator) for name, translator in translators.items()}
    timings = compare("engines", candidates, rounds=rounds)
    best = {name: [each[0].text for each in translations] for name, translations in found.items()}
    scores = {name: bleu(texts, references) for name, texts in best.items()}
    measured = [
        {
            "engine": name,
            "search_seconds": timing.seconds,
            "sentences_per_second": len(lines) / timing.seconds.median,
            "speed": timing.ratio.inverse,
            "same": sum(one == other for one, other in zip(best[name], best[first], strict=True)),
            "bleu": scores[name].value,
        }
        for name, timing in timings.items()
    ]
    signature = scores[first].signature
    about = {"run": run.name, "split": split, "sentences": len(lines), "decoding": settings.model_dump()}
    title = f"{run.name}: {len(lines)} sentences of {split}, beam {settings.beam}, speed over {first}, BLEU {signature}"
    return Bench(title, {**about, "signature": signature, **machine()}, measured)


def _translator(run: Run, name: str, checkpoint: str) -> Translator:
    engine, _, quantize = name.partition(":")
    check_known("engine", engine, ENGINES)
    if quantize and engine != CTRANSLATE2:
        raise UserError(f"{name}: only ctranslate2 has types; write {engine}")
    chosen = with_engine(run, engine, checkpoint, quantize or None)
    checkpoint = checkpoint if chosen is run else "best"
    return load_translator(chosen, checkpoint, "cpu", cleaned=True, threads=torch.get_num_threads())
