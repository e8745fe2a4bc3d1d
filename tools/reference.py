"""Write the reference of recipe keys, files, names and errors into the pages of docs/.

::

    python tools/reference.py          # after a change of a recipe key, a command or a public name

A page has blocks ``<!-- reference: recipe keys -->``, ``<!-- reference: package files -->`` or ``<!-- reference: NAME
NAME -->``, which end with ``<!-- end -->``. :func:`fill` writes the text of the blocks. As a hook of mkdocs this module
adds the documentation of the names, replaces ``<!-- commands -->`` by all options of the commands, ``<!-- readme: NAME
-->`` by that part of README, and a line that is only a link to a Python file by the file.
"""

import ast
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import griffe
import torch
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

from phmctl.cli.main import app
from phmctl.recipe.schema import RECIPES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "reference").glob("*.md"))]
CALLED_BY_TORCH = {"extra_repr", "forward", "reset_parameters", "right_inverse"}
ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?(?:phmctl\.(?:\w+\.)*)?([^`]+)`")
CODE_FOLLOWS = re.compile(r"::(?=\n\s*\n)")
BLOCK = re.compile(r"(<!-- reference: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """Return a page with the text of its blocks."""

    def block(found: re.Match[str]) -> str:
        text = GENERATED[found[2]]() if found[2] in GENERATED else name_list(found[2].split())
        lines = "\n".join(map(_wrapped, text.split("\n")))
        return f"{found[1]}{lines}\n{found[3]}"

    return BLOCK.sub(block, page)


def files() -> str:
    """Return the folders and top-level files of the package, each with the first sentence of its docstring."""
    lines = []
    package = ROOT / "phmctl"
    for path in [*sorted(package.glob("*/__init__.py")), *sorted(package.glob("[!_]*.py"))]:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        label = f"{path.parent.name}/" if path.name == "__init__.py" else path.name
        lines.append(f"{label:<21}{_short(_first_paragraph(docstring))}")
    return "\n".join(["```", *lines, "```"])


def _short(paragraph: str) -> str:
    """Return the first sentence without parentheses; the details after a colon only if a name stands before it."""
    sentence = re.split(r"[.;] ", re.sub(r" \([^()]*\)", "", paragraph))[0].rstrip(".").replace("`", "")
    head = sentence.partition(": ")[0]
    return head if len(head.split()) > 2 else sentence


def _wrapped(line: str) -> str:
    """Return an item of a list in lines of at most 140 characters; other lines as they are."""
    if not line.startswith("- "):
        return line
    return textwrap.fill(line, 140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the parts of a page that only the site has."""

    def block(found: re.Match[str]) -> str:
        names = [] if found[2] in GENERATED else found[2].split()
        return "\n\n".join([found[0], *(f"::: {name}" for name in names)])

    def file(found: re.Match[str]) -> str:
        return f"``` {{ .python }}\n{(ROOT / found[1]).read_text(encoding='utf-8')}```"

    markdown = BLOCK.sub(block, markdown)
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    markdown = re.sub(r"^\[`?\S+\]\(\.\./(\S+\.py)\)$", file, markdown, flags=re.MULTILINE)
    return re.sub(r"<!-- readme: (\w+) -->", lambda found: readme_part(found[1]), markdown)


def readme_part(name: str) -> str:
    """Return the text between ``<!-- part: NAME -->`` and ``<!-- /part -->`` of README, with paths from docs/."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return readme.split(f"<!-- part: {name} -->\n")[1].split("<!-- /part -->")[0].replace("docs/", "")


def commands() -> str:
    """Return all commands with their arguments and options."""
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="phmctl"), name="phmctl")


def name_list(names: list[str]) -> str:
    """Return a list of functions, classes and modules: the call and the first sentence of the docstring."""
    rows: list[tuple[str, str]] = []
    for name in names:
        value = _find(name)
        rows += _members(value, name.rpartition(".")[2])
    return _list(rows)


def _find(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def _members(value: Any, name: str) -> list[tuple[str, str]]:
    """Return the calls and meanings of a function, of a class with its methods, or of a module with its exceptions."""
    if isinstance(value, types.ModuleType):
        classes = [member for member in vars(value).values() if isinstance(member, type)]
        own = [each for each in classes if issubclass(each, BaseException) and each.__module__ == value.__name__]
        module = (value.__name__, _first_sentence(inspect.getdoc(value) or ""))
        return [module, *(row for error in own for row in _members(error, error.__name__))]
    rows = [(_call(value, name), _first_sentence(inspect.getdoc(value) or ""))]
    if isinstance(value, type) and not issubclass(value, tuple):
        for key, method in vars(value).items():
            function = getattr(method, "__func__", method)
            if inspect.isfunction(function) and function.__doc__ and key[0] != "_" and key not in CALLED_BY_TORCH:
                call = _call(getattr(value, key), f"{name}.{key}").replace("(self, ", "(").replace("(self)", "()")
                rows.append((call, _first_sentence(inspect.getdoc(function) or "")))
    return rows


def _call(value: Callable[..., Any], name: str) -> str:
    """Return how a function or class is called: its arguments, with their defaults but without types.

    An ellipsis stands for the arguments that a layer shares with the layer of torch that it replaces, and for the
    keywords of a long call, which `help` has.
    """
    if isinstance(value, type) and issubclass(value, BaseException):
        return name
    signature, none = inspect.signature(value), inspect.Parameter.empty
    twin = getattr(torch.nn, name.removeprefix("PHM"), None) if name.startswith("PHM") else None
    shared = set(inspect.signature(twin).parameters if twin else {}) & set(signature.parameters)
    plain = [each.replace(annotation=none) for key, each in signature.parameters.items() if key not in shared]
    arguments = str(signature.replace(parameters=plain, return_annotation=none)).replace("'", '"')
    call = name + re.sub(r"=<[^>]*>", "=…", arguments.replace("(", "(…, ", 1) if shared else arguments)
    return call if len(call) <= 160 else f"{call.partition(', *')[0]}, *, …)"


class Roles(griffe.Extension):
    """Rewrite the docstrings that mkdocstrings shows by :func:`plain_text`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = plain_text(obj.docstring.value)


def plain_text(text: str) -> str:
    """Return a docstring without Sphinx roles and without double colons."""
    return CODE_FOLLOWS.sub(":", ROLE.sub(r"`\1`", text))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;:]) ", _first_paragraph(text))[0].rstrip(".;:")


def _first_paragraph(docstring: str) -> str:
    return plain_text(docstring.partition("\n\n")[0].replace("\n", " ")).replace("``", "`")


def _list(items: list[tuple[str, str]]) -> str:
    return "\n".join(f"- `{code}`: {meaning}" for code, meaning in items)


def keys() -> str:
    """Return a list for each section of a recipe and each group of tasks, or kinds of model, that have its keys."""
    parts = []
    for name in dict.fromkeys(name for recipe in RECIPES.values() for name in recipe.model_fields):
        users = _users(name)
        groups = _groups(users)
        parts += [f"## {name}"] if users else []
        for group in sorted(groups, key=lambda group: -len(group)):
            title = "all" if len(group) == len(users) > 1 else ", ".join(group)
            parts += [f"### {title}", *([inspect.getdoc(users[group[0]]) or ""] if len(group) == 1 else [])]
            lines = [_line(name, key, {user: users[user] for user in group}) for key in groups[group]]
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _users(name: str) -> dict[str, type[BaseModel]]:
    """Return the sections of this name by task, those of `model` by kind."""
    users = {}
    for task, recipe in RECIPES.items():
        field = recipe.model_fields.get(name)
        for section in sections(field.annotation) if field else []:
            users[get_args(section.model_fields["kind"].annotation)[0] if name == "model" else task] = section
    return users


def _groups(users: dict[str, type[BaseModel]]) -> dict[tuple[str, ...], list[str]]:
    """Return the keys, grouped by the users that have them with the same meaning."""
    having: dict[tuple[str, str], list[str]] = {}
    for user, section in users.items():
        for key in usable(section):
            having.setdefault((key, meaning(section, key)), []).append(user)
    groups: dict[tuple[str, ...], list[str]] = {}
    for (key, _), names in having.items():
        groups.setdefault(tuple(names), []).append(key)
    return groups


def usable(section: type[BaseModel]) -> list[str]:
    """Return the keys that a section accepts, without `kind`, which names it."""
    return [key for key in section.model_fields if key != "kind" and key in getattr(section, "USED", {key})]


def _line(name: str, key: str, users: dict[str, type[BaseModel]]) -> str:
    """Return the line of a key; its default and values are those of the first user, then those that differ."""
    having: dict[str, list[str]] = {}
    for user, section in users.items():
        having.setdefault(_choices(section, key), []).append(user)
    first, *others = having
    choices = ") (".join([first, *(f"{', '.join(having[other])}: {other}" for other in others)])
    return f"- `{name}.{key}` ({choices}): {meaning(next(iter(users.values())), key)}"


def _choices(section: type[BaseModel], key: str) -> str:
    """Return the default of a key and its other values, if the default does not show their type."""
    field = section.model_fields[key]
    if field.default is PydanticUndefined:
        return f"required: {_values(field.annotation)}"
    values = [value for value in _values(field.annotation).split(", ") if value[0] == "`" or field.default is None]
    return ", ".join(dict.fromkeys([f"`{_yaml(field.default)}`", *(value for value in values if value != "null")]))


def sections(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a recipe's field may hold; an empty list for a field such as `name`."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [section for alternative in get_args(annotation) for section in sections(alternative)]


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


GENERATED = {"recipe keys": keys, "package files": files}

if __name__ == "__main__":
    for path in PAGES:
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
