"""The classifiers: equal to torch's modules on dense weights, independent of batch and padding, able to learn."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data import PAD
from phmctl.errors import DimensionError
from phmctl.models import MODELS
from phmctl.models.classifiers import EncoderClassifier, PairClassifier
from phmctl.models.transformer import embed
from phmctl.nn.linear import PHMLinear
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection
from tests.models.test_against_torch import copy_layer

VOCABULARY = 12
SMALL: dict[str, dict[str, Any]] = {
    "encoder": {"kind": "encoder", "width": 16, "feed_forward": 24, "heads": 2, "dropout": 0.0},
    "lstm-pair": {"kind": "lstm-pair", "width": 20, "embedding_width": 10, "hidden": 7, "dropout": 0.0},
}
TEXTS = [[4, 5, 6, 7, 8], [9], [5, 5, 11]], [[6, 7], [4, 8, 9, 10, 11, 5, 6], [10]]


def build(kind: str, vectors: Tensor | None = None, classes: int = 3, **changes: Any) -> Any:
    torch.manual_seed(0)
    section = (EncoderClassifierSection if kind == "encoder" else PairClassifierSection)(**(SMALL[kind] | changes))
    model = MODELS[kind](section, VOCABULARY, classes)
    if vectors is not None:
        model.freeze_embedding(vectors)
    model = model.double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter, std=0.5)
    return model


def padded(texts: Sequence[list[int]], width: int | None = None) -> Tensor:
    width = max(map(len, texts)) if width is None else width
    return torch.tensor([text + [PAD] * (width - len(text)) for text in texts], dtype=torch.int64)


def sides_of(kind: str) -> list[Tensor]:
    return [padded(texts) for texts in TEXTS[: 1 if kind == "encoder" else 2]]


def encoder_by_torch(model: EncoderClassifier, tokens: Tensor) -> Tensor:
    """Return the logits by a ``torch.nn.TransformerEncoder`` with the model's dense weights."""
    first, width = model.encoder[0], model.embedding.embedding_dim
    sizes = width, first.attention.heads, first.feed_forward.expand.out_features
    options = {"dropout": 0.0, "batch_first": True, "norm_first": first.attention_residual.pre_norm}
    layer = nn.TransformerEncoderLayer(*sizes, **options, dtype=torch.float64)  # type: ignore[arg-type]
    norm = nn.LayerNorm(width, dtype=torch.float64) if isinstance(model.encoder_norm, nn.LayerNorm) else None
    peer = nn.TransformerEncoder(layer, len(model.encoder), norm, enable_nested_tensor=False)
    for ours, theirs in zip(model.encoder, peer.layers, strict=True):
        copy_layer(ours, theirs)
    if norm is not None:
        norm.load_state_dict(model.encoder_norm.state_dict())
    states = peer(embed(model.embedding, tokens), src_key_padding_mask=tokens == PAD)  # (B, S, d)
    lengths = (tokens != PAD).sum(1).tolist()
    rows = [state[:length] for state, length in zip(states, lengths, strict=True)]
    pooled = [row[-1] if model.pooling == "last" else row.mean(0) for row in rows]
    return F.linear(torch.stack(pooled), model.output.weight, model.output.bias)


