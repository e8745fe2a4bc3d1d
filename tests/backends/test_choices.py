"""What is chosen, when it is measured, and where it is kept."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from phmctl.backends import choices, machine
from phmctl.backends.choices import (
    DENSE,
    FACTORED,
    RANK,
    VARIABLE,
    Choice,
    Use,
    as_text,
    best_of,
    choose,
    from_text,
    rounded,
    standing,
    taken_from,
)

USE = Use(512, 512, 4, 7, 256, "train", "learned", "auto", "float32", "cpu", 2, "mkl+onednn")
USUAL, OTHER = Choice(DENSE, "mkl"), Choice(RANK, "onednn")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[Choice, float]:
    """What measurements give; how often they were made stands under None."""
    given = {USUAL: 1.0, Choice(DENSE, "onednn"): 1.0, OTHER: 0.5}
    given[None] = 0  # type: ignore[index]

    def measured(calls, clock):
        given[None] += 1
        return {choice: given[choice] for choice in calls}

    monkeypatch.setattr(choices, "lowest_seconds", measured)
    return given


def candidates(use: Use) -> dict[Choice, Callable[[], object]]:
    return dict.fromkeys((USUAL, Choice(DENSE, "onednn"), OTHER), lambda: None)


@given(tokens=st.integers(1, 10**6), d=st.sampled_from([64, 512, 2048, 8192]))
def test_tokens_are_rounded_to_the_nearest_power_of_two(tokens: int, d: int) -> None:
    found = rounded(tokens, d, d)
    assert found & (found - 1) == 0
    most = rounded(1 << 30, d, d)
    assert 512 <= most <= 4096
    if tokens <= most:
        assert 2**-0.5 <= found / tokens <= 2**0.5
    else:
        assert found == most


def test_a_batch_as_people_train_with_is_measured_as_it_is() -> None:
    assert [rounded(4096, d, k) for d, k in ((512, 512), (512, 2048), (2048, 2048))] == [4096, 4096, 1024]


def test_at_first_use_it_is_measured_and_kept(measuring: Path, seconds: dict[Choice, float]) -> None:
    assert [choose(USE, candidates) for _ in range(3)] == [OTHER] * 3
    assert seconds[None] == 1
    assert from_text(machine.read()) == {USE: OTHER}
    choose(USE._replace(tokens=512), candidates)
    assert seconds[None] == 2


def test_another_process_finds_it_in_the_machine_s_file(measuring: Path, seconds: dict[Choice, float]) -> None:
    machine.add({str(USE): "factored mkl"})
    assert choose(USE, candidates) == Choice(FACTORED, "mkl")
    assert seconds[None] == 0
    choices.cache_clear()
    machine.path().unlink()
    assert choose(USE, candidates) == OTHER


def test_what_is_measured_off_is_dense_by_torch_s_own_library(
    measuring: Path, seconds: dict[Choice, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add({str(USE): "factored mkl"})
    monkeypatch.setenv(VARIABLE, "0")
    assert choose(USE, candidates) == USUAL
    assert choose(USE._replace(execution=RANK, libraries="onednn"), candidates) == Choice(RANK, "onednn")
    assert seconds[None] == 0


def test_a_gain_below_a_twentieth_is_none() -> None:
    dense, faster = Choice(DENSE, "mkl"), Choice(DENSE, "onednn")
    assert best_of({dense: 1.0, faster: 0.96, OTHER: 0.97}, dense) == dense
    assert best_of({dense: 1.0, faster: 0.90, OTHER: 0.87}, dense) == faster
    assert best_of({dense: 1.0, faster: 0.90, OTHER: 0.80}, dense) == OTHER
    assert best_of({dense: 1.0, OTHER: 0.80}, dense) == OTHER


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("state", ["meta", "fake", "tracing", "vmap", "compiling"])
def test_where_seconds_mean_nothing_the_choice_stands_as_it_is(
    state: str, measuring: Path, seconds: dict[Choice, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(x: torch.Tensor) -> torch.Tensor:
        assert choose(use, candidates) == USUAL
        return x

    use = USE._replace(device="meta") if state == "meta" else USE
    x = torch.zeros(2)
    if state == "fake":
        with FakeTensorMode():
            ask(x)
    elif state == "tracing":
        torch.jit.trace(ask, x, check_trace=False)
    elif state == "vmap":
        torch.func.vmap(ask)(x)
    else:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: state == "compiling")
        ask(x)
    assert seconds[None] == 0
    assert choices._known == {}


def test_a_measurement_sees_no_mode_and_draws_no_number(measuring: Path) -> None:
    seen = []

    def looking(use: Use) -> dict[Choice, Callable[[], object]]:
        def call() -> None:
            seen.append((torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.zeros(1).is_meta))

        return {USUAL: call, OTHER: call}

    state = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        choose(USE, looking)
    assert set(seen) == {(False, False, False)}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_takes_its_own_and_is_told_the_rest(measuring: Path, seconds: dict[Choice, float]) -> None:
    other = USE._replace(tokens=64)
    table = {USE: Choice(FACTORED, "mkl")}
    with taken_from(table):
        assert choose(USE, candidates) == Choice(FACTORED, "mkl")
        assert choose(other, candidates) == OTHER
    assert table == {USE: Choice(FACTORED, "mkl"), other: OTHER}
    assert choose(USE, candidates) == OTHER


def test_a_frozen_table_is_all_there_is(measuring: Path, seconds: dict[Choice, float]) -> None:
    choose(USE._replace(tokens=2048), candidates)
    table = {USE: Choice(FACTORED, "mkl"), USE._replace(tokens=16): OTHER}
    with taken_from(table, frozen=True):
        assert choose(USE._replace(tokens=2048), candidates) == Choice(FACTORED, "mkl")  # the nearest
        assert choose(USE._replace(tokens=32), candidates) == OTHER
        assert choose(USE._replace(d=64), candidates) == USUAL
    assert (len(table), seconds[None]) == (2, 1)


def test_what_is_recorded_takes_the_choice_for_the_most_tokens(measuring: Path, seconds: dict[Choice, float]) -> None:
    assert standing(USE) == USUAL
    choose(USE, candidates)
    assert standing(USE._replace(tokens=1)) == OTHER
    assert standing(USE._replace(n=2)) == USUAL


def test_a_table_as_text() -> None:
    table = {USE: OTHER, USE._replace(device="cuda:NVIDIA-H200", rank=0): USUAL}
    text = as_text(table)
    assert from_text(text) == table
    assert text[str(USE)] == "rank onednn"
    strange = {
        "": "dense mkl",
        str(USE): "dense blis",
        str(USE) + " 1": "dense mkl",
        str(USE._replace(n=2)): "quick mkl",
    }
    assert from_text(strange) == {}


def test_threads_measure_one_after_another_and_agree(measuring: Path, seconds: dict[Choice, float]) -> None:
    found: list[Choice] = []
    threads = [threading.Thread(target=lambda: found.append(choose(USE, candidates))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [OTHER] * 8
    assert seconds[None] == 1


def test_a_process_that_answers_measures_for_a_bounded_time(
    measuring: Path, seconds: dict[Choice, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "ALLOWED", -1e9)
    kept = USE._replace(mode="kept")
    assert choose(kept, candidates) == USUAL
    assert choices._known == {}
    assert choose(USE, candidates) == OTHER
    with taken_from({}) as table:
        assert choose(kept, candidates) == OTHER
    assert table == {kept: OTHER}
    monkeypatch.setattr(choices, "ALLOWED", 1e9)
    assert choose(kept._replace(tokens=64), candidates) == OTHER
