"""Speed, and metrics.jsonl."""

from pathlib import Path
from typing import Any

import pytest

from phmctl.errors import WriteFailedError
from phmctl.runs.results import read_metrics
from phmctl.training.progress import MetricsLog, Throughput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands at the time in this list."""
    time = [100.0]
    monkeypatch.setattr("phmctl.training.progress.time.perf_counter", lambda: time[0])
    return time


def test_rates_leave_out_what_was_paused(clock: list[float]) -> None:
    throughput = Throughput(seconds=10.0)
    throughput.count(60)
    throughput.count(60)
    clock[0] += 1
    with throughput.paused():
        clock[0] += 3
    clock[0] += 2
    assert throughput.trained == 3.0
    assert throughput.rates() == {"tokens_per_second": 40.0, "seconds_per_step": 1.5, "seconds": 16.0}


@pytest.mark.parametrize(("late", "slowed"), [(299, [True, False]), (301, [False, False])])
def test_a_training_below_a_third_of_its_first_speed_is_slow_once(
    clock: list[float], late: int, slowed: list[bool]
) -> None:
    throughput, answers = Throughput(), []
    for tokens in (800, 1000, 900, late, late):  # in 30 s each; the mean of the first minute is 900
        throughput.count(tokens)
        clock[0] += 30
        answers.append(throughput.slowed(throughput.rates()["tokens_per_second"]))
    assert answers == [False, False, False, *slowed]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of steps 5 and 10."""
    with MetricsLog(tmp_path / "m") as log:
        _add_two(log)
    return tmp_path / "m"


def _add_two(log: MetricsLog) -> None:
    for step in (5, 10):
        log.add("train", step, {"loss": step / 3, "seconds": float(step)})


def _steps(path: Path) -> list[int]:
    return [entry["step"] for entry in read_metrics(path)]


def test_resuming_drops_what_lies_beyond_the_checkpoint(path: Path) -> None:
    assert read_metrics(path)[1] == {"event": "train", "step": 10, "loss": 10 / 3, "seconds": 10.0}
    assert read_metrics(path.with_name("none")) == []
    before = path.read_bytes()
    log = MetricsLog(path, 5)
    assert path.read_bytes() == before  # until the log is entered
    with log:
        assert log.seconds == 5.0
        log.add("train", 15, {})
        log.add("average", 15, {"loss": 1.0})
    assert _steps(path) == [5, 15, 15]
    assert MetricsLog(path, 15).seconds == 5.0  # an event without time does not set the clock back


def test_a_last_line_without_its_break_is_whole_or_dropped(path: Path) -> None:
    complete = path.read_bytes()
    for cut in range(1, len(complete.splitlines()[-1]) + 1):
        path.write_bytes(complete[:-cut])
        assert _steps(path) == [5, 10][: 2 if cut == 1 else 1]


@pytest.mark.parametrize("line", [b"5", b"", b"{", b"\xff", b"\0" * 64])
@pytest.mark.parametrize("place", [0, 2])
def test_a_damaged_line_costs_itself(path: Path, line: bytes, place: int) -> None:
    lines = path.read_bytes().splitlines()
    lines.insert(place, line)
    path.write_bytes(b"".join(row + b"\n" for row in lines))
    assert _steps(path) == [5, 10]
    with MetricsLog(path, 10) as log:
        log.add("train", 15, {})
    assert _steps(path) == [5, 10, 15]


class Short:
    """A handle that takes a few bytes at a time, and `most_in_all` in all."""

    def __init__(self, handle: Any, most: int, most_in_all: int = 10_000) -> None:
        self.handle, self.most, self.most_in_all = handle, most, most_in_all

    def write(self, data: bytes) -> int:
        part = data[: min(self.most, self.most_in_all)]
        if not part:
            raise OSError(28, "No space left on device")
        self.most_in_all -= len(part)
        return self.handle.write(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)


@pytest.mark.parametrize("most", [1, 7])
def test_a_short_write_is_finished(path: Path, most: int) -> None:
    with MetricsLog(path.with_name("n")) as log:
        log._file = Short(log._file, most)
        _add_two(log)
    assert path.with_name("n").read_bytes() == path.read_bytes()


def test_what_a_full_disk_leaves_of_a_line_is_dropped(path: Path) -> None:
    with MetricsLog(path, 5) as log:
        log._file = Short(log._file, 7, most_in_all=12)
        with pytest.raises(WriteFailedError) as caught:
            log.add("train", 10, {})
        assert caught.value.exit_code == 1
    with MetricsLog(path, 5) as log:
        log.add("train", 10, {})
    assert _steps(path) == [5, 10]


def test_a_validation_that_the_checkpoint_does_not_know_is_dropped_and_an_average_is_not(tmp_path: Path) -> None:
    """A stop during the validation of step 20 leaves a checkpoint of before it, and the next one may be killed."""
    with MetricsLog(tmp_path / "m") as log:
        for event, step in (("validation", 10), ("train", 20), ("validation", 20), ("early_stop", 20), ("average", 20)):
            log.add(event, step, {})
    with MetricsLog(tmp_path / "m", 20, validated=10) as log:
        assert log.has("average", 20)
    assert [entry["event"] for entry in read_metrics(tmp_path / "m")] == ["validation", "train", "average"]


def test_tensorboard_gets_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scalars: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: Path, purge_step: int) -> None:
            assert purge_step == 4

        def add_scalar(self, name: str, value: float, step: int) -> None:
            scalars.append((name, value, step))

        def close(self) -> None:
            scalars.append(("closed", 0, 0))

    monkeypatch.setattr("phmctl.training.progress.summary_writer", lambda: Writer)
    with MetricsLog(tmp_path / "m", 3, tensorboard=tmp_path / "board") as log:
        log.add("validation", 4, {"loss": 0.5})
    assert scalars == [("validation/loss", 0.5, 4), ("closed", 0, 0)]
