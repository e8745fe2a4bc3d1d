"""A vocabulary that is there already: a run's, or another prepared corpus'. With it a model can be trained further."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from phmctl.data.card import Cleaning
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.data.prepared.folder import PreparedData, Section
from phmctl.data.prepared.manifest import MANIFEST
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import DataError
from phmctl.files import sha256_text
from phmctl.runs import Run
from phmctl.runs.find import find_run

_DECIDES = ("tokenizer", "vocabulary", "joint")  # settings that a vocabulary was made by


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, and what its text went through."""

    origin: str  # where it is from, in words
    tokenizers: TokenizerPair
    cleaning: Cleaning
    settings: Mapping[str, Any]  # those it was made by

    @classmethod
    def of(cls, path: Path) -> "Vocabulary":
        if (path / MANIFEST).is_file():
            prepared = PreparedData.open(path)
            settings = prepared.manifest["settings"]
            return cls(str(path), prepared.tokenizers, Cleaning(**settings["cleaning"]), settings)
        if inside := sorted(str(each.parent) for each in path.glob(f"[!.]*/{MANIFEST}")):
            raise DataError(f"{path} is the folder of a corpus; name a preparation in it: {', '.join(inside)}")
        run = Run.open(find_run(path))
        settings = run.data().get("settings", {})
        if "vocabulary" not in settings:
            raise DataError(f"{run.name} has no vocabulary of its own; name another run")
        return cls(run.name, load_tokenizers(run), load_cleaning(run), settings)

    @property
    def sha256(self) -> str:
        return sha256_text([self.tokenizers.source.engine_json(), self.tokenizers.target.engine_json()])

    def settings_for(self, section: type[BaseModel]) -> dict[str, Any]:
        """Return the settings of a data section that tell of the vocabulary and of how long a text may be."""
        made = {"joint": self.tokenizers.joint, **self.settings}  # of labelled text the settings do not name it
        return {key: made[key] for key in (*_DECIDES, "max_tokens") if key in section.model_fields}

    def check(self, data: Section) -> None:
        if not hasattr(data, "joint") and not self.tokenizers.joint:
            raise DataError(f"{self.origin} has one vocabulary for each side; labelled text has one in all")
        for key, value in self.settings_for(type(data)).items():
            if key in _DECIDES and getattr(data, key) != value:
                raise DataError(
                    f"the vocabulary of {self.origin} was made with {key} {value!r}, not {getattr(data, key)!r}: "
                    f"leave that out, or set data.{key} so in the recipe"
                )
