"""Probing, as the commands know it: :mod:`phmctl.probes` does it, for ``eval --probing``."""

from __future__ import annotations  # what a method works with is imported in it

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.recipe.models import ProbeSection
from phmctl.recipe.schema import ProbingRecipe
from phmctl.tasks.base import Sizes, TaskKind

if TYPE_CHECKING:
    import torch
    from torch import nn

_WIDTH, _CLASSES = 512, 2  # counted where no encoder, and no data, is there to tell


class ProbingKind(TaskKind[ProbingRecipe]):
    """A perceptron on the vectors of a frozen encoder: no run of its own."""

    recipe = ProbingRecipe
    commands = ("eval RUN --probing", "count-params")

    def sizes(self, recipe: ProbingRecipe, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared.folder import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        classes = _CLASSES if trained is None else trained[1]
        return Sizes({"width": _WIDTH, "classes": classes}, f"vectors {_WIDTH} wide, {classes} classes")

    def build(
        self, settings: ProbeSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_probe

        return build_probe(settings, sizes["width"], sizes["classes"], device)

    def notes(self, settings: ProbeSection, sizes: Mapping[str, int]) -> tuple[str]:
        return (f"the probe alone: it reads vectors {sizes['width']} wide; the encoder that makes them is not counted",)


KIND = ProbingKind()
