from phmctl.decoding.output import as_json, best_lines, n_best_lines
from phmctl.decoding.translator import EMPTY, Translation

TRANSLATIONS = [[Translation("a", -1.0, -2.0), Translation("b c", -1.5, -3.0)], [EMPTY]]


def test_plain_output_is_the_best_of_each_line() -> None:
    assert list(best_lines(TRANSLATIONS)) == ["a", ""]


def test_n_best_output_names_line_rank_and_score() -> None:
    assert list(n_best_lines(TRANSLATIONS)) == ["1\t1\t-1.000000\ta", "1\t2\t-1.500000\tb c", "2\t1\t0.000000\t"]


def test_json_keeps_both_scores() -> None:
    first, second = as_json(TRANSLATIONS)
    assert first["translations"][1] == {"text": "b c", "score": -1.5, "log_prob": -3.0}
    assert second == {"translations": [{"text": "", "score": 0.0, "log_prob": 0.0}]}


def test_n_best_lines_count_on() -> None:
    assert list(n_best_lines(TRANSLATIONS[1:], 8)) == ["8\t1\t0.000000\t"]
