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
from phmctl.errors import UserError
from phmctl.exports import Export
from phmctl.recipe.schema import DecodingSection, TransformerSection, TranslationRecipe
from phmctl.runs import AUTO, Run

if TYPE_CHECKING:
    import torch


def load_translator(
    run: Run,
    checkpoint: str = AUTO,
    device: str = "auto",
    decoding: DecodingSection | None = None,
    *,
    cleaned: bool = False,
    keep_factors: bool = True,
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
        keep_factors: where the maps are to be applied by rank, write the factors that are found into the run.
        threads: of an engine that has its own; 0 leaves its choice. torch's are the process's.

    Raises:
        RunError: the checkpoint, the tokenizer or the data's manifest is missing or damaged.
        MissingExtraError: an export's engine is not installed.
        UserError: the engine cannot do what is asked.
    """
    recipe = run.recipe_of(TranslationRecipe)
    tokenizers = load_tokenizers(run)
    settings = decoding or recipe.decoding
    if isinstance(run, Export):
        engine = _engine_of_export(run, checkpoint, device, settings, tokenizers, threads)
    else:
        engine = _engine_of_run(run, checkpoint, device, settings, tokenizers, keep_factors=keep_factors)
    return Translator(
        engine,
        tokenizers,
        settings,
        max_source_tokens=recipe.data.max_tokens,
        cleaning=Cleaning() if cleaned else load_cleaning(run),
    )


def _engine_of_run(
    run: Run, checkpoint: str, device: str, settings: DecodingSection, tokenizers: TokenizerPair, *, keep_factors: bool
) -> Engine:
    from phmctl.assembly import build_transformer
    from phmctl.checkpoints import load_model, read_checkpoint
    from phmctl.decoding.torch_engine import TorchEngine
    from phmctl.devices import pick_device
    from phmctl.nn.kept_factors import set_execution

    target = pick_device(device)
    recipe = run.recipe_of(TranslationRecipe)
    model = build_transformer(recipe.model, tokenizers.source.size, tokenizers.target.size, "meta")
    folder = run.checkpoint(checkpoint)
    load_model(model, read_checkpoint(folder, ("model",)).tensors["model"], folder, target)
    set_execution(model.eval(), settings.execution, folder, keep=keep_factors)
    engine = TorchEngine(model, target, _kept_in(settings, target))
    engine.scope.hold()  # nobody trains it further: H is built once
    return engine


def _kept_in(settings: DecodingSection, device: "torch.device") -> "torch.dtype | None":
    """Return the dtype that weights are kept in, None for their own; warns where the device has it not."""
    import torch

    asked = settings.precision == "bfloat16"
    return torch.bfloat16 if asked and takes_bfloat16(device, "decoding.precision") else None


def _engine_of_export(
    export: Export, checkpoint: str, device: str, settings: DecodingSection, tokenizers: TokenizerPair, threads: int
) -> Engine:
    folder = export.checkpoint(checkpoint)
    if settings.execution is not None:
        raise UserError(f"--execution: {folder} holds H itself; leave it out, or decode with the run")
    if settings.precision is not None:
        raise UserError(f"precision {settings.precision!r}: {folder} has its own; leave it out, or decode with the run")
    export.verify()
    section = export.recipe_of(TranslationRecipe).model
    quantize = str(export.manifest.get("quantize"))
    return open_engine(export.to, folder, section, tokenizers, quantize=quantize, device=device, threads=threads)


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
    """Return the engine of an export's files.

    Args:
        to: the format.
        folder: the export.
        section: the run's model.
        tokenizers: of both sides.
        quantize: CTranslate2's type.
        device: where torch computes; the other engines have the CPU.
        threads: of an engine that has its own.

    Raises:
        MissingExtraError: the engine is not installed.
        RunError: the files cannot be read.
        UserError: the engine cannot do what is asked, or the format has none.
    """
    if to in (exports.SAFETENSORS, exports.TORCH):
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
    from phmctl.models.plain_weights import read_plain

    target = pick_device(device)
    generator = "tied" if section.generator == "tied" else "dense"
    plain = {"projections": "separate", "embeddings": "dense", "generator": generator}
    dense = section.dense_twin.model_copy(update=plain)
    model = build_transformer(dense, tokenizers.source.size, tokenizers.target.size, "meta")
    load_model(model, read_plain(folder), folder, target)
    return TorchEngine(model.eval(), target)
