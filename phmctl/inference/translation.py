"""Translators for programs, by any engine. Nothing here imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from phmctl.decoding.engine import TORCH
from phmctl.decoding.loading import load_translator
from phmctl.decoding.settings import change_decoding
from phmctl.decoding.translator import Translation, Translator
from phmctl.errors import UserError
from phmctl.inference.model import Model, Texts, check_texts, silent
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run


class TranslationModel(Model):
    """A translator for programs.

    Args:
        translator: does the work.
        name: the run's.
        about: further entries of :meth:`about`.
    """

    answers: Sequence[str] = ("translate",)

    def __init__(self, translator: Translator, name: str, about: Mapping[str, Any]) -> None:
        engine = {"engine": translator.engine.name, "decoding": translator.settings.model_dump()}
        super().__init__(name, "translation", {**engine, **about})
        self._translator = translator

    @silent
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        strict: bool = False,
    ) -> list[list[Translation]]:
        """Translate texts by beam search."""
        settings = change_decoding(self._translator.settings, beam=beam, alpha=alpha)
        if not 1 <= n_best <= settings.beam:
            raise UserError(f"n_best = {n_best} must be between 1 and beam = {settings.beam}")
        translator = self._translator.with_settings(settings)
        return translator.translate(check_texts(texts), n_best=n_best, strict=strict)

    @property
    def max_tokens(self) -> int | None:
        """The longest text that the model knows, in tokens."""
        return self._translator.max_source_tokens

    @silent
    def lengths(self, texts: Texts) -> list[int]:
        """Return the tokens of each text; of a pair (source, target) those of the longer one."""
        translator = self._translator
        if not texts or isinstance(texts, str) or not all(isinstance(text, tuple) for text in texts):
            return translator.lengths(check_texts(texts))
        sources, targets = (check_texts(side) for side in zip(*texts, strict=True))
        return [*map(max, translator.lengths(sources), map(len, translator.encode_targets(targets)))]


def load_run(run: Run, checkpoint: str, device: str, threads: int, precision: str | None) -> TranslationModel:
    """Load a run's or an export's translator; see :func:`phmctl.inference.loading.load`."""
    settings = change_decoding(run.recipe_of(TranslationRecipe).decoding, precision=precision)
    translator = load_translator(run, checkpoint, device, settings, threads=threads)
    about = {"folder": str(run.folder), "checkpoint": run.weights(checkpoint).name}
    if translator.engine.name != TORCH:
        return TranslationModel(translator, run.name, {**about, "device": "cpu"})
    from phmctl.inference.torch_translation import TorchTranslationModel

    return TorchTranslationModel(translator, run.name, about)
