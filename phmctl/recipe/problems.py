"""What pydantic refuses, told to a person: a line each, with the place, the key, what is wrong and the nearest name."""

import re
from collections.abc import Callable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from phmctl.errors import nearest

KeyPath = tuple[str, ...]
Place = Callable[[KeyPath, str], str]

TOLD = 100  # problems of one document that are told, at most
_KEY_ITSELF = "[key]"  # pydantic's mark for a mapping's key, where its value is not at fault


def describe(error: ValidationError, schema: type[BaseModel], place: Place) -> list[str]:
    """Return a line for each problem that pydantic found."""
    lines = []
    for problem in error.errors()[: TOLD + 1]:  # each looks through all keys for its place
        path, section = _locate(problem, schema)
        message = _message(problem, path, section, schema)
        place_named = place(path, message if problem["type"] == "value_error" else "")
        lines.append(f"{place_named}: {message}")
    return list(dict.fromkeys(lines))


def wrong_choice(key: str, value: Any, known: Sequence[str]) -> str:
    """Say that a key's value is none of the known ones, with the nearest."""
    names = [repr(name) for name in known]
    wanted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    hint = nearest(value, known) if isinstance(value, str) else ""
    return f"{key} should be {wanted}, not {_shorten(value)}{hint}"


def _message(problem: Any, path: KeyPath, section: type[BaseModel], schema: type[BaseModel]) -> str:
    key = ".".join(path)
    if problem["loc"][-1:] == (_KEY_ITSELF,):
        return f"unknown key {key!r}{_suggest(problem)}"
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}{nearest(path[-1], section.model_fields)}"
        case "missing":
            return f"key {key!r} is missing"
        case "union_tag_not_found":
            return f"key {key!r} is missing; it decides which other keys there are"
        case "union_tag_invalid":
            return wrong_choice(key, problem["ctx"]["tag"], _quoted(problem["ctx"]["expected_tags"]))
        case "value_error":
            name = schema.model_config.get("title") or schema.__name__.lower()
            return f"{key or name}: {problem['ctx']['error']}"
    _, should, wanted = problem["msg"].partition(" should ")
    if not should:
        return f"{key}: {problem['msg']}"
    return f"{key} should {wanted}, not {_shorten(problem['input'])}{_suggest(problem)}"


def _suggest(problem: Any) -> str:
    if problem["type"] == "value_error":
        return f" ({problem['ctx']['error']})"
    if problem["type"] == "bool_type":
        return "; YAML's words are true and false"
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    return nearest(problem["input"], _quoted(problem["ctx"]["expected"]))


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']+)'", text)


def _shorten(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 40 else text[:37] + "..."


def _locate(problem: Any, schema: type[BaseModel]) -> tuple[KeyPath, type[BaseModel]]:
    """Return the path of the key that is wrong, and the model that it stands in.

    Pydantic's path has a tag behind a key whose value is one of several models; no YAML has it, so it is left out.
    Places in a list and names in a mapping are stepped over. What is wrong with the tag is told of its own key.
    """
    section, inside, path = schema, schema, list[str]()
    models: dict[str, type[BaseModel]] = {}
    for part in (str(part) for part in problem["loc"] if part != _KEY_ITSELF):
        if part in models:
            inside, models = models[part], {}
            continue
        path.append(part)
        section, models = inside, {}
        if part in section.model_fields:
            models = _tagged(section.model_fields[part])
            inside = _model_in(section.model_fields[part].annotation) or section
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(problem["ctx"]["discriminator"].strip("'"))
    return tuple(path), section


def _tagged(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """Return the models that a field chooses from, by the tag that chooses them."""
    if not isinstance(field.discriminator, str):
        return {}
    models = get_args(field.annotation)
    return {tag: each for each in models for tag in get_args(each.model_fields[field.discriminator].annotation)}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model that an annotation holds: of ``tuple[Layout, ...]``, Layout."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)
