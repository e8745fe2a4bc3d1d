"""Load recipes by path or shipped name, with overrides. All problems are reported at once with the lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import yaml

from phmctl.algebra.dimension import LEARNED, LOW_RANK
from phmctl.errors import RecipeError, nearest
from phmctl.recipe.documents import Document, compose, read_document, wrong_choice
from phmctl.recipe.schema import RECIPES, Recipe, differences, flatten
from phmctl.shipped import shipped, shipped_names
from phmctl.storage import FORMAT

RecipeType = TypeVar("RecipeType", bound=Recipe)
RecipeLike = str | Path | Mapping[str, object] | Recipe

COMMON = {  # options that set a recipe key, and the key
    "n": "model.n",
    "algebra": "model.algebra",
    "seed": "training.seed",
    "device": "training.device",
    "steps": "training.steps",
    "init": "training.initialise_from",
}


@dataclass(frozen=True)
class Override:
    """A recipe key that an option sets."""

    key: str
    value: object
    option: str  # the option and the value, as the user wrote them
    implied: bool = False  # whether the option implies the key (an option for the key itself wins)


def common_overrides(**options: int | str | Path | None) -> list[Override]:
    """Return the overrides of the options in :data:`COMMON`, except options that are None.

    Without `algebra`, n = 1 implies ``real`` and a larger n implies ``phm``. A fixed algebra implies no rank.
    """
    overrides = []
    for name, value in options.items():
        if value is not None:
            text = str(value) if isinstance(value, Path) else value
            overrides.append(Override(COMMON[name], text, f"{name}={value}"))
    n, algebra = options.get("n"), options.get("algebra")
    source = f"n={n}" if algebra is None else f"algebra={algebra}"
    implied: dict[str, object] = {}
    if n is not None and algebra is None:
        implied["model.algebra"] = "real" if n == 1 else "phm"
    if n is None and algebra not in (None, LEARNED):
        implied["model.n"] = 1
    if algebra not in (None, LEARNED, LOW_RANK) or (algebra is None and n == 1):
        implied["model.rank"] = None
    return overrides + [Override(key, value, source, implied=True) for key, value in implied.items()]


def find_recipe(name: str, folder: Path = Path()) -> Path:
    """Return the file of a recipe, by a path relative to `folder` or by a shipped name."""
    path = folder / name
    if path.is_file():
        return path
    packaged = shipped("recipes") / f"{name}.yaml"
    if packaged.is_file():
        return packaged
    guess = nearest(name, shipped_names("recipes"))
    raise RecipeError(f"no recipe {name!r}: neither a file nor a shipped recipe{guess}; phmctl recipes lists them")


def load_recipe(name: str, overrides: Sequence[str | Override] = ()) -> Recipe:
    path = find_recipe(name)
    return _resolve(read_document(path, RecipeError), overrides, path)


def resolve(
    recipe: RecipeLike, overrides: Sequence[str | Override] = (), settings: Mapping[str, object] | Sequence[str] = ()
) -> Recipe:
    """Return a recipe with overrides and settings applied. Raises RecipeError, also if two of them set one key."""
    if isinstance(settings, str) or not all(isinstance(setting, str) for setting in settings):
        raise RecipeError(f"settings is a mapping of keys, or a list of 'key=value', not {settings!r}")
    changes: list[str | Override] = [*overrides]
    if isinstance(settings, Mapping):
        changes += [Override(key, value, f"settings[{key!r}]") for key, value in settings.items()]
    else:
        changes += settings
    parsed_changes = list(parsed(changes))
    by_key: dict[str, Override] = {}
    for change in parsed_changes:
        if change.key in by_key and not change.implied:  # the last would win silently
            options = f"{by_key[change.key].option} and {change.option}"
            raise RecipeError(f"{options} both set {change.key}: leave one out (several values: phmctl sweep)")
        if not change.implied:
            by_key[change.key] = change
    if isinstance(recipe, Recipe):
        if not parsed_changes:
            return recipe
        recipe = recipe.model_dump()
    if isinstance(recipe, Mapping):
        return _resolve(Document(deepcopy(dict(recipe)), "recipe"), parsed_changes)
    return load_recipe(str(recipe), parsed_changes)


def _resolve(document: Document, overrides: Sequence[str | Override], path: Path | None = None) -> Recipe:
    _extend(document, [] if path is None else [path.resolve()])
    changes = sorted(parsed(overrides), key=lambda change: not change.implied)  # implied values are set first
    if {"name", "data.card"} & {change.key for change in changes}:
        document.content["description"] = ""  # it describes another corpus
    for change in changes:
        *sections, last = path_of_key = tuple(change.key.split("."))
        content = document.content
        for part in sections:
            content = content.setdefault(part, {})
            if not isinstance(content, dict):
                raise RecipeError(f"{change.option}: {part} is a value, not a section")
        content[last] = change.value
        document.options[path_of_key] = change.option
    return validate_recipe(document)


def _extend(document: Document, files: list[Path]) -> None:
    """Add the keys of the recipe that ``extends`` names. `files` are the recipes on the way to the document."""
    if "extends" not in document.content:
        return
    place = document.place(("extends",), "")
    name = document.content.pop("extends")
    if not isinstance(name, str):
        raise RecipeError(f"{place}: extends should be a recipe's name or file, not {name!r}")
    try:
        path = find_recipe(name, files[-1].parent if files else Path())
    except (RecipeError, OSError) as error:  # OSError: the name is too long
        raise RecipeError(f"{place}: {error}") from error
    if path.resolve() in files:
        raise RecipeError(f"{place}: extends {name!r}, which extends this recipe")
    base = read_document(path, RecipeError)
    _extend(base, [*files, path.resolve()])
    for key in ("name", "description"):  # not inherited
        base.content.pop(key, None)
        base.places.pop((key,), None)
    document.extend(base)


def parsed(overrides: Iterable[str | Override]) -> Iterator[Override]:
    """Yield the override of each key. An override of a section sets the keys it contains and keeps the others."""
    for item in overrides:
        if isinstance(item, Override):
            override = item
        else:
            key, equals, value = item.partition("=")
            if not equals or not key.strip():
                raise RecipeError(f"setting {item!r}: expected key.path=value, for example training.steps=200")
            try:
                override = Override(key.strip(), compose(value)[1], f"setting {item!r}")
            except yaml.YAMLError as error:
                problem = getattr(error, "problem", None) or error
                raise RecipeError(f"setting {item!r}: the value is not valid YAML: {problem}") from error
        for key, value in flatten({override.key: override.value}):
            yield replace(override, key=key, value=value)


def validate_recipe(document: Document) -> Recipe:
    number = document.content.pop("format", FORMAT)
    if number != FORMAT or isinstance(number, bool):
        raise RecipeError(
            f"{document.place(('format',), '')}: format {number!r}, this version of phmctl reads format {FORMAT}: "
            "use the version that wrote the recipe, or leave the key out"
        )
    task = document.content.get("task", "translation")
    if not isinstance(task, str) or task not in RECIPES:
        message = wrong_choice("task", task, list(RECIPES))
        raise RecipeError("\n".join([*document.problems, f"{document.place(('task',), '')}: {message}"]))
    return document.validate(RECIPES[task], RecipeError)


def expect(recipe: Recipe, recipe_type: type[RecipeType]) -> RecipeType:
    """Return a recipe if it has the type of a task. Raises RecipeError."""
    if not isinstance(recipe, recipe_type):
        task = recipe_type.model_fields["task"].default
        raise RecipeError(f"recipe {recipe.name!r} has task {recipe.task!r}: this needs task {task!r}")
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML, with the values of all keys."""
    return yaml.safe_dump({"format": FORMAT, **recipe.model_dump()}, sort_keys=False, allow_unicode=True)


def unmodified(written: RecipeLike, resolved: Recipe) -> dict[str, object] | None:
    """Return the original values of the keys that options changed, or None if the recipe is invalid without options."""
    try:
        return {key: original for key, (original, _) in differences(resolve(written), resolved).items()}
    except RecipeError:  # the options added missing keys
        return None
