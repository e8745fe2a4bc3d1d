"""The examples: scripts with few steps and small networks, the notebook, the web page (make browser-check opens it)."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from phmctl import shipped
from phmctl.runs import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK, PAGE = EXAMPLES / "first_hour.ipynb", EXAMPLES / "browser"


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, **constants: int) -> None:
    specification: Any = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    module.main()


def test_heal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    run("heal", "--steps", "2", "--seeds", "1", monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:-1]] == ["dense", "converted", "healed"]
    assert "352,074 → 89,610 parameters (25.5%)" in lines


def test_rates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("rates", "--steps", "1", "--seeds", "1", monkeypatch=monkeypatch, WIDTH=16, LENGTH=8, LAYERS=1)
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_translator(
    tiny_run: Run, miniature_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHMCTL_DATA", str(miniature_data))
    arguments = (str(tiny_run.folder), "--steps", "2", "--share", "0.5", "--lines", "8")
    run("translator", *arguments, monkeypatch=monkeypatch, CALIBRATION=1)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    sizes = [int(row[-4].replace(",", "")) for row in rows]
    assert [row[0] for row in rows] == ["dense", "converted", "healed,"]
    assert sizes[0] > sizes[1] > 4 * sizes[2]


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    program = "\n".join("".join(cell["source"]) for cell in cells)  # the cells are plain Python
    for text, changed in (("STEPS = 1800", "STEPS = 3"), ('split="test"', 'split="valid"')):
        assert text in program
        program = program.replace(text, changed)
    for split, size in (("train", 1000), ("valid", 100), ("test", 20)):
        monkeypatch.setitem(shipped.SIZES, split, size)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, NOTEBOOK.name, "exec"), {})
    printed = capsys.readouterr().out
    assert "PHMLinear 264256" in printed  # 4·4·4 + 4·512·128 + 2048
    assert "n = 4:" in printed
    assert len(list(tmp_path.glob("runs/first-hour/*/v001"))) == 2


def test_the_packages_have_exact_versions_and_no_addresses() -> None:
    package, lock = (json.loads((PAGE / name).read_text()) for name in ("package.json", "package-lock.json"))
    wanted = package["dependencies"] | package["devDependencies"]
    locked = {name: lock["packages"][f"node_modules/{name}"]["version"] for name in wanted}
    assert wanted == locked
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert not any("resolved" in entry for entry in lock["packages"].values())


def test_the_page_lower_cases_as_the_tokenizers_of_python_do() -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    [function] = re.findall(r"^const lowercase = .*$", (PAGE / "translator.js").read_text(), re.MULTILINE)
    texts = ["ΟΔΟΣ", "ΣΊΣΥΦΟΣ ΣΑΣ.", "İstanbul ÄÖÜ ẞ", "𐐀 Ǆ"]
    program = f"{function}; console.log(JSON.stringify({json.dumps(texts)}.map(lowercase)))"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [normalizers.Lowercase().normalize_str(text) for text in texts]
