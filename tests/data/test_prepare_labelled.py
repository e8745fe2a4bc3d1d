"""Prepare labelled text: kept and dropped rows, counts, labels and word vectors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from phmctl.cli.preparing import prepared_table
from phmctl.data import Location, Row
from phmctl.data.batches import collate, lengths_of, plan_by_count
from phmctl.data.card import load_card
from phmctl.data.corpus import Corpus
from phmctl.data.prepare import prepare
from phmctl.data.prepared import choose_section, prepared_folder, trained_sizes
from phmctl.errors import DataError, RecipeError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import LabelledSection
from tests.data.helpers import put

SECTION = LabelledSection(card="own", vocabulary=60, max_tokens=5)


def choose(name, recipe, given):
    return choose_section(name, LabelledSection, recipe and load_recipe(recipe), given)


def examples(*rows, name="file.tsv"):
    """Return rows of (text, label) or (first, second, label); the attractors follow from the row number."""
    return [Row(row[:-1], row[-1], {"attractors": n % 3 - 1}, Location(name, n)) for n, row in enumerate(rows, start=1)]


TRAIN = [("the dog", "yes"), ("a cat", "no"), ("A  CAT", "no"), ("", "yes"), ("one two three four five six", "no")]
TRAIN += [("seen in test", "yes"), ("nothing said", None), ("birds", "no"), ("seen in valid", "no")]
VALID = [("seen in valid", "yes"), ("new words", "no"), ("x", None)]
TEST = [("Seen  in test", "no"), ("", "yes"), ("one two three four five six seven", "no")]


def corpus(train=TRAIN, valid=VALID, test=TEST, labels=("yes", "no"), texts=1, **more):
    splits = {"train": examples(*train), "valid": examples(*valid), "test": examples(*test), **more}
    return Corpus("own", splits, texts=texts, labels=labels, origin="made here")


def prepared(root, labelled=None, cleaning=None, section=SECTION, **more):
    return prepare(section, labelled or corpus(), cleaning, root=root, **more)


def test_counts_and_stored_columns(tmp_path):
    data = prepared(tmp_path)
    splits = data.manifest["splits"]
    assert splits["train"]["read"] == 9
    assert splits["train"]["kept"] == 4
    assert splits["train"]["dropped"] == {"no_label": 1, "empty_text": 1, "in_valid_or_test": 2, "over_long": 1}
    assert splits["train"]["labels"] == {"no": 3, "yes": 1}
    assert splits["valid"]["dropped"] == {"no_label": 1}
    assert splits["test"]["noted"] == {"cut": 1, "empty_text": 1}
    assert (splits["test"]["kept"], splits["test"]["dropped"]) == (3, {})
    assert data.splits == ["train", "valid", "test"]
    assert (data.labels, data.texts, data.vectors) == (["yes", "no"], 1, None)
    train, test = data.split("train"), data.split("test")
    assert train.labels.tolist() == [0, 1, 1, 1]
    texts = [data.tokenizers.source.decode(train.sides[0][row]) for row in range(4)]
    assert texts == ["the dog", "a cat", "A  CAT", "birds"]
    assert train.extras["attractors"].tolist() == [0, 1, -1, 1]
    assert test.texts == (["Seen  in test", "", "one two three four five six seven"],)
    assert len(test.sides) == 1
    assert test.sides[0].lengths.tolist()[1:] == [0, 5]
    with pytest.raises(DataError, match=r"train\.arrow"):
        _ = train.texts
    with pytest.raises(DataError, match=r"'tset' \(.*'test'"):
        data.split("tset")
    assert trained_sizes(SECTION, tmp_path) == (data.tokenizers.source.size, 2)
    assert trained_sizes(SECTION.model_copy(update={"vocabulary": 61}), tmp_path) is None


@pytest.mark.parametrize(
    ("keep", "text"), [("start", "one two birds three four"), ("end", "birds three four five six")]
)
def test_an_over_long_text_is_truncated_at_the_end_or_the_start(tmp_path, keep, text):
    train = [("one two three four five", "no"), ("six birds", "yes")]
    labelled = corpus(train=train, test=[("one two birds three four five six", "no")])
    data = prepared(tmp_path, labelled, {"keep": keep})
    assert data.tokenizers.source.decode(data.split("test").sides[0][0]) == text


def test_duplicates_are_kept_if_the_card_says_so(tmp_path):
    counts = prepared(tmp_path, cleaning={"duplicates": "keep"}).manifest["splits"]["train"]
    assert (counts["kept"], counts["noted"]) == (6, {"in_valid_or_test": 2})


def test_pairs(tmp_path):
    train = [("a dog", "it barks", "yes"), ("a dog", "", "no"), ("a cat", "it sleeps", "no"), ("x", "y", "yes")]
    labelled = corpus(train=train, valid=[train[0], ("a cat", "it barks", "no")], test=[("b", "c", "yes")], texts=2)
    data = prepared(tmp_path, labelled)
    train_split, valid = data.split("train"), data.split("valid")
    assert data.manifest["splits"]["train"]["dropped"] == {"empty_text": 1, "in_valid_or_test": 1}
    assert data.tokenizers.source.decode(train_split.sides[1][0]) == "it sleeps"
    assert valid.texts == (["a dog", "a cat"], ["it barks", "it barks"])
    batch = collate(valid, plan_by_count(lengths_of(valid), 2, seed=1, epoch=0)[0])
    assert batch.target.shape == (2, 2)


def test_without_a_card_the_labels_are_those_of_train(tmp_path):
    train = [(f"t {label}", label) for label in ("10", "9", "9", "2")]
    data = prepared(tmp_path, corpus(train=train, valid=[("x", "9")], test=[("y", "2")], labels=()))
    assert data.labels == ["2", "9", "10"]
    assert data.split("train").labels.tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("label", "labels", "place"),
    [
        ("yse", ("yes", "no"), r"file\.tsv, line 2: .*'yse' .*'yes'.*yes, no"),
        ("yse", (), r"file\.tsv, line 2: .*'yse' .*'yes'.*no, yes"),
        ("perhaps", ("yes", "no", "perhaps"), "'perhaps' .* test "),  # only test has examples
    ],
)
def test_a_label_that_train_lacks(tmp_path, label, labels, place):
    with pytest.raises(DataError, match=place):
        prepared(tmp_path, corpus(test=[("a", "yes"), ("b", label)], labels=labels))
    assert not prepared_folder(SECTION, tmp_path).exists()


def test_a_swapped_pair_is_held_out_if_the_order_does_not_matter(tmp_path):
    train = [("a dog", "it barks", "yes"), ("a cat", "it sleeps", "no"), ("x", "y", "yes")]
    held = [("It  barks", "a dog", "yes"), ("p", "q", "no")]
    for symmetric, dropped in ((True, {"in_valid_or_test": 1}), (False, {})):
        labelled = replace(corpus(train=train, valid=held, test=held, texts=2), symmetric=symmetric)
        assert prepared(tmp_path / str(symmetric), labelled).manifest["splits"]["train"]["dropped"] == dropped


def quora(folder, odd="3\t1\tcut short"):
    """GLUE's tables of question pairs, with an odd row in train."""
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    rows = [f"{row}\t1\t2\tq {row}\tr {row}\t{row % 2}" for row in range(1, 90)]
    folder.mkdir()
    (folder / "train.tsv").write_text("\n".join([header, odd, *rows, "9\t1\t2\tother\tfirst\t1", ""]))
    (folder / "dev.tsv").write_text("\n".join([header, "1\t1\t2\tfirst\tother\t1", "2\t1\t2\tx\ty\t0", ""]))
    return folder


