"""YAML files with a schema: recipes and dataset cards. All problems are reported together, each with the line.

The YAML is composed into nodes first, so that the line of each key is known when pydantic rejects its value.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

try:  # ten times as fast
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader  # type: ignore[assignment]

from phmctl.errors import UserError, nearest

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)

_MAX_DEPTH = 50  # nested sections and lists
_KEY = "[key]"  # pydantic's mark of an invalid key of a mapping


class _Loader(SafeLoader):
    """A safe loader with tuples for lists and the plain scalars of YAML 1.2.

    PyYAML's YAML 1.1 reads yes and no as booleans, 1:30 as 90, 010 as 8, 2001-01-01 as a date and 1e-4 as text.
    """

    depth = 0  # the node's that is composed, since libyaml's recursion has no limit

    def descend_resolver(self, current_node: yaml.Node, current_index: object) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"sections are nested more than {_MAX_DEPTH} levels deep")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def construct_tuple(self, node: yaml.SequenceNode) -> tuple[object, ...]:
        return tuple(self.construct_sequence(node, deep=True))


_Loader.add_constructor("tag:yaml.org,2002:seq", _Loader.construct_tuple)
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["", *"~nN"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))(?:[eE][-+]?\d+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def wrong_choice(key: str, value: object, known: Sequence[str]) -> str:
    """Return the error message for a key whose value is not among the known ones."""
    names = [repr(name) for name in known]
    choices = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    hint = nearest(value, known) if isinstance(value, str) else ""
    return f"{key} should be {choices}, not {_shorten(value)}{hint}"


def _message(problem: Any, path: KeyPath, section: type[BaseModel], schema: type[BaseModel]) -> str:
    """Return the message of one of pydantic's problems with the key at `path` of a section."""
    key = ".".join(path)
    context = problem.get("ctx", {})
    if problem["loc"][-1:] == (_KEY,):
        return f"unknown key {key!r}{_hint(problem)}"
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}{nearest(path[-1], section.model_fields)}"
        case "missing":
            return f"key {key!r} is missing"
        case "union_tag_not_found":
            return f"key {key!r} is missing: it determines the other keys"
        case "union_tag_invalid":
            return wrong_choice(key, context["tag"], _quoted(context["expected_tags"]))
        case "value_error":
            return f"{key or schema.model_config.get('title') or schema.__name__.lower()}: {context['error']}"
    _, should, expected = problem["msg"].partition(" should ")
    if not should:
        return f"{key}: {problem['msg']}"
    return f"{key} should {expected}, not {_shorten(problem['input'])}{_hint(problem)}"


def _hint(problem: Any) -> str:
    if problem["type"] == "string_type" and isinstance(problem["input"], int | float):
        value = str(problem["input"]).lower()  # true, as in YAML
        return f': quotes make it a string: "{value}", in a shell \'"{value}"\''
    if problem["type"] == "value_error":
        return f" ({problem['ctx']['error']})"
    if problem["type"] == "literal_error" and isinstance(problem["input"], str):
        return nearest(problem["input"], _quoted(problem["ctx"]["expected"]))
    return ""


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']+)'", text)


def _shorten(value: object) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 40 else text[:37] + "..."


def _locate(problem: Any, schema: type[BaseModel]) -> tuple[KeyPath, type[BaseModel]]:
    """Return the path of the invalid key, and the model of the section that contains it.

    If a key's value can be one of several models, pydantic's location also contains the tag of the model.
    """
    section = schema
    models = [schema]  # possible models of the value at the path
    path: list[str] = []
    for part in (str(part) for part in problem["loc"] if part != _KEY):
        tagged = [model for model in models if len(models) > 1 and part in _tags(model)]
        if tagged:
            models = tagged
            continue
        path.append(part)
        section = models[0]
        if part in section.model_fields:
            models = _models_in(section.model_fields[part].annotation) or [section]
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(problem["ctx"]["discriminator"].strip("'"))
    return tuple(path), section


def _tags(model: type[BaseModel]) -> tuple[object, ...]:
    return get_args(model.model_fields["kind"].annotation)


