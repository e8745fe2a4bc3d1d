"""``decode``: what is said of all answers together."""

from collections.abc import Callable, Sequence

import pytest

from phmctl.decoding.model import Line
from phmctl.inference import answer


class Mute:
    """Answers nothing, or the same."""

    def __init__(self, said: str) -> None:
        self.said = said

    def answer(self, lines: Sequence[str], *, first: int, advance: Callable[[int], None]) -> list[Line]:
        return [(self.said, {"text": self.said}) for _ in lines]


@pytest.mark.parametrize(
    ("said", "remark"),
    [("", "warning: 12 of 12 answers are empty\n"), ("yes", "warning: 12 of 12 answers are the same: 'yes'\n")],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_degenerate_answers_are_said(said: str, remark: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    answer(Mute(said), [[f"line {number}" for number in range(7)], ["a", "", "b", "c", "d", "e"]], as_json=as_json)
    captured = capsys.readouterr()
    assert captured.err == remark
    assert len(captured.out.splitlines()) == 13
