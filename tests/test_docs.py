"""The API reference has everything public; `make docs` builds it."""

import ast
import inspect
import re
from pathlib import Path

import yaml

import phmctl
from phmctl import errors

ROOT = Path(__file__).parent.parent
PAGES = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
SHOWN = set(re.findall(r"^::: (\S+)$", PAGES, re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    assert {f"phmctl.{name}" for name in phmctl.__all__ if not name.startswith("_")} <= SHOWN
    for name in phmctl.__all__:
        assert name.startswith("_") or inspect.getdoc(getattr(phmctl, name))


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
    assert seen == set(phmctl.__all__) - {"__version__"} == set(phmctl._HOMES)


def test_the_site_fetches_nothing() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False  # or it would be Google's
    assert "extra_css" not in settings
    assert "extra_javascript" not in settings


def test_the_readme_leads_to_the_documents() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"docs/{name}.md" in readme for name in ("guide", "library", "index"))


def test_errors_are_documented() -> None:
    assert "phmctl.errors" in SHOWN
    own = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    assert len(own) > 10
    assert all(each.__doc__ for each in own)
