import hashlib
import json
import os
from pathlib import Path

import pytest

import phmctl.data.prepare as preparation
from phmctl.data.card import load_card
from phmctl.data.corpus import Corpus
from phmctl.data.prepare import prepare
from phmctl.data.prepared import PreparedData, choose_section, prepared_folder
from phmctl.data.rows import divide_train
from phmctl.errors import DataError, OutputError, UserError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import ParallelSection
from tests.data.helpers import flip, parallel, prepare_files, put

TRAIN = [(f"ein Hund sieht Haus {i} .", f"a dog sees house {i} .") for i in range(300)]
TRAIN += [("", "empty"), ("das ist ein Test", "this is a test"), ("lang " * 60, "long"), ("ein Hund " * 5, "dog")]
VALID = [("Das ist  ein Test", "This is a test"), ("", ""), ("lang " * 60, "long " * 60)]
TEST = [("Ein Hund\u2028läuft", "A dog runs")]
SECTION = ParallelSection(card="tiny", vocabulary=300, max_tokens=40)
CLEANING = {"max_ratio": 3.0}


def corpus(train=TRAIN, **others):
    splits = {"train": train, "valid": VALID, "test": TEST} | others
    return parallel({name: pairs for name, pairs in splits.items() if pairs is not None})


def write_files(folder: Path) -> dict[str, tuple[Path, Path]]:
    for name, pairs in (("train", TRAIN[:300]), ("valid", VALID), ("test", TEST)):
        for side, suffix in enumerate(("de", "en")):
            put(folder / f"{name}.{suffix}", *(pair[side] for pair in pairs))
    return {name: (folder / f"{name}.de", folder / f"{name}.en") for name in ("train", "valid", "test")}


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_everything_is_counted_and_stored(tmp_path):
    prepared = prepare(SECTION, corpus(), CLEANING, root=tmp_path)
    splits = prepared.manifest["splits"]
    assert splits["train"]["read"] == 304
    assert splits["train"]["kept"] == 300
    assert splits["train"]["dropped"] == {"empty_side": 1, "in_valid_or_test": 1, "over_long": 1, "length_ratio": 1}
    assert splits["valid"] == splits["valid"] | {"read": 3, "kept": 3, "noted": {"empty_side": 1, "over_long": 1}}
    assert prepared.manifest["token_types"] == {"source": 300, "target": 300}
    train, valid, test = (prepared.split(name) for name in ("train", "valid", "test"))
    assert (len(train), len(valid), len(test)) == (300, 3, 1)
    assert splits["train"]["source"]["tokens"] == len(train.source.values)
    assert splits["train"]["target"]["longest"] == train.target.lengths.max()
    assert prepared.tokenizers.source.decode(train.source[7]) == TRAIN[7][0]
    assert valid.texts[0] == [pair[0].strip() for pair in VALID]
    assert prepared.tokenizers.target.decode(test.target[0]) == test.texts[1][0] == "A dog runs"


def test_the_tokenizer_learns_from_train_only_and_references_keep_their_case(tmp_path):
    test = prepare(SECTION, corpus(), {"lowercase": True}, root=tmp_path)
    assert test.split("test").texts[1] == ["A dog runs"]
    assert test.tokenizers.target.decode(test.split("test").target[0]) == "a dog runs"
    section = SECTION.model_copy(update={"tokenizer": "word"})
    prepared = prepare(section, corpus(), CLEANING, root=tmp_path)
    assert " runs" not in prepared.tokenizers.source.vocabulary
    assert " Test" not in prepared.tokenizers.source.vocabulary
    assert prepared.manifest["splits"]["test"]["target"]["unknown"] == 2


@pytest.mark.parametrize("tokenizer", ["bpe", "word"])
@pytest.mark.parametrize("joint", [True, False])
def test_the_same_text_gives_the_same_bytes(tmp_path, monkeypatch, tokenizer, joint):
    section = SECTION.model_copy(update={"tokenizer": tokenizer, "joint": joint})
    first = prepare(section, corpus(), CLEANING, root=tmp_path / "one")
    monkeypatch.setattr(preparation, "CHUNK_ROWS", 7)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    second = prepare(section, corpus(), CLEANING, root=tmp_path / "two")
    assert content(first.folder) == content(second.folder)
    names = {"manifest.json", "train.arrow", "valid.arrow", "test.arrow"}
    joint_names = {"tokenizer.json"} if joint else {"tokenizer.source.json", "tokenizer.target.json"}
    assert set(content(first.folder)) == names | joint_names
    listed = {entry["name"]: entry["sha256"] for entry in first.manifest["files"]}
    assert listed == {name: digest for name, digest in content(first.folder).items() if name != "manifest.json"}


