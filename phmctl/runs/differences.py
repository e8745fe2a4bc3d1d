"""What two runs differ in besides n and the seed: whoever compares their scores must know."""

import json
from collections.abc import Mapping
from typing import Any

from phmctl.errors import RunError
from phmctl.files import sha256_text
from phmctl.runs.run import Run

_ELSEWHERE = {"model.algebra", "model.n", "training.seed"}  # keys that are compared elsewhere
Differences = Mapping[str, tuple[Any, Any]]


def run_differences(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """What differs, by name, each with both values: recipe keys, the training data, the versions.

    Left out are algebra, n and seed, and what changes nothing. Data are told apart by the first eight digits of a
    SHA-256 over those of their source files, of the vocabulary and of the texts kept.
    """
    from phmctl.recipe.loading import differences
    from phmctl.recipe.sections import NOTHING, keys_changing

    apart = _ELSEWHERE | keys_changing(one.recipe, NOTHING)
    found = {key: pair for key, pair in differences(one.recipe, other.recipe).items() if key not in apart}
    for name, pair in {
        "data": (data_digest(one), data_digest(other)),
        "made with": (_versions(one), _versions(other)),
    }.items():
        if pair[0] != pair[1] and None not in pair:
            found[name] = pair
    return found


def same_model(one: Run, other: Run, *apart: str) -> bool:
    """Whether two runs differ in nothing but the seed, the versions that made them, and these keys."""
    left, right = [(each.name, each.model.algebra, each.model.dimension) for each in (one.recipe, other.recipe)]
    return left == right and not run_differences(one, other).keys() - {"made with", *apart}


def difference_lines(found: Differences, one: str = "the baseline") -> list[str]:
    """A line for each thing: ``training.steps: 2,000; 4,000 in the baseline``."""
    return [f"{name}: {value_words(other)}; {value_words(first)} in {one}" for name, (first, other) in found.items()]


def result_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """In which settings two results differ, such as ``decoding.beam``; a setting that is not known is none."""
    from phmctl.recipe.loading import flatten

    left, right = dict(flatten(one)), dict(flatten(other))
    both = (name for name in left if name in right)
    return {name: (left[name], right[name]) for name in both if left[name] != right[name]}


def data_digest(run: Run) -> str | None:
    """What tells training data apart; None where the run does not say."""
    try:
        data = run.data()
    except RunError:
        return None
    named = {key: data.get(key) for key in ("corpus", "token_types", "labels")}
    named["sources"] = sorted(str(source.get("sha256")) for source in data.get("sources", ()))
    kept = {name: split.get("kept") for name, split in data.get("splits", {}).items()}
    return sha256_text([json.dumps([named, kept], sort_keys=True)])[:8]


def _versions(run: Run) -> str | None:
    try:
        environment = run.environment()
    except RunError:
        return None
    libraries = environment.get("libraries") or {}
    return f"phmctl {environment.get('phmctl')} at {str(environment.get('git'))[:7]}, torch {libraries.get('torch')}"


def value_words(value: Any) -> str:
    """A value of a recipe as people read it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)
