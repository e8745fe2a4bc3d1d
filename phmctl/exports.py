"""Exports: a trained model in the format of another engine, in a folder that can be opened like a run.

::

    DIR/
        export.json        the manifest: format, origin (run and checkpoint), verification, files with their SHA-256
        README.md          the model card
        recipe.yaml, data.json, tokenizer/, text/    as in a run
        …                  the weights in the engine's format
        results/           scores and translations of eval

``decode``, ``eval`` and :func:`phmctl.load` accept an export like a run. This module does not import torch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from phmctl.errors import PhmctlError, RunError, check_known, lack_of_memory
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import AUTO, EXPORT, RECIPE, Run, Weights
from phmctl.runs.run import Loaded, read_recipe
from phmctl.storage import FORMAT, QUANTIZATIONS, read_seal, sha256_text, verify

CTRANSLATE2, ONNX, SAFETENSORS = FORMATS = ("ctranslate2", "onnx", "safetensors")
COMPACT = (ONNX, SAFETENSORS)  # formats that can hold A and S
EXACT = "float32"  # the quantisation that keeps the trained numbers
MODEL = "model"  # the folder of CTranslate2's own files
# The files that phmctl reads; the manifest has to list each of them.
_READ = ("*.onnx*", "*.safetensors*", "config.json", "data.json", "weights.bin", f"{MODEL}/*", "tokenizer/*")
_ADVICE = "copy the export again, or export the run again"


@dataclass(frozen=True)
class Export(Run):
    """The folder of an export, its recipe and its manifest."""

    manifest: dict[str, Any]

    @classmethod
    def open(cls, name: Path | str, root: str | Path | None = None) -> Self:
        """Open an export by its folder; the files are verified when they are used."""
        folder = Path(name)
        manifest = read_seal(folder / EXPORT, RunError, _ADVICE)
        number, wanted = manifest.get("format"), {"run", "checkpoint", "checkpoint_sha256"}
        if isinstance(number, int) and number != FORMAT:
            raise RunError(
                f"{folder} has format {number}, and this phmctl reads format {FORMAT}; export the run again, or use "
                f"phmctl {manifest.get('phmctl', '(unknown)')}"
            )
        if not isinstance(number, int) or manifest.get("to") not in FORMATS or not wanted <= manifest.keys():
            raise RunError(f"{folder / EXPORT} is damaged: it does not describe an export; {_ADVICE}")
        verify(folder, manifest["files"], RunError, _ADVICE, [RECIPE])
        recipe = read_recipe(folder / RECIPE)
        if isinstance(recipe, TranslationRecipe):
            decoding = recipe.decoding.model_copy(update={"precision": None})  # an export cannot change it
            recipe = recipe.model_copy(update={"decoding": decoding})
        return cls(folder, recipe, manifest)

    @property
    def to(self) -> str:
        return str(self.manifest["to"])

    @property
    def engine(self) -> str:
        """The engine that runs it: ``torch``, ``ctranslate2`` or ``onnx``."""
        return "torch" if self.to == SAFETENSORS else self.to

    @property
    def quantize(self) -> str | None:
        """The type of the stored numbers; None for float32, except in CTranslate2's format."""
        quantize: str | None = self.manifest.get("quantize")
        return quantize

    @property
    def name(self) -> str:
        """The run's name and the format: ``multi30k-de-en/phm-n4/v001@ctranslate2-int8``."""
        suffix = f"-{self.quantize}" if self.quantize else ""
        return f"{self.manifest['run']}@{self.to}{suffix}"

    def verify(self) -> None:
        """Compare the files of the model with the manifest; a text is verified when it is read.

        Raises RunError if a file is damaged.
        """
        entries = self.manifest["files"]
        names = {entry["name"] for entry in entries if not entry["name"].startswith(("text/", "README.md"))}
        names.update(path.relative_to(self.folder).as_posix() for read in _READ for path in self.folder.glob(read))
        verify(self.folder, entries, RunError, _ADVICE, names)

    def checkpoint(self, name: str = "best") -> Path:
        """Return the export's folder, which holds one checkpoint. Raises RunError for the name of another."""
        exported = self.manifest["checkpoint"]
        if name not in (AUTO, "best", exported):
            raise RunError(
                f"{self.folder} holds {exported} of {self.manifest['run']} and no checkpoint {name!r}; "
                "leave --checkpoint out, or export that checkpoint of the run"
            )
        return self.folder

    def load_checkpoint(self, name: str, load: Callable[[str], Loaded]) -> Loaded:
        """Call `load` with the checkpoint's name; no training removes the checkpoint of an export.

        The libraries of the formats raise errors of any type for files that they did not write: they become RunError.
        """
        self.checkpoint(name)
        try:
            return load(name)
        except PhmctlError:
            raise
        except Exception as error:
            if lack_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise RunError(f"{self.folder} cannot be used ({reason}); {_ADVICE}") from error

    def weights(self, name: str = "best") -> Weights:
        self.checkpoint(name)
        digests = [[entry["name"], entry["sha256"]] for entry in self.manifest["files"]]
        return Weights(f"{self.manifest['checkpoint']} ({self.to})", sha256_text([json.dumps(digests)]))


def open_run_or_export(path: Path | str) -> Run:
    """Open the export in a folder, else the run with this path, name or tag."""
    is_export = isinstance(path, str | Path) and (Path(path) / EXPORT).is_file()
    return Export.open(path) if is_export else Run.open(path)


def check_quantize(to: str, quantize: str | None) -> None:
    """Raise UserError if a format cannot store its numbers in this type; CTranslate2's types depend on the machine."""
    if quantize is not None and to in COMPACT:
        check_known(f"quantisation of {to}", quantize, QUANTIZATIONS)
