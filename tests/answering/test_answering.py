"""``decode``: what is said of all answers together."""

from unittest.mock import Mock

import pytest

from phmctl.answering.lines import answer


@pytest.mark.parametrize(
    ("said", "remark"),
    [("", "warning: 12 of 12 answers are empty\n"), ("yes", "warning: 12 of 12 answers are the same: 'yes'\n")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_degenerate_answers_are_said(said: str, remark: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = Mock(answer=lambda lines, **how: [(said, {"text": said})] * len(lines))
    answer(model, [[f"line {number}" for number in range(7)], ["a", "", "b", "c", "d", "e"]], as_json=as_json)
    captured = capsys.readouterr()
    assert captured.err == remark
    assert len(captured.out.splitlines()) == 13
