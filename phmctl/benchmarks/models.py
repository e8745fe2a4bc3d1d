"""Whole translation models in turns, on made-up sentences: a training step and beam search, relative to one of them."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phmctl.accounting.multiplications import multiplications
from phmctl.assembly import build_transformer
from phmctl.backends.choices import taken_from
from phmctl.benchmarks.decoding import Workload, searcher
from phmctl.benchmarks.timing import Spread, compare, watched
from phmctl.errors import check_known
from phmctl.models.transformer import Transformer
from phmctl.nn.caching import cached
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.training.optimiser import build_optimiser

BASE = "base"


@dataclass(frozen=True)
class ModelRow:
    """A model's speed relative to base's.

    Attributes:
        model: its name here.
        parameters: how many.
        training, decoding: measured.
        training_allowed, decoding_allowed: by multiplications alone.
    """

    model: str
    parameters: int
    training: Spread
    training_allowed: float
    decoding: Spread
    decoding_allowed: float


def options(
    description: str | None, models: Collection[str], *, sentences: int, length: int
) -> argparse.ArgumentParser:
    """Return the options of a tool that measures some of its models; the numbers are defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(models), help=f"some of {', '.join(models)}; base is always there")
    parser.add_argument("--sentences", type=int, default=sentences, help="of a training batch, and that are decoded")
    parser.add_argument("--length", type=int, default=length, help="tokens of each, on either side")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    return parser


def named(rows: str, models: Collection[str]) -> list[str]:
    """Return the names in an option's text, base first.

    Raises:
        UserError: there is no such model.
    """
    names = [BASE, *(name for name in rows.split(",") if name != BASE)]
    for name in names:
        check_known("row", name, models)
    return names


def translation(name: str, settings: Sequence[str]) -> TranslationRecipe:
    """Load a shipped translation recipe with some settings."""
    recipe = load_recipe(name, settings)
    if not isinstance(recipe, TranslationRecipe):
        raise TypeError(recipe)
    return recipe


def measure(
    recipes: Mapping[str, TranslationRecipe], vocabulary: int, sentences: int, length: int, rounds: int
) -> list[ModelRow]:
    """Train and decode with the models of some recipes, one of them `base`, by threads that were set before.

    Args:
        recipes: by name.
        vocabulary: of source and target.
        sentences: of a training batch, and of those that are decoded.
        length: tokens of each, on either side.
        rounds: samples of each candidate.
    """
    torch.manual_seed(1)
    models = {name: build_transformer(each.model, vocabulary, vocabulary) for name, each in recipes.items()}
    ids = torch.randint(4, vocabulary, (sentences, length))  # (B, T)
    work = Workload(ids.tolist(), [length] * sentences)
    training = {name: trainer(models[name], recipes[name], ids) for name in recipes}
    trained = _compared("training steps", training, rounds)
    decoding = {name: searcher(models[name].eval(), work, recipes[name], vocabulary) for name in recipes}
    with cached():  # as a translator searches
        decoded = _compared("searches", decoding, rounds)
    return [
        ModelRow(name, sum(each.numel() for each in models[name].parameters()), *trained[name], *decoded[name])
        for name in recipes
    ]


def trainer(model: Transformer, recipe: TranslationRecipe, ids: Tensor) -> Callable[[], None]:
    """Return a training step on one batch."""
    optimiser = build_optimiser(model, recipe.training)

    def step() -> None:
        model.train()
        loss, _ = model(ids, ids, ids, recipe.training.label_smoothing)
        (loss / ids.numel()).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _compared(what: str, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[Spread, float]]:
    """Return the measured speeds relative to base's, and those that multiplications allow."""
    with taken_from({}):  # all choices are made in the warm-up
        with watched(what, len(calls), rounds) as advance:
            timings = compare(calls, rounds=rounds, baseline=BASE, warmup=1, advance=advance)
        products = {name: multiplications(call) for name, call in calls.items()}
    return {name: (timings[name].ratio.inverse, products[BASE] / products[name]) for name in calls}
