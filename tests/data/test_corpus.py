"""Corpora from folders, own files, the miniature and servers."""

import gzip
import json
from pathlib import Path

import datasets
import pytest

from phmctl.data.card import Card, Url, load_card
from phmctl.data.corpus import find_files, open_corpus, own_corpus
from phmctl.errors import DataError, DownloadError
from tests.data.helpers import put, sizes, texts


def test_iwslt_originals(tmp_path):
    """Every 23rd train pair is valid; the dev and test files are read in the card's order."""
    card = load_card("iwslt14-de-en")
    test = card.local[1].splits["test"]
    for side, names in (("de", test.source), ("en", test.target)):
        put(tmp_path / f"train.tags.de-en.{side}", "<title>T</title>", *(f"{side} {number}" for number in range(1, 51)))
        for name in names:
            put(tmp_path / name, f'<seg id="1"> {name.split(".")[2]} {side} </seg>')
    corpus = open_corpus(card, tmp_path, tmp_path / "cache")
    assert sizes(corpus) == {"train": 48, "valid": 2, "test": 5}
    assert texts(corpus.splits["valid"]) == [("de 23", "en 23"), ("de 46", "en 46")]
    order = ["dev2010", "dev2012", "tst2010", "tst2011", "tst2012"]
    assert texts(corpus.splits["test"]) == [(f"{name} de", f"{name} en") for name in order]
    assert len({file.path for file in corpus.files}) == 12
    read = [(file.split, file.side) for file in corpus.files if file.path.name == "train.tags.de-en.en"]
    assert read == [("train", "target")]
    assert corpus.held_out == {"valid": "rows 23, 46, 69, ..."}
    assert "original IWSLT files" in corpus.origin


def test_fairseq_folder_is_joined(tmp_path):
    for split in ("train", "valid", "test"):
        put(tmp_path / f"{split}.de", "pyrami@@ de")
        put(tmp_path / f"{split}.en", "py@@ ram@@ id")
    corpus = open_corpus(load_card("iwslt14-de-en"), tmp_path, tmp_path)
    assert texts(corpus.splits["train"]) == [("pyramide", "pyramid")]
    (tmp_path / "valid.de").unlink()  # the other files are no plain text: their marks would stay
    with pytest.raises(DataError, match=r"fairseq-tokenised folder: valid\.de\n"):
        open_corpus(load_card("iwslt14-de-en"), tmp_path, tmp_path)


def numbered(path: Path, first: str, second: str, count: int) -> None:
    """Write a pair of files whose lines are numbered from 1."""
    for name in (first, second):
        put(path / name, *(f"{name[-2:]} {number}" for number in range(1, count + 1)))


def test_an_existing_split_is_not_taken_from_train(tmp_path):
    numbered(tmp_path, "train.en", "train.mk", 200)
    numbered(tmp_path, "dev.en", "dev.mk", 3)
    numbered(tmp_path, "test.en", "test.mk", 4)
    corpus = open_corpus(load_card("setimes-en-mk"), tmp_path, tmp_path / "cache")
    assert sizes(corpus) == {"train": 200, "valid": 3, "test": 4}
    assert not corpus.held_out


def test_rows_of_a_hub_are_divided_like_lines(tmp_path, monkeypatch):
    """A division depends only on the order of pairs: the hub and a folder give the same splits."""
    card = load_card("setimes-en-mk")
    rows = [{"translation": {"en": f"en {number}", "mk": f"mk {number}"}} for number in range(1, 261)]
    put(tmp_path / "hub" / "train.jsonl", *(json.dumps(row) for row in rows))
    numbered(tmp_path / "files", "SETIMES.en-mk.en", "SETIMES.en-mk.mk", 260)
    dataset = datasets.load_dataset(str(tmp_path / "hub"), cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: dataset)
    fetched = open_corpus(card, None, tmp_path / "cache")
    read = open_corpus(card, tmp_path / "files", tmp_path / "cache")
    for split in ("train", "valid", "test"):
        assert texts(fetched.splits[split]) == texts(read.splits[split])
    assert fetched.held_out == read.held_out
    assert len({row.texts for split in fetched.splits.values() for row in split}) == 260


def test_tatoeba_is_reversed_for_setimes(tmp_path):
    (tmp_path / "Tatoeba.src.shuffled.gz").write_bytes(gzip.compress("Куче\tA dog\n".encode() * 100))
    corpus = open_corpus(load_card("setimes-en-mk"), tmp_path, tmp_path / "cache")
    assert texts(corpus.splits["valid"]) == [("A dog", "Куче")]
    assert "stand-in" in corpus.origin


