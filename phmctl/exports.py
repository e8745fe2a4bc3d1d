"""Exports: a trained model in the form of another engine, in a folder that reads like a run.

::

    DIR/
        export.json        format number, what it is, the run and checkpoint it came from, its files with their SHA-256
        README.md          the model card
        recipe.yaml        the resolved recipe, data.json and tokenizer/ and text/: as in a run
        …                  the weights in the engine's form
        results/           what eval writes

``decode``, ``eval`` and :func:`phmctl.load` take an export where they take a run. Nothing here imports torch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from phmctl.errors import RunError, UserError
from phmctl.files import FORMAT, read_seal, sha256_text, verify
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import AUTO, EXPORT, RECIPE, Run, Weights
from phmctl.runs.run import Loaded, read_recipe

CTRANSLATE2, ONNX, SAFETENSORS, HUGGINGFACE = FORMATS = ("ctranslate2", "onnx", "safetensors", "huggingface")
ANSWERING = (CTRANSLATE2, ONNX, SAFETENSORS)  # those that phmctl answers with
EXACT = "float32"  # CTranslate2's type that keeps the trained numbers
MODEL = "model"  # the folder of CTranslate2's own files
_ADVICE = "copy the export again, or make it anew with: phmctl export"


@dataclass(frozen=True)
class Export(Run):
    manifest: dict[str, Any]
    asked_as: str = AUTO  # the name of its checkpoint in the run that it was made of in passing

    @classmethod
    def open(cls, name: Path | str, root: Path | None = None) -> Self:
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
            recipe = recipe.model_copy(update={"decoding": decoding_of_export(recipe.decoding)})
        return cls(folder, recipe, manifest)

    @property
    def to(self) -> str:
        return str(self.manifest["to"])

    @property
    def engine(self) -> str:
        """What computes its answers: ``torch``, ``ctranslate2`` or ``onnx``."""
        return "torch" if self.to == SAFETENSORS else self.to

    @property
    def name(self) -> str:
        """The run's name and the format: ``multi30k-de-en/phm-n4/v001@ctranslate2-int8``."""
        quantize = self.manifest.get("quantize")
        return f"{self.manifest['run']}@{self.to}{f'-{quantize}' if quantize else ''}"

    def verify(self) -> None:
        """Compare the files that answering wants with the manifest; of the text what is read is verified then.

        UserError: phmctl does not answer with this format.
        """
        if self.to not in ANSWERING:
            raise UserError(
                f"{self.folder} is for the transformers library, which reads it itself; "
                f"phmctl answers with a run or with an export to {', '.join(ANSWERING)}"
            )
        aside = ("text/", "README.md")
        wanted = [entry for entry in self.manifest["files"] if not entry["name"].startswith(aside)]
        verify(self.folder, wanted, RunError, _ADVICE)

    def checkpoint(self, name: str = "best") -> Path:
        """The export's folder, which holds the weights of one checkpoint; RunError for another's name."""
        own = self.manifest["checkpoint"]
        if name not in (AUTO, "best", own, self.asked_as):
            raise RunError(
                f"{self.folder} holds {own} of {self.manifest['run']} and no checkpoint {name!r}; "
                "leave --checkpoint out, or export that one from the run"
            )
        return self.folder

    def use(self, name: str, read: Callable[[str], Loaded]) -> Loaded:
        """What `read` makes of the export's only checkpoint, which nobody prunes."""
        self.checkpoint(name)
        return read(name)

    def weights(self, name: str = "best") -> Weights:
        self.checkpoint(name)
        made = [[entry["name"], entry["sha256"]] for entry in self.manifest["files"]]
        return Weights(f"{self.manifest['checkpoint']} ({self.to})", sha256_text([json.dumps(made)]))


def decoding_of_export(section: DecodingSection) -> DecodingSection:
    """A run's decoding without what its export has no choice of: how H is applied, and in which precision."""
    return section.model_copy(update={"precision": None})


def open_run_or_export(path: Path | str) -> Run:
    is_export = isinstance(path, str | Path) and (Path(path) / EXPORT).is_file()
    return Export.open(path) if is_export else Run.open(path)


def check_quantize(to: str, quantize: str | None) -> None:
    """Raise UserError for a type of another format than CTranslate2."""
    if quantize is not None and to != CTRANSLATE2:
        raise UserError(f"--quantize {quantize}: only ctranslate2 has types, not {to}; leave it out")
