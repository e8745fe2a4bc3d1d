"""Values are checked against the definitions (Papineni et al. 2002; Popović 2015; Snover et al. 2006), by hand."""

import importlib.util
import math

import pytest

from phmctl.errors import UserError
from phmctl.metrics.text import (
    Degenerate,
    all_scores,
    bleu,
    bleu_by,
    check_tokenizer,
    copy_baseline,
    length_parts,
    loops,
    paired_bootstrap,
    remarks,
    usual_tokenizer,
)

LINES = [f"line {number}" for number in range(20)]
REFERENCES = ["the cat sat on the mat", "a dog barks at the moon tonight"]


def test_bleu_by_hand() -> None:
    # 5 of 6 words; 4 of 5 pairs; 3 of 4; 2 of 3; lengths are equal
    score = bleu(["the cat sat on the rug"], ["the cat sat on the mat"])
    assert score.name == "BLEU"
    assert score.value == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    short = bleu(["the cat sat on"], ["the cat sat on the mat"])
    assert short.value == pytest.approx(100 * math.exp(1 - 6 / 4))  # the brevity penalty


def test_copying_the_source_is_scored_as_a_translation_is() -> None:
    modern = ["I have not seen him since yesterday , sir .", "You are a good man ."]
    original = ["I have not seen him since yestereve , sir .", "Thou art a good man ."]
    found = copy_baseline(modern, original)
    assert found.bleu == bleu(modern, original).value
    assert found.shared_words == pytest.approx((7 + 3) / (8 + 5))  # the numbers of words, without punctuation
    assert found.one_language
    assert str(found) == f"copying the source scores {found.bleu:.2f} BLEU"
    assert copy_baseline(modern, [line.upper() for line in original], lowercase=True).bleu == pytest.approx(found.bleu)


def test_two_languages_are_not_one_for_their_names_and_numbers() -> None:
    german = ["Maria und Peter kamen 1999 in die große Stadt , in der sie heute noch gern leben ."]
    english = ["Maria and Peter came in 1999 to the large town , where they still like to live today ."]
    found = copy_baseline(german, english)
    assert found.shared_words == pytest.approx(4 / 16)  # a word of the reference stands for one of the source
    assert not found.one_language
    # of several references the nearest counts
    assert copy_baseline(["a b", "c"], ["x y", "c"], others=[["a z", "w"]]).shared_words == pytest.approx(2 / 3)


def test_case_counts_unless_lowercase_is_asked_for() -> None:
    assert bleu(["The Cat Sat On The Mat"], REFERENCES[:1]).value < 10
    score = bleu(["The Cat Sat On The Mat"], REFERENCES[:1], lowercase=True)
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature


def by_length(sources, *texts, **how):
    return bleu_by(length_parts(sources), *texts, **how)


def test_bleu_by_length_scores_each_part_on_its_own() -> None:
    sources = [" ".join("w" * length) for length in (2, 11, 0, 10)]  # a part's upper end belongs to it
    hypotheses = [REFERENCES[0], "the cat sat on the rug", REFERENCES[0], REFERENCES[0]]
    found = by_length(sources, hypotheses, REFERENCES[:1] * 4)
    assert [(one.value, one.sentences) for one in found] == [("1–10", 3), ("11–20", 1)]
    assert [one.bleu for one in found] == pytest.approx([100, bleu(hypotheses[1:2], REFERENCES[:1]).value])
    characters = by_length(["我们明天去", "我们明天去北京看看他们的新 A380 飞机"], REFERENCES, REFERENCES)
    assert [one.sentences for one in characters] == [1, 1]


def test_bootstrap_of_a_clearly_better_system() -> None:
    references = [f"sentence number {row} of the little corpus has words" for row in range(60)]
    worse = [line.replace("little", "small").replace("words", "them") for line in references]
    found = paired_bootstrap(worse, references, references)
    test = found["BLEU"]
    assert test.system.value == pytest.approx(100)
    assert test.baseline.value == pytest.approx(bleu(worse, references).value)
    assert test.difference.value == pytest.approx(test.system.value - test.baseline.value)
    assert test.p_value == pytest.approx(1 / 1001)
    assert found["chrF2"].difference.value > 0
    one, other = (
        [line.replace("little", "small") if row * 7 % 60 in wrong else line for row, line in enumerate(references)]
        for wrong in (range(0, 30), range(22, 60))
    )
    for near in paired_bootstrap(other, one, references).values():  # p is two-sided, of the interval's own error
        change = near.difference
        errors = 1.96 * abs(change.value) / (change.high - change.value)
        assert near.p_value == pytest.approx(math.erfc(errors / math.sqrt(2)), rel=0.01)
        assert 0.01 < near.p_value < 1
    itself = paired_bootstrap(worse, worse, references)["BLEU"]
    assert (itself.difference.value, itself.p_value) == (0, 1)


