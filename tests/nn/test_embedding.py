import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from phmctl import PHMEmbedding
from phmctl.algebra.initialisation import learned_rule
from phmctl.errors import DimensionError
from tests.references import kronecker_sum_reference


@given(
    n=st.integers(2, 5),
    blocks=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    shape=st.lists(st.integers(0, 4), max_size=3),
    training=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_lookup_is_a_row_of_the_table(n, blocks, shape, training, data) -> None:
    embedding = PHMEmbedding(n * blocks[0], n * blocks[1], n=n).train(training)
    ids = torch.randint(0, n * blocks[0], shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    table = kronecker_sum_reference(embedding.A, embedding.S)
    with torch.no_grad():
        rows = embedding(ids)
    assert rows.shape == (*shape, n * blocks[1])
    torch.testing.assert_close(rows, table[ids].float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [3, 40])  # fewer than the table has rows, and more
def test_gradients(count: int) -> None:
    embedding = PHMEmbedding(12, 8, n=4, dtype=torch.float64, padding_idx=2)
    ids = torch.randint(0, 12, (count,), generator=torch.Generator().manual_seed(1))

    def call(A: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(embedding, {"A": A, "S": S}, (ids,))

    assert torch.autograd.gradcheck(call, (embedding.A, embedding.S))


def test_few_tokens_do_not_build_the_table() -> None:
    embedding = PHMEmbedding(4000, 32, n=4)
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes.append(result.untyped_storage().nbytes() if isinstance(result, torch.Tensor) else 0)
            return result

    with Sizes():
        embedding(torch.arange(10)).sum()
    assert max(sizes) < 4000 * 32 * 4 // 2  # views of S, a quarter of the table, and less


@pytest.mark.parametrize(("n", "algebra"), [(1, "phm"), (4, "phm"), (4, "quaternion")])
@pytest.mark.parametrize("count", [4, 30])
def test_padding_gives_zeros_and_no_gradient(n: int, algebra: str, count: int) -> None:
    embedding = PHMEmbedding(16, 8, n=n, algebra=algebra, padding_idx=0)
    ids = torch.zeros(count, dtype=torch.long)
    rows = embedding(ids)
    assert rows.abs().sum() == 0
    rows.sum().backward()
    assert all(parameter.grad is None or parameter.grad.abs().sum() == 0 for parameter in embedding.parameters())
    assert embedding(ids + 1).abs().sum() > 0


def test_negative_padding_counts_from_the_end() -> None:
    assert PHMEmbedding(16, 8, n=2, padding_idx=-1).padding_idx == 15


def test_n_1_is_an_embedding() -> None:
    dense = nn.Embedding(10, 4)
    embedding = PHMEmbedding(10, 4, n=1)
    assert set(embedding.state_dict()) == {"weight"}
    embedding.load_state_dict(dense.state_dict())
    ids = torch.tensor([[1, 2], [9, 0]])
    assert torch.equal(embedding(ids), dense(ids))
    assert isinstance(embedding.weight, nn.Parameter)


def test_tied_generator_and_lookup_share_their_gradient() -> None:
    embedding = PHMEmbedding(12, 8, n=4)
    hidden = torch.randn(3, 8)
    (hidden @ embedding.weight.T).sum().backward()
    from_generator = embedding.S.grad.clone()
    embedding(torch.tensor([1, 2])).sum().backward()
    assert from_generator.abs().sum() > 0
    assert not torch.equal(embedding.S.grad, from_generator)


@torch.no_grad()
def test_under_autocast_it_is_as_precise_as_torchs_own() -> None:
    ids = torch.tensor([3, 5])
    for embedding in (PHMEmbedding(12, 8, n=4), PHMEmbedding(12, 8, n=1)):
        dense = embedding.to_dense()
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(embedding(ids), dense(ids))


@pytest.mark.parametrize(("scheme", "variance"), [("standard_normal", 1.0), ("embedding", 1 / 64)])
@pytest.mark.parametrize(("n", "algebra"), [(1, "phm"), (2, "phm"), (8, "phm"), (16, "phm"), (16, "sedenion")])
def test_table_has_the_variance_of_its_scheme(scheme: str, variance: float, n: int, algebra: str) -> None:
    torch.manual_seed(1)
    embedding = PHMEmbedding(1600, 64, n=n, algebra=algebra, initialization=scheme)
    assert embedding.weight.var().item() == pytest.approx(variance, rel=0.1)


def test_parameters() -> None:
    embedding = PHMEmbedding(1000, 64, n=4, rule=learned_rule(4))
    assert sum(parameter.numel() for parameter in embedding.parameters()) == 1000 * 64 // 4 + 64
    assert repr(embedding) == "PHMEmbedding(1000, 64, n=4, algebra='phm')"


def test_meta_to_empty() -> None:
    source = PHMEmbedding(16, 8, n=4, algebra="quaternion")
    embedding = PHMEmbedding(16, 8, n=4, algebra="quaternion", device="meta").to_empty(device="cpu")
    embedding.load_state_dict(source.state_dict())
    ids = torch.arange(16)
    assert torch.equal(embedding(ids), source(ids))


def test_autocast() -> None:
    embedding = PHMEmbedding(64, 16, n=4)
    ids = torch.arange(8)
    expected = embedding(ids).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = embedding(ids)
    torch.testing.assert_close(rows.float(), expected, atol=0.05, rtol=0.05)


def test_n_that_does_not_divide() -> None:
    with pytest.raises(DimensionError, match="n = 3 does not divide num_embeddings = 100 and embedding_dim = 8"):
        PHMEmbedding(100, 8, n=3)
