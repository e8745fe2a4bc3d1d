"""Models with compositions, and the errors of invalid compositions."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from phmctl.models.classifiers import EncoderClassifier
from phmctl.recipe.models import EncoderClassifierSection, TransformerSection
from tests.models.test_transformer import BOTH, PLACES, SMALL, build, sentences


def test_a_composition_gets_the_layers_outputs() -> None:
    """It does not get the embeddings, and it precedes the norm."""
    model, source = build(compose_layers="linear"), sentences(1, 4)
    outputs: list[torch.Tensor] = []
    for layer in model.encoder:
        layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    states = model.encode(source).states
    assert len(outputs) == 2
    torch.testing.assert_close(states, model.encoder_norm(model.encoder.composition(outputs)))  # type: ignore[misc]


@pytest.mark.parametrize("place", PLACES, ids=lambda p: "-".join(p.values()))
def test_the_initial_variance_is_the_base_models(place: dict[str, str]) -> None:
    shape = {"width": 64, "feed_forward": 128, "encoder_layers": 4, "decoder_layers": 4, "norm": "post"}
    source = sentences(8, 20)
    spreads = []
    for changes in ({}, place):
        model = build(**shape, final_norm=False, **changes)
        with torch.no_grad():
            memory = model.encode(source)
            spreads.append([memory.states.std().item(), model.decode(memory, source).std().item()])
    for base, composed in zip(*spreads, strict=True):
        assert composed == pytest.approx(base, rel=0.15)


@pytest.mark.parametrize("maps", ["algebra", "dense"])
def test_maps_follow_the_algebra_or_stay_dense(maps: str) -> None:
    model = build(**BOTH, algebra="phm", n=4, composition_maps=maps)
    compositions = [model.encoder.composition, model.decoder[0].cross_attention.output]
    ns = {module.n for composition in compositions for module in composition.modules() if hasattr(module, "n")}
    assert ns == {4 if maps == "algebra" else 1}
    assert model.encoder[0].feed_forward.expand.n == 4


@pytest.mark.parametrize("place", PLACES, ids=lambda p: "-".join(p.values()))
def test_an_encoder_classifier_with_compositions(place: dict[str, str]) -> None:
    section = EncoderClassifierSection(kind="encoder", width=16, feed_forward=32, heads=2, algebra="phm", n=4, **place)
    model = EncoderClassifier(section, 20, 3)
    model(sentences(2, 5)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_variant_includes_the_compositions() -> None:
    assert TransformerSection(**SMALL, **BOTH).variant == "real-layers-bilinear-heads-bilinear"
    assert TransformerSection(**SMALL, compose_heads="bilinear", algebra="phm", n=2).variant == "phm-n2-heads-bilinear"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"compose_layers": "linear", "decoder_layers": 1}, "decoder_layers = 1"),
        ({"compose_heads": "hierarchical", "width": 24, "heads": 3}, "heads = 3"),
        ({"composition_maps": "dense"}, "composition_maps"),
        ({"compose_heads": "bilinear", "composition_rank": 6, "algebra": "phm", "n": 4}, "composition_rank = 6"),
        ({"compose_heads": "hierarchical", "algebra": "phm", "n": 16}, "head width = 8"),
    ],
)
def test_invalid_compositions(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        TransformerSection(**(SMALL | changes))


def test_sizes_that_n_need_not_divide() -> None:
    # n divides neither the rank nor the head width, but the composition is dense.
    build(compose_heads="bilinear", composition_rank=6, composition_maps="dense", algebra="phm", n=4)
