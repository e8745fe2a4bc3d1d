"""The API reference has everything public; what the pages name is there. `make docs` builds them."""

import ast
import inspect
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

import phmctl
from phmctl import errors
from phmctl.cli.main import app
from phmctl.recipe.schema import RECIPES
from phmctl.shipped import shipped_names
from tools import reference

ROOT = Path(__file__).parent.parent
PAGES = [path.read_text(encoding="utf-8") for path in reference.PAGES]
SHOWN = set(re.findall(r"^::: (\S+)$", "".join(map(reference.on_page_markdown, PAGES)), re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    assert {f"phmctl.{name}" for name in phmctl.__all__ if not name.startswith("_")} <= SHOWN


def test_what_is_shown_is_there() -> None:
    for name in SHOWN:
        module, _, attribute = name.rpartition(".")
        try:
            __import__(name)
        except ModuleNotFoundError:
            assert hasattr(__import__(module, fromlist=["_"]), attribute), name


def test_the_type_checker_sees_every_public_name() -> None:
    tree = ast.parse(Path(phmctl.__file__).read_text(encoding="utf-8"))
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in checked.body for alias in node.names}
    assert seen == set(phmctl.__all__) - {"__version__"} == set(phmctl._MODULES)


def test_the_site_fetches_nothing() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False  # or it would be Google's
    assert settings["extra_css"] == ["img/site.css"]
    assert "://" not in (ROOT / "docs" / "img" / "site.css").read_text(encoding="utf-8")
    assert "extra_javascript" not in settings


def test_errors_are_documented() -> None:
    assert "phmctl.errors" in SHOWN
    own = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    assert len(own) > 10
    assert all(each.__doc__ for each in own)


# ------------------------------------------------------------------------------------------------------- pages

COMMAND = typer.main.get_command(app)
PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[list[str]]:
    """The words of each command that a page shows, in blocks of code or within a line."""
    blocks = re.findall(r"^```(?:yaml)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL))
    for line in lines:
        found = re.search(r"(?:^|[|$;(=] ?|^ +|-m )phmctl ([a-z].*)", line)
        if found:
            yield shlex.split(re.split(r" [|<>#&] ?|; ?|\$\(", found[1])[0].replace(")", ""), comments=True)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_command_on_a_page_has_its_options(path: Path) -> None:
    keys = set(re.findall(r"^- `([a-z0-9_.]+)` ", reference.keys(), re.MULTILINE)) | {"model.kind"}
    for words in commands(path.read_text(encoding="utf-8")):
        command = COMMAND
        while words and words[0] in getattr(command, "commands", {}):
            command = command.get_command(typer.Context(command), words.pop(0))
        assert command is not COMMAND, words
        options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= options, words
        settings = [after for word, after in itertools.pairwise(words) if word == "--set"]
        assert {each.partition("=")[0] for each in settings if "=" in each and "." in each.split("=")[0]} <= keys, words
        if command.name == "train" and words and re.fullmatch(r"[a-z0-9-]+", words[0]):
            assert words[0] in {*shipped_names("recipes"), "…"} or words[0].startswith("--"), words


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_the_files_that_a_page_names_are_there(path: Path) -> None:
    folders = [ROOT, ROOT / "phmctl", ROOT / "tests"]
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]*(?:\.py|\.yaml|\.c)?|[a-z_0-9]+/[a-z_0-9/]+\.py)`", text)
    made = ("runs", "results", "tokenizer", "text", "data/prepared", "data/taught", "build")
    named = [name for name in named if not name.startswith(tuple(f"{folder}/" for folder in made))]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_lines_of_pages_are_short() -> None:
    pages = [path for path in PATHS if path.name != "results.md"]
    long = [
        path for path in pages for line in path.read_text("utf-8").splitlines() if len(line) > 140 and line[0] != "|"
    ]
    assert long == []


def test_code_is_not_cut_by_a_code_host() -> None:
    """Of the first page all code, of the others each line with a comment."""
    blocks = [(path, block) for path in PATHS for block in CODE.findall(path.read_text(encoding="utf-8"))]
    long = [(path, line) for path, block in blocks for line in block.splitlines() if len(line) > 90]
    assert [line for path, line in long if path == PATHS[0] or re.search(r"(^|  )# ", line)] == []


@pytest.mark.parametrize("path", reference.PAGES, ids=lambda path: path.name)
def test_the_reference_is_todays(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == reference.fill(page), "run python tools/reference.py"


def test_the_site_shows_the_code_that_reads_an_export() -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert (ROOT / "phmctl" / "plain.py").read_text(encoding="utf-8") in reference.on_page_markdown(page)


def test_the_generated_reference_has_every_key_and_command() -> None:
    keys, shown = reference.keys(), reference.commands()
    for recipe in RECIPES.values():
        for name, field in recipe.model_fields.items():
            for section in reference.sections(field.annotation):
                for key in reference.usable(section):
                    assert f"- `{name}.{key}` (" in keys
                    assert reference.meaning(section, key), (name, key)
    assert all(f"## `phmctl {name}`" in shown for name in COMMAND.commands)
