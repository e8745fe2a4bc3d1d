"""The manifest of a prepared folder: what is in it, and whether it is still that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phmctl.errors import DataError
from phmctl.files import read_json_object, refuse_pipes, writing
from phmctl.recipe.sections import PositiveInt
from phmctl.sealed import seal, verify

MANIFEST = "manifest.json"
FORMAT = 3


class _File(BaseModel):
    """A file of the folder. Its name is plain, since it is read."""

    name: Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]
    bytes: Annotated[int, Field(ge=0)]
    sha256: str


class _Manifest(BaseModel):
    """What is asked of a manifest, whatever the task. There is more in it."""

    model_config = ConfigDict(strict=True)

    settings: dict[str, Any]
    token_types: dict[str, PositiveInt]
    splits: dict[str, dict[str, Any]]
    sources: list[dict[str, Any]] = []
    files: list[_File]
    labels: list[str] = []
    texts: Annotated[int, Field(ge=1, le=2)] = 1
    extras: list[str] = []
    vectors: dict[str, Any] = {}


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a folder that is otherwise complete: the content, and size and SHA-256 of each file."""
    with writing(folder):
        seal(folder, MANIFEST, {"format": FORMAT, **content})


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return a prepared folder's manifest, None where there is none; raises DataError for one that is damaged."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    refuse_pipes(folder, DataError)
    manifest = read_json_object(path, DataError, "prepare the data again with --force")
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{path} is of format {manifest.get('format')!r}, and this phmctl reads {FORMAT}: take the version "
            "that wrote it, or prepare again with --force"
        )
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        wrong = ", ".join(sorted({str(problem["loc"][0]) for problem in error.errors()}))
        raise DataError(f"{path} is damaged: look at {wrong}; prepare the data again with --force") from error
    return manifest


def refuse_damage(folder: Path, manifest: dict[str, Any], name: str, command: str) -> None:
    """Raise a DataError if the manifest lists this file and it is another now."""
    verify(folder, manifest["files"], DataError, f"run: {command} --force", [name])
