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
from typing import Any, NoReturn, Self

from phmctl.errors import RunError, UserError
from phmctl.files import are_file_entries, damage, damaged_files, read_json_object, sha256_text
from phmctl.recipe.schema import DecodingSection, Recipe, TranslationRecipe
from phmctl.runs import AUTO, EXPORT, RECIPE, Loaded, Run, Weights, read_recipe

FORMAT = 1  # of the folder; a higher one is a later version's

CTRANSLATE2, ONNX, SAFETENSORS, TORCH, HUGGINGFACE = FORMATS = (
    "ctranslate2",
    "onnx",
    "safetensors",
    "torch",
    "huggingface",
)
ANSWERING = (CTRANSLATE2, ONNX, SAFETENSORS, TORCH)  # those that phmctl answers with
MODEL = "model"  # the folder of CTranslate2's own files
_ADVICE = "copy the export again, or make it anew with: phmctl export"
_WANTED = ("to", "run", "checkpoint", "checkpoint_sha256", "files")


@dataclass(frozen=True)
class Export(Run):
    """One export's folder, its recipe and its manifest."""

    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an export by its folder; the files are verified when they are used (:meth:`verify`)."""
        folder = Path(path)
        manifest = _read_manifest(folder / EXPORT)
        wrong = damaged_files(folder, [entry for entry in manifest["files"] if entry["name"] == RECIPE])
        if wrong:
            raise RunError(f"{folder / RECIPE} is missing or damaged; {_ADVICE}")
        return cls(folder, _as_exported(read_recipe(folder / RECIPE)), manifest)

    @property
    def to(self) -> str:
        """The format, one of :data:`FORMATS`."""
        return str(self.manifest["to"])

    @property
    def engine(self) -> str:
        """What computes its answers: ``torch``, ``ctranslate2`` or ``onnx``."""
        return TORCH if self.to in (SAFETENSORS, TORCH) else self.to

    @property
    def name(self) -> str:
        """The run's name and the format: ``multi30k-de-en/phm-n4/v001@ctranslate2-int8``."""
        quantize = self.manifest.get("quantize")
        return f"{self.manifest['run']}@{self.to}{f'-{quantize}' if quantize else ''}"

    def verify(self) -> None:
        """Compare the files that answering wants with the manifest, in size and SHA-256."""
        aside = ("text/", "README.md")  # not wanted to answer; what is read of the text is verified when it is read
        wanted = [entry for entry in self.manifest["files"] if not entry["name"].startswith(aside)]
        wrong = damaged_files(self.folder, wanted)
        if wrong:
            raise RunError(f"{self.folder / wrong[0]} {damage(self.folder, wanted, wrong[0])}; {_ADVICE}")

    def checkpoint(self, name: str = "best") -> Path:
        """Return the export's folder, which holds the weights of one checkpoint."""
        own = self.manifest["checkpoint"]
        if name not in (AUTO, "best", own):
            raise RunError(
                f"{self.folder} holds {own} of {self.manifest['run']} and no checkpoint {name!r}; "
                "leave --checkpoint out, or export that one from the run"
            )
        return self.folder

    def use(self, name: str, read: Callable[[str], Loaded]) -> Loaded:
        """Return what `read` makes of the export's only checkpoint, which nobody prunes."""
        self.checkpoint(name)
        return read(name)

    def weights(self, name: str = "best") -> Weights:
        """Return what tells the export's weights from others."""
        self.checkpoint(name)
        made = [[entry["name"], entry["sha256"]] for entry in self.manifest["files"]]
        return Weights(f"{self.manifest['checkpoint']} ({self.to})", _digest(made))

    def verify_weights(self, name: str = "best") -> None:
        """Compare the weights with the manifest. Raises RunError."""
        self.checkpoint(name)
        self.verify()


def decoding_of_export(section: DecodingSection) -> DecodingSection:
    """Return a run's decoding without what its export has no choice of: how H is applied, and in which precision."""
    return section.model_copy(update={"execution": None, "precision": None})


def _as_exported(recipe: Recipe) -> Recipe:
    if not isinstance(recipe, TranslationRecipe):
        return recipe
    return recipe.model_copy(update={"decoding": decoding_of_export(recipe.decoding)})


def open_model(path: Path | str) -> Run:
    """Open what can answer: a run, or an export of one."""
    return Export.open(path) if (Path(path) / EXPORT).is_file() else Run.open(path)


def no_engine(folder: Path) -> UserError:
    """Return the error that says that phmctl does not answer with an export."""
    return UserError(
        f"{folder} is for the transformers library, which reads it itself; "
        f"phmctl answers with a run or with an export to {', '.join(ANSWERING)}"
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json_object(path, RunError, _ADVICE)
    number = manifest.get("format")
    if not isinstance(number, int):
        raise RunError(f"{path} is damaged: it has no format number; {_ADVICE}")
    if number > FORMAT:
        raise RunError(
            f"{path.parent} is an export of format {number}, made by phmctl {manifest.get('phmctl', '(unknown)')}; "
            f"this version reads up to {FORMAT}: upgrade phmctl, or export the run again with this version"
        )
    if manifest.get("to") not in FORMATS or not all(name in manifest for name in _WANTED):
        _refuse(path)
    if not are_file_entries(manifest["files"]):
        _refuse(path)
    return manifest


def _refuse(path: Path) -> NoReturn:
    raise RunError(f"{path} is damaged: it does not describe an export; {_ADVICE}")


def _digest(value: object) -> str:
    return sha256_text([json.dumps(value)])