def pairs_by_torch(model: PairClassifier, *sides: Tensor) -> Tensor:
    """Return the logits of each pair without a batch and padding, by ``nn.LSTM`` with dense weights."""
    lstm, logits = model.lstm.to_dense(), []
    for texts in zip(*sides, strict=True):
        states = [lstm(F.embedding(text[text != PAD], model.embedding.weight))[0] for text in texts]  # (T, h)
        u, v = (torch.cat([state.max(0).values, state.mean(0)]) for state in states)
        x = torch.cat([u, v, (u - v).abs(), u * v] if model.combination == "full" else [u, v])
        for layer in model.mlp:
            x = F.linear(x, layer.weight, layer.bias).clamp(min=0)
        logits.append(F.linear(x, model.output.weight, model.output.bias))
    return torch.stack(logits)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("encoder", {}),
        ("encoder", {"algebra": "phm", "n": 4, "norm": "post", "final_norm": False}),
        ("encoder", {"algebra": "phm", "n": 2, "pooling": "mean"}),
        ("encoder", {"algebra": "octonion", "n": 8, "norm": "post", "pooling": "mean"}),
        ("lstm-pair", {"combination": "full"}),
        ("lstm-pair", {"algebra": "phm", "n": 5, "gates": "fused"}),
        ("lstm-pair", {"algebra": "phm", "n": 10, "gates": "separate", "combination": "full"}),
        ("lstm-pair", {"algebra": "complex", "n": 2, "gates": "fused", "combination": "full"}),
    ],
    ids=str,
)
def test_outputs_and_gradients_equal_torchs(kind: str, changes: dict[str, Any]) -> None:
    model, sides = build(kind, **changes), sides_of(kind)
    logits = model(*sides)
    expected = encoder_by_torch(model, *sides) if kind == "encoder" else pairs_by_torch(model, *sides)
    torch.testing.assert_close(logits, expected)
    parameters = [model.embedding.weight, *model.output.parameters(), *getattr(model, "mlp", nn.Module()).parameters()]
    gradients = torch.autograd.grad(logits.square().sum(), parameters)
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), parameters))


texts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=6)


@pytest.mark.parametrize(("kind", "changes"), [("encoder", {"n": 4}), ("lstm-pair", {"n": 5})])
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.integers(0, 3))
def test_an_example_gets_the_same_logits_in_every_batch(
    kind: str, changes: dict[str, Any], pairs: list[tuple[list[int], list[int]]], extra: int
) -> None:
    model = build(kind, algebra="phm", **changes).eval()
    sides = list(zip(*pairs, strict=True))[: 1 if kind == "encoder" else 2]
    batched = model(*(padded(side, max(map(len, side)) + extra) for side in sides))
    single = torch.cat([model(*(padded([text]) for text in example)) for example in zip(*sides, strict=True)])
    torch.testing.assert_close(batched, single)


@pytest.mark.parametrize("kind", SMALL)
def test_an_empty_text_is_encoded_as_zeros(kind: str) -> None:
    model = build(kind)
    sides = [padded([[], [4, 5]], 3)] * len(sides_of(kind))
    assert model.encode(sides[0])[0].eq(0).all()
    logits = model(*sides)
    torch.testing.assert_close(logits[1:], model(*(side[1:] for side in sides)))
    torch.testing.assert_close(logits[:1], model(*(side[:1, :1] for side in sides)))
    logits.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", SMALL)
def test_dropout_is_active_only_in_training(kind: str) -> None:
    model, sides = build(kind, dropout=0.5), sides_of(kind)
    assert not torch.equal(model.train()(*sides), model(*sides))
    assert torch.equal(model.eval()(*sides), model(*sides))


def test_given_vectors_are_frozen() -> None:
    vectors = torch.randn(VOCABULARY, 10)
    model = build("lstm-pair", vectors)
    assert torch.equal(model.embedding.weight, vectors.double())
    model(*sides_of("lstm-pair")).sum().backward()
    assert model.embedding.weight.grad is None
    assert all(parameter.grad is not None for parameter in model.lstm.parameters())
    with pytest.raises(DimensionError):
        build("lstm-pair", torch.zeros(VOCABULARY, 9))


def test_without_vectors_the_embedding_is_trained() -> None:
    model = build("lstm-pair")
    assert model.embedding.weight.requires_grad
    assert model.embedding.weight.detach().std() == pytest.approx(1.0, abs=0.2)


def test_only_the_lstm_of_a_pair_classifier_is_hypercomplex() -> None:
    model = build("lstm-pair", algebra="phm", n=5)
    maps = {name: layer for name, layer in model.named_modules() if isinstance(layer, PHMLinear)}
    assert {name for name, layer in maps.items() if layer.n == 5} == {name for name in maps if name.startswith("lstm.")}
    assert model.embedding.n == 1


def test_lengths_are_not_read_on_other_devices() -> None:
    """Reading a value from a meta tensor would raise an error."""
    ids = torch.ones(3, 5, dtype=torch.int64, device="meta")
    assert build("lstm-pair").to("meta")(ids, ids).shape == (3, 3)
