"""The real Transformer computes the same function as ``torch.nn.Transformer``."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phmctl.models.transformer import Transformer
from phmctl.nn.layers import MultiHeadAttention
from phmctl.recipe.models import TransformerSection


def settings(norm: str, *, final_norm: bool) -> TransformerSection:
    sizes = {"width": 24, "feed_forward": 40, "heads": 3, "encoder_layers": 2, "decoder_layers": 2}
    options = {"projections": "packed", "norm": norm, "final_norm": final_norm, "dropout": 0.0}
    return TransformerSection.model_validate(sizes | options)


def peer_of(model: Transformer, section: TransformerSection) -> nn.Transformer:
    """Return a ``torch.nn.Transformer`` with the model's weights."""
    sizes = section.width, section.heads, section.encoder_layers, section.decoder_layers, section.feed_forward
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": section.norm == "pre"}
    peer = nn.Transformer(*sizes, **options, dtype=torch.float64).eval()
    peer_layers = (*peer.encoder.layers, *peer.decoder.layers)
    for layer, peer_layer in zip((*model.encoder, *model.decoder), peer_layers, strict=True):
        copy_layer(layer, peer_layer)
    for norm, peer_stack in ((model.encoder_norm, peer.encoder), (model.decoder_norm, peer.decoder)):
        if isinstance(norm, nn.LayerNorm):
            peer_stack.norm.load_state_dict(norm.state_dict())
        else:
            peer_stack.norm = None
    return peer


def copy_layer(layer: nn.Module, peer: nn.Module) -> None:
    """Copy the weights of an encoder or decoder layer to torch's layer."""
    copy_attention(layer.attention, peer.self_attn)
    norms = [layer.attention_residual.norm, layer.feed_forward_residual.norm]
    if hasattr(layer, "cross_attention"):
        copy_attention(layer.cross_attention, peer.multihead_attn)
        norms.insert(1, layer.cross_residual.norm)
    for number, norm in enumerate(norms, start=1):
        getattr(peer, f"norm{number}").load_state_dict(norm.state_dict())
    copy_linear(layer.feed_forward.expand, peer.linear1)
    copy_linear(layer.feed_forward.contract, peer.linear2)


def copy_attention(attention: MultiHeadAttention, peer: nn.MultiheadAttention) -> None:
    peer.in_proj_weight.data.copy_(attention.query_key_value.weight)
    peer.in_proj_bias.data.copy_(attention.query_key_value.bias)
    copy_linear(attention.output, peer.out_proj)


def copy_linear(linear: nn.Module, peer: nn.Linear) -> None:
    peer.weight.data.copy_(linear.weight)
    peer.bias.data.copy_(linear.bias)


def run_peer(model: Transformer, peer: nn.Transformer, source: Tensor, target: Tensor) -> Tensor:
    padding, length = source == 0, target.shape[1]
    causal = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    embedded = [model._embed(model.source_embedding, ids) for ids in (source, target)]
    return peer(*embedded, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding)


@pytest.mark.filterwarnings("ignore:.*nested.*", "ignore:.*mismatched.*")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("final_norm", [True, False])
def test_outputs_and_gradients_equal_torchs(norm: str, final_norm: bool) -> None:
    torch.manual_seed(0)
    section = settings(norm, final_norm=final_norm)
    model = Transformer(section, 50, 50).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # including biases and norms
    peer = peer_of(model, section)
    source, target = torch.randint(4, 50, (3, 7)), torch.randint(4, 50, (3, 5))
    source[1, 4:] = 0
    hidden, expected = model(source, target), run_peer(model, peer, source, target)
    torch.testing.assert_close(hidden, expected)
    table = next(parameter for name, parameter in model.named_parameters() if name.startswith("source_embedding"))
    (gradient,) = torch.autograd.grad(hidden.square().sum(), table)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), table)
    assert gradient.abs().max() > 0
    torch.testing.assert_close(gradient, expected_gradient)
