"""Garbage is left alone while a command starts, and collected afterwards, whatever happened."""

import gc

import pytest

from phmctl.cli.pipeline import starting


@pytest.fixture(autouse=True)
def unfrozen() -> object:
    yield
    gc.unfreeze()


def test_nothing_is_collected_meanwhile() -> None:
    with starting():
        assert not gc.isenabled()
        kept = [[] for _ in range(10)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(kept)


def test_a_failure_leaves_it_on() -> None:
    with pytest.raises(ZeroDivisionError), starting():
        raise ZeroDivisionError
    assert gc.isenabled()
