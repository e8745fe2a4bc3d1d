"""Load torch's models: of a run's checkpoint, and of exports to safetensors and ONNX."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from phmctl import plain
from phmctl.answering.beam import BeamEngine, TorchEngine
from phmctl.answering.onnx import OnnxClassifier, OnnxEngine
from phmctl.data.tokenizer import TokenizerPair
from phmctl.devices import pick_device, torch_defaults
from phmctl.errors import RunError
from phmctl.models.assembly import build_classifier, build_transformer, trained
from phmctl.nn.convert import to_dense
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import ClassificationRecipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.copies import load_labels
from phmctl.saving import load_model


@torch_defaults()
def trained_model(run: Run, checkpoint: str, device: torch.device, tokenizers: TokenizerPair) -> nn.Module:
    """Return the model of a checkpoint as trained, in evaluation mode. Raises RunError."""
    recipe = run.recipe
    if isinstance(recipe, TranslationRecipe):
        model: nn.Module = build_transformer(recipe.model, tokenizers.source.size, tokenizers.target.size, "meta")
    else:
        section = run.recipe_of(ClassificationRecipe).model
        model = build_classifier(section, tokenizers.source.size, len(load_labels(run)), device="meta")
    return trained(model, run, checkpoint, device)


@torch_defaults()
def dense_model(run: Run, checkpoint: str, device: torch.device, tokenizers: TokenizerPair) -> nn.Module:
    """Return the dense copy of a checkpoint's model, which answers faster. Raises RunError."""
    return to_dense(trained_model(run, checkpoint, device, tokenizers), inplace=True)


@torch_defaults()
def engine_of_export(
    to: str, folder: Path, section: TransformerSection, tokenizers: TokenizerPair, device: str, threads: int
) -> BeamEngine:
    """Load a translator's export to ONNX or safetensors. Raises MissingExtraError, RunError."""
    if to == OnnxEngine.name:
        return OnnxEngine(folder, threads)
    target = pick_device(device)
    generator = "tied" if section.generator == "tied" else "dense"
    changes = {"projections": "separate", "embeddings": "dense", "embedding_width": None, "generator": generator}
    exported_section = section.dense_twin.model_copy(update=changes)
    model = build_transformer(exported_section, tokenizers.source.size, tokenizers.target.size, "meta")
    load_model(model, plain.read(folder)[1], folder, target)
    return TorchEngine(to_dense(model.eval(), inplace=True), target)


@torch_defaults()
def open_classifier(to: str, folder: Path, vocabulary: int, device: torch.device, threads: int = 0) -> nn.Module:
    """Load the model of a classifier's export. Raises MissingExtraError, RunError."""
    if to == OnnxEngine.name:
        return OnnxClassifier(folder, threads)
    model: Any = plain.load(folder)
    rows = model.embedding.num_embeddings
    if rows != vocabulary:
        raise RunError(f"{folder} has a table of {rows} tokens and a tokenizer of {vocabulary}; export the run again")
    trained_module: nn.Module = model.to(device)
    return trained_module