def test_wmt_archives_are_read_in_the_card_s_order_and_direction(tmp_path):
    for folder, name in (("training", "europarl-v8.ro-en"), ("opus/deep", "SETIMES.en-ro")):
        for side in ("en", "ro"):
            put(tmp_path / folder / f"{name}.{side}.gz", f"{name} {side}")
    for split, name in (("dev", "newsdev2016"), ("test", "newstest2016")):
        for side in ("src.en", "ref.ro"):
            put(tmp_path / split / f"{name}-enro-{side}.sgm", "<doc>", f'<seg id="1">{name} {side}</seg>', "</doc>")
    corpus = open_corpus(load_card("wmt18-en-ro"), tmp_path, tmp_path / "cache")
    assert texts(corpus.splits["train"]) == [
        ("europarl-v8.ro-en en", "europarl-v8.ro-en ro"),
        ("SETIMES.en-ro en", "SETIMES.en-ro ro"),
    ]
    assert texts(corpus.splits["valid"]) == [("newsdev2016 src.en", "newsdev2016 ref.ro")]
    assert texts(corpus.splits["test"]) == [("newstest2016 src.en", "newstest2016 ref.ro")]


def test_own_files_that_are_missing_or_identical(tmp_path):
    source, target = put(tmp_path / "t.de", "eins"), put(tmp_path / "t.en", "one")
    with pytest.raises(DataError, match=r"valid: .*v\.en"):
        own_corpus("mine", {"train": [(source, target)], "valid": [(source, tmp_path / "v.en")]})
    for paths in ((source, target, tmp_path), (source, source)):
        with pytest.raises(DataError, match=r"train: .*t\.de"):
            own_corpus("mine", {"train": [paths], "valid": [(source, target)]})


def card_with(files: list[Path], hub: dict | None = None, **options) -> Card:
    card = load_card("multi30k-de-en").model_dump(exclude={"urls", "hub", "local"})
    urls = [Url.model_construct(url=path.as_uri(), file=path.name, **options) for path in files]  # file: is not checked
    return Card.model_validate(card | {"hub": hub}).model_copy(update={"urls": tuple(urls)})


NAMES = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")]


def serve(folder: Path, word: str) -> list[Path]:
    return [put(folder / name, f"{word} {name}") for name in NAMES]


def first(card: Card, cache: Path, split: str, **options) -> tuple[str, str]:
    return next(iter(open_corpus(card, None, cache, **options).splits[split])).texts


def test_urls_are_fetched_into_the_cache_and_read(tmp_path):
    """A changed URL does not share the file of the old one."""
    old, new, cache = serve(tmp_path / "old", "old"), serve(tmp_path / "new", "new"), tmp_path / "cache"
    assert first(card_with(old), cache, "test") == ("old test.de", "old test.en")
    folder = next(cache.glob("urls-*"))
    assert {file.path for file in open_corpus(card_with(old), None, cache).files} == {folder / name for name in NAMES}
    assert first(card_with(new), cache, "test") == ("new test.de", "new test.en")
    for path in (*old, *new):
        path.unlink()
    assert first(card_with(old), cache, "test") == ("old test.de", "old test.en")


def test_the_digest_covers_only_keys_that_determine_the_text():
    card = load_card("multi30k-de-en")
    assert card.model_copy(update={"title": "x", "licence": "y", "sizes": {}}).digest == card.digest
    assert card.model_copy(update={"prefer": "hub"}).digest != card.digest


@pytest.mark.parametrize(("prefer", "first"), [("hub", "the hub does not"), ("urls", "cannot fetch file")])
def test_errors_of_all_origins_are_reported_with_advice(tmp_path, monkeypatch, prefer, first):
    """The card sets the order of the origins."""
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {}["nothing"])
    hub = {"id": "a/b", "splits": {"train": "train"}, "texts": ("de", "en")}
    card = card_with([tmp_path / "absent.de"], hub).model_copy(update={"prefer": prefer})
    with pytest.raises(DownloadError, match=f"'multi30k-de-en': {first}") as caught:
        open_corpus(card, None, tmp_path / "cache")
    message = str(caught.value)
    assert "absent.de" in message
    assert "'a/b'" in message
    assert message.endswith("phmctl prepare-data multi30k-de-en --source DIR")
    assert len(message.splitlines()) <= 3


