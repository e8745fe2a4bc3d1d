"""The code in the docs is the code that an export carries, and reads it without this package."""

import subprocess
import sys
from pathlib import Path

import torch

from phmctl import exports
from phmctl.decoding.translator import load_translator
from phmctl.export.verb import export
from phmctl.models import plain
from phmctl.runs import Run

DOCS = Path(__file__).parents[2] / "docs" / "export.md"


def test_the_page_includes_the_code_that_an_export_carries(tiny_run: Run, tmp_path: Path) -> None:
    assert '--8<-- "phmctl/models/plain.py"' in DOCS.read_text(encoding="utf-8")
    folder = export(tiny_run, exports.SAFETENSORS, tmp_path / "out", texts=2).export.folder
    assert (folder / "plain.py").read_bytes() == Path(plain.__file__).read_bytes()


@torch.no_grad()
def test_it_alone_gives_equal_logits(tiny_run: Run, tmp_path: Path) -> None:
    export(tiny_run, exports.SAFETENSORS, tmp_path / "out", texts=2)
    (tmp_path / "page.py").write_bytes(Path(plain.__file__).read_bytes())
    code = (
        "import sys, torch; sys.modules['phmctl'] = None; import page;"
        "model = page.load('out'); torch.save(model(torch.tensor([[9, 8, 3]]), torch.tensor([[2, 7]])), 'logits.pt')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    model = load_translator(tiny_run, device="cpu").engine.model
    ours = model.logits(model(torch.tensor([[9, 8, 3]]), torch.tensor([[2, 7]])))
    theirs = torch.load(tmp_path / "logits.pt", weights_only=True)
    torch.testing.assert_close(theirs, ours[..., : theirs.shape[-1]], rtol=1e-4, atol=1e-4)
