"""Decoding on a GPU gives the results of the CPU, with few synchronisations; skipped without a GPU."""

import copy

import pytest
import torch

from phmctl.answering.beam import BeamEngine, _Search, beam_search
from phmctl.answering.translator import Translator
from phmctl.recipe.schema import DecodingSection
from tests.answering.conftest import TEXT, Kit, sharp_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PHM = {"algebra": "phm", "n": 4}


@pytest.mark.parametrize("beam", [1, 4])
def test_texts_equal_those_of_the_cpu(kit: Kit, beam: int) -> None:
    settings = DecodingSection(beam=beam, max_extra=4, max_ratio=1.0)
    best = {}
    for device in ("cpu", "cuda"):
        engine = BeamEngine(copy.deepcopy(kit.model).to(device), torch.device(device))
        translations = Translator(engine, kit.tokenizers, settings).translate(TEXT[:6])
        best[device] = [candidates[0] for candidates in translations]
    assert [item.text for item in best["cuda"]] == [item.text for item in best["cpu"]]
    scores = [item.score for item in best["cpu"]]
    assert [item.score for item in best["cuda"]] == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize("settings", [{}, PHM, PHM | {"projections": "packed"}], ids=["real", "phm", "packed"])
def test_hypotheses_equal_those_of_the_cpu(settings: dict[str, object]) -> None:
    model = sharp_model(40, **settings)
    source = torch.randint(4, 40, (5, 9), generator=torch.Generator().manual_seed(1))
    source[:2, 6:] = 0
    limits = [9, 3, 12, 0, 7]
    tokens = {}
    for device in ("cpu", "cuda"):
        copied = copy.deepcopy(model).to(device)
        results = beam_search(copied, source.to(device), beam=4, alpha=0.6, max_lengths=limits, allowed=38, n_best=4)
        tokens[device] = [[h.tokens for h in hypotheses] for hypotheses in results]
    assert tokens["cuda"] == tokens["cpu"]


@torch.no_grad()
def test_a_step_does_not_wait_for_the_device() -> None:
    model = sharp_model(40, **PHM).to("cuda")
    source = torch.randint(4, 40, (3, 6), device="cuda")
    limits = torch.tensor([20, 20, 20], device="cuda")
    state = model.start(model.encode(source), 1, 21)
    search = _Search(limits, 20, beam=4, n_best=1, alpha=0.6, allowed=40)
    state.reorder(search.advance(model.step(search.last, state)))  # the first step initialises the layers
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            state.reorder(search.advance(model.step(search.last, state)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert search.length == 6
