"""When gradients are exchanged."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from phmctl.assembly import build_transformer
from phmctl.recipe.models import TransformerSection
from phmctl.training.processes import Processes
from phmctl.training.wrapping import _own_layers, exchanging, wrap


class Two(Processes):
    """A process that thinks it has company: what would be sent is counted, not sent."""

    count = 2  # type: ignore[assignment]


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_gradients_are_exchanged_in_a_steps_last_micro_batch_only_and_while_it_goes_back() -> None:
    """In buckets, the first of which is sent before the backward pass has come to the first layer."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))  # 8 MiB; torch sends buckets of 1, then of 25
    called = wrap(model, Two(), torch.device("cpu"), "none")
    happened: list[str] = []

    def sent(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        happened.append("sent")
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    called.register_comm_hook(None, sent)  # type: ignore[operator]
    model[0].register_full_backward_pre_hook(lambda module, gradient: happened.append("first layer"))
    steps = []
    for micro_batch in range(8):
        happened.clear()
        with exchanging(called, last=micro_batch % 4 == 3):
            called(torch.ones(2, 512, requires_grad=True)).sum().backward()
        steps.append(list(happened))
    assert steps[4:7] == [["first layer"]] * 3
    assert steps[7][0] == steps[7][-1] == "sent"
    assert "first layer" in steps[7]


@pytest.mark.parametrize("compositions", [{}, {"compose_layers": "bilinear", "compose_heads": "hierarchical"}])
def test_the_shards_of_a_transformer_go_by_its_layers(compositions: dict[str, str]) -> None:
    settings = TransformerSection(
        width=16, feed_forward=32, heads=4, encoder_layers=2, decoder_layers=2, **compositions
    )
    model = build_transformer(settings, 20, 20, device="meta")
    assert _own_layers(model) == [*model.encoder, *model.decoder]
