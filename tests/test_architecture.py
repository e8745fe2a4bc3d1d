"""The house's own rules: which way imports run, and how long files and functions may be."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import phmctl

PACKAGE = Path(phmctl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (
    {
        "errors",
        "dimension",
        "shipped",
        "files",
        "console",
        "devices",
        "timing",
        "recipe",
        "runs",
        "checkpoints",
        "exports",
        "extras",
    },
    {"algebra", "metrics", "miniature"},
    {"nn", "data"},
    {"models"},
    {"assembly"},
    {"decoding"},
    {"tasks"},
    {"training", "accounting", "benchmarks", "export", "inference"},
    {"comparison", "sweeps"},
    {"reports"},
    {"serving", "verbs", "probes"},
    {"cli", "__main__"},
)
# Imports of a second and more, or that only some commands need.
HEAVY = {"torch", "datasets", "pydantic", "sacrebleu", "tokenizers", "pyarrow", "numpy", "rich", "yaml"}


def room(path: Path) -> str:
    """The package or module directly below phmctl that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def floor(name: str) -> int | None:
    return next((level for level, rooms in enumerate(FLOORS) if name in rooms), None)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_every_room_has_a_floor():
    rooms = {room(path) for path in MODULES} - {"__init__", "_shipped"}
    assert {name for name in rooms if floor(name) is None} == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_downwards(path):
    own = floor(room(path))
    if own is None:
        return  # phmctl/__init__.py offers the public surface
    rooms = {name.split(".")[1] for name in imports(parse(path)) if name.startswith("phmctl.")}
    upwards = {name for name in rooms if (level := floor(name)) is not None and level > own}
    assert upwards == set()


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) in {"models", "nn", "algebra"}], ids=name_of)
def test_layers_and_models_take_plain_arguments(path):
    """Recipes are read by the assembly, above them."""
    assert not [name for name in imports(parse(path)) if name.startswith("phmctl.recipe")]


def test_rooms_of_one_floor_do_not_import_each_other_in_a_circle():
    edges = {
        (room(path), name.split(".")[1])
        for path in MODULES
        for name in imports(parse(path))
        if name.startswith("phmctl.") and floor(room(path)) is not None
    }
    mutual = {(a, b) for a, b in edges if a < b and (b, a) in edges}
    assert mutual == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short(path):
    functions = (node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long = {node.name: length for node in functions if (length := body_lines(node)) > 80}
    assert long == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, the docstring left out."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_package_asserts_nothing(path):
    assert [node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Assert)] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_and_public_name_is_documented(path):
    tree = parse(path)
    if path.name == "__init__.py" and not tree.body:
        return
    missing = [node.name for node in public_names(tree) if not ast.get_docstring(node) and not is_stub(node)]
    assert ast.get_docstring(tree)
    assert missing == []


def public_names(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes, and the public methods of public classes."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node
            inner = node.body if isinstance(node, ast.ClassDef) else []
            yield from (member for member in inner if isinstance(member, kinds) and not member.name.startswith("_"))


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """A protocol's member or an overload: its body is an ellipsis."""
    return ast.unparse(node.body[0]) == "..." or any(".setter" in ast.unparse(line) for line in node.decorator_list)


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=name_of)
def test_commands_import_nothing_heavy_at_module_level(path):
    top = ast.Module([node for node in parse(path).body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert {name.split(".")[0] for name in imports(top)} & HEAVY == set()


def test_the_command_line_starts_without_heavy_imports():
    code = f"import sys, phmctl.cli.main; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
