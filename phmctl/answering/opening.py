"""Open a run or an export, and load the translator in it.

An export is a trained model in the format of another engine::

    DIR/
        export.json        the manifest: format, origin (run and checkpoint), verification, files with SHA-256
        README.md          the model card
        recipe.yaml, data.json, tokenizer/, text/    as in a run
        …                  the weights in the engine's format
        results/           scores and translations of eval

An export to CTranslate2 answers without torch, which :func:`open_engine` imports.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from phmctl.answering.base import TORCH, Document, export_errors
from phmctl.answering.ctranslate2 import CTranslate2Engine
from phmctl.answering.translator import Translator
from phmctl.data.card import Cleaning
from phmctl.data.tokenizer import TokenizerPair
from phmctl.devices import pick_device, takes_bfloat16, torch_defaults
from phmctl.errors import RunError, UserError
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import AUTO, EXPORT, RECIPE, Run, Trained, Weights
from phmctl.runs.copies import load_cleaning, load_tokenizers
from phmctl.runs.run import read_recipe
from phmctl.storage import FORMAT, read_seal, sha256_text, verify

if TYPE_CHECKING:
    from phmctl.answering.beam import BeamEngine

CTRANSLATE2, ONNX, SAFETENSORS = FORMATS = ("ctranslate2", "onnx", "safetensors")
COMPACT = (ONNX, SAFETENSORS)  # formats that can hold A and S
EXACT = "float32"  # the quantisation that keeps the trained numbers
MODEL = "model"  # the folder of CTranslate2's own files
# The files that phmctl reads. The manifest has to list each of them.
_READ = ("*.onnx*", "*.safetensors*", "config.json", "data.json", "weights.bin", f"{MODEL}/*", "tokenizer/*")
_ADVICE = "copy the export again, or export the run again"


@dataclass(frozen=True)
class Export(Trained):
    """The folder, the recipe and the manifest of an export."""

    manifest: Document

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an export. The files of the model are verified when they are used. Raises RunError."""
        manifest = read_seal(folder / EXPORT, RunError, _ADVICE)
        if manifest.get("format") != FORMAT:
            raise RunError(
                f"{folder} has format {manifest.get('format')}, and this phmctl reads format {FORMAT}; export the run "
                f"again, or use phmctl {manifest.get('phmctl', '(unknown)')}"
            )
        verify(folder, manifest["files"], RunError, _ADVICE, [RECIPE])
        recipe = read_recipe(folder / RECIPE)
        if isinstance(recipe, TranslationRecipe):  # the precision of an export cannot change
            decoding = recipe.decoding.model_copy(update={"precision": None})
            recipe = recipe.model_copy(update={"decoding": decoding})
        return cls(folder, recipe, manifest)

    @property
    def to(self) -> str:
        return str(self.manifest["to"])

    @property
    def quantize(self) -> str | None:
        """The type of the stored numbers, None for float32, except in CTranslate2's format."""
        quantize: str | None = self.manifest.get("quantize")
        return quantize

    @property
    def name(self) -> str:
        """The run's name and the format: ``multi30k-de-en/phm-n4/v001@ctranslate2-int8``."""
        suffix = f"-{self.quantize}" if self.quantize else ""
        return f"{self.manifest['run']}@{self.to}{suffix}"

    def verify(self) -> None:
        """Compare the files of the model with the manifest. A text is verified when it is read. Raises RunError."""
        entries = self.manifest["files"]
        names = {entry["name"] for entry in entries if not entry["name"].startswith(("text/", "README.md"))}
        read = (path for pattern in _READ for path in self.folder.glob(pattern))
        names.update(path.relative_to(self.folder).as_posix() for path in read if path.name[0] != ".")  # ._x of macOS
        verify(self.folder, entries, RunError, _ADVICE, names)

    def text_path(self, name: str) -> Path:
        path = super().text_path(name)
        if path.exists():
            verify(self.folder, self.manifest["files"], RunError, _ADVICE, [f"{self.text_folder.name}/{name}"])
        return path

    def weights(self, checkpoint: str = "best") -> Weights:
        """Return the identity of the exported checkpoint. Raises RunError for the name of another."""
        exported = self.manifest["checkpoint"]
        name = f"{exported} ({self.to})"
        if checkpoint not in (AUTO, "best", exported, name):
            raise RunError(
                f"{self.folder} holds {exported} of {self.manifest['run']} and no checkpoint {checkpoint!r}; "
                "leave checkpoint out, or export that checkpoint of the run"
            )
        digests = [[entry["name"], entry["sha256"]] for entry in self.manifest["files"]]
        return Weights(name, sha256_text([json.dumps(digests)]))

    def chosen(self, name: str) -> str:
        self.weights(name)  # raises RunError for the name of another checkpoint
        return name


