"""The real model is ``torch.nn.Transformer`` where the recipe says so: a peer that others have checked."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phmctl.assembly import build_transformer
from phmctl.models.transformer import Transformer
from phmctl.nn.layers import MultiHeadAttention
from phmctl.recipe.models import TransformerSection


def settings(norm: str, *, final_norm: bool) -> TransformerSection:
    sizes = {"width": 24, "feed_forward": 40, "heads": 3, "encoder_layers": 2, "decoder_layers": 2}
    options = {"projections": "packed", "norm": norm, "final_norm": final_norm, "dropout": 0.0}
    return TransformerSection.model_validate(sizes | options)


def peer_of(model: Transformer, section: TransformerSection) -> nn.Transformer:
    """Return torch's own Transformer with the model's weights."""
    sizes = section.width, section.heads, section.encoder_layers, section.decoder_layers, section.feed_forward
    how: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": section.norm == "pre"}
    peer = nn.Transformer(*sizes, **how, dtype=torch.float64).eval()
    for own, other in zip((*model.encoder, *model.decoder), (*peer.encoder.layers, *peer.decoder.layers), strict=True):
        copy_layer(own, other)
    for own, stack in ((model.encoder_norm, peer.encoder), (model.decoder_norm, peer.decoder)):
        if isinstance(own, nn.LayerNorm):
            stack.norm.load_state_dict(own.state_dict())
        else:
            stack.norm = None
    return peer


def copy_layer(own: nn.Module, other: nn.Module) -> None:
    """Give torch's layer the weights of ours, an encoder's or a decoder's."""
    copy_attention(own.attention, other.self_attn)
    norms = [own.attention_residual.norm, own.feed_forward_residual.norm]
    if hasattr(own, "cross_attention"):
        copy_attention(own.cross_attention, other.multihead_attn)
        norms.insert(1, own.cross_residual.norm)
    for number, norm in enumerate(norms, start=1):
        getattr(other, f"norm{number}").load_state_dict(norm.state_dict())
    copy_linear(own.feed_forward.expand, other.linear1)
    copy_linear(own.feed_forward.contract, other.linear2)


def copy_attention(own: MultiHeadAttention, other: nn.MultiheadAttention) -> None:
    other.in_proj_weight.data.copy_(own.query_key_value.weight)
    other.in_proj_bias.data.copy_(own.query_key_value.bias)
    copy_linear(own.output, other.out_proj)


def copy_linear(own: nn.Module, other: nn.Linear) -> None:
    other.weight.data.copy_(own.weight)
    other.bias.data.copy_(own.bias)


def run_peer(model: Transformer, peer: nn.Transformer, source: Tensor, target: Tensor) -> Tensor:
    padding, length = source == 0, target.shape[1]
    causal = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    embedded = [model._embed(model.source_embedding, ids) for ids in (source, target)]
    return peer(*embedded, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding)


@pytest.mark.filterwarnings("ignore:.*nested.*", "ignore:.*mismatched.*")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("final_norm", [True, False])
def test_outputs_and_gradients_are_those_of_torchs_transformer(norm: str, final_norm: bool) -> None:
    torch.manual_seed(0)
    section = settings(norm, final_norm=final_norm)
    model = build_transformer(section, 50, 50).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases and norms too
    peer = peer_of(model, section)
    source, target = torch.randint(4, 50, (3, 7)), torch.randint(4, 50, (3, 5))
    source[1, 4:] = 0
    mine, theirs = model(source, target), run_peer(model, peer, source, target)
    torch.testing.assert_close(mine, theirs)
    named = dict(model.named_parameters())
    table = next(parameter for name, parameter in named.items() if name.startswith("source_embedding"))
    (own,) = torch.autograd.grad(mine.square().sum(), table)
    (other,) = torch.autograd.grad(theirs.square().sum(), table)
    assert own.abs().max() > 0
    torch.testing.assert_close(own, other)
