"""The order of the package's layers, what holds for every file of it, and the public names."""

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import phmctl

PACKAGE = Path(phmctl.__file__).parent
TREES = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
LAYERS = (  # from the lowest: a module imports from its own layer and from those before it
    {"algebra", "errors", "shipped", "storage", "console", "devices", "threads", "recipe",
     "plain", "version", "processes", "signals"},
    {"metrics"},
    {"nn", "data"},
    {"runs"},
    {"models", "saving"},
    {"answering", "healing"},
    {"tasks"},
    {"training", "results", "benchmarks", "export"},
    {"sweeps"},
    {"serving", "verbs", "probes", "distillation"},
    {"cli", "__main__"},
)  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Imports of a second and more, or that only some commands need.
HEAVY = {"torch", "datasets", "pydantic", "sacrebleu", "tokenizers", "pyarrow", "numpy", "rich", "yaml"}


def package(path: Path) -> str:
    """The package or module directly below phmctl that a file belongs to."""
    return path.with_suffix("").parts[0]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges() -> set[tuple[str, str]]:
    pairs = (
        (package(path), name.split(".")[1])
        for path, tree in TREES.items()
        for name in imports(tree)
        if name.startswith("phmctl.")
    )
    return {(own, other) for own, other in pairs if own in LEVEL and other in LEVEL and own != other}


def test_every_package_has_a_layer():
    assert {package(path) for path in TREES} - {"__init__", "_shipped"} == LEVEL.keys()


def test_imports_run_downwards():
    assert {(own, other) for own, other in edges() if LEVEL[other] > LEVEL[own]} == set()


MODULES = {  # file by the name that imports it
    ".".join(["phmctl", *path.with_suffix("").parts]).removesuffix(".__init__"): path for path in TREES
}
DEFERRED = 50  # bound of the imports of our own modules inside functions; only lower it


def own_modules(node: ast.AST) -> set[str]:
    """Return our own modules that an import statement imports."""
    names = {*imports(node), *([node.module] if isinstance(node, ast.ImportFrom) and node.module else [])}
    return names & MODULES.keys()


def imported_modules(name: str, tree: ast.AST) -> set[str]:
    """Return our own modules that a file imports, also inside functions, but not for type checking only."""
    type_checking = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    skipped = {id(node) for block in type_checking for node in ast.walk(block)}
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in skipped:
            modules |= own_modules(node)
    return modules - {name}


def test_files_do_not_import_each_other_in_a_circle():
    remaining = {name: imported_modules(name, TREES[path]) for name, path in MODULES.items()}
    while free := {name for name, modules in remaining.items() if not modules & remaining.keys()}:
        remaining = {name: modules for name, modules in remaining.items() if name not in free}
    assert sorted(remaining) == []  # files of circles, and the files that import them


def test_few_imports_of_our_own_modules_are_inside_functions():
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    deferred = {
        (path, node.lineno, module)
        for path, tree in TREES.items()
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in own_modules(node)
    }
    assert len(deferred) <= DEFERRED


def test_layers_take_plain_arguments():
    """Layers do not depend on recipes, so that ``import phmctl.nn`` loads torch and the layers alone."""
    readers = {path for path, tree in TREES.items() if any(name.startswith("phmctl.recipe") for name in imports(tree))}
    assert {path for path in readers if package(path) in {"nn", "algebra"}} == set()


def test_files_and_functions_are_short():
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    long = [path for path in TREES if len((PACKAGE / path).read_text(encoding="utf-8").splitlines()) > 500]
    for path, tree in TREES.items():
        found = (node for node in ast.walk(tree) if isinstance(node, functions))
        long += [path / node.name for node in found if body_lines(node) > 80]
    assert long == []


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, the docstring left out."""
    first = function.body[0]
    docstring = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_every_module_is_documented():
    assert [path for path, tree in TREES.items() if tree.body and not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("name", [name for name in phmctl.__all__ if not name.startswith("__")])
def test_the_public_names_are_documented(name: str):
    offered = getattr(phmctl, name)
    members = vars(offered).items() if inspect.isclass(offered) else ()
    bare = [key for key, value in members if not key.startswith("_") and callable(value) and not value.__doc__]
    assert offered.__doc__
    assert bare == []


def test_the_command_line_starts_without_heavy_imports():
    code = f"import sys, phmctl.cli.main; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------------------- the public names


def test_these_names_are_public():
    layers = "PHMConv1d PHMConv2d PHMConv3d PHMEmbedding PHMLSTM PHMLinear"
    weights = "Kronecker convert from_pretrained heal load_into parameter_groups save step to_dense"
    verbs = "compare count_parameters distil evaluate load prepare train"
    answers = "Classified Classifier Translation Translator"
    assert sorted(phmctl.__all__) == sorted(f"{layers} {weights} {verbs} {answers} __version__".split())


def test_libraries_whose_internals_are_used_have_an_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert sum("<" in line for line in project["dependencies"] if line.startswith("sacrebleu")) == 1


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="PHMGRU"):
        _ = phmctl.PHMGRU
