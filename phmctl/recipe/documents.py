"""YAML files that a schema checks: recipes and dataset cards. All problems come at once, each with its line.

The YAML is composed to nodes first, so that each key's line is known when pydantic refuses it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from phmctl.errors import UserError, nearest

KeyPath = tuple[str, ...]

TOLD = 100  # problems of one document that are told, at most
_KEY_ITSELF = "[key]"  # pydantic's mark for a mapping's key, where its value is not at fault


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
    section, inside, path, tagged = schema, schema, list[str](), list[type[BaseModel]]()
    for part in (str(part) for part in problem["loc"] if part != _KEY_ITSELF):
        if chosen := [each for each in tagged if part in get_args(each.model_fields["kind"].annotation)]:
            inside, tagged = chosen[0], []
            continue
        path.append(part)
        section, tagged = inside, []
        if part in section.model_fields:
            models = _models_in(section.model_fields[part].annotation)
            inside, tagged = models[0] if models else section, models if len(models) > 1 else []
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(problem["ctx"]["discriminator"].strip("'"))
    return tuple(path), section


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that an annotation holds: of ``tuple[Layout, ...]``, Layout; several differ in their `kind`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


Model = TypeVar("Model", bound=BaseModel)


_LARGEST = 1 << 17  # characters of a document
# What a value without quotes may be besides text: YAML 1.2's core schema, without its octal and hexadecimal numbers.
# YAML 1.1, PyYAML's own, also reads 1:30 as 90, 010 as 8, yes and no as truth values and 2001-01-01 as a date.
_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["", *"~nN"]),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the values of YAML 1.2 and lists as the schemas' tuples.

    It refuses aliases, some hundred bytes of which can stand for gigabytes, and tags.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        if event.anchor is not None:
            problem = f"anchors and aliases ({event.anchor}) are not read; write the values where they belong"
        elif event.tag is not None:
            problem = f"tag {event.tag!r} is not read; write plain values"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        return tuple(self.construct_sequence(node, deep=True))


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})\\Z"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:seq", _Loader.construct_tuple)


@dataclass
class Document:
    """Keys and values, and where each key comes from."""

    content: dict[str, Any]  # what the schema will check
    where: str = ""  # the file, as messages call it
    places: dict[KeyPath, str] = field(default_factory=dict)  # the file and line of each key
    # the keys that the command line set, and the option as the user wrote it
    options: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # what was found wrong before the schema is asked

    def validate(self, schema: type[Model], refusal: type[UserError]) -> Model:
        """Return the content as `schema`, or raise `refusal` with all problems, a line each."""
        problems, model = self.problems, None
        try:
            model = schema.model_validate(self.content)
        except ValidationError as error:
            for problem in error.errors()[: TOLD + 1]:  # each looks through all keys for its place
                path, section = _locate(problem, schema)
                message = _message(problem, path, section, schema)
                place = self.place(path, message if problem["type"] == "value_error" else "")
                problems = list(dict.fromkeys([*problems, f"{place}: {message}"]))
        if model is None or problems:
            more = ["... and more"] if len(problems) > TOLD else []
            raise refusal("\n".join([*problems[:TOLD], *more]))
        return model

    def place(self, path: KeyPath, message: str) -> str:
        """Return what to blame: an option or a line.

        Keys below `path` that the message names come first, those that options set before others, for what is wrong
        with a section is wrong with them; then the key itself, an option that set a part of it, and what it stands in.
        """
        depth = len(path)
        known = self.places | self.options
        keys = (key for key in known if len(key) > depth and key[:depth] == path)
        inside = {".".join(key[depth:]): key for key in keys}
        words = re.findall(r"\w+(?:\.\w+)*", message)
        named = sorted((inside[word] for word in words if word in inside), key=lambda key: key not in self.options)
        parts = [key for key in inside.values() if path and key in self.options]
        outwards = [path[:end] for end in range(depth - 1, 0, -1)]
        return next((known[key] for key in (*named, path, *parts, *outwards) if known.get(key)), self.where)

    def extend(self, base: "Document") -> None:
        """Take from `base` what this document does not say itself, key by key."""
        self.content = _merged(self.content, base.content)
        self.places = base.places | self.places
        self.problems = base.problems + self.problems


def _merged(own: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    both = (key for key in own if isinstance(own[key], dict) and isinstance(base.get(key), dict))
    return base | own | {key: _merged(own[key], base[key]) for key in both}


def change(section: Model, changes: Mapping[str, Any], refusal: type[UserError]) -> Model:
    """Return a section with the fields that options set, ``--max-tokens`` that of `max_tokens`."""
    options: dict[KeyPath, str] = {(key,): f"--{key.replace('_', '-')} {value}" for key, value in changes.items()}
    document = Document({**section.model_dump(), **changes}, options=options)
    return document.validate(type(section), refusal)


def read_document(path: Path, refusal: type[UserError]) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return parse_document(text, str(path), refusal)


def parse_document(text: str, where: str, refusal: type[UserError]) -> Document:
    """Parse YAML text; `where` names it in messages. See :func:`read_document`."""
    try:
        node, content = compose(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        place = f"{where}:{mark.line + 1}" if mark else where
        raise refusal(f"{place}: not YAML as it is read here: {' '.join(problem.split())}") from error
    if not isinstance(content, dict):
        raise refusal(f"{where} does not hold a mapping of keys; see the shipped ones for the form")
    document = Document(content, where)
    for path, line in _key_lines(node, ()):
        if path in document.places:  # YAML lets the last one win
            first = document.places[path].rpartition(":")[2]
            document.problems.append(f"{where}:{line}: key {'.'.join(path)!r} is in line {first} already; remove one")
        document.places[path] = f"{where}:{line}"
    return document


def compose(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the nodes of a YAML text, and its value; raises ``yaml.YAMLError``."""
    if len(text) > _LARGEST:
        raise yaml.YAMLError(f"more than {_LARGEST:,} characters")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # a list as a key; depth
        raise yaml.YAMLError(str(error)) from error


def _key_lines(node: yaml.Node | None, prefix: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path of each key and list entry, and its line, counted from 1."""
    if isinstance(node, yaml.MappingNode):
        entries = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(str(index), value, value) for index, value in enumerate(node.value)]
    else:
        return
    for name, begin, value in entries:
        yield (*prefix, name), begin.start_mark.line + 1
        yield from _key_lines(value, (*prefix, name))
