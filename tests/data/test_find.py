"""Finding a card's files: every layout, in subfolders, compressed; and what is missing is named."""

import gzip

import pytest

from phmctl.data.card import load_card
from phmctl.data.find import find_files
from phmctl.errors import DataError


def put(folder, *names, content=b"x\n"):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


RAW = [f"{split}.{side}.gz" for split in ("train", "val", "test_2016_flickr") for side in ("de", "en")]


@pytest.mark.parametrize("below", ["", "task1/raw", "a/b/c"])
def test_a_layout_is_found_in_subfolders(tmp_path, below):
    put(tmp_path / below, *RAW)
    match = find_files(load_card("multi30k-de-en"), tmp_path)
    assert (match.layout.name, match.folder) == ("raw captions", tmp_path / below)
    assert match.found["train.de"] == tmp_path / below / "train.de.gz"


def test_the_shallowest_folder_wins(tmp_path):
    names = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")]
    put(tmp_path / "set", *names)
    put(tmp_path / "set" / "tmp", *names)
    assert find_files(load_card("iwslt14-de-en"), tmp_path).folder == tmp_path / "set"


@pytest.mark.parametrize("valid", ["valid", "val", "dev"])
def test_every_card_reads_plain_text_and_tsv(tmp_path, valid):
    put(
        tmp_path,
        "train.modern",
        "train.original.gz",
        f"{valid}.modern",
        f"{valid}.original",
        "test.modern",
        "test.original",
    )
    assert find_files(load_card("shakespeare"), tmp_path).layout.name == "plain text"
    put(tmp_path / "other", "train.tsv.gz", f"{valid}.tsv", "test.tsv")
    assert find_files(load_card("shakespeare"), tmp_path / "other").layout.name == "tab-separated"


WMT = [
    "europarl/europarl-v8.ro-en.en.gz",
    "europarl/europarl-v8.ro-en.ro.gz",
    "opus/SETIMES.en-ro.en",
    "opus/deep/SETIMES.en-ro.ro",
    *(f"dev/newsdev2016-enro-{side}.sgm" for side in ("src.en", "ref.ro")),
    *(f"test/newstest2016-enro-{side}.sgm" for side in ("src.en", "ref.ro")),
]


def test_the_files_of_several_archives_may_lie_apart(tmp_path):
    put(tmp_path, *WMT)
    put(tmp_path / "test", "SETIMES.en-ro.en")  # shallower than none, and later in the alphabet: not taken
    match = find_files(load_card("wmt18-en-ro"), tmp_path)
    assert (match.layout.name, match.folder) == ("original WMT files", tmp_path)
    assert match.found["europarl-v8.ro-en.en"] == tmp_path / "europarl" / "europarl-v8.ro-en.en.gz"
    assert match.found["SETIMES.en-ro.en"] == tmp_path / "opus" / "SETIMES.en-ro.en"
    assert [file.path.name for file in match.files() if (file.split, file.side) == ("train", "target")] == [
        "europarl-v8.ro-en.ro.gz",
        "SETIMES.en-ro.ro",
    ]


def test_a_file_of_several_archives_that_is_missing(tmp_path):
    put(tmp_path, *WMT[:2], *WMT[3:])
    with pytest.raises(
        DataError, match=r"\(original WMT files\) in part: valid and test found, train incomplete\n.*ES\.en"
    ):
        find_files(load_card("wmt18-en-ro"), tmp_path)


def test_files_of_other_layouts_must_lie_together(tmp_path):
    put(tmp_path, *(f"{split}/{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")))
    with pytest.raises(DataError, match="in part"):
        find_files(load_card("multi30k-de-en"), tmp_path)


def test_a_set_that_is_divided_is_found_without_valid_and_test(tmp_path):
    put(tmp_path, "train.en.gz", "train.mk")
    match = find_files(load_card("setimes-en-mk"), tmp_path)
    assert (match.layout.name, set(match.layout.splits)) == ("plain text", {"train"})
    put(tmp_path, "dev.en", "dev.mk", "test.en", "test.mk")
    assert set(find_files(load_card("setimes-en-mk"), tmp_path).layout.splits) == {"train", "valid", "test"}
    put(tmp_path / "id", "train.tsv", "test.tsv")
    match = find_files(load_card("iwslt17-en-id"), tmp_path / "id")
    assert set(match.layout.splits) == {"train", "test"}


def test_what_is_not_divided_is_missing(tmp_path):
    put(tmp_path, "train.en", "train.id")
    with pytest.raises(DataError, match="train found, valid and test incomplete"):
        find_files(load_card("iwslt17-en-id"), tmp_path)


def test_missing_files_are_named_with_what_lies_there_instead(tmp_path):
    put(tmp_path, *RAW[1:], "train.de.zip")
    with pytest.raises(DataError) as caught:
        find_files(load_card("multi30k-de-en"), tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("'multi30k-de-en' (raw captions) in part: valid and test found, train incomplete")
    assert lines[1] == "missing: train.de (found train.de.zip)"
    assert len(lines) == 3


def test_only_dev_and_test(tmp_path):
    put(tmp_path, "tst2012.en", "tst2012.vi", "tst2013.en", "tst2013.vi")
    with pytest.raises(DataError, match=r"valid and test found, train incomplete\nmissing: train.en, train.vi\n"):
        find_files(load_card("iwslt15-en-vi"), tmp_path)


def test_an_empty_and_an_absent_folder(tmp_path):
    with pytest.raises(DataError, match=r"holds no files of 'shakespeare'\nlooked in .*NLTK-tokenised files"):
        find_files(load_card("shakespeare"), tmp_path)
    with pytest.raises(DataError, match=r"no folder .*absent"):
        find_files(load_card("shakespeare"), tmp_path / "absent")
