"""The grid of executions: what is measured, what is fitted, how auto's choice is judged."""

import json

import pytest

from phmctl.algebra.cost import Constants, work_of
from phmctl.algebra.products import LIBRARIES, MKL
from phmctl.benchmarks.grid import NAMES, Cell, fit, measure, share_within

TRUE = {
    "dense": Constants(2.0, 1.0, 0.0, 0.0, 3.0, 2.0, 0.0, 0.5, 900.0),
    "factored": Constants(2.5, 1.2, 4.0, 30.0, 1.0, 0.5, 0.0, 0.0, 700.0),
    "rank": Constants(2.2, 1.5, 5.0, 50.0, 2.0, 1.5, 0.0, 0.7, 2000.0),
}


def cell(tokens: int, d: int, n: int, mode: str, auto: str = "dense", library: str = MKL) -> Cell:
    rank = {2: 3, 4: 7, 8: 24}[n]
    trains = mode != "eval"
    shape = tokens, d, d, n, rank
    seconds = {name: TRUE[name].seconds(work_of(name, *shape, trains=trains, library=library)) for name in NAMES}
    return Cell(d, d, n, rank, tokens, mode, library, seconds | {"nn.Linear": 1.0}, auto)


def test_fit_finds_the_constants_that_made_the_seconds() -> None:
    cells = [
        cell(tokens, d, n, mode, library=library)
        for tokens in (1, 16, 256, 1024)
        for d in (64, 256, 512)
        for n in (2, 4, 8)
        for mode in ("forward+backward", "eval")
        for library in LIBRARIES
    ]
    for (trains, name), found in fit(cells).items():
        wanted = TRUE[name] if trains else TRUE[name]._replace(build=0.0)
        assert tuple(found) == pytest.approx(tuple(wanted), rel=1e-5, abs=1e-6)


def test_constants_are_never_negative() -> None:
    odd = [cell(tokens, 64, 4, "eval") for tokens in (1, 2, 3)]
    for index, one in enumerate(odd):
        one.seconds.update(dict.fromkeys(NAMES, 1.0 / (1 + index)))
    assert all(value >= 0 for found in fit(odd).values() for value in found)


def test_a_choice_is_judged_by_the_best() -> None:
    seconds = {"dense": 1.2, "factored": 1.0, "rank": 1.05, "nn.Linear": 0.1}
    cells = [Cell(8, 8, 4, 7, 1, "eval", MKL, seconds, auto) for auto in NAMES]
    assert [one.excess for one in cells] == pytest.approx([0.2, 0.0, 0.05])
    assert share_within(cells) == pytest.approx(2 / 3)


def test_a_measured_cell() -> None:
    cells = measure(shapes=[(16, 32)], orders=[4], tokens=[2, 4], rounds=1)
    assert [(one.tokens, one.mode) for one in cells] == [
        (tokens, mode) for tokens in (2, 4) for mode in ("forward+backward", "eval")
    ]
    assert all(set(one.seconds) == {*NAMES, "nn.Linear"} and one.auto in NAMES for one in cells)
    assert json.loads(json.dumps(cells[0].as_json()))["rank"] == 7
