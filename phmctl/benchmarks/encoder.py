"""``bench encoder``: training steps of an encoder classifier, of its dense twin and of ``nn.TransformerEncoder``.

A step is what the trainer does for one: the loss, the backward pass, the gradient norm, the update. The texts are
random tokens of 5 to 30, as prefixes before a verb are, mixed: the trainer's batches are of like lengths, so theirs are
the faster steps.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_classifier
from phmctl.benchmarks.calls import check_positive, parameters_of
from phmctl.benchmarks.timing import Spread, Timing, compare, watched
from phmctl.console import Table
from phmctl.data.special import PAD
from phmctl.devices import pick_device
from phmctl.dimension import WITH_N
from phmctl.errors import UserError
from phmctl.recipe.schema import EncoderClassifierSection

CLASSES = 2
Batch = tuple[Tensor, Tensor]  # ids (B, S), labels (B,)


@dataclass(frozen=True)
class EncoderRow:
    """One candidate's speed."""

    candidate: str  # dense, the section's variant or nn.TransformerEncoder
    parameters: int
    step_seconds: Spread
    steps_per_second: float  # at the median
    speed: Spread  # steps per second relative to the dense twin's, within a round
    best_speed: float  # of the shortest samples

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self)


def section(n: int | None, algebra: str | None, width: int, heads: int, layers: int) -> EncoderClassifierSection:
    """Return the section of a model with a feed-forward of 4·width; without an algebra, what n implies.

    Raises:
        UserError: the numbers do not fit each other.
    """
    chosen = algebra or ("real" if n == 1 else "phm")
    shape = {"width": width, "feed_forward": 4 * width, "heads": heads, "layers": layers}
    values = {"kind": "encoder", "algebra": chosen, "n": n if chosen in WITH_N else 1, **shape}
    try:
        return EncoderClassifierSection.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise UserError(problems) from error


def bench_encoder(
    settings: EncoderClassifierSection,
    *,
    vocabulary: int = 10_000,
    batch: int = 64,
    shortest: int = 5,
    longest: int = 30,
    batches: int = 4,
    device: str = "cpu",
    rounds: int = 10,
) -> list[EncoderRow]:
    """Measure training steps in float32.

    Args:
        settings: the model.
        vocabulary: token types; 10,000 words and classes of rare ones are what the agreement data has.
        batch: texts a step.
        shortest: of the texts, in tokens.
        longest: of the texts, in tokens.
        batches: different batches; a sample is one step on each.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        rounds: samples of each candidate.

    Returns:
        a row for each candidate; no second dense one where the settings are dense.

    Raises:
        DimensionError: n does not divide a dimension.
        UserError: no such device, or a number below one, or lengths that do not fit each other.
    """
    check_positive(batch=batch, shortest=shortest, batches=batches, rounds=rounds)
    if longest < shortest:
        raise UserError(f"longest = {longest} must be at least shortest = {shortest}")
    where = pick_device(device)
    sample = [_texts(batch, vocabulary, shortest, longest, seed, where) for seed in range(batches)]
    models = _models(settings, vocabulary, where)
    steps = {name: _stepper(model, sample) for name, model in models.items()}
    with watched("training steps", len(models), rounds) as advance:
        timings = compare(steps, rounds=rounds, warmup=1, device=where, advance=advance)
    return [_row(models[name], timing, batches) for name, timing in timings.items()]


def _texts(batch: int, vocabulary: int, shortest: int, longest: int, seed: int, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (batch, 1), generator=generator)  # (B, 1)
    ids = torch.randint(4, vocabulary, (batch, int(lengths.max())), generator=generator)  # (B, S)
    ids[torch.arange(ids.shape[1]) >= lengths] = PAD
    labels = torch.randint(CLASSES, (batch,), generator=generator)  # (B,)
    return ids.to(device), labels.to(device)


def _models(settings: EncoderClassifierSection, vocabulary: int, device: torch.device) -> dict[str, nn.Module]:
    """Return the candidates by name, the dense twin first: the ratios are to it."""
    sections = {"dense": settings.dense_twin, settings.variant: settings}
    if settings.algebra == "real":
        del sections[settings.variant]
    models: dict[str, nn.Module] = {
        name: build_classifier(section, vocabulary, CLASSES, device=device) for name, section in sections.items()
    }
    models["nn.TransformerEncoder"] = torch_classifier(settings, vocabulary).to(device)
    return models


class TorchEncoder(nn.TransformerEncoder):
    """``nn.TransformerEncoder`` of a section's shape, called as our stack of layers is."""

    def __init__(self, settings: EncoderClassifierSection) -> None:
        layer = nn.TransformerEncoderLayer(
            settings.width,
            settings.heads,
            settings.feed_forward,
            settings.dropout,
            batch_first=True,
            norm_first=settings.norm == "pre",
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")  # a fast path of inference only
            super().__init__(layer, settings.layers)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Map states (B, S, d) to (B, S, d); mask (B, 1, 1, S) is true where a position may be seen."""
        return super().forward(x, src_key_padding_mask=~mask[:, 0, 0])


def torch_classifier(settings: EncoderClassifierSection, vocabulary: int) -> nn.Module:
    """Return the dense classifier with ``nn.TransformerEncoder`` in the place of our layers."""
    model = build_classifier(settings.dense_twin, vocabulary, CLASSES)
    model.encoder = TorchEncoder(settings)
    return model


def _stepper(model: nn.Module, sample: Sequence[Batch]) -> Callable[[], object]:
    """Return a function that trains one step on each batch of the sample."""
    parameters = list(model.parameters())
    optimiser = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    model.train()

    def steps() -> None:
        for ids, labels in sample:
            F.cross_entropy(model(ids), labels).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, torch.inf)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return steps


def _row(model: nn.Module, timing: Timing, batches: int) -> EncoderRow:
    seconds, ratio = timing.seconds, timing.ratio
    return EncoderRow(
        candidate=timing.name,
        parameters=parameters_of(model),
        step_seconds=Spread(seconds.median / batches, seconds.lower / batches, seconds.upper / batches),
        steps_per_second=batches / seconds.median,
        speed=ratio.inverse,
        best_speed=1 / timing.best_ratio,
    )


def table(rows: Sequence[EncoderRow], title: str) -> Table:
    """Return the table of ``bench encoder``; the title says which shape it is."""
    return Table(
        f"encoder classifier, {title} (median, quartiles)",
        ("model", "parameters", "ms a step", "steps/s", "speed / dense", "best"),
        [
            (
                r.candidate,
                f"{r.parameters:,}",
                r.step_seconds.milliseconds,
                f"{r.steps_per_second:.1f}",
                r.speed,
                f"{r.best_speed:.2f}",
            )
            for r in rows
        ],
    )
