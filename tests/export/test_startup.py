"""Modules that are imported to answer one line."""

import json
import subprocess
import sys
from pathlib import Path

from phmctl.export.verb import Exported
from phmctl.runs import Run

# Runs the command, then prints the imported modules.
CODE = """
import json, sys
from phmctl.cli.main import run
try:
    run()
except SystemExit:
    pass
sys.stderr.write(json.dumps(sorted({name.split(".")[0] for name in sys.modules} | {*sys.modules})))
"""
# Torch's compiler, and the libraries of training, preparation, scoring, drawing and serving.
NEVER = {"torch._dynamo", "torch._inductor", "sympy", "datasets", "pyarrow", "pandas", "sacrebleu", "matplotlib"}
NEVER |= {"rich", "transformers", "onnx", "onnxruntime", "huggingface_hub", "starlette", "uvicorn", "tensorboard"}


def imported(folder: Path, *, by: str = f"import sys; sys.argv[1:] = ['decode', sys.argv[1]]{CODE}") -> set[str]:
    command = [sys.executable, "-c", by, str(folder)]
    done = subprocess.run(command, input="Sophie wandert.\n", capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    return set(json.loads(done.stderr.splitlines()[-1]))  # warnings may come first


def test_a_run_imports_only_torch(tiny_run: Run) -> None:
    modules = imported(tiny_run.folder)
    assert "torch" in modules
    assert modules & NEVER == set()


def test_an_export_to_ctranslate2_answers_without_torch(exported: Exported) -> None:
    modules = imported(exported.export.folder)
    assert modules & (NEVER | {"torch", "numpy", "asyncio", "ssl"}) == set()
    assert "ctranslate2._ext" in modules
    program = f"""
import json, sys, phmctl
model = phmctl.load(sys.argv[1])
print(model.translate(["Sophie wandert."], n_best=2)[0][1].text)
{CODE[CODE.index("sys.stderr") :]}"""
    modules = imported(exported.export.folder, by=program)
    assert modules & (NEVER | {"torch", "numpy", "asyncio", "ssl"}) == set()  # typer is imported: it declares options
