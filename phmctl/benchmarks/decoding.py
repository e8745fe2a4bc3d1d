"""``bench decode``: beam search of a recipe's model against its dense twin's, over padded batches of token ids.

The models are untrained, so each sentence is searched to the length of its reference: ending earlier is forbidden.
Reading, tokenising and printing are not timed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phmctl.assembly import build_transformer
from phmctl.benchmarks.ratios import Bench, Timing, compare, machine
from phmctl.benchmarks.training import variants_of
from phmctl.console import silence
from phmctl.data.copies import read_text
from phmctl.data.prepared.folder import PreparedData, data_root
from phmctl.data.special import EOS
from phmctl.decoding.beam import Seq2Seq, beam_search, pad
from phmctl.decoding.translator import (
    ENGINES,
    Hypothesis,
    Translation,
    Translator,
    load_translator,
    plan,
)
from phmctl.devices import pick_device, set_threads
from phmctl.errors import UserError, check_known
from phmctl.export import with_engine
from phmctl.exports import CTRANSLATE2
from phmctl.metrics.text import bleu
from phmctl.nn.convert import to_dense
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run

_NEVER = -1e4  # added to the logit of EOS


def bench_decoding(
    recipe: TranslationRecipe,
    data: Path | None = None,
    *,
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
    baseline: str = "dense",
) -> Bench:
    """Measure beam search on a split of a recipe's prepared data, by the dense copy that translates.

    The arguments are the options of ``bench decode``.

    Returns:
        a row for each candidate; `speed` is to the baseline's.

    Raises:
        DataError: the data is not prepared, or has no such split.
        UserError: there is no such candidate.
    """
    variants = variants_of(recipe)
    check_known("candidate", baseline, list(variants))
    prepared = PreparedData.find(recipe.data, data or data_root())
    texts = prepared.split(split)
    rows = evenly(len(texts), sentences)
    sources = [[*map(int, texts.source[row]), EOS] for row in rows]
    lengths = [len(texts.target[row]) for row in rows]
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    sizes = prepared.tokenizers.source.size, prepared.tokenizers.target.size
    searches: dict[str, Callable[[], object]] = {}
    for name, each in variants.items():
        model: Any = to_dense(build_transformer(each.model, *sizes, device).eval())
        searches[name] = searcher(model, sources, lengths, recipe, sizes[1])
    timings = compare("searches", searches, rounds=rounds, baseline=baseline, device=device)
    measured = [{"candidate": name, **_speed(timing, len(rows))} for name, timing in timings.items()]
    beam = recipe.decoding.beam
    about = {"recipe": recipe.name, "sentences": len(rows), "output_tokens": sum(lengths) + len(lengths), "beam": beam}
    about |= {"batch_tokens": recipe.decoding.batch_tokens, "baseline": baseline}
    title = f"{recipe.name}: {len(rows)} sentences, beam {beam}, speed over {baseline}"
    return Bench(title, {**about, **machine(device)}, measured)


def _speed(timing: Timing, sentences: int) -> dict[str, Any]:
    rate = sentences / timing.seconds.median
    return {"search_seconds": timing.seconds, "sentences_per_second": rate, "speed": timing.ratio.inverse}


def evenly(total: int, count: int) -> list[int]:
    """Return `count` of the numbers below a total, evenly apart; all where there are not so many."""
    count = min(count, total)
    return [row * total // count for row in range(count)]


class _Endless:
    """A model that ends no sentence before its longest output."""

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        self.encode, self.start = model.encode, model.start

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        logits = self._model.step(tokens, state)  # (B, K, V)
        logits[..., EOS] += _NEVER
        return logits


def searcher(
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    lengths: Sequence[int],
    recipe: TranslationRecipe,
    allowed: int,
) -> Callable[[], list[list[Hypothesis]]]:
    """Return a function that searches sources to so many tokens each, in the recipe's batches and by its beam."""
    decoding, device, endless = recipe.decoding, pick_device(recipe.training.device), _Endless(model)
    batches = [
        (pad([sources[row] for row in rows]).to(device), [lengths[row] for row in rows])
        for rows in plan([len(source) for source in sources], decoding.batch_tokens)
    ]

    def search() -> list[list[Hypothesis]]:
        best = []
        for source, longest in batches:
            best += beam_search(
                endless, source, beam=decoding.beam, alpha=decoding.alpha, max_lengths=longest, allowed=allowed
            )
        return best

    return search


def bench_engines(
    run: Run,
    engines: Sequence[str],
    *,
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
) -> Bench:
    """Measure a translator's engines, on text of its run.

    The arguments are the options of ``bench decode``.

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
    translators = {name: _translator(run, name) for name in dict.fromkeys(engines)}
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
            **_speed(timing, len(lines)),
            "same": sum(one == other for one, other in zip(best[name], best[first], strict=True)),
            "bleu": scores[name].value,
        }
        for name, timing in timings.items()
    ]
    signature = scores[first].signature
    about = {"run": run.name, "split": split, "sentences": len(lines), "decoding": settings.model_dump()}
    title = f"{run.name}: {len(lines)} sentences of {split}, beam {settings.beam}, speed over {first}, BLEU {signature}"
    return Bench(title, {**about, "signature": signature, **machine()}, measured)


def _translator(run: Run, name: str) -> Translator:
    engine, _, quantize = name.partition(":")
    check_known("engine", engine, ENGINES)
    if quantize and engine != CTRANSLATE2:
        raise UserError(f"{name}: only ctranslate2 has types; write {engine}")
    chosen = with_engine(run, engine, "best", quantize or None)
    return load_translator(chosen, "best", "cpu", cleaned=True, threads=torch.get_num_threads())
