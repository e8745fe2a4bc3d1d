"""Loading recipes: by path or shipped name, with overrides, every problem reported at once with its line.

The YAML is composed to nodes first, so that each key's line is known when pydantic refuses it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from phmctl.errors import RecipeError, nearest
from phmctl.recipe.schema import Recipe, Section
from phmctl.shipped import shipped, shipped_names

Path_ = tuple[str, ...]
_COMMON = {"n": "model.n", "algebra": "model.algebra", "seed": "training.seed"}
_COMMON |= {"device": "training.device", "steps": "training.steps"}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with the floats of YAML 1.2: ``1e-4`` is a number, not a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def common_overrides(**options: object) -> list[str]:
    """Return the overrides that stand behind ``--n``, ``--algebra``, ``--seed``, ``--device`` and ``--steps``.

    Options that are None are left out. A learned n names the learned algebra (``--n 4`` is ``phm``; ``--n 1`` is
    ``real``), unless ``algebra`` is given too.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if "n" in given and "algebra" not in given:
        given["algebra"] = "real" if given["n"] == 1 else "phm"
    if "algebra" in given and given["algebra"] != "phm" and "n" not in given:
        given["n"] = 1
    return [f"{_COMMON[key]}={value}" for key, value in given.items()]


def find_recipe(name: str) -> Path:
    """Return the file of a recipe given by path or shipped name.

    Raises:
        RecipeError: there is none.
    """
    path = Path(name)
    if path.is_file():
        return path
    packaged = shipped("recipes") / f"{name}.yaml"
    if packaged.is_file():
        return packaged
    known = shipped_names("recipes")
    raise RecipeError(
        f"no recipe {name!r}: neither a file nor a shipped recipe{nearest(name, known)}\n"
        f"shipped recipes: {', '.join(known)}"
    )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load and validate a recipe.

    Args:
        name: a path or a shipped recipe's name.
        overrides: ``key.path=value`` settings, the value in YAML; later ones win.

    Raises:
        RecipeError: with all problems at once, a line each.
    """
    path = find_recipe(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read recipe {path}: {error}") from error
    return parse_recipe(text, where=str(path), overrides=overrides)


def parse_recipe(text: str, *, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate a recipe's YAML text; `where` names it in messages."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{where} does not hold a mapping of keys; see the shipped recipes for the form")
    lines, problems = _lines(node, where)
    sources = {key: f"{where}:{line}" for key, line in lines.items()}
    for override in overrides:
        key, value = _parse_override(override)
        _set(content, key, value, override)
        sources[key] = f"--set {override}"
    return _validate(content, sources, where, problems)


def _validate(content: object, sources: Mapping[Path_, str], where: str, problems: Sequence[str]) -> Recipe:
    """Return the recipe that `content` says, or raise with what is wrong with it, behind `problems` known before."""
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        found = [_describe(problem, sources, where) for problem in error.errors()]
        raise RecipeError("\n".join(dict.fromkeys([*problems, *found]))) from error
    if problems:
        raise RecipeError("\n".join(problems))
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return the resolved recipe, every key with its value, as YAML."""
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two recipes differ, each with both values."""
    left, right = dict(_flatten(one.model_dump())), dict(_flatten(other.model_dump()))
    return {key: (left.get(key), right.get(key)) for key in left | right if left.get(key) != right.get(key)}


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(node: yaml.Node | None, where: str) -> tuple[dict[Path_, int], list[str]]:
    """Return each key's line, and what to say about keys that are there twice (YAML lets the last one win)."""
    lines: dict[Path_, int] = {}
    problems = []
    for path, line in _key_lines(node, ()):
        if path in lines:
            problems.append(f"{where}:{line}: key {'.'.join(path)!r} is in line {lines[path]} already; remove one")
        lines[path] = line
    return lines, problems


def _key_lines(node: yaml.Node | None, prefix: Path_) -> Iterator[tuple[Path_, int]]:
    """Yield each key's path and its line, counted from 1."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = (*prefix, str(key.value))
        yield path, key.start_mark.line + 1
        yield from _key_lines(value, path)


def _parse_override(override: str) -> tuple[Path_, Any]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"--set {override}: want key.path=value, for example --set training.steps=200")
    try:
        return tuple(key.strip().split(".")), yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override}: the value is not YAML") from error


def _set(content: dict[str, Any], path: Path_, value: Any, override: str) -> None:
    for part in path[:-1]:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise RecipeError(f"--set {override}: {part} is a value, not a section")
    content[path[-1]] = value


def _describe(problem: Any, sources: Mapping[Path_, str], where: str) -> str:
    """Turn one pydantic error into a line: where, which key, what is wrong, the nearest key."""
    path: Path_ = tuple(str(part) for part in problem["loc"])
    place = next((sources[path[:end]] for end in range(len(path), 0, -1) if path[:end] in sources), where)
    key = ".".join(path)
    match problem["type"]:
        case "extra_forbidden":
            known = _section_at(path[:-1]).model_fields
            return f"{place}: unknown key {key!r}{nearest(path[-1], known)}"
        case "missing":
            return f"{place}: key {key!r} is missing"
        case "value_error":
            return f"{place}: {key or 'recipe'}: {problem['ctx']['error']}"
    message = problem["msg"].removeprefix("Input should be ")
    return f"{place}: {key} should be {message}, not {_shorten(problem['input'])}{_suggest(problem)}"


def _suggest(problem: Any) -> str:
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    return nearest(problem["input"], re.findall(r"'([^']+)'", problem["ctx"]["expected"]))


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _section_at(path: Path_) -> type[BaseModel]:
    """Return the schema's section at a key path."""
    section: type[BaseModel] = Recipe
    for part in path:
        annotation = section.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            section = annotation
    return section
