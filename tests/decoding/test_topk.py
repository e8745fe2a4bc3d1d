import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.decoding.beam import grouped_topk, log_softmax_topk


@given(rows=st.integers(1, 5), columns=st.integers(1, 300), count=st.integers(1, 12), seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_grouped_topk_is_topk(rows: int, columns: int, count: int, seed: int) -> None:
    scores = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed)).view(rows, columns).float()
    count = min(count, columns)
    values, ids = grouped_topk(scores, count)
    expected = scores.topk(count)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


def test_equal_values_give_equal_values_at_different_columns() -> None:
    values, ids = grouped_topk(torch.zeros(2, 100), 7)
    assert torch.equal(values, torch.zeros(2, 7))
    assert all(len(set(row)) == 7 for row in ids.tolist())


def test_forbidden_columns_keep_their_share_of_the_softmax() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 0.0, 3.0, 9.0]])
    values, ids, end = log_softmax_topk(logits, 2, forbidden=(1,), allowed=5, column=3)
    log_probs = logits.log_softmax(-1)
    assert ids.tolist() == [[4, 2]]
    assert values[0].tolist() == pytest.approx(log_probs[0, [4, 2]].tolist())
    assert end.tolist() == pytest.approx(log_probs[:, 3].tolist())


def test_many_rows_are_as_each_alone() -> None:
    logits = torch.randn(300, 50, generator=torch.Generator().manual_seed(1))
    together = log_softmax_topk(logits, 4, forbidden=(0, 2), allowed=48, column=3)
    alone = [log_softmax_topk(row[None], 4, forbidden=(0, 2), allowed=48, column=3) for row in logits]
    for part, rows in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(part, torch.cat(rows))
