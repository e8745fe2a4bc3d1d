"""The pair classifier: equal to ``nn.LSTM`` on single texts, independent of batch and padding, able to learn."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_classifier
from phmctl.data import PAD
from phmctl.errors import DimensionError
from phmctl.models.classifiers import PairClassifier
from phmctl.nn.linear import PHMLinear
from phmctl.recipe.models import PairClassifierSection
from tests.models.test_encoder_classifier import VOCABULARY, accuracy, padded

SMALL: dict[str, Any] = {"kind": "lstm-pair", "width": 20, "embedding_width": 10, "hidden": 7, "dropout": 0.0}
CHOICES = [("real", 1), ("phm", 2), ("phm", 5), ("phm", 10), ("complex", 2)]


def build(vectors: Tensor | None = None, **changes: Any) -> PairClassifier:
    torch.manual_seed(0)
    model = build_classifier(PairClassifierSection(**(SMALL | changes)), VOCABULARY, 3, vectors).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


def reference(model: PairClassifier, first: list[int], second: list[int]) -> Tensor:
    """Return the logits of a pair without a batch and padding, by ``nn.LSTM`` with dense weights."""
    lstm = model.lstm.to_dense()
    vectors = []
    for text in (first, second):
        states = lstm(F.embedding(torch.tensor([text]), model.embedding.weight))[0][0]  # (T, h)
        vectors.append(torch.cat([states.max(0).values, states.sum(0) / len(text)]))
    u, v = vectors
    x = torch.cat([u, v, (u - v).abs(), u * v] if model.combination == "full" else [u, v])
    for layer in model.mlp:
        x = F.linear(x, layer.weight, layer.bias).clamp(min=0)
    return F.linear(x, model.output.weight, model.output.bias)


TEXTS = [[4, 5, 6, 7, 8], [9], [5, 5, 11]], [[6, 7], [4, 8, 9, 10, 11, 5, 6], [10]]


@pytest.mark.parametrize("combination", ["concat", "full"])
@pytest.mark.parametrize("gates", ["separate", "fused"])
@pytest.mark.parametrize(("algebra", "n"), CHOICES)
def test_outputs_equal_the_reference(algebra: str, n: int, gates: str, combination: str) -> None:
    model = build(algebra=algebra, n=n, gates=gates, combination=combination)
    logits = model(padded(TEXTS[0]), padded(TEXTS[1]))
    expected = torch.stack([reference(model, *pair) for pair in zip(*TEXTS, strict=True)])
    torch.testing.assert_close(logits, expected)


def test_gradients_equal_the_reference() -> None:
    model = build(combination="full")
    parameters = [model.embedding.weight, *model.mlp.parameters(), *model.output.parameters()]
    gradients = torch.autograd.grad(model(padded(TEXTS[0]), padded(TEXTS[1])).square().sum(), parameters)
    losses = [reference(model, *pair).square().sum() for pair in zip(*TEXTS, strict=True)]
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    torch.testing.assert_close(gradients, torch.autograd.grad(torch.stack(losses).sum(), parameters))


texts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_a_pair_gets_the_same_logits_in_every_batch(
    pairs: list[tuple[list[int], list[int]]], extra: tuple[int, int]
) -> None:
    model = build(algebra="phm", n=5).eval()
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    widths = [max(map(len, side)) + padding for side, padding in zip(sides, extra, strict=True)]
    batched = model(*(padded(side, width) for side, width in zip(sides, widths, strict=True)))
    single = torch.cat([model(padded([first]), padded([second])) for first, second in pairs])
    torch.testing.assert_close(batched, single)


def test_an_empty_text_is_encoded_as_zeros() -> None:
    model = build(algebra="phm", n=2)
    assert model.encode(padded([[], [4, 5]], 3))[0].eq(0).all()
    batched, single = model(padded([[], [4]], 3), padded([[6], [7]])), model(padded([[]], 0), padded([[6]]))
    torch.testing.assert_close(batched[:1], single)
    assert model(padded([[]], 0), padded([[]], 0)).isfinite().all()


def test_given_vectors_are_frozen() -> None:
    vectors = torch.randn(VOCABULARY, 10)
    model = build(vectors)
    assert torch.equal(model.embedding.weight, vectors.double())
    assert not model.embedding.weight.requires_grad
    model(padded(TEXTS[0]), padded(TEXTS[1])).sum().backward()
    assert model.embedding.weight.grad is None
    assert all(parameter.grad is not None for parameter in model.lstm.parameters())


@pytest.mark.parametrize(("vectors", "choice"), [(None, "auto"), (torch.zeros(VOCABULARY, 10), "trained")])
def test_without_vectors_the_embedding_is_trained(vectors: Tensor | None, choice: str) -> None:
    model = build(vectors, embeddings=choice)
    assert model.embedding.weight.requires_grad
    assert model.embedding.weight.detach().std() == pytest.approx(1.0, abs=0.2)


def test_vectors_of_another_shape() -> None:
    with pytest.raises(DimensionError, match=r"\(12, 9\).* embedding_width = 10"):
        build(torch.zeros(VOCABULARY, 9))


def test_only_the_lstm_is_hypercomplex() -> None:
    model = build(algebra="phm", n=5)
    maps = {name: layer for name, layer in model.named_modules() if isinstance(layer, PHMLinear)}
    assert {name for name, layer in maps.items() if layer.n == 5} == {name for name in maps if name.startswith("lstm.")}
    assert [tuple(layer.weight.shape) for layer in model.mlp] == [(7, 80), (7, 7)]
    assert model.embedding.n == 1


def test_dropout_is_active_only_in_training() -> None:
    model = build(dropout=0.5)
    batch = padded(TEXTS[0]), padded(TEXTS[1])
    assert not torch.equal(model.train()(*batch), model(*batch))
    assert torch.equal(model.eval()(*batch), model(*batch))


def same_first_token(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pairs of texts of 2 to 5 tokens; the label is 1 if they have the same first token."""
    first, second = (torch.randint(4, 8, (rows, 5), generator=generator) for _ in range(2))
    same = torch.rand(rows, generator=generator) < 0.5
    second[same, 0] = first[same, 0]
    for ids in (first, second):
        lengths = torch.randint(2, 6, (rows, 1), generator=generator)
        ids[torch.arange(5) >= lengths] = PAD
    return first, second, (first[:, 0] == second[:, 0]).long()


@pytest.mark.parametrize(
    ("algebra", "n", "combination"), [("real", 1, "full"), ("phm", 5, "full"), ("phm", 5, "concat")]
)
def test_it_learns(algebra: str, n: int, combination: str) -> None:
    torch.manual_seed(0)
    sizes = {"width": 40, "embedding_width": 20, "hidden": 40}
    section = PairClassifierSection(**(SMALL | sizes), algebra=algebra, n=n, combination=combination)
    assert accuracy(build_classifier(section, VOCABULARY, 2), same_first_token, 1e-2, 150) > 0.95


def test_lengths_are_not_read_on_other_devices() -> None:
    """Reading a value from a meta tensor would raise an error."""
    model = build().to("meta")
    ids = torch.ones(3, 5, dtype=torch.int64, device="meta")
    assert model(ids, ids).shape == (3, 3)