def test_quora_drops_rows_that_are_cut_short_and_counts_them(tmp_path, capsys):
    section = choose("quora", None, {})
    data = prepare(section, load_card("quora"), root=tmp_path / "data", source=quora(tmp_path / "raw"))
    train = data.manifest["splits"]["train"]
    assert train["dropped"] == {"odd_row": 1, "in_valid_or_test": 1}
    assert "test of quora has 2 rows, but 10,000" in capsys.readouterr().err
    assert "1 odd row, 1 in valid or test" in prepared_table(data.manifest).drawn()
    again = prepare(section, load_card("quora"), root=tmp_path / "data")  # without a source, and without the network
    assert again.manifest == data.manifest
    assert "is up to date" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["a\tb", "a\nb", "a\rb"])
def test_a_label_that_would_break_a_table(tmp_path, label):
    with pytest.raises(DataError, match=r"file.tsv, line 10: .*'a\\.b'"):
        prepared(tmp_path, corpus(train=[*TRAIN, ("x", label)], labels=()))


def test_a_class_that_loses_all_its_train_rows(tmp_path, capsys):
    lost = [("", "perhaps"), ("", "perhaps"), ("seen in valid", "perhaps"), ("one two three four five six", "perhaps")]
    counts = "1 no label, 3 empty text, 3 in valid or test, 2 over long"
    with pytest.raises(DataError, match=f"'perhaps' .*'own' .*{counts}"):
        prepared(tmp_path, corpus(train=TRAIN + lost, labels=()))
    labelled = corpus(train=TRAIN + lost, labels=("yes", "no", "perhaps"))
    assert prepared(tmp_path, labelled).labels == ["yes", "no", "perhaps"]
    error_output = capsys.readouterr().err
    assert "'perhaps'" in error_output
    assert counts in error_output


