import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.answering.base import Hypothesis, change_decoding, plan
from phmctl.answering.translator import EMPTY
from phmctl.nn.convert import to_dense
from phmctl.recipe.schema import DecodingSection
from tests.answering.conftest import TEXT, Kit, sharp_model

WORDS = sorted({word for line in TEXT for word in line.split()})
lines_of_text = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=8)


def texts(translations):
    return [[item.text for item in candidates] for candidates in translations]


@settings(max_examples=12)  # each translates up to eight lines, alone and together
@given(lines=lines_of_text, batch_tokens=st.sampled_from([1, 17, 40, 5000]), data=st.data())
def test_texts_do_not_depend_on_batch_size_and_order(kit: Kit, lines: list[str], batch_tokens: int, data) -> None:
    expected = [texts(kit.translator().translate([line], n_best=2))[0] for line in lines]
    order = data.draw(st.permutations(range(len(lines))))
    translations = kit.translator(batch_tokens=batch_tokens).translate([lines[row] for row in order], n_best=2)
    assert texts(translations) == [expected[row] for row in order]


def test_the_dense_model_gives_the_same_texts_with_any_number_of_threads(kit: Kit) -> None:
    """The functions are equal up to rounding, which matters only if candidates have nearly equal scores."""
    phm = Kit(sharp_model(kit.tokenizers.source.size, algebra="phm", n=2), kit.tokenizers)
    expected = texts(phm.translator().translate(TEXT[:4]))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            dense = Kit(to_dense(phm.model), kit.tokenizers)  # type: ignore[arg-type]
            assert texts(dense.translator().translate(TEXT[:4])) == expected
    finally:
        torch.set_num_threads(before)
    assert len({row[0] for row in expected}) > 2


def test_lines_without_words_stay_empty(kit: Kit) -> None:
    empty, candidates, *blank = kit.translator().translate(["", TEXT[0], " \t ", "\u00a0"], n_best=2)
    assert [empty, *blank] == [[EMPTY], [EMPTY], [EMPTY]]
    assert len(candidates) == 2
    assert candidates[0].text


def test_a_long_line_is_truncated_with_a_warning(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    (ids,) = kit.tokenizers.source.encode([TEXT[2]])
    beginning = kit.tokenizers.source.decode(ids[:8])
    (first, _), (second, _) = kit.translator(max_tokens=8).answer([beginning, TEXT[2]], first=4)
    assert first == second
    warning = capsys.readouterr().err
    assert "line 5" in warning
    assert str(len(ids)) in warning
    kit.translator(max_tokens=len(ids), strict=True).answer([TEXT[2]])  # a line of exactly the limit is not truncated
    assert capsys.readouterr().err == ""


def test_line_breaks_in_a_translation_become_spaces(kit: Kit) -> None:
    ids = kit.tokenizers.target.encode(["a\r\nb\nc"])[0]
    assert kit.translator()._detokenise(Hypothesis(ids, 0.0, 0.0)).text == "a  b c"


@given(lengths=st.lists(st.integers(0, 30), max_size=40), batch_tokens=st.integers(1, 90))
def test_a_plan_holds_every_row_once_within_the_budget(lengths: list[int], batch_tokens: int) -> None:
    batches = plan(lengths, batch_tokens)
    assert sorted(row for batch in batches for row in batch) == [row for row, n in enumerate(lengths) if n]
    assert [lengths[row] for batch in batches for row in batch] == sorted(filter(None, lengths), reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= batch_tokens


def test_float32_is_the_default_precision() -> None:
    half = change_decoding(DecodingSection(), precision="bfloat16")
    assert half != DecodingSection() == change_decoding(half, precision="float32")
