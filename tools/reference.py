"""Generate the reference of recipe keys (from the schema) and of commands (from the command line).

As a hook of mkdocs it replaces ``<!-- recipe keys -->`` and ``<!-- commands -->`` in pages, and
``<!-- readme: NAME -->`` by that part of README. To print a reference:
``python tools/reference.py keys`` or ``python tools/reference.py commands``.
"""

import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

from phmctl.cli.main import app
from phmctl.recipe.schema import RECIPES


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the generated parts of a page."""
    for mark, text in (("<!-- recipe keys -->", keys), ("<!-- commands -->", commands)):
        if mark in markdown:
            markdown = markdown.replace(mark, text())
    return re.sub(r"<!-- readme: (\w+) -->", lambda found: readme_part(found[1]), markdown)


def readme_part(name: str) -> str:
    """Return the text between ``<!-- part: NAME -->`` and ``<!-- /part -->`` of README, with paths from docs/."""
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    return readme.split(f"<!-- part: {name} -->\n")[1].split("<!-- /part -->")[0].replace("docs/", "")


def commands() -> str:
    """Return all commands with their arguments and options."""
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="phmctl"), name="phmctl")


def keys() -> str:
    """Return a table for each section of each task's recipe."""
    parts = []
    for task, recipe in RECIPES.items():
        parts.append(f"## task: {task}\n\n{inspect.getdoc(recipe)}")
        for name, field in recipe.model_fields.items():
            members = sections(field.annotation)
            parts += [_table(name, section, is_union=len(members) > 1) for section in members]
    return "\n\n".join(parts)


def sections(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a recipe's field may hold; an empty list for a field such as `name`."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [section for alternative in get_args(annotation) for section in sections(alternative)]


def _table(name: str, section: type[BaseModel], *, is_union: bool) -> str:
    suffix = f" (kind: {get_args(section.model_fields['kind'].annotation)[0]})" if is_union else ""
    rows = [
        f"### {name}{suffix}\n\n{inspect.getdoc(section)}\n\n| key | default | values | meaning |\n|---|---|---|---|"
    ]
    for key, field in section.model_fields.items():
        default = "required" if field.default is PydanticUndefined else f"`{_yaml(field.default)}`"
        cells = [f"`{name}.{key}`", default, _values(field.annotation), meaning(section, key)]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _values(annotation: Any) -> str:
    if isinstance(annotation, type):
        return {int: "integer", float: "number", bool: "true, false", str: "text"}.get(annotation, "null")
    if isinstance(annotation, str):
        return f"`{annotation}`"
    return ", ".join(filter(None, map(_values, get_args(annotation))))


def meaning(section: type[BaseModel], key: str) -> str:
    """Return the comment of a key in the schema's source: the lines above it and the end of its line."""
    for base in section.__mro__:
        if base is not BaseModel and issubclass(base, BaseModel) and key in _comments(base):
            return _comments(base)[key]
    return ""


@cache
def _comments(section: type[BaseModel]) -> dict[str, str]:
    """Return the comments of a section's keys, by key."""
    comments: dict[str, str] = {}
    texts: list[str] = []  # the comments since the last key
    for line in inspect.getsource(section).splitlines():
        code, mark, comment = line.partition("# ")
        field = re.match(r"    (\w+): ", code)
        if mark and (field or not code.strip()):
            texts.append(comment)
        if field and texts:
            comments[field[1]] = " ".join(texts)
        if code.strip():
            texts = []
    return comments


if __name__ == "__main__":
    sys.stdout.write({"keys": keys, "commands": commands}[sys.argv[1]]() + "\n")
