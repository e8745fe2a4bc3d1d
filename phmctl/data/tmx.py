"""A reader of translation memories (TMX), the exchange format of translators' tools."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from phmctl.data.readers import join_lines, open_bytes, reading
from phmctl.data.rows import Row, repeatable
from phmctl.errors import DataError
from phmctl.languages import language

_CODES = ("bpt", "ept", "it", "ph", "ut")  # elements of a segment that hold a tool's codes instead of text
_LANGUAGE = ("{http://www.w3.org/XML/1998/namespace}lang", "lang")  # the attribute of TMX 1.4, and of older versions
_CONVERTERS = {
    ".po": "po2tmx --language TARGET FILE.po FILE.tmx",
    ".xlf": "xliff2po FILE.xlf FILE.po, then po2tmx --language TARGET FILE.po FILE.tmx",
    ".xliff": "xliff2po FILE.xliff FILE.po, then po2tmx --language TARGET FILE.po FILE.tmx",
}


def is_translation_memory(path: Path) -> bool:
    """Return whether a file's name says TMX; raises DataError for a format that has to be converted first."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in _CONVERTERS:
        raise DataError(
            f"{path}: phmctl does not read {suffix[1:].upper()}; convert it with the Translate Toolkit: "
            f"{_CONVERTERS[suffix]}\nthen: --train FILE.tmx --languages SOURCE,TARGET"
        )
    return suffix == ".tmx"


@repeatable
def translation_memory(path: Path, languages: tuple[str, str]) -> Iterator[Row]:
    """Yield the units of a translation memory that have a segment in both languages; of several, the first.

    Raises DataError if the file is not XML, or if no unit has both languages.
    """
    wanted = [language(code) or code.lower() for code in languages]
    available: dict[str, None] = {}
    empty = True
    with reading(path), open_bytes(path) as handle:
        try:
            for _, unit in ElementTree.iterparse(handle):
                if unit.tag != "tu":
                    continue
                segments = _segments(unit)
                unit.clear()  # the whole file would stay in memory
                available |= dict.fromkeys(segments)
                if all(code in segments for code in wanted):
                    empty = False
                    yield Row(tuple(segments[code] for code in wanted))
        except ElementTree.ParseError as error:
            raise DataError(f"{path}, line {error.position[0]}: invalid XML ({error})") from error
    if empty:
        found = ", ".join(available) or "no language"
        raise DataError(
            f"{path} has no unit in both {' and '.join(languages)}; it has {found}: --languages SOURCE,TARGET"
        )


def _segments(unit: Element) -> dict[str, str]:
    """Return the text of a unit's first segment in each language."""
    segments: dict[str, str] = {}
    for variant in unit.iter("tuv"):
        code = next((variant.attrib[name] for name in _LANGUAGE if name in variant.attrib), "")
        segment = variant.find("seg")
        if segment is not None:
            segments.setdefault(language(code) or code.lower(), join_lines("".join(_texts(segment))).strip())
    return segments


def _texts(element: Element) -> Iterator[str]:
    """Yield the text of an element without the codes of tools in it."""
    if element.tag not in _CODES:
        yield element.text or ""
        for child in element:
            yield from _texts(child)
            yield child.tail or ""
