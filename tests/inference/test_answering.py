"""What is said of all answers together."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from phmctl.inference.answering import answer


class Mute:
    """Answers nothing, or the same."""

    def __init__(self, said: str) -> None:
        self.said = said

    def predict(self, lines: Sequence[str], *, numbers: Any = None, advance: Callable[[int], None]) -> list[str]:
        return [self.said for _ in lines]

    def lines(self, found: Sequence[str], *, first_line: int = 1) -> Iterator[str]:
        return iter(found)

    def as_json(self, found: Sequence[str]) -> Iterator[dict[str, Any]]:
        return ({"text": each} for each in found)


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
