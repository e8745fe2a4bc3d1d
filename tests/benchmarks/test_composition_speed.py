"""The table of compositions: its rows are the paper's, and what misses its target is bold."""

from phmctl.benchmarks.models import ModelRow, measure, translation
from phmctl.benchmarks.timing import Spread
from tools.composition_speed import MODELS, as_markdown

SMALL = ("width=32", "feed_forward=64", "encoder_layers=2", "decoder_layers=2", "heads=4")


def test_the_models_are_the_rows_of_the_table() -> None:
    found = {name: translation("ni-wmt14-en-de", settings).model for name, (_, settings, _) in MODELS.items()}
    shape = {(each.width, each.encoder_layers, each.decoder_layers) for each in found.values()}
    assert shape == {(512, 6, 6)}
    variants = {name: (each.compose_layers, each.compose_heads, each.n) for name, each in found.items()}
    assert variants["base"] == ("none", "none", 1)
    assert variants["linear"] == ("linear", "none", 1)
    assert variants["layers"] == ("bilinear", "none", 1)
    assert variants["heads"] == ("none", "bilinear", 1)
    assert variants["phm-both"] == ("bilinear", "bilinear", 4)


def test_measured_and_allowed_stand_side_by_side() -> None:
    small = [f"model.{each}" for each in SMALL]
    recipes = {name: translation("ni-wmt14-en-de", [*MODELS[name][1], *small]) for name in ("base", "both")}
    base, both = measure(recipes, 40, 2, 4, 1)
    assert (base.training_allowed, base.decoding_allowed, base.training.median) == (1, 1, 1)
    # Maps alone: 8 and 12 d² in two layers; 2 d² more in each of six attention modules, 5 d² a stack.
    maps, more = 2 * (8 + 12) * 32**2, (2 * 3 * 2 + 2 * 5) * 32**2
    assert maps / (maps + more) < both.training_allowed < 1
    assert both.parameters > base.parameters


def test_what_misses_its_target_is_bold() -> None:
    def row(name: str, speed: float) -> ModelRow:
        spread = Spread(speed, speed, speed)
        return ModelRow(name, 1000, spread, 0.8, spread, 0.8)

    lines = as_markdown([row("both", 0.77), row("both", 0.75), row("linear", 0.92)]).splitlines()[2:]
    assert ["**" in line for line in lines] == [False, True, True]
