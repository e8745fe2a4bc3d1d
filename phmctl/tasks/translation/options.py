"""Preparing parallel text as the command line asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError
from phmctl.recipe.schema import ParallelSection
from phmctl.tasks.base import Preparation, option_name

if TYPE_CHECKING:
    from phmctl.data.card import Rows
    from phmctl.data.prepared.folder import PreparedData

_TABLES = ("columns", "header", "quoting", "extra", "skip_bad_lines")  # how a table with both sides in it is read
_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # of a language: de, pt-br, zh-Hant


def prepare_asked(asked: Preparation) -> PreparedData:
    """Prepare sentence pairs. Raises DataError, RecipeError, OutputError."""
    from phmctl.data.corpus import own_corpus
    from phmctl.data.prepared.prepare import choose_section, prepare_named
    from phmctl.data.prepared.provenance import Vocabulary

    wrong = [option_name(name) for name in asked.options if name not in (*_TABLES, "languages")]
    if wrong:
        raise DataError(f"{', '.join(wrong)} is for labelled text; {asked.name} is parallel text, to translate")
    if asked.options and not asked.files:
        names = ", ".join(map(option_name, asked.options))
        raise DataError(f"{names} is for your own files: give those with --train FILE --valid FILE")
    vocabulary = Vocabulary.of(asked.vocabulary_of) if asked.vocabulary_of else None
    section = choose_section(asked.name, asked.recipe, asked.settings, ParallelSection, vocabulary)
    options = dict(asked.options)
    skip = bool(options.pop("skip_bad_lines", False))
    languages = _languages(options.pop("languages", None))
    rows = _rows(options)
    quoting = options.get("quoting")
    how: dict[str, Any] = {"quoting": quoting, "skip": skip, "chosen": "columns" in options, **languages}
    own = own_corpus(section.card, asked.files, rows, **how) if asked.files else None
    settings = {"rows": rows.model_dump(mode="json"), "quoting": quoting} if rows else {}
    settings |= ({"skip_bad_lines": True} if skip else {}) | languages
    return prepare_named(section, own=own, settings=settings, vocabulary=vocabulary, **asked.common)


def _languages(given: str | None) -> dict[str, Any]:
    codes = tuple(given.split(",")) if given else ()
    if given and (len(codes) != 2 or not all(map(_CODE.fullmatch, codes)) or codes[0] == codes[1]):
        raise DataError(f"--languages {given}: expected two codes, SOURCE,TARGET, as de,en")
    return {"languages": codes} if codes else {}


def _rows(options: Mapping[str, Any]) -> Rows | None:
    """Return how tables are read; None where no option says. Raises DataError."""
    from phmctl.data.card import RESERVED, Rows

    if not options:
        return None
    names = [name.strip() for name in options.get("columns", "0,1").split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise DataError(f"--columns {options['columns']}: wants two, SOURCE,TARGET: names, or numbers counted from 0")
    extras = options.get("extra", ())
    taken = next((name for name in extras if name in (*names, *RESERVED)), None)
    if taken is not None:
        raise DataError(f"--extra {taken}: a column of whole numbers beside the texts, which is not called so")
    numbers = all(name.isdecimal() for name in (*names, *extras))
    header = options.get("header", not numbers)
    if not header and not numbers:
        raise DataError("with --no-header, --columns are numbers, counted from 0; so is --extra")
    source, target, *others = (int(name) if numbers else name for name in (*names, *extras))
    return Rows(texts=(source, target), header=header, extras=dict(zip(extras, others, strict=True)))
