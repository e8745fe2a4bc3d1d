"""Loading recipes: by path or shipped name, with overrides, every problem reported at once with its line or option."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from phmctl.dimension import LOW_RANK, WITH_FACTORS, WITH_N
from phmctl.errors import RecipeError, nearest
from phmctl.files import FORMAT
from phmctl.recipe import flatten
from phmctl.recipe.documents import Document, compose, read_document, wrong_choice
from phmctl.recipe.schema import RECIPES, Recipe
from phmctl.shipped import shipped, shipped_names

Kind = TypeVar("Kind", bound=Recipe)
RecipeLike = str | Path | Mapping[str, Any] | Recipe

_OWN = ("name", "description")  # what no recipe takes from the one that it extends

COMMON = {  # options of train that set a key
    "n": "model.n",
    "algebra": "model.algebra",
    "execution": "model.execution",
    "seed": "training.seed",
    "device": "training.device",
    "steps": "training.steps",
    "init": "training.initialise_from",
}


@dataclass(frozen=True)
class Override:
    """A recipe's key that the command line sets: its path, its value, and the option as the user wrote it.

    What another option implies may be set by an option of its own.
    """

    key: str
    value: Any
    option: str
    implied: bool = False


def common_overrides(**options: object) -> list[Override]:
    """Return the overrides behind ``--n``, ``--algebra``, ``--seed`` and the other options of :data:`COMMON`.

    Options that are None are left out. A learned n names the learned algebra (``--n 4`` is ``phm``; ``--n 1`` is
    ``real``), unless ``algebra`` is given too. What has no learned rule has no factors of one either.
    """
    given = {name: value for name, value in options.items() if value is not None}
    overrides = [Override(COMMON[name], value, f"--{name} {value}") for name, value in given.items()]
    n, algebra = given.get("n"), given.get("algebra")
    if n is not None and algebra is None:
        overrides.append(Override(COMMON["algebra"], "real" if n == 1 else "phm", f"--n {n}", implied=True))
    if n is None and algebra is not None and algebra not in WITH_N:
        overrides.append(Override(COMMON["n"], 1, f"--algebra {algebra}", implied=True))
    if algebra not in (None, "phm") or (algebra is None and n == 1):
        source = f"--n {n}" if algebra is None else f"--algebra {algebra}"
        overrides.append(Override("model.parametrization", "rule", source, implied=True))
        if algebra != LOW_RANK:
            overrides.append(Override("model.rank", None, source, implied=True))
        if algebra not in WITH_FACTORS:
            overrides.append(Override("model.execution", None, source, implied=True))
    return overrides


def find_recipe(name: str, folder: Path = Path()) -> Path:
    """Return the file of a recipe given by path, relative to `folder`, or shipped name."""
    path = folder / name
    if path.is_file():
        return path
    packaged = shipped("recipes") / f"{name}.yaml"
    if packaged.is_file():
        return packaged
    guess = nearest(name, shipped_names("recipes"))
    raise RecipeError(f"no recipe {name!r}: neither a file nor a shipped recipe{guess}; list those: phmctl recipes")


def load_recipe(name: str, overrides: Sequence[str | Override] = ()) -> Recipe:
    path = find_recipe(name)
    return _resolve(read_document(path, RecipeError), overrides, path)


def resolve(
    recipe: RecipeLike, overrides: Sequence[str | Override] = (), settings: Mapping[str, Any] | Sequence[str] = ()
) -> Recipe:
    """Return the recipe that a program names or gives."""
    if isinstance(settings, str) or not all(isinstance(each, str) for each in settings):
        raise RecipeError(f"settings is a mapping of keys, or a list of 'key=value', not {settings!r}")
    if isinstance(settings, Mapping):
        overrides = [*overrides, *(Override(key, value, f"settings[{key!r}]") for key, value in settings.items())]
    changes = _each_once([*overrides, *(() if isinstance(settings, Mapping) else settings)])
    if isinstance(recipe, Recipe):
        if not changes:
            return recipe
        recipe = recipe.model_dump()
    if isinstance(recipe, Mapping):
        return _resolve(Document(deepcopy(dict(recipe)), "recipe"), changes)
    return load_recipe(str(recipe), changes)


def _resolve(document: Document, overrides: Sequence[str | Override], path: Path | None = None) -> Recipe:
    _extend(document, [] if path is None else [path.resolve()])
    changes = sorted(parsed(overrides), key=lambda change: not change.implied)  # what is said wins
    if {each.key for each in changes} & {"name", "data.card"}:
        document.content["description"] = ""  # it is that of another corpus
    for each in changes:
        _set(document, each)
    return validate_recipe(document)


def _extend(document: Document, files: list[Path]) -> None:
    """Take what a document does not say from the recipe that its key `extends` names; `files` lead to the document."""
    if "extends" not in document.content:
        return
    place, name = document.place(("extends",), ""), document.content.pop("extends")
    if not isinstance(name, str):
        raise RecipeError(f"{place}: extends should be a recipe's name or file, not {name!r}")
    try:
        path = find_recipe(name, files[-1].parent if files else Path())
    except (RecipeError, OSError) as error:  # so long a name
        raise RecipeError(f"{place}: {error}") from error
    if path.resolve() in files:
        raise RecipeError(f"{place}: extends {name!r}, which extends this recipe")
    base = read_document(path, RecipeError)
    _extend(base, [*files, path.resolve()])
    for key in _OWN:
        base.content.pop(key, None)
        base.places.pop((key,), None)
    document.extend(base)


def parsed(overrides: Iterable[str | Override]) -> Iterator[Override]:
    """Yield overrides; what sets a section sets each key that it names, and leaves the others as they are."""
    for each in overrides:
        override = _parse_override(each) if isinstance(each, str) else each
        for key, value in flatten({override.key: override.value}):
            yield replace(override, key=key, value=value)


def _each_once(overrides: Iterable[str | Override]) -> list[Override]:
    """Return overrides; raises RecipeError where two set one key: the last would win without a word."""
    changes = [*parsed(overrides)]
    first: dict[str, Override] = {}
    for change in changes:
        other = change if change.implied else first.setdefault(change.key, change)
        if other is not change:
            raise RecipeError(
                f"{other.option} and {change.option} both set {change.key}; leave one out (train: A,B for a sweep)"
            )
    return changes


def validate_recipe(document: Document) -> Recipe:
    written = document.content.pop("format", FORMAT)
    if written != FORMAT or isinstance(written, bool):
        raise RecipeError(
            f"{document.place(('format',), '')}: format {written!r}, and this phmctl reads recipes of format {FORMAT}: "
            "take the version of phmctl that wrote it, or leave the key out"
        )
    task = document.content.get("task", "translation")
    if not isinstance(task, str) or task not in RECIPES:
        message = wrong_choice("task", task, list(RECIPES))
        raise RecipeError("\n".join([*document.problems, f"{document.place(('task',), '')}: {message}"]))
    return document.validate(RECIPES[task], RecipeError)


def expect(recipe: Recipe, kind: type[Kind]) -> Kind:
    if not isinstance(recipe, kind):
        wanted = kind.model_fields["task"].default
        raise RecipeError(f"recipe {recipe.name!r} is one of task {recipe.task!r}, not {wanted!r}")
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return the resolved recipe, every key with its value, as YAML."""
    return yaml.safe_dump({"format": FORMAT, **recipe.model_dump()}, sort_keys=False, allow_unicode=True)


def differences(one: Recipe | Mapping[str, Any], other: Recipe | Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two recipes, or results' settings, differ, each with both values; None is none."""
    left, right = (dict(flatten(each if isinstance(each, Mapping) else each.model_dump())) for each in (one, other))
    return {key: (left.get(key), right.get(key)) for key in left | right if left.get(key) != right.get(key)}


def unmodified(written: RecipeLike, resolved: Recipe) -> dict[str, Any] | None:
    """Return the values that a recipe has as it is written, by the keys that differ in the resolved one.

    None where it is no recipe without the options.
    """
    try:
        return {key: old for key, (old, _) in differences(resolve(written), resolved).items()}
    except RecipeError:  # options gave what it lacks
        return None


def _parse_override(text: str) -> Override:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"--set {text}: expected key.path=value, for example --set training.steps=200")
    try:
        return Override(key.strip(), compose(value)[1], f"--set {text}")
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise RecipeError(f"--set {text}: the value is not YAML as it is read here: {problem}") from error


def _set(document: Document, override: Override) -> None:
    path = tuple(override.key.split("."))
    content = document.content
    for part in path[:-1]:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise RecipeError(f"{override.option}: {part} is a value, not a section")
    content[path[-1]] = override.value
    document.options[path] = override.option
