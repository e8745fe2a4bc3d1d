"""The forms ``safetensors`` and ``torch``: the dense twin for plain torch code, and the PHM form for other PHM code."""

import shutil
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from phmctl.checkpoints import save_tensors
from phmctl.dimension import TWO_FACTORS
from phmctl.errors import check_known
from phmctl.export.dense import phm_form
from phmctl.export.subject import Subject
from phmctl.exports import TORCH
from phmctl.files import write_json
from phmctl.models import plain

FORMS = ("both", "dense")
CONFIG, SAFETENSORS_FILE, TORCH_FILE, CODE = "config.json", "model.safetensors", "model.pt", "plain.py"


def write_plain(subject: Subject, to: str, form: str, folder: Path) -> None:
    """Write ``config.json``, the weights and the code that reads them."""
    check_known("form", form, FORMS)
    whole = subject.form
    write_json(folder / CONFIG, whole.config)
    shutil.copyfile(plain.__file__, folder / CODE)
    _save(whole.whole() if to == TORCH else whole.tensors, folder / (TORCH_FILE if to == TORCH else SAFETENSORS_FILE))
    if form != "dense" and subject.section.dimension > 1 and subject.section.algebra not in TWO_FACTORS:
        described, tensors = phm_form(subject.model)
        write_json(folder / "phm.json", described)
        _save(tensors, folder / f"phm{'.pt' if to == TORCH else '.safetensors'}")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".pt":
        whole = BytesIO()  # torch's own writer, of a path or of a file, names no cause when the disk is full
        torch.save(tensors, whole)
        path.write_bytes(whole.getbuffer())
    else:
        save_tensors(path, tensors)
