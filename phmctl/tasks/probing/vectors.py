"""Sentence vectors on disk: an encoder reads a corpus once, however many probes read the vectors.

They lie in the data folder, under ``vectors/<corpus>/<key>``. The key is a digest of what decides them: the SHA-256 of
the encoder's weights and of the corpus' splits, and the pooling. So a copy of a run finds them, and another checkpoint
makes others. A folder appears under its name when it is whole; a second process waits for the first, and then reads
what that wrote; what a killed one left is swept. They may be removed at any time.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from phmctl.console import note, progress, warn
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import DataError
from phmctl.files import (
    are_file_entries,
    clear,
    damaged_files,
    file_entry,
    locked,
    read_json_object,
    replacing,
    sha256_text,
    write_atomic,
    write_json,
    writing,
)
from phmctl.tasks.probing.encoder import KINDS, Encoder, Reader

_FORMAT = "phmctl-vectors-1"
_MANIFEST = "manifest.json"
_MANY_UNKNOWN = 0.05  # of the tokens
_MANY_PIECES = 1.5  # times as many tokens a word as in the text that the encoder was trained for


class SentenceVectors:
    """The vectors that an encoder makes of a corpus, computed unless they are there.

    Args:
        encoder: which.
        prepared: the corpus; each example is one text, and train has kept its own.
        root: the data folder.
        device: where to compute.

    Attributes:
        folder: where they lie.
        manifest: the encoder, the corpus' files, and how the tokenizer met the text.

    Raises:
        RunError: the encoder's run is damaged.
        DataError: the corpus has no text of train.
        OutputError: the folder cannot be written.
    """

    def __init__(self, encoder: Encoder, prepared: PreparedData, root: Path, device: str = "auto") -> None:
        decides = _decides(encoder, prepared)
        key = sha256_text(f"{value}\n" for value in (decides["sha256"], decides["pooling"], *decides["data"].values()))
        self.folder = root / "vectors" / prepared.folder.parent.name / key[:16]
        found = _whole(self.folder, decides)
        if found is None:
            found = self._make(encoder, prepared, decides, device)
        self.manifest = found

    def split(self, name: str, kind: str) -> Tensor:
        """Return the vectors of a split, (N, d) float32: those of the ``encoder``, or of the ``embeddings``."""
        path = self.folder / _file(name, kind)
        try:
            vectors: Tensor = load(path.read_bytes())["vectors"]
        except (OSError, SafetensorError, LookupError) as error:
            raise DataError(f"{path} cannot be read ({error}); remove its folder, it is computed again") from error
        return vectors

    def _make(
        self, encoder: Encoder, prepared: PreparedData, decides: Mapping[str, Any], device: str
    ) -> dict[str, Any]:
        with locked(self.folder.with_name(f".{self.folder.name}.lock")):
            clear(self.folder)
            found = _whole(self.folder, decides)  # another process was faster
            if found is None:
                with writing(self.folder), replacing(self.folder) as temporary:
                    found = _write(temporary, encoder, prepared, decides, device)
        return found


def warn_of_other_text(manifest: Mapping[str, Any], corpus: str) -> None:
    """Warn where the encoder's tokenizer does not know a corpus' words, or cuts them into many more pieces."""
    counts = manifest["text"]
    unknown = counts["unknown"] / max(counts["tokens"], 1)
    pieces, own = counts["tokens"] / max(counts["words"], 1), counts["own_tokens_a_word"]
    name = manifest["encoder"]["name"]
    if unknown > _MANY_UNKNOWN:
        warn(f"{unknown:.1%} of the tokens of {corpus} are unknown to the tokenizer of {name}: it reads other text")
    elif own and pieces > _MANY_PIECES * own:
        warn(
            f"the tokenizer of {name} cuts a word of {corpus} into {pieces:.1f} pieces, and one of its own text "
            f"into {own:.1f}: it reads other text"
        )


def _decides(encoder: Encoder, prepared: PreparedData) -> dict[str, Any]:
    names = {f"{split}.arrow" for split in prepared.splits}
    files = {entry["name"]: entry["sha256"] for entry in prepared.manifest["files"] if entry["name"] in names}
    return {"sha256": encoder.sha256, "pooling": encoder.pooling, "data": files}


def _whole(folder: Path, decides: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of a folder of vectors; None where there is none, or not all is as it was written."""
    if not (folder / _MANIFEST).is_file():
        return None
    with suppress(DataError):
        manifest = read_json_object(folder / _MANIFEST, DataError, "")
        files = manifest.get("files", [])
        same = manifest.get("format") == _FORMAT and manifest.get("of") == decides
        if same and are_file_entries(files) and not damaged_files(folder, files):
            return manifest
    note(f"{folder} is damaged: its vectors are computed again")
    return None


def _write(
    folder: Path, encoder: Encoder, prepared: PreparedData, decides: Mapping[str, Any], device: str
) -> dict[str, Any]:
    reader = Reader(encoder, device)
    counts = {"tokens": 0, "unknown": 0, "words": 0}
    for name in prepared.splits:
        texts = prepared.split(name).texts[0]
        with progress(f"{encoder.run.name} reads {name} of {prepared.folder.parent.name}", len(texts)) as advance:
            encoded = reader.read(texts, advance)
        for kind in KINDS:
            write_atomic(folder / _file(name, kind), save({"vectors": encoded.vectors[kind]}))
        counts = {key: value + getattr(encoded, key) for key, value in counts.items()}
    files = [file_entry(folder, path.name) for path in sorted(folder.iterdir())]
    text = {**counts, "own_tokens_a_word": reader.fertility()}
    manifest = {"format": _FORMAT, "encoder": encoder.as_json(), "of": decides, "text": text, "files": files}
    write_json(folder / _MANIFEST, manifest)
    return manifest


def _file(split: str, kind: str) -> str:
    return f"{split}.{kind}.safetensors"
