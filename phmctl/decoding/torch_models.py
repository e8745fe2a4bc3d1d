"""Load the engines of our beam search, which needs torch: the models of torch and of onnxruntime."""

from pathlib import Path

from phmctl import exports, plain
from phmctl.assembly import build_transformer, trained
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.beam import BeamEngine, TorchEngine
from phmctl.decoding.onnx_engine import OnnxEngine
from phmctl.devices import pick_device, takes_bfloat16, torch_defaults
from phmctl.nn.convert import to_dense
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.saving import load_model


@torch_defaults()
def engine_of_run(
    run: Run, checkpoint: str, device: str, tokenizers: TokenizerPair, settings: DecodingSection
) -> TorchEngine:
    """Load a checkpoint's dense model. Raises RunError."""
    section = run.recipe_of(TranslationRecipe).model
    untrained = build_transformer(section, tokenizers.source.size, tokenizers.target.size, "meta")
    model = to_dense(trained(untrained, run, checkpoint, pick_device(device)), inplace=True)
    target = next(model.parameters()).device
    if settings.precision == "bfloat16" and takes_bfloat16(target, "decoding.precision"):
        model = model.bfloat16()
    return TorchEngine(model, target)


@torch_defaults()
def engine_of_export(
    to: str, folder: Path, section: TransformerSection, tokenizers: TokenizerPair, device: str, threads: int
) -> BeamEngine:
    """Load an export to ONNX or safetensors. Raises MissingExtraError, RunError."""
    if to == exports.ONNX:
        return OnnxEngine(folder, threads)
    target = pick_device(device)
    generator = "tied" if section.generator == "tied" else "dense"
    changes = {"projections": "separate", "embeddings": "dense", "embedding_width": None, "generator": generator}
    exported_section = section.dense_twin.model_copy(update=changes)
    model = build_transformer(exported_section, tokenizers.source.size, tokenizers.target.size, "meta")
    load_model(model, plain.read(folder)[1], folder, target)
    return TorchEngine(to_dense(model.eval(), inplace=True), target)
