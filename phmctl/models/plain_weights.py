"""Reading the dense twin that an export to torch's own forms holds."""

from pathlib import Path

from torch import Tensor

from phmctl.errors import RunError
from phmctl.files import read_json_object

CONFIG, SAFETENSORS_FILE, TORCH_FILE = "config.json", "model.safetensors", "model.pt"


def read_plain(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of ``model.safetensors`` or ``model.pt``, a shared one once, under its first name.

    Nothing is unpickled but tensors.

    Raises:
        RunError: the files cannot be read.
    """
    import torch
    from safetensors.torch import load_file

    config = read_json_object(folder / CONFIG, RunError, "make the export anew")
    try:
        if (folder / TORCH_FILE).is_file():
            tensors = dict(torch.load(folder / TORCH_FILE, map_location="cpu", weights_only=True))
        else:
            tensors = dict(load_file(folder / SAFETENSORS_FILE))
    except Exception as error:  # each library has errors of its own
        raise RunError(f"the weights in {folder} cannot be read: {error}; make the export anew") from error
    return {name: tensor for name, tensor in tensors.items() if name not in config.get("shared", {})}
