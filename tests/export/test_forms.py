"""The dense twin, run by plain torch code, computes what the model computes."""

import pytest
import torch

from phmctl.errors import UserError
from phmctl.export.forms import dense_form
from phmctl.models import build
from phmctl.models.transformer import Transformer
from phmctl.plain import MODELS
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, TransformerSection

SMALL = {"width": 32, "feed_forward": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
PHM4 = {"algebra": "phm", "n": 4}
TRANSFORMERS = {
    "real": {},
    "phm": PHM4,
    "factors": PHM4 | {"rank": 5},
    "shared-rule": PHM4 | {"rules": "model"},
    "quaternion-separate": {"algebra": "quaternion", "projections": "separate"},
    "packed": PHM4 | {"projections": "packed"},
    "post-norm": PHM4 | {"norm": "post"},
    "no-final-norm": {"norm": "post", "final_norm": False},
    "phm-tables": PHM4 | {"embeddings": "phm"},
    "narrow-tables": PHM4 | {"embedding_width": 16},
    "phm-generator": PHM4
    | {"embeddings": "phm", "generator": "phm", "generator_bias": True, "share_embeddings": False},
    "dense-generator": {"generator": "dense", "generator_bias": True},
    "own-tables-tied": {"share_embeddings": False},
    "no-bias": PHM4 | {"bias": False},
    "upsized": PHM4 | {"upsize": 2},
    "octonion": {"algebra": "octonion"},
}
CLASSIFIERS = {
    "encoder-last": EncoderClassifierSection(kind="encoder", width=32, feed_forward=64, heads=4, **PHM4),
    "encoder-mean": EncoderClassifierSection(kind="encoder", width=32, feed_forward=64, heads=4, pooling="mean"),
    "pair": PairClassifierSection(kind="lstm-pair", width=20, embedding_width=12, hidden=8, **PHM4),
    "pair-fused": PairClassifierSection(
        kind="lstm-pair", width=20, embedding_width=12, hidden=8, gates="fused", combination="full", **PHM4
    ),
    "pair-unbiased": PairClassifierSection(kind="lstm-pair", width=20, embedding_width=12, hidden=8, bias=False),
}


def scattered(model):
    """Add noise to every parameter, since norms start at one and biases at zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def section(settings):
    return TransformerSection(**(SMALL | settings))


def transformer(settings, source=42, target=42):
    torch.manual_seed(1)
    return scattered(Transformer(section(settings), source, target))


def ids(rows, length, vocabulary, seed=1):
    """Return random ids, each row closed by 3; all rows but the first end with padding."""
    ids = torch.randint(4, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))
    for row in range(rows):
        ids[row, length - row :] = 0
        ids[row, length - row - 1] = 3
    return ids


def rebuilt(form):
    model = MODELS[form.config["kind"]](form.config)
    model.load_state_dict(form.all_tensors())
    return model.eval()


@pytest.mark.parametrize("name", TRANSFORMERS)
@torch.no_grad()
def test_a_transformers_logits_are_those_of_its_plain_twin(name):
    settings = TRANSFORMERS[name]
    sizes = (42, 42) if settings.get("share_embeddings", True) else (42, 39)
    model = transformer(settings, *sizes)
    plain = rebuilt(dense_form(model, section(settings), {"source": sizes[0], "target": sizes[1]}))
    source, target = ids(3, 9, sizes[0]), ids(3, 6, sizes[1], seed=2)
    ours = model.logits(model(source, target))[..., : sizes[1]]
    torch.testing.assert_close(plain(source, target), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", [{"compose_layers": "linear"}, {"compose_heads": "bilinear"}])
def test_a_composed_model_has_no_plain_twin(place):
    with pytest.raises(UserError, match="compose_"):
        dense_form(transformer(place), section(place), {"source": 42, "target": 42})


@pytest.mark.parametrize("name", CLASSIFIERS)
@torch.no_grad()
def test_a_classifiers_logits_are_those_of_its_plain_twin(name):
    settings = CLASSIFIERS[name]
    torch.manual_seed(1)
    model = scattered(build(settings, {"vocabulary": 42, "classes": 3}))
    plain = rebuilt(dense_form(model, settings, {"vocabulary": 42}))
    texts = [ids(3, 7, 42)] if settings.kind == "encoder" else [ids(3, 7, 42), ids(3, 5, 42, seed=2)]
    texts[0][2] = 0  # a text without tokens
    torch.testing.assert_close(plain(*texts), model(*texts), rtol=1e-4, atol=1e-5)
