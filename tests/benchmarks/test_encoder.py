import json

import pytest
import torch
from torch.nn import functional as F

from phmctl.assembly import build_classifier
from phmctl.benchmarks.encoder import bench_encoder, torch_classifier
from phmctl.benchmarks.encoder import section as chosen_section
from phmctl.errors import UserError
from phmctl.recipe.schema import EncoderClassifierSection

SMALL = {"kind": "encoder", "width": 16, "feed_forward": 32, "heads": 2, "layers": 1}


def section(**changes) -> EncoderClassifierSection:
    return EncoderClassifierSection(**(SMALL | changes))


def bench(settings: EncoderClassifierSection, **changes):
    options = {"vocabulary": 20, "batch": 4, "longest": 8, "batches": 2, "rounds": 2}
    return bench_encoder(settings, **(options | changes))


def test_a_row_for_each_candidate() -> None:
    rows = {row.candidate: row for row in bench(section(algebra="phm", n=4))}
    assert list(rows) == ["dense", "phm-n4", "nn.TransformerEncoder"]
    assert rows["dense"].speed.median == pytest.approx(1.0)
    assert rows["phm-n4"].parameters < rows["dense"].parameters == rows["nn.TransformerEncoder"].parameters
    for row in rows.values():
        assert row.steps_per_second == pytest.approx(1 / row.step_seconds.median)
        assert row.speed.lower <= row.speed.median <= row.speed.upper
        assert json.loads(json.dumps(row.as_json()))["candidate"] == row.candidate


def test_a_dense_model_is_measured_once() -> None:
    assert [row.candidate for row in bench(section(), rounds=1)] == ["dense", "nn.TransformerEncoder"]


def test_the_blocks_of_monarch_maps_are_the_n_asked_for() -> None:
    assert chosen_section(4, "monarch", 16, 2, 1).variant == "monarch-n4"
    assert chosen_section(4, "quaternion", 16, 2, 1).variant == "quaternion"


def test_the_yardstick_is_the_same_model() -> None:
    """So the ratio compares two ways to compute one function."""
    torch.manual_seed(0)
    settings = section(dropout=0.0)
    ours, theirs = build_classifier(settings, 20, 2).double(), torch_classifier(settings, 20).double()
    layer, other = ours.encoder[0], theirs.encoder.layers[0]
    for module in ("embedding", "encoder_norm", "output"):
        getattr(theirs, module).load_state_dict(getattr(ours, module).state_dict())
    other.self_attn.in_proj_weight.data.copy_(layer.attention.query_key_value.weight)
    other.self_attn.in_proj_bias.data.copy_(layer.attention.query_key_value.bias)
    pairs = [(other.self_attn.out_proj, layer.attention.output), (other.norm1, layer.attention_residual.norm)]
    pairs += [(other.linear1, layer.feed_forward.expand), (other.linear2, layer.feed_forward.contract)]
    for theirs_part, our_part in [*pairs, (other.norm2, layer.feed_forward_residual.norm)]:
        theirs_part.load_state_dict(our_part.state_dict())
    tokens = F.pad(torch.randint(4, 20, (3, 5)), (0, 2))
    torch.testing.assert_close(ours(tokens), theirs(tokens))


def test_what_a_user_can_get_wrong() -> None:
    for name in ("batch", "batches", "rounds", "shortest"):
        with pytest.raises(UserError, match=f"{name} = 0 must be at least 1"):
            bench(section(), **{name: 0})
    with pytest.raises(UserError, match="longest = 3 must be at least shortest = 5"):
        bench(section(), longest=3)