def test_several_references_are_one_corpus() -> None:
    hypotheses, first, second = ["the cat sat on the rug"], ["the cat sat on the mat"], ["the cat lay on the rug"]
    both = all_scores(hypotheses, first, others=[second])
    alone = all_scores(hypotheses, first)
    assert all("nrefs:2" in score.signature for score in both)
    assert both[0].value == pytest.approx(100 * (6 / 6 * 5 / 5 * 4 / 4 * 2 / 3) ** 0.25)
    assert both[0].value > alone[0].value
    assert both[2].value == pytest.approx(100 / 6)
    found = paired_bootstrap(hypotheses * 3, second * 3, first * 3, others=[second * 3])
    assert found["BLEU"].system.value == pytest.approx(100)
    (one,) = by_length(["a b c"], hypotheses, first, others=[second])
    assert one.bleu == pytest.approx(both[0].value)


def test_chinese_is_split_by_characters() -> None:
    hypothesis, reference = ["我们明天去北京看看"], ["我们明天去上海看看"]
    usual, own = (bleu(hypothesis, reference, tokenize=name) for name in ("13a", "zh"))
    assert "tok:zh" in own.signature
    assert usual.value < 1 < own.value
    ter = all_scores(hypothesis, reference)[2]
    assert ter.value == pytest.approx(100 * 2 / 9)
    assert "asian:yes" in ter.signature
    assert "asian:no" in all_scores(REFERENCES, REFERENCES)[2].signature


def test_a_language_has_its_usual_tokenizer() -> None:
    found = {language: usual_tokenizer(language) for language in ("de", "zh", "zh-TW", "ZH_hant", "th", None)}
    assert found == {"de": "13a", "zh": "zh", "zh-TW": "zh", "ZH_hant": "zh", "th": "char", None: "13a"}
    assert usual_tokenizer("ja") == ("ja-mecab" if importlib.util.find_spec("MeCab") else "char")


def test_a_tokenizer_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"--tokenize ja-mekab: sacrebleu has .*did you mean 'ja-mecab'"):
        check_tokenizer("ja-mekab")
    if importlib.util.find_spec("MeCab") is None:
        with pytest.raises(UserError, match=r"--tokenize ja-mecab: .*pip install sacrebleu\[ja\]"):
            check_tokenizer("ja-mecab")


def test_empty_answers_are_counted_and_empty_lines_want_none() -> None:
    assert remarks(["a", "", " ", "b", "c"], ["", "", "", "x", " "]) == ["2 of 3 answers are empty"]


@pytest.mark.parametrize(("equal", "said"), [(1.0, False), (0.5, True)])
def test_equal_answers_are_told(equal: float, said: bool) -> None:
    answers = ["a man"] * 12 + [f"answer {number}" for number in range(8)]
    assert remarks(LINES, answers, equal) == (["12 of 20 answers are the same: 'a man'"] if said else [])
    assert remarks(LINES, ["yes"] * 20, equal) == ["20 of 20 answers are the same: 'yes'"]


def test_sound_answers_and_equal_ones_to_few_or_equal_lines_are_no_fault() -> None:
    assert remarks(LINES, [f"answer {number}" for number in range(20)]) == []
    assert remarks([], []) == []
    assert remarks(LINES[:9], ["yes"] * 9) == []
    assert remarks(["the same"] * 20, ["yes"] * 20) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the the the the", True),
        ("the the the", False),
        ("it is said , it is said , it is said , it is said , so", True),
        ("a b a b a b a b", True),
        ("a b a b a b a", False),
        ("a a b b a a b b", False),
        ("", False),
    ],
)
def test_loops(text: str, found: bool) -> None:
    assert loops(text) is found


def test_loops_are_told_from_one_in_a_hundred_on() -> None:
    counted = Degenerate()
    counted.add(["x"] * 100, ["go go go go", *(f"answer {number}" for number in range(99))])
    assert list(counted.remarks()) == ["1 of 100 answers repeat themselves: a few words come 4 times in a row or more"]
    counted.add(["x"], ["fine"])
    assert list(counted.remarks()) == []