def test_vectors(tmp_path, capsys):
    file = put(tmp_path / "v.txt", "the 1 2", "dog 3 4", "unseen 9 9")
    data = prepared(tmp_path, vectors=file)
    assert data.vectors.shape == (data.tokenizers.source.size, 2)
    assert data.vectors.dtype == torch.float32
    row = data.tokenizers.source.vocabulary.index(" dog")
    assert data.vectors[row].tolist() == [3, 4]
    vectors = data.manifest["vectors"]
    assert (vectors["file"], vectors["width"], vectors["covered"]) == ("v.txt", 2, 2)
    tokens = data.split("train").sides[0].values
    known = np.isin(tokens, [row, data.tokenizers.source.vocabulary.index(" the")])
    assert vectors["tokens"]["train"] == round(known.mean(), 6)
    capsys.readouterr()
    assert prepared(tmp_path).vectors is not None  # the vectors stay
    assert "up to date" in capsys.readouterr().err
    put(file, "the 5 6")
    assert prepared(tmp_path, vectors=file).vectors[row].tolist() == [5, 6]  # all others are the mean
    assert prepared(tmp_path, force=True).vectors is None
    assert "--vectors" in capsys.readouterr().err


@pytest.mark.parametrize(("tokenizer", "place"), [("word", "nowhere"), ("bpe", "vectors .*bpe")])
def test_invalid_vectors(tmp_path, tokenizer, place):
    section = SECTION.model_copy(update={"tokenizer": tokenizer, "vocabulary": 300})
    with pytest.raises(DataError, match=place):
        prepared(tmp_path, section=section, vectors=tmp_path / "nowhere")
    assert not prepared_folder(section, tmp_path).exists()


def test_sections():
    with pytest.raises(DataError, match="vocabulary=1"):
        choose("own", None, {"vocabulary": 1})
    with pytest.raises(RecipeError, match=r"'translation'.*'classification'"):
        choose("own", "miniature", {})
    probe = choose("probing-subj-number", "probe", {"max_tokens": 50})  # a section of labelled text, with a key more
    assert (probe.card, probe.vocabulary, probe.max_tokens) == ("probing-subj-number", 30_000, 50)
