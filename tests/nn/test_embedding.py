import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phmctl import PHMEmbedding
from phmctl.models.transformer import Transformer
from phmctl.nn.convert import to_dense
from phmctl.nn.embedding import NarrowEmbedding
from phmctl.nn.linear import LowRankLinear
from phmctl.recipe.loading import load_recipe
from phmctl.results.ledger import ledger_for_recipe
from tests.references import Watch, kronecker_sum_reference


@given(
    n=st.integers(2, 5),
    blocks=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    shape=st.lists(st.integers(0, 4), max_size=3),
    training=st.booleans(),
    data=st.data(),
)
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
    with Watch(lambda _, result: sizes.append(result.untyped_storage().nbytes())):
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
    assert PHMEmbedding(16, 8, n=n, algebra=algebra, padding_idx=-1).padding_idx == 15


def test_n_1_is_an_embedding() -> None:
    dense = nn.Embedding(10, 4)
    embedding = PHMEmbedding(10, 4, n=1)
    assert set(embedding.state_dict()) == {"weight"}
    embedding.load_state_dict(dense.state_dict())
    ids = torch.tensor([[1, 2], [9, 0]])
    assert torch.equal(embedding(ids), dense(ids))
    assert isinstance(embedding.weight, nn.Parameter)


@pytest.mark.parametrize("n", [1, 4])
@torch.no_grad()
def test_under_autocast_it_is_as_precise_as_torchs_own(n: int) -> None:
    embedding, ids = PHMEmbedding(12, 8, n=n, padding_idx=0), torch.tensor([3, 0, 5])
    dense = to_dense(embedding)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(embedding(ids), dense(ids))


# --- narrow tables, with a map to the width


WIDE = ("model.width=32", "model.feed_forward=64", "model.embedding_width=16")
TIED = ("model.embeddings=dense", "model.generator=tied")
PHM = ("model.algebra=phm", "model.n=4")
LOW_RANK = ("model.algebra=low-rank", "model.rank=4")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        PHM,
        (*PHM, "model.embeddings=phm"),
        ("model.generator=dense",),
        *[(*LOW_RANK, f"model.projections={each}") for each in ("fused", "separate", "packed")],
    ],
)
def test_the_dense_copy_of_a_translator_answers_alike(settings: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = Transformer(load_recipe("miniature", [*WIDE, *TIED, *settings]).model, 40, 40).double().eval()
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 5))
    logits = model.logits(model.decode(model.encode(source), target))
    dense = to_dense(model)
    assert isinstance(model.source_embedding, NarrowEmbedding)
    assert isinstance(dense.source_embedding, nn.Embedding)
    assert not any(isinstance(module, LowRankLinear) for module in dense.modules())
    torch.testing.assert_close(dense.logits(dense.decode(dense.encode(source), target)), logits)
    loss, _ = model(source, target, target)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_without_embeddings_counts_as_of_the_wide_table() -> None:
    wide, narrow = (ledger_for_recipe(load_recipe("miniature", list(settings))) for settings in (WIDE[:2], WIDE))
    assert narrow.without_embeddings == wide.without_embeddings
    assert wide.totals.parameters - narrow.totals.parameters == 2000 * 32 - (2000 * 16 + 16 * 32)


@pytest.mark.parametrize(("scheme", "variance"), [("standard_normal", 1.0), ("embedding", 1 / 64)])
@pytest.mark.parametrize(("n", "algebra"), [(1, "phm"), (2, "phm"), (8, "phm"), (16, "phm"), (16, "sedenion")])
def test_table_has_the_variance_of_its_scheme(scheme: str, variance: float, n: int, algebra: str) -> None:
    torch.manual_seed(1)
    embedding = PHMEmbedding(1600, 64, n=n, algebra=algebra, initialization=scheme)
    assert embedding.weight.var().item() == pytest.approx(variance, rel=0.1)