def test_data_is_prepared_again_only_if_a_file_changes_or_is_exchanged(tmp_path, capsys):
    files = write_files(tmp_path / "raw")
    section = ParallelSection(card="mine", vocabulary=300)
    first = prepare_files(section, root=tmp_path, files=files)
    manifest = json.loads((first.folder / "manifest.json").read_text(encoding="utf-8"))
    path = files["valid"][1]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    entry = {"name": "valid.en", "bytes": path.stat().st_size, "sha256": digest, "split": "valid", "side": "target"}
    assert entry in manifest["sources"]
    assert len(manifest["sources"]) == 6
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    capsys.readouterr()
    os.utime(files["train"][0], ns=(1, 1))  # touched: the text is the same
    prepare_files(section, root=tmp_path, files=files)
    assert capsys.readouterr().err.count("up to date") == 1
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before
    old = content(first.folder)
    text = files["train"][0].read_text(encoding="utf-8")
    files["train"][0].write_text(text.replace("Haus 7 ", "Maus 7 "), encoding="utf-8")
    prepared = prepare_files(section, root=tmp_path, files=files)
    assert "out of date" in capsys.readouterr().err
    assert content(prepared.folder)["train.arrow"] != old["train.arrow"]
    assert prepared.tokenizers.source.decode(prepared.split("train").source[7]) == "ein Hund sieht Maus 7 ."
    files["train"] = files["train"][::-1]
    prepared = prepare_files(section, root=tmp_path, files=files)
    assert "out of date" in capsys.readouterr().err
    assert prepared.tokenizers.source.decode(prepared.split("train").source[7]) == TRAIN[7][1]
    exchanged = files | {"valid": files["test"], "test": files["valid"]}
    prepared = prepare_files(section, root=tmp_path, files=exchanged)
    assert "out of date" in capsys.readouterr().err
    assert prepared.split("valid").texts[0] == [pair[0] for pair in TEST]


def division(test: int) -> Corpus:
    whole = corpus(valid=None, test=None)
    return whole.with_splits(*divide_train(whole.splits, {"valid": 100, "test": test}, 100))


@pytest.mark.parametrize(
    ("before", "after", "cleaning"),
    [(corpus(), corpus(), {"lowercase": True}), (division(50), division(51), CLEANING)],
)
def test_data_with_other_settings_is_prepared_again(tmp_path, capsys, before, after, cleaning):
    prepare(SECTION, before, CLEANING, root=tmp_path)
    prepare(SECTION, before, CLEANING, root=tmp_path)
    assert "is up to date" in capsys.readouterr().err
    prepared = prepare(SECTION, after, cleaning, root=tmp_path)
    assert "out of date" in capsys.readouterr().err
    assert prepared.split("test").texts[0][0] == next(iter(after.splits["test"])).texts[0].strip()


def replaced(path: Path) -> None:
    path.write_bytes(b"{}")


@pytest.mark.parametrize("damage", [flip, replaced])
@pytest.mark.parametrize("name", ["train.arrow", "valid.arrow", "tokenizer.json"])
def test_a_damaged_folder_is_prepared_again(tmp_path, name, damage, capsys):
    prepared = prepare(SECTION, corpus(), CLEANING, root=tmp_path)
    before = content(prepared.folder)
    damage(prepared.folder / name)
    assert content(prepare(SECTION, corpus(), CLEANING, root=tmp_path).folder) == before
    assert "out of date" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [flip, replaced])
def test_a_folder_with_a_damaged_manifest_is_not_replaced(tmp_path, damage):
    """Nothing else says which of the files are the program's own."""
    folder = prepare(SECTION, corpus(), CLEANING, root=tmp_path).folder
    damage(folder / "manifest.json")
    before = content(folder)
    with pytest.raises(DataError, match=r"manifest\.json .*move .* away"):
        prepare(SECTION, corpus(), CLEANING, root=tmp_path, force=True)
    assert content(folder) == before


