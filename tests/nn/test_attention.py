"""Attention: the products used in bfloat16 on CPUs equal the fused kernel, and so does a whole training step."""

import pytest
import torch

from phmctl.assembly import build_transformer
from phmctl.nn.layers import _attention
from phmctl.nn.loss import vocabulary_loss
from phmctl.recipe.models import TransformerSection


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 7), (5, 5), (6, 3)])
def test_products_equal_the_fused_kernel(masked: bool, causal: bool, lengths: tuple[int, int]) -> None:
    torch.manual_seed(0)
    target, source = lengths
    inputs = [torch.randn(2, 3, length, 4).bfloat16() for length in (target, source, source)]
    wide = [part.float().requires_grad_() for part in inputs]
    query, key, value = (part.requires_grad_() for part in inputs)
    mask = None
    if masked:
        mask = torch.ones(2, 1, 1, source, dtype=torch.bool)
        mask[1, ..., source // 2 + 1 :] = False
    ours = _attention(query, key, value, mask, 0.0, causal=causal)
    theirs = _attention(*wide, mask, 0.0, causal=causal)
    near = {"rtol": 0.03, "atol": 0.03}
    torch.testing.assert_close(ours.float(), theirs, **near)
    seen = torch.ones(target, source, dtype=torch.bool) if mask is None else mask
    seen = seen & torch.ones(target, source, dtype=torch.bool).tril() if causal else seen
    exact = (wide[0] @ wide[1].mT / 2).masked_fill(~seen, -torch.inf).softmax(-1) @ wide[2]
    torch.testing.assert_close(theirs, exact)
    ours.float().square().sum().backward()
    theirs.square().sum().backward()
    for one, other in zip((query, key, value), wide, strict=True):
        assert (one.grad - other.grad).norm() <= 0.03 * other.grad.norm() + 1e-3


def test_dropout_on_the_weights_keeps_their_mean() -> None:
    torch.manual_seed(0)
    query = key = torch.zeros(1, 1, 2000, 4, dtype=torch.bfloat16)
    mixed = _attention(query, key, torch.ones_like(query), None, 0.5, causal=False).float()
    assert mixed.std() > 0
    assert mixed.mean().item() == pytest.approx(1.0, abs=0.02)


def test_a_bfloat16_step_of_the_transformer_is_near_float32() -> None:
    torch.manual_seed(0)
    settings = TransformerSection(
        width=64, feed_forward=128, heads=2, encoder_layers=2, decoder_layers=2, algebra="phm", n=4, dropout=0.0
    )
    model = build_transformer(settings, 50, 50)
    source, target = torch.randint(4, 50, (8, 10)), torch.randint(4, 50, (8, 9))
    source[:4, 7:] = 0
    gradients = {}
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            hidden = model(source, target[:, :-1])
            loss, _ = vocabulary_loss(*model.output(hidden), target[:, 1:], smoothing=0.1)
        gradients[dtype] = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    error = (gradients[torch.bfloat16] - gradients[torch.float32]).norm() / gradients[torch.float32].norm()
    assert error < 0.04  # 0.033 where H is built, 0.030 where it is not
