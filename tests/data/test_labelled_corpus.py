"""Open labelled corpora: folders of each distribution, divisions, own tables."""

import random
from collections import Counter

import pytest

from phmctl.data.card import load_card
from phmctl.data.corpus import hub_rows, open_corpus, own_corpus
from phmctl.errors import DataError
from tests.data.helpers import as_given, put, sizes, texts


def opened(name, source):
    return open_corpus(load_card(name), source, source / "cache")


GLUE = "index\tpairID\tsentence1\tsentence2\tgold_label"


def test_columns_distinguish_tables_of_the_same_name(tmp_path):
    """GLUE's SNLI and the hub's rows both have train.tsv; one without quoting, the other with."""
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        put(tmp_path / "glue" / name, GLUE, '0\tx\t"Hi , he said\tb\tneutral', "1\ty\tc\td\t-")
    for name in ("train.tsv", "validation.tsv", "test.tsv"):
        put(tmp_path / "hub" / name, "premise\thypothesis\tlabel", '"He said ""hi"""\tb\t2', "c\td\t-1")
    glue, hub = opened("snli", tmp_path / "glue"), opened("snli", tmp_path / "hub")
    glue_rows = [(row.texts[0], row.label) for row in glue.splits["train"]]
    hub_rows = [(row.texts[0], row.label) for row in hub.splits["valid"]]
    assert glue_rows == [('"Hi , he said', "neutral"), ("c", None)]
    assert hub_rows == [('He said "hi"', "contradiction"), ("c", None)]
    assert (glue.origin, hub.origin) == ("folder glue (GLUE's tables)", "folder hub (the hub's rows as quoted tables)")


def test_bimpms_split_and_glues_division_of_quora(tmp_path):
    for name, count in (("train", 80), ("dev", 3), ("test", 4)):
        put(tmp_path / "bimpm" / f"{name}.tsv", *(f"{row % 2}\tq {row}\tr {row}\t{row}" for row in range(count)))
        rows = (f'{row}\t1\t2\t"q {row}\tr\t{row % 2}' for row in range(1, count + 1))
        put(tmp_path / "glue" / f"{name}.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", *rows)
    bimpm, glue = opened("quora", tmp_path / "bimpm"), opened("quora", tmp_path / "glue")
    assert sizes(bimpm) == {"train": 80, "valid": 3, "test": 4}
    assert not bimpm.held_out
    assert sizes(glue) == {"train": 78, "valid": 2, "test": 3}  # its own test has no labels
    assert texts(glue.splits["valid"]) == [('"q 40', "r"), ('"q 80', "r")]
    assert glue.held_out == {"valid": "rows 40, 80, 120, ..."}


def test_mnli_has_two_test_sets(tmp_path):
    put(tmp_path / "train.tsv", GLUE, *(f"{row}\tp\ta {row}\tb\tneutral" for row in range(1, 42)))
    put(tmp_path / "dev_matched.tsv", GLUE, "1\tp\tm\tb\tneutral")
    put(tmp_path / "dev_mismatched.tsv", GLUE, "1\tp\tn\tb\tneutral", "2\tp\to\tb\t-")
    corpus = opened("mnli", tmp_path)
    assert sizes(corpus) == {"train": 40, "valid": 1, "test": 1, "test_mismatched": 2}
    assert list(corpus.splits)[:2] == ["train", "valid"]


def test_probing_splits_are_in_one_file(tmp_path):
    put(tmp_path / "sent_len.txt", 'tr\t0\t"Hm .', "te\t1\tb", "tr\t1\tc", "va\t0\td")
    splits = opened("probing-sentence-length", tmp_path).splits
    assert [texts(splits[name]) for name in ("train", "valid", "test")] == [[('"Hm .',), ("c",)], [("d",)], [("b",)]]


