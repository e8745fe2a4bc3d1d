"""YAML files that a schema checks: recipes and dataset cards. All problems come at once, each with its line.

The YAML is composed to nodes first, so that each key's line is known when pydantic refuses it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from phmctl.errors import UserError
from phmctl.recipe.problems import KeyPath, describe

Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with the floats of YAML 1.2 (``1e-4`` is a number) and lists as the schemas' tuples."""

    def construct_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        """Return a YAML list as a tuple."""
        return tuple(self.construct_sequence(node, deep=True))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_Loader.add_constructor("tag:yaml.org,2002:seq", _Loader.construct_tuple)


@dataclass
class Document:
    """Keys and values, and where each key comes from.

    Attributes:
        content: what the schema will check.
        where: the file, as messages call it.
        lines: the line of each key in the file.
        options: the keys that the command line set, and the option as the user wrote it.
        problems: what was found wrong before the schema is asked.
    """

    content: dict[str, Any]
    where: str = ""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    options: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def validate(self, schema: type[Model], refusal: type[UserError]) -> Model:
        """Return the content as `schema`, or raise `refusal` with all problems, a line each."""
        try:
            model = schema.model_validate(self.content)
        except ValidationError as error:
            raise refusal("\n".join([*self.problems, *describe(error, schema, self.place)])) from error
        if self.problems:
            raise refusal("\n".join(self.problems))
        return model

    def place(self, path: KeyPath, message: str) -> str:
        """Return what to blame: an option or a line.

        Keys below `path` that the message names come first, those that options set before others, for what is wrong
        with a section is wrong with them; then the key itself, an option that set a part of it, and what it stands in.
        """
        depth = len(path)
        keys = (key for key in (*self.lines, *self.options) if len(key) > depth and key[:depth] == path)
        inside = {".".join(key[depth:]): key for key in keys}
        words = re.findall(r"\w+(?:\.\w+)*", message)
        named = sorted((inside[word] for word in words if word in inside), key=lambda key: key not in self.options)
        parts = [key for key in inside.values() if path and key in self.options]
        outwards = [path[:end] for end in range(depth - 1, 0, -1)]
        found = (self._known(key) for key in (*named, path, *parts, *outwards))
        return next((place for place in found if place), self.where)

    def _known(self, key: KeyPath) -> str:
        if key in self.options:
            return self.options[key]
        return f"{self.where}:{self.lines[key]}" if key in self.lines else ""


def change(section: Model, changes: Mapping[str, Any], refusal: type[UserError]) -> Model:
    """Return a section with the fields that options set, ``--max-tokens`` that of `max_tokens`.

    Raises:
        UserError: of the kind `refusal`; a line for each option that cannot be.
    """
    options: dict[KeyPath, str] = {(key,): f"--{key.replace('_', '-')} {value}" for key, value in changes.items()}
    document = Document({**section.model_dump(), **changes}, options=options)
    return document.validate(type(section), refusal)


def read_document(path: Path, refusal: type[UserError]) -> Document:
    """Read a YAML file.

    Raises:
        UserError: of the kind `refusal`, if the file cannot be read or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return parse_document(text, str(path), refusal)


def parse_document(text: str, where: str, refusal: type[UserError]) -> Document:
    """Parse YAML text; `where` names it in messages. See :func:`read_document`."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise refusal(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise refusal(f"{where} does not hold a mapping of keys; see the shipped ones for the form")
    document = Document(content, where)
    for path, line in _key_lines(node, ()):
        if path in document.lines:  # YAML lets the last one win
            document.problems.append(
                f"{where}:{line}: key {'.'.join(path)!r} is in line {document.lines[path]} already; remove one"
            )
        document.lines[path] = line
    return document


def parse_value(text: str) -> Any:
    """Return one YAML value; raises ``yaml.YAMLError``."""
    return yaml.load(text, Loader=_Loader)


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
