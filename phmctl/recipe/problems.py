"""What pydantic refuses, told to a person: a line each, with the place, the key, what is wrong and the nearest name."""

import re
from collections.abc import Callable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from phmctl.errors import nearest

KeyPath = tuple[str, ...]
Place = Callable[[KeyPath, str], str]

_KEY_ITSELF = "[key]"  # pydantic's mark for a mapping's key, where its value is not at fault


def describe(error: ValidationError, schema: type[BaseModel], place: Place) -> list[str]:
    """Return a line for each problem that pydantic found.

    Args:
        error: what it raised.
        schema: the model that was asked for.
        place: names the file and line, or the option, to blame for a key path; for what is wrong with a whole section,
            given what the schema says about its keys.
    """
    lines = []
    for problem in error.errors():
        path = tuple(str(part) for part in problem["loc"] if part != _KEY_ITSELF)
        message = _message(problem, path, schema)
        place_named = place(path, message if problem["type"] == "value_error" else "")
        lines.append(f"{place_named}: {message}")
    return list(dict.fromkeys(lines))


def _message(problem: Any, path: KeyPath, schema: type[BaseModel]) -> str:
    key = ".".join(path)
    if problem["loc"][-1:] == (_KEY_ITSELF,):
        return f"unknown key {key!r}{_suggest(problem)}"
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}{nearest(path[-1], _section_at(schema, path[:-1]).model_fields)}"
        case "missing":
            return f"key {key!r} is missing"
        case "value_error":
            return f"{key or schema.__name__.lower()}: {problem['ctx']['error']}"
    _, should, wanted = problem["msg"].partition(" should ")
    if not should:
        return f"{key}: {problem['msg']}"
    return f"{key} should {wanted}, not {_shorten(problem['input'])}{_suggest(problem)}"


def _suggest(problem: Any) -> str:
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    return nearest(problem["input"], re.findall(r"'([^']+)'", problem["ctx"]["expected"]))


def _shorten(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 40 else text[:37] + "..."


def _section_at(schema: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    """Return the model at a key path; places in a list and names in a mapping are stepped over."""
    section = schema
    for part in path:
        if part in section.model_fields:
            section = _model_in(section.model_fields[part].annotation) or section
    return section


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model that an annotation holds: of ``tuple[Layout, ...]``, Layout."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)