# Real data


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [
        ("multi30k-de-en", "multi30k-de-en", (29_000, 1_014, 1_000)),
        ("shakespeare", "shakespeare", (18_395, 1_218, 1_462)),
        ("wmt14-en-de", "wmt14-en-de/opennmt-toy-ende", (10_000, 3_000, 2_737)),
        ("setimes-en-mk", "tatoeba", (78_675, 802, 803)),
    ],
)
def test_real_folders(real_data, tmp_path, name, folder, expected):
    corpus = open_corpus(load_card(name), real_data / folder, tmp_path)
    assert sizes(corpus) == dict(zip(("train", "valid", "test"), expected, strict=True))
    source, target = next(iter(corpus.splits["train"])).texts
    assert source.isascii() == (name != "multi30k-de-en")
    assert target.isascii() == (name not in ("wmt14-en-de", "setimes-en-mk"))


def test_real_files_have_the_sha256_of_their_cards(real_data):
    from phmctl.storage import sha256

    checked = 0
    for name, below in (("multi30k-de-en", "task1/raw"), ("shakespeare", ""), ("iwslt15-en-vi", "")):
        for item in load_card(name).urls:
            path = real_data / name / below / item.file
            if item.sha256:
                assert sha256(path) == item.sha256
                checked += 1
    assert checked == 16


def write(folder, *names):
    for name in names:
        put(folder / name, "x")


RAW = [f"{split}.{side}.gz" for split in ("train", "val", "test_2016_flickr") for side in ("de", "en")]


@pytest.mark.parametrize("below", ["", "task1/raw", "a/b/c"])
def test_a_layout_is_found_in_subfolders(tmp_path, below):
    write(tmp_path / below, *RAW)
    layout, paths = find_files(load_card("multi30k-de-en"), tmp_path)
    assert (layout.name, len(paths)) == ("raw captions", 6)
    assert paths["train.de"] == tmp_path / below / "train.de.gz"


def test_the_shallowest_folder_wins(tmp_path):
    write(tmp_path / "set", *NAMES)
    write(tmp_path / "set" / "tmp", *NAMES)
    _, paths = find_files(load_card("iwslt14-de-en"), tmp_path)
    assert {path.parent for path in paths.values()} == {tmp_path / "set"}


@pytest.mark.parametrize("valid", ["valid", "val", "dev"])
def test_every_card_reads_plain_text_and_tsv(tmp_path, valid):
    write(tmp_path, "train.modern", "train.original.gz", *(f"{valid}.{side}" for side in ("modern", "original")))
    write(tmp_path, "test.modern", "test.original")
    assert find_files(load_card("shakespeare"), tmp_path)[0].name == "plain text"
    for name in ("train.tsv.gz", f"{valid}.tsv", "test.tsv"):
        put(tmp_path / "other" / name, "x\ty")
    assert find_files(load_card("shakespeare"), tmp_path / "other")[0].name == "tab-separated"


def test_missing_files_are_named(tmp_path):
    """Files may be in several folders, but each in one."""
    write(tmp_path / "apart", *(f"{name.partition('.')[0]}/{name}" for name in NAMES))
    assert len(find_files(load_card("multi30k-de-en"), tmp_path / "apart")[1]) == 6
    write(tmp_path / "apart" / "more", "train.de")
    with pytest.raises(DataError, match=r"plain text: train\.de\n"):
        find_files(load_card("multi30k-de-en"), tmp_path / "apart")
    write(tmp_path / "raw", *RAW[1:], "train.de.zip")
    with pytest.raises(DataError, match=r"'multi30k-de-en'.*\n  raw captions: train\.de\n"):
        find_files(load_card("multi30k-de-en"), tmp_path / "raw")
    write(tmp_path / "id", "train.en", "train.id")
    with pytest.raises(DataError, match=r"plain text: valid\.en valid\.id test\.en test\.id\n"):
        find_files(load_card("iwslt17-en-id"), tmp_path / "id")  # its test set is not taken from train


@pytest.mark.parametrize("name", ["iwslt14-de-en", "snli"])
def test_the_error_of_an_empty_folder_names_every_file(tmp_path, name):
    card = load_card(name)
    with pytest.raises(DataError) as raised:
        find_files(card, tmp_path)
    lines = [set(line.split(": ")[-1].split()) for line in str(raised.value).splitlines()]
    for layout in card.local:
        needed = {
            file
            for split in ("train", "valid", "test")
            if split in layout.splits
            for file in layout.splits[split].names
        }
        assert needed in lines
