"""From a run or an export to what translates: its engine, its tokenizers, its settings.

What an engine wants is imported with it: torch is not for an export to CTranslate2.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from phmctl import exports
from phmctl.data.card import Cleaning
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.engine import Engine
from phmctl.decoding.translator import Translator
from phmctl.devices import takes_bfloat16
from phmctl.errors import RunError, UserError
from phmctl.exports import Export
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import AUTO, Run

if TYPE_CHECKING:
    from phmctl.models.transformer import Transformer


def load_translator(
    run: Run,
    checkpoint: str = AUTO,
    device: str = "auto",
    decoding: DecodingSection | None = None,
    *,
    cleaned: bool = False,
    threads: int = 0,
) -> Translator:
    """Load a run's model and tokenizers, ready to translate; or an export's.

    Args:
        run: the run or the export.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``.
        decoding: beam search settings other than the recipe's.
        cleaned: the lines will be the run's own text, which has been cleaned already. Twice is once too often:
            ``&amp;lt;`` stands for ``&lt;``, and that for ``<``.
        threads: of an engine that has its own; 0 leaves its choice. torch's are the process's.

    Raises:
        RunError: the checkpoint, the tokenizer or the data's manifest is missing or damaged.
        MissingExtraError: an export's engine is not installed.
        UserError: the engine cannot do what is asked.
    """
    recipe = run.recipe_of(TranslationRecipe)
    tokenizers, settings = load_tokenizers(run), decoding or recipe.decoding
    if isinstance(run, Export):
        folder = run.checkpoint(checkpoint)
        for option, value in (("execution", settings.execution), ("precision", settings.precision)):
            if value is not None:
                raise UserError(f"--{option} {value}: {folder} has its own; leave it out, or decode with the run")
        run.verify()
        quantize = str(run.manifest.get("quantize"))
        engine = open_engine(
            run.to, folder, recipe.model, tokenizers, quantize=quantize, device=device, threads=threads
        )
    else:
        from phmctl.assembly import answering
        from phmctl.decoding.torch_engine import TorchEngine

        model = answering(load_transformer(run, checkpoint, device, tokenizers), settings.execution)
        target = next(model.parameters()).device
        if settings.precision == "bfloat16" and takes_bfloat16(target, "decoding.precision"):
            model = model.bfloat16()
        engine = TorchEngine(model, target)
    cleaning = Cleaning() if cleaned else load_cleaning(run)
    return Translator(engine, tokenizers, settings, max_source_tokens=recipe.data.max_tokens, cleaning=cleaning)


def load_transformer(run: Run, checkpoint: str, device: str, tokenizers: TokenizerPair) -> "Transformer":
    """Load a run's trained model as it was trained, in evaluation mode. Raises RunError."""
    from phmctl.assembly import build_transformer, trained
    from phmctl.devices import pick_device

    section = run.recipe_of(TranslationRecipe).model
    model = build_transformer(section, tokenizers.source.size, tokenizers.target.size, "meta")
    return trained(model, run, checkpoint, pick_device(device))


def open_engine(
    to: str,
    folder: Path,
    section: TransformerSection,
    tokenizers: TokenizerPair,
    *,
    quantize: str = "float32",
    device: str = "auto",
    threads: int = 0,
) -> Engine:
    """Return the engine of an export's files. Raises MissingExtraError, RunError, UserError."""
    if to == exports.SAFETENSORS:
        return _dense_engine(folder, section, device, tokenizers)
    if device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: an export to {to} runs on the CPU here; leave it out")
    if to == exports.CTRANSLATE2:
        from phmctl.decoding.ctranslate2_engine import CTranslate2Engine

        return CTranslate2Engine(folder / exports.MODEL, tokenizers, quantize, threads)
    if to == exports.ONNX:
        from phmctl.decoding.onnx_engine import OnnxEngine

        return OnnxEngine(folder, threads)
    raise exports.no_engine(folder)


def _dense_engine(folder: Path, section: TransformerSection, device: str, tokenizers: TokenizerPair) -> Engine:
    """Return torch's engine on the dense twin: what an export to torch's own forms holds."""
    from phmctl.assembly import build_transformer
    from phmctl.checkpoints import load_model
    from phmctl.decoding.torch_engine import TorchEngine
    from phmctl.devices import pick_device
    from phmctl.models import plain
    from phmctl.nn.convert import to_dense

    target = pick_device(device)
    generator = "tied" if section.generator == "tied" else "dense"
    settings = {"projections": "separate", "embeddings": "dense", "generator": generator}
    twin = section.dense_twin.model_copy(update=settings)
    model = build_transformer(twin, tokenizers.source.size, tokenizers.target.size, "meta")
    try:
        _, tensors = plain.read(folder)
    except Exception as error:  # each library has errors of its own
        raise RunError(f"the weights in {folder} cannot be read: {error}; make the export anew") from error
    load_model(model, tensors, folder, target)
    return TorchEngine(to_dense(model.eval(), inplace=True), target)