@pytest.mark.parametrize("damage", [flip, Path.unlink])
@pytest.mark.parametrize("name", ["train.arrow", "valid.arrow", "tokenizer.json"])
def test_damage_is_found_when_the_data_is_used(tmp_path, name, damage):
    path = prepare(SECTION, corpus(), CLEANING, root=tmp_path).folder / name
    damage(path)
    data = PreparedData.find(SECTION, tmp_path)
    with pytest.raises(DataError, match=rf"{name} .* phmctl prepare-data tiny .* --force$"):
        data.split(path.stem) if path.suffix == ".arrow" else data.tokenizers


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError("line 3 is not UTF-8"), OSError(28, "No space left")])
@pytest.mark.parametrize("where", ["_encoded", "seal"])
def test_an_interrupted_preparation_leaves_nothing_or_the_earlier_data(tmp_path, monkeypatch, error, where):
    def fail(*_, **__):
        raise error

    def interrupted():
        with monkeypatch.context() as patched:
            patched.setattr(preparation, where, fail)
            with pytest.raises((KeyboardInterrupt, DataError, OSError, OutputError)):
                prepare(SECTION, corpus(), CLEANING, root=tmp_path, force=True)

    interrupted()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(DataError, match="tiny"):
        PreparedData.find(SECTION, tmp_path)
    before = content(prepare(SECTION, corpus(), CLEANING, root=tmp_path).folder)
    interrupted()
    assert content(PreparedData.find(SECTION, tmp_path).folder) == before


def test_data_linked_to_another_disk_stays_there(tmp_path):
    folder = prepare(SECTION, corpus(), CLEANING, root=tmp_path).folder
    folder.rename(tmp_path / "disk")
    folder.symlink_to(tmp_path / "disk")
    before = (folder / "manifest.json").stat().st_ino
    assert prepare(SECTION, corpus(), CLEANING, root=tmp_path, force=True).folder == folder
    assert folder.is_symlink()
    assert (folder / "manifest.json").stat().st_ino != before


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_a_foreign_folder_is_never_replaced(tmp_path, linked, force):
    folder = prepared_folder(SECTION, tmp_path)
    foreign = tmp_path / "thesis" if linked else folder
    put(foreign / "chapter.tex", "ten years")
    put(foreign / "manifest.json", '{"name": "a web extension", "files": []}')
    if linked:
        folder.parent.mkdir(parents=True)
        folder.symlink_to(foreign)
    with pytest.raises(UserError, match=foreign.name):
        prepare(SECTION, corpus(), CLEANING, root=tmp_path, force=force)
    assert sorted(path.name for path in foreign.iterdir()) == ["chapter.tex", "manifest.json"]
    assert folder.is_symlink() is linked


@pytest.mark.parametrize("suffix", ["0123abcd.old", "0123abcd.tmp"])
def test_a_crash_between_two_renames_leaves_nothing_incomplete(tmp_path, suffix, capsys):
    folder = prepare(SECTION, corpus(), CLEANING, root=tmp_path).folder
    before = content(folder)
    hidden = folder.with_name(f".{folder.name}.{suffix}")
    folder.rename(hidden)
    capsys.readouterr()
    prepare(SECTION, corpus(), CLEANING, root=tmp_path)
    assert content(folder) == before
    assert ("up to date" in capsys.readouterr().err) == suffix.endswith("old")  # an incomplete folder is prepared again
    hidden.mkdir()
    (hidden / "train.arrow").write_bytes(b"half")
    prepare(SECTION, corpus(), CLEANING, root=tmp_path)
    assert [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] == [folder.name]


def test_a_folder_that_cannot_be_written_is_a_users_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        prepare(SECTION, corpus(), CLEANING, root=tmp_path / "file")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        prepare(SECTION, corpus(), CLEANING, root=tmp_path)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": [("", ""), ("a " * 99, "b")]}, "1 empty side, 1 over long"),
        ({"train": []}, "train of 'tiny'"),
        ({"valid": []}, "valid of 'tiny'"),
        ({"valid": [("ein Hund", " "), ("", "a dog")]}, "valid of 'tiny'"),
        ({"test": []}, "test of 'tiny'"),
        ({"valid": None}, "train, test.*train .*valid"),
    ],
)
def test_nothing_to_train_on_is_a_users_error(tmp_path, splits, message):
    with pytest.raises(DataError, match=message):
        prepare(SECTION, corpus(**splits), CLEANING, root=tmp_path)
    with pytest.raises(DataError, match=r"valid, test.*train"):
        prepare(SECTION.model_copy(update={"copies": True}), corpus(train=None), CLEANING, root=tmp_path)


def test_settings_come_from_the_call_the_recipe_or_the_card(tmp_path):
    card = choose_section("shakespeare", ParallelSection)
    assert (card.tokenizer, card.vocabulary, card.joint) == ("word", 8192, False)
    assert choose_section("shakespeare", ParallelSection, None, {"vocabulary": 99}).vocabulary == 99
    assert choose_section("mine", ParallelSection) == ParallelSection(card="mine")
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        "name: own\ndata: {card: x, vocabulary: 77, max_tokens: 55}\nmodel: {width: 8, heads: 1}\n"
        "training: {steps: 1}\n"
    )
    chosen = choose_section("mine", ParallelSection, load_recipe(recipe), {"max_tokens": 44})
    assert (chosen.card, chosen.vocabulary, chosen.max_tokens) == ("mine", 77, 44)
    with pytest.raises(DataError, match=r"max_tokens=0: "):
        choose_section("mine", ParallelSection, None, {"max_tokens": 0})