def _models_in(annotation: object) -> list[type[BaseModel]]:
    """Return the models in an annotation: Layout for ``tuple[Layout, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


@dataclass
class Document:
    """Keys and values with the place of each key."""

    content: dict[str, Any]
    name: str = ""  # the file, for messages
    places: dict[KeyPath, str] = field(default_factory=dict)  # file and line of each key
    options: dict[KeyPath, str] = field(default_factory=dict)  # option of each key that the command line set
    problems: list[str] = field(default_factory=list)  # problems before validation

    def validate(self, schema: type[Model], refusal: type[UserError]) -> Model:
        """Return the content as `schema`, or raise `refusal` with a line for each problem."""
        problems = dict.fromkeys(self.problems)
        try:
            model = schema.model_validate(self.content)
        except ValidationError as error:
            for problem in error.errors():
                path, section = _locate(problem, schema)
                message = _message(problem, path, section, schema)
                place = self.place(path, message if problem["type"] == "value_error" else "")
                problems[f"{place}: {message}"] = None
        if problems:
            raise refusal("\n".join(problems))
        return model

    def place(self, path: KeyPath, message: str) -> str:
        """Return the option or the line that a problem with the key at `path` comes from.

        In this order: keys below `path` that the message names, first those that options set, then the key itself, then
        options that set a key below it, then the sections around it.
        """
        known = self.places | self.options
        below = [key for key in known if len(key) > len(path) and key[: len(path)] == path]
        words = re.findall(r"\w+(?:\.\w+)*", message)
        named = [key for word in words for key in below if ".".join(key[len(path) :]) == word]
        named.sort(key=lambda key: key not in self.options)
        set_below = [key for key in below if path and key in self.options]
        around = [path[:end] for end in range(len(path) - 1, 0, -1)]
        return next((known[key] for key in (*named, path, *set_below, *around) if known.get(key)), self.name)

    def extend(self, base: "Document") -> None:
        """Add the keys of `base` that this document lacks."""
        self.content = _merge(self.content, base.content)
        self.places = base.places | self.places
        self.problems = base.problems + self.problems


def _merge(content: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    merged = base | content
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _merge(value, base[key])
    return merged


def change(section: Model, changes: Mapping[str, object], refusal: type[UserError]) -> Model:
    """Return a section with fields changed by arguments."""
    options: dict[KeyPath, str] = {(key,): f"{key}={value}" for key, value in changes.items()}
    document = Document({**section.model_dump(), **changes}, options=options)
    return document.validate(type(section), refusal)


def read_document(path: Path, refusal: type[UserError]) -> Document:
    """Read a YAML file. Raise `refusal` if it cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return parse_document(text, str(path), refusal)


def parse_document(text: str, name: str, refusal: type[UserError]) -> Document:
    """Parse YAML text. Messages call it `name`."""
    try:
        node, content = compose(text)
        lines = list(_key_lines(node, (), set()))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        place = f"{name}:{mark.line + 1}" if mark else name
        raise refusal(f"{place}: cannot parse YAML: {' '.join(problem.split())}") from error
    if not isinstance(content, dict):
        raise refusal(f"{name} does not contain a mapping of keys: the shipped files show the form")
    document = Document(content, name)
    for path, line in lines:
        if path in document.places:  # YAML itself would keep the last value
            first = document.places[path].rpartition(":")[2]
            document.problems.append(f"{name}:{line}: key {'.'.join(path)!r} is already in line {first}, remove one")
        document.places[path] = f"{name}:{line}"
    return document


def compose(text: str) -> tuple[yaml.Node | None, object]:
    """Return the node and the value of a YAML text. Raise ``yaml.YAMLError`` if it is invalid."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # a list as a key
        raise yaml.YAMLError(str(error)) from error


def _key_lines(node: yaml.Node | None, prefix: KeyPath, seen: set[int]) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and the line, from 1, of each key and list entry.

    Raises ``yaml.YAMLError`` at an alias, of which a few hundred bytes can expand to gigabytes.
    """
    if node is None:
        return
    if id(node) in seen:
        raise yaml.MarkedYAMLError(problem="aliases are not supported: repeat the value", problem_mark=node.start_mark)
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        entries = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(str(index), value, value) for index, value in enumerate(node.value)]
    else:
        return
    for name, start, value in entries:
        yield (*prefix, name), start.start_mark.line + 1
        yield from _key_lines(value, (*prefix, name), seen)
