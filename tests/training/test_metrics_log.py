"""metrics.jsonl."""

import sys
from pathlib import Path
from typing import Any

import pytest

from phmctl.errors import OutputError, RecipeError, WriteFailedError
from phmctl.runs.metrics import read_metrics
from phmctl.training.progress import MetricsLog


def _fill(path: Path, steps: list[int]) -> None:
    with MetricsLog(path) as log:
        for step in steps:
            log.add("train", step, {"loss": step / 3, "seconds": float(step)})


def test_entries_are_appended(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10])
    assert read_metrics(tmp_path / "m")[1] == {"event": "train", "step": 10, "loss": 10 / 3, "seconds": 10.0}


def test_resuming_drops_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10, 15])
    with MetricsLog(tmp_path / "m", 10) as log:
        assert log.seconds == 10.0
        log.add("train", 15, {})
    assert [entry["step"] for entry in read_metrics(tmp_path / "m")] == [5, 10, 15]


def test_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10])
    (tmp_path / "m").write_text((tmp_path / "m").read_text()[:-5])
    assert [entry["step"] for entry in read_metrics(tmp_path / "m")] == [5]


def test_a_last_line_without_its_break_is_whole_or_dropped(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10])
    whole = (tmp_path / "m").read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        (tmp_path / "m").write_bytes(whole[:-cut])
        assert [entry["step"] for entry in read_metrics(tmp_path / "m")] == [5, 10][: 2 if cut == 1 else 1]
    (tmp_path / "m").write_bytes(whole + b"\0" * 64)  # what a power cut may leave
    assert [entry["step"] for entry in read_metrics(tmp_path / "m")] == [5, 10]


def test_a_flipped_bit_reaches_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "m"
    _fill(path, [5, 10])
    whole, right = path.read_bytes(), [{"loss": step / 3, "seconds": float(step)} for step in (5, 10)]
    for place in range(whole.index(b"\n")):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert [{key: entry[key] for key in right[0]} for entry in read_metrics(path)] in (right, right[1:])


@pytest.mark.parametrize("line", ["5", "{}", "null", "", '{"step": "5"}', '{"step": 5, "seconds": "x"}', "{", "\udcff"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_foreign_line_costs_itself_with_a_warning(
    tmp_path: Path, line: str, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m"
    _fill(path, [5, 10])
    lines = path.read_text().splitlines()
    lines.insert(place, line)
    path.write_bytes("".join(f"{each}\n" for each in lines).encode(errors="surrogateescape"))
    assert [entry["step"] for entry in read_metrics(path)] == [5, 10]
    assert f"m, line {place + 1}: no JSON object with a step; left out" in capsys.readouterr().err
    with MetricsLog(path, 10) as log:
        log.add("train", 15, {})
    assert [entry["step"] for entry in read_metrics(path)] == [5, 10, 15]


@pytest.mark.parametrize("most", [1, 7])
def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log._file = Short(log._file, most)
        for step in (5, 10):
            log.add("train", step, {"loss": step / 3, "seconds": float(step)})
    whole = (tmp_path / "m").read_bytes()
    _fill(tmp_path / "n", [5, 10])
    assert whole == (tmp_path / "n").read_bytes()


def test_what_a_full_disk_leaves_of_a_line_is_dropped(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log.add("train", 5, {})
        log._file = Short(log._file, 7, most_in_all=12)
        with pytest.raises(WriteFailedError, match="No space left") as full:
            log.add("train", 10, {})
        assert full.value.exit_code == 1
    with MetricsLog(tmp_path / "m", 5) as log:
        log.add("train", 10, {})
    assert [entry["step"] for entry in read_metrics(tmp_path / "m")] == [5, 10]


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


def test_a_validation_that_the_checkpoint_does_not_know_is_dropped_and_an_average_is_not(tmp_path: Path) -> None:
    """A stop during the validation of step 20 leaves a checkpoint of before it, and the next one may be killed."""
    with MetricsLog(tmp_path / "m") as log:
        for event, step in (("validation", 10), ("train", 20), ("validation", 20), ("early_stop", 20), ("average", 20)):
            log.add(event, step, {})
    with MetricsLog(tmp_path / "m", 20, validated=10) as log:
        assert log.has("average", 20)
    assert [entry["event"] for entry in read_metrics(tmp_path / "m")] == ["validation", "train", "average"]


def test_no_file_is_no_entries(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "m") == []


def test_a_full_disk_is_an_output_error(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log._file.close()
        with (
            Path("/dev/full").open("ab", buffering=0) as log._file,
            pytest.raises(OutputError, match="No space left"),
        ):
            log.add("train", 1, {})


def test_nothing_is_written_before_the_log_is_entered(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10])
    before = (tmp_path / "m").read_bytes()
    MetricsLog(tmp_path / "m", 5)
    assert (tmp_path / "m").read_bytes() == before


def test_an_event_without_time_does_not_set_the_clock_back(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log.add("train", 5, {"seconds": 7.0})
        log.add("average", 5, {"loss": 1.0})
    assert MetricsLog(tmp_path / "m", 5).seconds == 7.0


def test_tensorboard_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RecipeError, match=r"pip install 'phmctl\[tensorboard\]'"):
        MetricsLog(tmp_path / "m", tensorboard=tmp_path / "board")


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