def test_a_division_is_noted_in_the_manifest_and_on_stderr(tmp_path, capsys):
    for side, language in enumerate(("en", "mk")):
        lines = (f"{TRAIN[number % 300][side]} {number}" for number in range(250))
        put(tmp_path / "raw" / f"SETIMES.en-mk.{language}", *lines)
    section = ParallelSection(card="setimes-en-mk", vocabulary=300)
    prepared = prepare(section, load_card(section.card), root=tmp_path, source=tmp_path / "raw")
    assert prepared.manifest["held_out"] == {"valid": "rows 100, 200, 300, ...", "test": "rows 50, 150, 250, ..."}
    assert [counts["read"] for counts in prepared.manifest["splits"].values()] == [245, 2, 3]
    assert "valid is rows 100, 200, 300, ...; test is rows 50" in capsys.readouterr().err


def test_a_vocabulary_is_learned_from_a_limited_number_of_pairs(tmp_path, monkeypatch, capsys):
    """Spread evenly: pairs 1, 4, 7, ... of 304; all are encoded."""
    all_rows = prepare(SECTION, corpus(), CLEANING, root=tmp_path / "whole")
    assert "learned_from" not in all_rows.manifest
    monkeypatch.setattr("phmctl.data.prepare.MAX_LEARNED_ROWS", 110)
    sampled = prepare(SECTION, corpus(), CLEANING, root=tmp_path / "part")
    assert sampled.manifest["learned_from"] == "one train row in 3"
    assert "learning 300 token types from one train row in 3 ..." in capsys.readouterr().err
    assert sampled.manifest["splits"]["train"]["kept"] == all_rows.manifest["splits"]["train"]["kept"]
    subset = prepare(SECTION, corpus(train=TRAIN[::3]), CLEANING, root=tmp_path / "alone")
    assert sampled.tokenizers.source == subset.tokenizers.source
    assert sampled.tokenizers.source != all_rows.tokenizers.source


def test_record_batches_have_a_limited_number_of_rows(tmp_path, monkeypatch):
    """Memory holds one record batch, however many pairs there are."""
    import pyarrow as pa

    monkeypatch.setattr("phmctl.data.prepared.ROWS", 64)
    monkeypatch.setattr("phmctl.data.prepare.CHUNK_ROWS", 16)
    prepared = prepare(SECTION, corpus(), CLEANING, root=tmp_path)
    with pa.ipc.open_stream(str(prepared.folder / "train.arrow")) as stream:
        sizes = [batch.num_rows for batch in stream]
    assert sum(sizes) == 300
    assert max(sizes) < 64 + 16
    train = prepared.split("train").source
    assert [prepared.tokenizers.source.decode(train[row]) for row in range(300)] == [pair[0] for pair in TRAIN[:300]]


def test_the_opposite_direction_and_copies(tmp_path):
    files = write_files(tmp_path / "raw")
    forward = prepare_files(SECTION, root=tmp_path, files=files)
    section = SECTION.model_copy(update={"direction": "reverse"})
    reverse = prepare_files(section, root=tmp_path, files=files)
    assert forward.folder == tmp_path / "prepared" / "tiny" / "bpe-300-joint-40"
    assert reverse.folder == forward.folder.with_name(f"{forward.folder.name}-reverse")
    assert reverse.split("valid").texts == forward.split("valid").texts[::-1]
    assert len(reverse.split("train")) == len(forward.split("train"))
    manifest = reverse.manifest
    assert (manifest["source_language"], manifest["target_language"]) == ("source", "target")  # no languages: sides
    assert [data.manifest["settings"]["direction"] for data in (forward, reverse)] == ["forward", "reverse"]
    assert {(file["name"][-2:], file["side"]) for file in manifest["sources"]} == {("de", "target"), ("en", "source")}
    copied = prepare_files(section.model_copy(update={"copies": True}), root=tmp_path, files=files)
    assert copied.folder == reverse.folder.with_name(f"{reverse.folder.name}-copies")
    assert [data.manifest["settings"]["copies"] for data in (reverse, copied)] == [False, True]
    train = copied.split("train")
    sources, targets = ([list(side[row]) for row in range(len(train))] for side in train.sides)
    half = len(reverse.split("train"))
    assert sources[half:] == targets[half:] == targets[:half]
    assert sources[:half] != targets[:half]
    assert len(copied.split("valid")) == len(reverse.split("valid"))
