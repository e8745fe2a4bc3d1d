"""The model zoo: build models from the `model` sections of recipes, and load trained models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phmctl.models.classifiers import EncoderClassifier, PairClassifier, Probe, RuleModel
from phmctl.models.transformer import Device, Transformer
from phmctl.recipe.models import LinearSection
from phmctl.saving import load_model

# By `kind`. The arguments are the section, the sizes of the task by name, and the device.
MODELS: dict[str, Any] = {
    "transformer": Transformer,
    "encoder": EncoderClassifier,
    "lstm-pair": PairClassifier,
    "probe": Probe,
    "rule": RuleModel,
}


def build(section: LinearSection, sizes: Mapping[str, int], device: Device = None) -> nn.Module:
    """Build the untrained model of a section. On the device ``meta`` no memory is allocated.

    Raises:
        DimensionError: n does not divide a dimension.
    """
    model: nn.Module = MODELS[section.kind](section, **sizes, device=device)
    return model


def load(
    section: LinearSection,
    sizes: Mapping[str, int],
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    device: torch.device,
) -> nn.Module:
    """Return the model of a section with the tensors of a file at `path`, in evaluation mode. Raises RunError."""
    model = build(section, sizes, "meta")
    load_model(model, tensors, path, device)
    return model.eval()
