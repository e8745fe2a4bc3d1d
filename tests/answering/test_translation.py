import json
import math
from dataclasses import astuple
from unittest.mock import Mock

import pytest
import torch

from phmctl.answering.opening import load_translator
from phmctl.answering.translator import Translator
from phmctl.errors import DataError, RecipeError, UserError
from phmctl.runs import Run
from tests.answering.conftest import TEXT

TEXTS = [*TEXT[:2], "Zwei Kinder spielen .", "", TEXT[3]]


def test_beam_and_alpha_are_of_one_call(translator: Translator, run: Run) -> None:
    before = translator.translate(TEXTS, n_best=2)
    assert [len(each) for each in before] == [2, 2, 2, 1, 2]
    assert all(best.score >= other.score for best, other in (each for each in before if len(each) == 2))
    assert translator.translate([]) == translator.score([], []) == []
    greedy = translator.translate(TEXTS, beam=1, alpha=0.0)
    settings = run.recipe.decoding.model_copy(update={"beam": 1, "alpha": 0.0})
    assert greedy == load_translator(run, "best", "cpu", settings).translate(TEXTS)
    assert all(best.score == pytest.approx(best.log_prob) for [best] in greedy)
    assert greedy != [each[:1] for each in before]
    assert translator.translate(TEXTS, n_best=2) == before


def test_scores_are_what_the_search_finds(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [ids for ids in translator.token_ids(TEXTS)[0] if ids]
    found = [best for [best] in translator.engine.search(sources, translator.settings, allowed=10**6, n_best=1)]
    # A random model's tokens are not those that its text is split into again: its own are put in for them.
    both, ours = translator.tokenizers, Mock(encode=lambda lines: [best.tokens for best in found])
    monkeypatch.setattr(translator, "tokenizers", Mock(source=both.source, target=ours))
    scores = translator.score([text for text in TEXTS if text], ["x"] * len(found))
    assert scores == pytest.approx([best.log_prob for best in found], abs=1e-4)


def test_a_score_is_the_sum_of_the_steps(translator: Translator) -> None:
    kept = translator
    [source], [target] = kept.token_ids(TEXTS[:1])[0], kept.tokenizers.target.encode(TEXTS[4:])
    with torch.no_grad():
        total, prefix = 0.0, [2]
        for token in [*target, 3]:
            hidden = kept.engine.model(torch.tensor([source]), torch.tensor([prefix]))[:, -1]
            total += torch.log_softmax(kept.engine.model.logits(hidden), -1)[0, token].item()
            prefix.append(token)
    # Alone, in a batch, and beside others of other lengths.
    assert translator.score(TEXTS[:1], TEXTS[4:]) == pytest.approx([total], rel=1e-5)
    assert translator.score(TEXTS, [TEXTS[4]] * 5)[0] == pytest.approx(total, rel=1e-5)
    assert translator.score(["", "  ", "A"], ["", "x", ""])[:2] == [0.0, -math.inf]  # of nothing there is nothing


def test_vectors_are_the_mean_of_the_states(translator: Translator) -> None:
    found = translator.encode(TEXTS)
    for row, ids in enumerate(translator.token_ids(TEXTS)[0]):
        with torch.no_grad():
            wanted = translator.engine.model.encode(torch.tensor([ids])).states[0].mean(0) if ids else torch.zeros(32)
        torch.testing.assert_close(found[row], wanted, rtol=1e-4, atol=1e-5)
    assert found.dtype == torch.float32
    assert translator.encode([]).shape == (0, 32)


def test_a_text_longer_than_the_model_knows(translator: Translator) -> None:
    long = TEXT[2] * 3
    [[cut], [whole]] = translator.translate([long, TEXT[0]])
    assert (cut.cut, whole.cut) == (True, False)
    with pytest.raises(DataError, match="line 2 has"):
        translator.translate([TEXT[0], long], strict=True)
    with pytest.raises(DataError, match="line 2 has"):
        translator.score([TEXT[0], long], ["a", "b"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda model: model.translate("Ein Mann"), UserError, "texts"),
        (lambda model: model.translate(None), UserError, "texts"),
        (lambda model: model.translate(["a", "\ud800"]), DataError, "texts"),
        (lambda model: model.translate(["a"], n_best=9), UserError, "n_best = 9"),
        (lambda model: model.translate(["a"], beam=0), RecipeError, r"^beam=0:"),
        (lambda model: model.score(["a"], []), UserError, "sources and targets .* 1 and 0"),
        (lambda model: model.score("a", "b"), UserError, "sources"),
    ],
)
def test_wrong_calls_are_told(translator: Translator, call, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(translator)


def test_lengths_are_those_that_the_limit_counts(translator: Translator) -> None:
    assert translator.max_tokens == 20
    found = translator.lengths([*TEXTS, TEXT[2]])
    assert found[:-1] == [max(len(ids) - 1, 0) for ids in translator.token_ids(TEXTS)[0]]
    assert found[3] == 0
    assert found[-1] > 20
    assert translator.lengths([(TEXT[2], ""), ("", "")]) == [found[-1], 0]
    assert translator.lengths([("", TEXT[2])])[0] > 20


@pytest.mark.parametrize("n_best", [None, 1, 2])
def test_decode_prints_lines_and_json(run: Run, translator: Translator, n_best: int | None) -> None:
    model = load_translator(run, "best", "cpu", n_best=n_best)
    found = model.answer(["", TEXTS[0]], first=8)
    expected = translator.translate(["", TEXTS[0]], n_best=n_best or 1)
    for number, (text, told), best in zip((8, 9), found, expected, strict=True):
        names = ("text", "score", "log_prob")
        assert json.loads(json.dumps(told)) == {
            "translations": [dict(zip(names, astuple(one)[:3], strict=True)) for one in best]
        }
        ranked = [f"{number}\t{rank}\t{each.score:.6f}\t{each.text}" for rank, each in enumerate(best, start=1)]
        assert text == (best[0].text if n_best is None else "\n".join(ranked))
