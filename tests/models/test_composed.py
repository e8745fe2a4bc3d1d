"""Models with compositions: they stand where they are asked for, and sections refuse what cannot be."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from phmctl.assembly import build_classifier
from phmctl.recipe.models import EncoderClassifierSection, TransformerSection
from tests.models.test_transformer import BOTH, PLACES, SMALL, build, sentences


def test_what_is_composed_is_what_the_layers_put_out() -> None:
    """Not the embeddings, and the norm stands behind the composition."""
    model, source = build(compose_layers="linear"), sentences(1, 4)
    outputs: list[torch.Tensor] = []
    for layer in model.encoder:
        layer.register_forward_hook(lambda *found: outputs.append(found[-1]))
    states = model.encode(source).states
    composition = model.encoder.composition
    assert len(outputs) == 2
    torch.testing.assert_close(states, model.encoder_norm(composition(outputs)))  # type: ignore[misc]


@pytest.mark.parametrize("place", PLACES, ids=lambda p: "-".join(p.values()))
def test_the_model_begins_with_the_variance_of_the_base_model(place: dict[str, str]) -> None:
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
    composed = [model.encoder.composition, model.decoder[0].cross_attention.output]
    ns = {part.n for place in composed for part in place.modules() if hasattr(part, "n")}
    assert ns == {4 if maps == "algebra" else 1}
    assert model.encoder[0].feed_forward.expand.n == 4


@pytest.mark.parametrize("place", PLACES, ids=lambda p: "-".join(p.values()))
def test_an_encoder_classifier_has_them_too(place: dict[str, str]) -> None:
    section = EncoderClassifierSection(kind="encoder", width=16, feed_forward=32, heads=2, algebra="phm", n=4, **place)
    model = build_classifier(section, 20, 3)
    model(sentences(2, 5)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_run_folder_tells_them_apart() -> None:
    assert TransformerSection(**SMALL, **BOTH).variant == "real-layers-bilinear-heads-bilinear"
    assert TransformerSection(**SMALL, compose_heads="bilinear", algebra="phm", n=2).variant == "phm-n2-heads-bilinear"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compose_heads": "bilinear", "composition_rank": 0}, "greater than or equal to 1"),
        ({"compose_layers": "linear", "decoder_layers": 1}, "composes two or more, and decoder_layers = 1"),
        ({"compose_heads": "bilinear", "heads": 1}, "composes two or more, and heads = 1"),
        ({"compose_layers": "hierarchical", "encoder_layers": 3}, "not encoder_layers = 3"),
        ({"compose_heads": "hierarchical", "width": 24, "heads": 3}, "not heads = 3"),
        ({"composition_maps": "dense"}, "composition_maps: dense needs compose_layers or compose_heads"),
        ({"compose_heads": "bilinear", "composition_rank": 6, "algebra": "phm", "n": 4}, "composition_rank = 6"),
        ({"compose_heads": "hierarchical", "algebra": "phm", "n": 16}, "head width = 8"),
        ({"composition_rank": 8}, "composition_rank is for compose_layers"),
        ({"compose_layers": "linear", "first_order": False}, "first_order is for compose_layers"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TransformerSection(**(SMALL | changes))


def test_what_fits_all_the_same() -> None:
    # n divides neither the rank nor a head, but no map of it is made of them.
    build(compose_heads="bilinear", composition_rank=6, composition_maps="dense", algebra="phm", n=4)
    # 16 + 1 and 2·16 + 1 are not to be divided by n: the 1 is a bias.
    build(**BOTH, algebra="phm", n=4)
