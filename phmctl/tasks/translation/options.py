"""Preparing parallel text as the command line asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phmctl.errors import DataError
from phmctl.recipe.schema import ParallelSection
from phmctl.tasks.base import Preparation, option_name

if TYPE_CHECKING:
    from phmctl.data.prepared.folder import PreparedData


def prepare_asked(asked: Preparation) -> PreparedData:
    """Prepare sentence pairs. Raises DataError, RecipeError, OutputError."""
    from phmctl.data.corpus import corpus_from_files
    from phmctl.data.prepared.prepare import choose_section, prepare_named

    if asked.options:
        options = ", ".join(map(option_name, asked.options))
        raise DataError(f"{options} is for labelled text; {asked.name} is parallel text, to translate")
    section = choose_section(asked.name, asked.recipe, asked.settings, ParallelSection)
    own = corpus_from_files(section.card, asked.files) if asked.files else None
    return prepare_named(section, own=own, **asked.common)
