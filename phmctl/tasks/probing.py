"""Probing as a task: its parameters are counted; ``eval --probing`` (:mod:`phmctl.probes`) trains the probes."""

from __future__ import annotations  # torch is imported when a probe is built

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.recipe.models import ProbeSection
from phmctl.recipe.schema import ProbingRecipe
from phmctl.tasks.base import Sizes, TaskKind

if TYPE_CHECKING:
    import torch
    from torch import nn

_WIDTH = 512  # width of the vectors for parameter counts without an encoder


class ProbingKind(TaskKind[ProbingRecipe]):
    """The task ``probing``: its models are probes, not runs."""

    recipe = ProbingRecipe
    commands = ("eval RUN --probing", "count-params")

    def sizes(self, recipe: ProbingRecipe, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        classes = 2 if trained is None else trained[1]
        return Sizes({"width": _WIDTH, "classes": classes}, f"vectors {_WIDTH} wide, {classes} classes")

    def build(
        self, settings: ProbeSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_probe

        return build_probe(settings, sizes["width"], sizes["classes"], device)

    def notes(self, settings: ProbeSection, sizes: Mapping[str, int]) -> tuple[str]:
        return (f"the probe of vectors {sizes['width']} wide, without the encoder that computes them",)
