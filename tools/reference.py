"""The reference of recipe keys and command options, made from the schema and the command line.

A hook of mkdocs puts it where a page says ``<!-- recipe keys -->`` or ``<!-- commands -->``. By hand:
``python tools/reference.py keys`` or ``python tools/reference.py commands`` prints it.
"""

import ast
import inspect
import io
import sys
import tokenize
from functools import cache
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
    return markdown


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
            found = sections(field.annotation)
            parts += [_table(name, section, len(found) > 1) for section in found]
    return "\n\n".join(parts)


def sections(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a recipe's field may hold; none of `name` and the like."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for each in get_args(annotation) for found in sections(each)]


def _table(name: str, section: type[BaseModel], one_of_several: bool) -> str:
    kind = f" (kind: {get_args(section.model_fields['kind'].annotation)[0]})" if one_of_several else ""
    rows = [f"### {name}{kind}\n\n{inspect.getdoc(section)}\n\n| key | default | values | meaning |\n|---|---|---|---|"]
    for key, field in section.model_fields.items():
        default = "required" if field.default is PydanticUndefined else f"`{_yaml(field.default)}`"
        cells = [f"`{name}.{key}`", default, _values(field.annotation), meaning(section, key)]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else f"{value}"


def _values(annotation: Any) -> str:
    if isinstance(annotation, type):
        return {int: "integer", float: "number", bool: "true, false", str: "text"}.get(annotation, "null")
    if isinstance(annotation, str):
        return f"`{annotation}`"
    return ", ".join(filter(None, map(_values, get_args(annotation))))


def meaning(section: type[BaseModel], key: str) -> str:
    """Return what the schema's source says of a key: the comment on its line, or the lines of comment above it."""
    for each in section.__mro__:
        if each is not BaseModel and issubclass(each, BaseModel) and (found := _comments(each).get(key)):
            return found
    return ""


@cache
def _comments(section: type[BaseModel]) -> dict[str, str]:
    source = inspect.getsource(section)
    comments, lines = {}, source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
    found = {}
    for field in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            own = [comments[line] for line in range(field.lineno, field.end_lineno + 1) if line in comments]
            above, line = [], field.lineno - 1
            while line in comments and lines[line - 1].lstrip().startswith("#"):
                above.insert(0, comments[line])
                line -= 1
            found[field.target.id] = " ".join(above + own)
    return found


if __name__ == "__main__":
    sys.stdout.write({"keys": keys, "commands": commands}[sys.argv[1]]() + "\n")