def test_simplified_agreement_files(tmp_path):
    for name in ("train", "val", *(f"test.{count}" for count in range(6))):
        put(tmp_path / f"numpred.{name}", f"VBZ\tthe dog {name}", f"VBP\tdogs {name}")
    corpus = opened("agreement", tmp_path)
    assert sizes(corpus) == {"train": 2, "valid": 2, "test": 12}
    assert [example.extras["attractors"] for example in corpus.splits["test"]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert {example.extras["attractors"] for example in corpus.splits["train"]} == {-1}


AGREEMENT = "sentence\tverb_pos\tverb_index\tn_intervening\tn_diff_intervening"


def test_tensor2tensors_split_of_the_agreement_table(tmp_path):
    rows = [f"a {row} is\tVBZ\t3\t{row % 3}\t{row % 2}" for row in range(300)]
    put(tmp_path / "agr_50_mostcommon_10K.tsv", AGREEMENT, *rows)
    corpus = opened("agreement", tmp_path)
    everything = list(range(300))
    random.seed(1)
    random.shuffle(everything)  # as the original does it
    assert {int(pair[0].split()[1]) for pair in texts(corpus.splits["train"])} == set(everything[:27])
    assert {int(pair[0].split()[1]) for pair in texts(corpus.splits["valid"])} == set(everything[27:30])
    all_attractors = {row for row in everything[30:] if row % 3 == row % 2}
    assert {int(pair[0].split()[1]) for pair in texts(corpus.splits["test"])} == all_attractors
    assert "intervening = attractors" in corpus.held_out["test"]


@pytest.mark.parametrize("verb", ["4", "0", "x"])
def test_an_invalid_verb_index(tmp_path, verb):
    put(tmp_path / "agr_50_mostcommon_10K.tsv", AGREEMENT, f"a b c\tVBP\t{verb}\t0\t0")
    with pytest.raises(DataError, match=r"line 2: .*verb"):
        list(opened("agreement", tmp_path).splits["train"])


def resplit_folder(folder, step):
    random.seed(3)
    prefixes = [f"the {random.randrange(400)} dog" for _ in range(1000)]
    names = ["val", *(f"test.{count}" for count in range(1, 6))]
    for place, name in enumerate(names):
        put(folder / f"numpred.{name}", *(f"VBZ\t{prefix}" for prefix in prefixes[place::6][::step]))
    return folder


def test_the_resplit_keeps_equal_prefixes_together_in_any_order_of_the_files(tmp_path):
    corpus, other = (opened("agreement-resplit", resplit_folder(tmp_path / str(step), step)) for step in (1, -1))
    counts = sizes(corpus)
    assert sum(counts.values()) == 1000
    assert 60 < counts["valid"] < 140
    assert 60 < counts["test"] < 140
    train, valid, test = (set(texts(corpus.splits[name])) for name in ("train", "valid", "test"))
    assert train.isdisjoint(valid | test)
    assert valid.isdisjoint(test)
    assert Counter(example.extras["attractors"] for example in corpus.splits["test"]).keys() == {-1, 1, 2, 3, 4, 5}
    assert Counter(texts(corpus.splits["test"])) == Counter(texts(other.splits["test"]))


def counterfactual(folder):
    for name in ("all_combined/train", "all_combined/dev", "all_combined/test", "original/test"):
        put(folder / f"{name}.tsv", "sentence1\tsentence2\tgold_label", f"{name}\tb\tneutral")


def test_snlis_test_set_is_found_below_the_folder(tmp_path):
    counterfactual(tmp_path / "all" / "cf")
    put(tmp_path / "all" / "snli" / "test.tsv", "premise\thypothesis\tlabel", "x\ty\t0", "x\tz\t-1")
    corpus = opened("snli-counterfactual", tmp_path / "all")
    assert sizes(corpus) == {"train": 1, "valid": 1, "test": 1, "test_original": 1, "test_snli": 2}
    assert [example.label for example in corpus.splits["test_snli"]] == ["entailment", None]
    assert [file.split for file in corpus.files if file.path.parent.name == "snli"] == ["test_snli"]
    assert "test_snli" not in opened("snli-counterfactual", tmp_path / "all" / "cf").splits


def test_own_tables(tmp_path):
    train = put(tmp_path / "a.csv", "label,text", 'x,"one, two"')
    valid = put(tmp_path / "b.tsv", "label\ttext", 'y\t"three')
    extra = put(tmp_path / "c.jsonl", '{"text": "four", "label": "x"}')
    files = {"valid": valid, "train": train, "test_hard": extra}
    corpus = own_corpus("own", as_given(files), labelled=True, text=["text"], label="label")
    assert list(corpus.splits) == ["train", "valid", "test_hard"]
    assert [texts(rows) for rows in corpus.splits.values()] == [[("one, two",)], [('"three',)], [("four",)]]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"train": "nowhere.tsv", "valid": "a.tsv"}, r"train: .*nowhere\.tsv"),
        ({"dev": "a.tsv"}, "'dev'"),
        ({"train": "a.tsv", "valid": "a.tsv"}, r"a\.tsv.* 'lable' .*'label'.* label, text"),
    ],
)
def test_invalid_own_tables(tmp_path, files, place):
    put(tmp_path / "a.tsv", "label\ttext", "x\ty")
    paths = {split: tmp_path / name for split, name in files.items()}
    with pytest.raises(DataError, match=place):
        own_corpus("own", as_given(paths), labelled=True, text=["text"], label="lable")


def test_labels_of_the_hub():
    """-1 means no label."""
    rows = [{"premise": "a", "hypothesis": "b", "label": 2}, {"premise": "c", "hypothesis": "d", "label": -1}]
    first, second = hub_rows(rows, load_card("snli").hub, "snli")
    assert (first.texts, first.label, second.label) == (("a", "b"), "contradiction", None)


# Rows of train, valid and test, then of further test sets.
REAL = [
    ("agreement-resplit", "sva-linzen/rnn_agr_simple", [64_739, 7_883, 7_900]),
    ("snli-counterfactual", "nli", [8_330, 1_000, 2_000, 400, 9_824]),
    ("quora", "nli/quora", [950, 25, 25]),
    ("snli", "nli/format-samples/SNLI", [1, 1, 1]),
    ("mnli", "nli/format-samples/MNLI", [1, 0, 1, 1]),
    ("quora", "nli/format-samples/QQP", [1, 0, 1]),
    ("scitail", "nli/format-samples/SciTail", [2, 2, 2]),
    ("probing-bigram-shift", "senteval-probing", [9_600, 1_200, 1_200]),
    ("probing-coord-inversion", "senteval-probing", [3_840, 480, 480]),
    ("probing-past-present", "senteval-probing", [9_584, 1_200, 1_152]),
    ("probing-sentence-length", "senteval-probing", [9_949, 1_205, 1_173]),
    ("probing-subj-number", "senteval-probing", [1_905, 226, 207]),
]


@pytest.mark.parametrize(("name", "folder", "expected"), REAL)
def test_real_row_counts_are_exact(real_data, name, folder, expected):
    counts = sizes(opened(name, real_data / folder))
    assert [counts.pop(split) for split in ("train", "valid", "test")] + [*counts.values()] == expected
