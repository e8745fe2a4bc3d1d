"""Translation memories: which units and texts are read, and which files are refused."""

import gzip
from pathlib import Path

import pytest

from phmctl.data.corpus import own_corpus
from phmctl.data.tmx import is_translation_memory, translation_memory
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


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.tmx", "A.TMX", "a.tmx.gz"])
def test_units_with_both_languages_are_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, MEMORY)
    assert is_translation_memory(path)
    rows = translation_memory(path, ("ja", "eng"))
    assert (
        [row.texts for row in rows]
        == [("赤い犬。", "A <red> dog."), ("二 行", "Press Enter now.")]
        == [row.texts for row in rows]
    )
    corpus = own_corpus("mine", {"train": [[path]]}, languages=("en", "ja"))
    assert [row.texts[1] for row in corpus.splits["train"]] == ["赤い犬。", "二 行"]


@pytest.mark.parametrize("text", ["", "no XML", MEMORY[:200], MEMORY.replace("ja", "fr").replace("jpn", "fr")])
def test_a_memory_that_is_damaged_or_lacks_the_languages_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"a\.tmx"):
        list(translation_memory(write(tmp_path / "a.tmx", text), ("ja", "en")))


@pytest.mark.parametrize("name", ["a.po", "a.xlf", "a.xliff"])
def test_other_formats_of_translators_are_named_with_their_converter(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"tmx"):
        own_corpus("mine", {"train": [[write(tmp_path / name, "x")]]})
