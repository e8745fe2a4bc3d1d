"""Load a translator from a run or an export."""

from pathlib import Path

from phmctl import exports
from phmctl.data.card import Cleaning
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.ctranslate2_engine import CTranslate2Engine
from phmctl.decoding.model import about_run, check_export
from phmctl.decoding.search import Engine
from phmctl.decoding.translator import Translator
from phmctl.exports import Export
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import AUTO, Run
from phmctl.runs.copies import load_cleaning, load_tokenizers


def load_translator(
    run: Run,
    checkpoint: str = AUTO,
    device: str = "auto",
    decoding: DecodingSection | None = None,
    *,
    cleaned: bool = False,
    threads: int = 0,
    n_best: int | None = None,
    strict: bool = False,
) -> Translator:
    """Load the model and the tokenizers of a run or an export.

    Args:
        decoding: settings of the search; None: the recipe's.
        cleaned: do not clean the lines, because they are prepared text of the run. Cleaning twice would change them:
            ``&amp;lt;`` becomes ``&lt;``, and then ``<``.
        threads: CPU threads of CTranslate2 and onnxruntime; 0: the engine's default.
        n_best: translations of each line in :meth:`Translator.answer`.
        strict: raise an error for over-long lines in :meth:`Translator.answer`.

    Raises:
        RunError: a file is missing or damaged.
        MissingExtraError: the engine is not installed.
        UserError: an option does not apply to the export.
    """
    recipe = run.recipe_of(TranslationRecipe)
    tokenizers = load_tokenizers(run)
    settings = decoding or recipe.decoding
    engine: Engine
    if isinstance(run, Export):
        check_export(run, checkpoint, device, precision=settings.precision)
        engine = open_engine(run.to, run.folder, recipe.model, tokenizers, run.quantize, device=device, threads=threads)
    else:
        from phmctl.decoding.torch_models import engine_of_run

        engine = engine_of_run(run, checkpoint, device, tokenizers, settings)
    return Translator(
        engine,
        tokenizers,
        settings,
        max_tokens=recipe.data.max_tokens,
        cleaning=Cleaning() if cleaned else load_cleaning(run),
        n_best=n_best,
        strict=strict,
        about=about_run(run, checkpoint),
    )


def open_engine(
    to: str,
    folder: Path,
    section: TransformerSection,
    tokenizers: TokenizerPair,
    quantize: str | None = None,
    *,
    device: str = "auto",
    threads: int = 0,
) -> Engine:
    """Load the engine of an export. Raises MissingExtraError, RunError."""
    if to == exports.CTRANSLATE2:  # without loading torch
        return CTranslate2Engine(folder / exports.MODEL, tokenizers, quantize or exports.EXACT, threads)
    from phmctl.decoding.torch_models import engine_of_export

    return engine_of_export(to, folder, section, tokenizers, device, threads)