Source = Run | Export  # a folder with a model that answers


def find(path: Path | str) -> Source:
    """Open the export in a folder, else the run with this path, name or tag. Raises RunError."""
    if isinstance(path, str | Path) and (Path(path) / EXPORT).is_file():
        return Export.open(Path(path))
    return Run.open(path)


@contextmanager
def in_use(source: Source) -> Iterator[None]:
    """Verify the files of an export, and raise RunError instead of any other error in the block, which uses them."""
    if isinstance(source, Run):
        yield
        return
    with export_errors(source.folder):
        source.verify()
        yield


def load_translator(
    source: Source,
    checkpoint: str = AUTO,
    device: str = "auto",
    decoding: DecodingSection | None = None,
    *,
    cleaned: bool = False,
    threads: int = 0,
    n_best: int | None = None,
    strict: bool = False,
) -> Translator:
    """Load the translator of a run or an export.

    Args:
        decoding: settings of the search. None: the recipe's.
        cleaned: do not clean the lines, because they are prepared text of the run. Cleaning twice would change them:
            ``&amp;lt;`` becomes ``&lt;``, and then ``<``.
        threads: CPU threads of CTranslate2 and onnxruntime. 0: the engine's default.
        n_best: translations of each line in :meth:`Translator.answer`.
        strict: raise an error for over-long lines in :meth:`Translator.answer`.

    Raises:
        RunError: a file is missing or damaged.
        MissingExtraError: the engine is not installed.
        UserError: an option does not apply to the engine.
    """
    recipe = source.recipe_of(TranslationRecipe)
    settings = decoding or recipe.decoding
    check_options(source, device, threads, settings.precision)
    name = source.chosen(checkpoint)
    description = about(source, name)
    with in_use(source):
        tokenizers = load_tokenizers(source)
        return Translator(
            open_engine(source, name, tokenizers, settings.precision, device, threads),
            tokenizers,
            settings,
            max_tokens=recipe.data.max_tokens,
            cleaning=Cleaning() if cleaned else load_cleaning(source),
            n_best=n_best,
            strict=strict,
            about=description,
        )


def open_engine(
    source: Source,
    checkpoint: str,
    tokenizers: TokenizerPair,
    precision: str | None = None,
    device: str = "auto",
    threads: int = 0,
) -> "BeamEngine | CTranslate2Engine":
    """Return the engine that searches translations. Raises MissingExtraError, RunError."""
    folder = source.folder
    if isinstance(source, Export) and source.to == CTRANSLATE2:  # without loading torch
        return CTranslate2Engine(folder / MODEL, tokenizers, source.quantize or EXACT, threads)
    from phmctl import plain
    from phmctl.answering.beam import BeamEngine
    from phmctl.answering.onnx import OnnxTransformer
    from phmctl.models import load
    from phmctl.nn.convert import to_dense

    if isinstance(source, Export) and source.to == ONNX:
        return BeamEngine(OnnxTransformer(folder, threads), pick_device("cpu"), ONNX)
    target = pick_device(device)
    halves = precision == "bfloat16" and takes_bfloat16(target, "decoding.precision")
    section = source.recipe_of(TranslationRecipe).model
    if isinstance(source, Run):
        folder, tensors = source.read_model(checkpoint)
    else:
        generator = "tied" if section.generator == "tied" else "dense"
        changes = {"projections": "separate", "embeddings": "dense", "embedding_width": None, "generator": generator}
        section, tensors = section.dense_twin.model_copy(update=changes), plain.read(folder)[1]
    sizes = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    with torch_defaults():
        model = to_dense(load(section, sizes, tensors, folder, target), inplace=True)  # answers faster
    return BeamEngine(model.bfloat16() if halves else model, target)


def engine_of(source: Source) -> str:
    return TORCH if isinstance(source, Run) or source.to == SAFETENSORS else source.to


def check_options(source: Source, device: str, threads: int, precision: str | None = None) -> None:
    """Raise UserError if an option does not apply to the engine of a run or an export."""
    if threads and engine_of(source) == TORCH:
        raise UserError("threads: torch's are the whole process's; call torch.set_num_threads, or set OMP_NUM_THREADS")
    if isinstance(source, Export):
        if precision is not None:
            raise UserError(f"precision={precision}: {source.folder} has a fixed precision. Leave it out")
        if engine_of(source) != TORCH and device not in ("auto", "cpu"):
            raise UserError(f"device={device}: an export to {source.to} runs on the CPU. Leave it out")


def about(source: Source, checkpoint: str) -> Document:
    """Return the part of a model's ``about()`` that describes the run or export."""
    name = source.weights(checkpoint).name
    return {"name": source.name, "task": source.recipe.task, "folder": str(source.folder), "checkpoint": name}
