"""Translation memories: which units and texts are read, and which files are refused."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from phmctl.data.corpus import own_corpus
from phmctl.data.readers import translation_memory
from phmctl.errors import DataError

MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-US"><seg>A &lt;red&gt; dog.</seg></tuv><tuv xml:lang="jpn"><seg>赤い犬。</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>only English</seg></tuv></tu>
<tu><tuv lang="ja"><seg>二
行</seg></tuv>
<tuv lang="EN"><seg>Press <bpt i="1">&lt;b&gt;</bpt>Enter<ept i="1">&lt;/b&gt;</ept> <hi>now</hi>.</seg></tuv></tu>
</body></tmx>
"""
PAIRS = [("赤い犬。", "A <red> dog."), ("二 行", "Press Enter now.")]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path: Path, *languages: str) -> list[tuple[str, ...]]:
    source, target = languages
    return [row.texts for row in translation_memory(path, (source, target))]


def unit(**segments: str) -> str:
    variants = (f'<tuv xml:lang="{tag.replace("_", "-")}"><seg>{text}</seg></tuv>' for tag, text in segments.items())
    return f"<tmx><body><tu>{''.join(variants)}</tu></body></tmx>"


@pytest.mark.parametrize("name", ["a.tmx", "A.TMX", "a.tmx.gz"])
def test_units_with_both_languages_are_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, MEMORY)
    rows = translation_memory(path, ("ja", "en"))
    assert [row.texts for row in rows] == PAIRS == [row.texts for row in rows]
    corpus = own_corpus("mine", {"train": [[path]]}, languages=("en", "ja"))
    assert [row.texts for row in corpus.splits["train"]] == [pair[::-1] for pair in PAIRS]


@pytest.mark.parametrize("text", ["", "no XML", MEMORY[:200], MEMORY.replace("ja", "fr").replace("jpn", "fr")])
def test_a_memory_that_is_damaged_or_lacks_the_languages_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"a\.tmx"):
        read(write(tmp_path / "a.tmx", text), "ja", "en")


def test_varieties_of_a_language_are_kept_apart(tmp_path: Path) -> None:
    portuguese = write(tmp_path / "pt.tmx", unit(pt_PT="autocarro", pt_BR="ônibus", en="bus"))
    assert read(portuguese, "pt-BR", "pt-PT") == [("ônibus", "autocarro")]
    assert read(portuguese, "en", "pt-br") == [("bus", "ônibus")]
    chinese = write(tmp_path / "zh.tmx", unit(zh_Hant="臺灣", zh_Hans="台湾"))
    assert read(chinese, "zho_Hans", "zh_Hant") == [("台湾", "臺灣")]
    english = write(tmp_path / "en.tmx", unit(en_US="color", de="Farbe"))
    assert read(english, "de", "en") == [("Farbe", "color")]
    assert read(write(tmp_path / "main.tmx", unit(en="color", de="Farbe")), "de-AT", "en-GB") == [("Farbe", "color")]
    with pytest.raises(DataError, match="en-us"):
        read(english, "de", "en-GB")
    with pytest.raises(DataError, match="both"):
        read(write(tmp_path / "same.tmx", unit(pt_PT="autocarro")), "pt", "pt-PT")


@pytest.mark.parametrize(
    ("declared", "encoding"), [("utf8", "utf-8"), ("UTF-16", "utf-16"), ("ISO-8859-1", "latin-1"), ("cp1252", "cp1252")]
)
def test_a_declared_encoding_is_read(tmp_path: Path, declared: str, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{declared}"?>\n' + unit(de="schön", en="nice")
    assert read(write(tmp_path / "a.tmx", text, encoding), "de", "en") == [("schön", "nice")]


@pytest.mark.parametrize("declared", ["GB2312", "Shift_JIS", "Big5", "klingon"])
def test_another_encoding_is_refused_with_the_program_that_converts_it(tmp_path: Path, declared: str) -> None:
    text = f'<?xml version="1.0" encoding="{declared}"?>\n' + unit(de="a", en="b")
    with pytest.raises(DataError, match="iconv"):
        read(write(tmp_path / "a.tmx", text), "de", "en")


def test_a_default_namespace_is_no_part_of_the_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tmx", unit(de="a", en="b").replace("<tmx>", '<tmx xmlns="http://www.lisa.org/tmx14">'))
    assert read(path, "de", "en") == [("a", "b")]


def test_nested_tags_take_no_stack(tmp_path: Path) -> None:
    nested = "<hi>" * 5000 + "<bpt>x</bpt>a" + "</hi>" * 5000
    assert read(write(tmp_path / "a.tmx", unit(de=nested, en="b")), "de", "en") == [("a", "b")]


def test_memory_holds_one_unit(tmp_path: Path) -> None:
    pairs = unit(de="a" * 1000, en="b").removeprefix("<tmx><body>").removesuffix("</body></tmx>") * 20_000
    path = write(tmp_path / "a.tmx.gz", f"<tmx><body>{pairs}</body></tmx>")
    del pairs
    tracemalloc.start()
    try:
        assert sum(1 for _ in translation_memory(path, ("de", "en"))) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
