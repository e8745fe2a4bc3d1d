"""Torch's own engine: :func:`~phmctl.decoding.beam.beam_search` of a model in this process."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from phmctl.data.special import PAD
from phmctl.decoding.beam import beam_search
from phmctl.decoding.engine import TORCH, longest_outputs
from phmctl.decoding.hypothesis import Hypothesis
from phmctl.nn.caching import cached
from phmctl.recipe.schema import DecodingSection

VARIABLE = "PHMCTL_CUDA_GRAPHS"


class BeamEngine:
    """What engines have in common that search with this package's beam search.

    Attributes:
        model: a :class:`phmctl.decoding.beam.Seq2Seq` on `device`.
        device: where sentences are searched.
    """

    model: Any
    device: torch.device

    def search(
        self, sources: Sequence[Sequence[int]], settings: DecodingSection, *, allowed: int, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Search one batch; see :class:`~phmctl.decoding.engine.Engine`."""
        with self.stepwise() as model:
            return beam_search(
                model,
                pad(sources).to(self.device),
                beam=settings.beam,
                alpha=settings.alpha,
                max_lengths=longest_outputs(sources, settings),
                allowed=allowed,
                n_best=n_best,
            )

    @contextmanager
    def stepwise(self) -> Iterator[Any]:
        """Give what one batch is searched by."""
        yield self.model


class TorchEngine(BeamEngine):
    """Beam search of a torch model.

    Args:
        model: a :class:`phmctl.decoding.beam.Seq2Seq` on `device`.
        device: where sentences are searched.
        dtype: that weights are kept in, see :class:`phmctl.cached`; None: as they are.

    On CUDA the environment variable ``PHMCTL_CUDA_GRAPHS=1`` has steps recorded and replayed
    (:mod:`phmctl.decoding.graphs`).
    """

    name = TORCH

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> None:
        self.model: Any = model
        self.device = device
        self.graphed = device.type == "cuda" and os.environ.get(VARIABLE, "0") not in ("", "0")
        self.scope = cached(dtype)  # one for all threads that search; whoever holds it open keeps H between searches

    @contextmanager
    def stepwise(self) -> Iterator[Any]:
        """Give the model, or what replays its steps for one batch."""
        if not self.graphed or torch.is_autocast_enabled(self.device.type):  # whose copies of weights do not stay
            yield self.model
            return
        from phmctl.decoding.graphs import Graphed  # it brings the model, which an export's engine does without

        graphed = Graphed(self.model)
        try:
            yield graphed
        finally:
            graphed.release()

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model in evaluation mode for a while. One that is in it is left as it is: others may use it now."""
        training = self.model.training
        if training:
            self.model.eval()
        try:
            with self.scope:
                yield
        finally:
            if training:
                self.model.train()


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of ids as one tensor (B, S), PAD behind the shorter ones."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
