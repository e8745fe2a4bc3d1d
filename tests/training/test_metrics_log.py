"""metrics.jsonl."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from phmctl.errors import OutputError, RecipeError, WriteFailedError
from phmctl.runs.metrics import read_metrics
from phmctl.training.metrics_log import SEAL, MetricsLog


def _fill(path: Path, steps: list[int]) -> None:
    with MetricsLog(path) as log:
        for step in steps:
            log.add("train", step, {"loss": step / 3, "seconds": float(step)})


def test_entries_are_appended(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10])
    assert read_metrics(tmp_path / "m")[1] == {"event": "train", "step": 10, "loss": 10 / 3, "seconds": 10.0}


def test_resuming_drops_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10, 15])
    with MetricsLog(tmp_path / "m", after_step=10) as log:
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
    with MetricsLog(path, after_step=10) as log:
        log.add("train", 15, {})
    assert [entry["step"] for entry in read_metrics(path)] == [5, 10, 15]


@pytest.mark.parametrize("most", [1, 7])
def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log._handle = Short(log._handle, most)
        for step in (5, 10):
            log.add("train", step, {"loss": step / 3, "seconds": float(step)})
    whole = (tmp_path / "m").read_bytes()
    _fill(tmp_path / "n", [5, 10])
    assert whole == (tmp_path / "n").read_bytes()


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log.add("train", 5, {})
        log._handle = Short(log._handle, 7, room=12)
        with pytest.raises(WriteFailedError, match="No space left") as full:
            log.add("train", 10, {})
        assert full.value.exit_code == 1
        log._handle.room = 1000
        log.add("train", 15, {})
    assert [entry["step"] for entry in read_metrics(tmp_path / "m")] == [5, 15]


class Short:
    """A handle that takes a few bytes at a time, and `room` in all."""

    def __init__(self, handle: Any, most: int, room: int = 10_000) -> None:
        self.handle, self.most, self.room = handle, most, room

    def write(self, data: bytes) -> int:
        part = data[: min(self.most, self.room)]
        if not part:
            raise OSError(28, "No space left on device")
        self.room -= len(part)
        return self.handle.write(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A log of six lines, sealed at the steps 10 and 20."""
    with MetricsLog(tmp_path / "m") as log:
        for step in (5, 10, 15, 20):
            log.add("train", step, {"loss": step / 3, "seconds": float(step)})
            if step % 10 == 0:
                log.add("validation", step, {"loss": 1.0})
                assert log.seal(step) == step * 3 // 10
    return tmp_path / "m"


def test_a_sealed_log_is_continued_after_its_lines(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the checkpoint's own step that came after it is no part of it, but an average is."""
    whole = sealed.read_bytes()
    further = b'{"event": "train", "step": 20}\n{"event": "average", "step": 20, "loss": 1}\n'
    sealed.write_bytes(whole + further + b'{"event": "train", "step": 25}\n{"event')
    with MetricsLog(sealed, 20, logged=6) as log:
        assert log.has("average", 20)
        assert not log.has("train", 25)
    assert sealed.read_bytes() == whole + b'{"event": "average", "step": 20, "loss": 1}\n'
    assert capsys.readouterr().err == ""


def test_an_earlier_seal_holds_too(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsLog(sealed, 10, logged=3) as log:
        log.add("train", 15, {})
        assert log.seal(15) == 4
    assert [entry["step"] for entry in read_metrics(sealed)] == [5, 10, 10, 15]
    assert capsys.readouterr().err == ""
    assert set(json.loads(sealed.with_name(SEAL).read_text())) == {"3", "4"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), r"m is gone: 6 lines were written up to step 20"),
        (lambda path: path.write_bytes(b""), r"m has 0 lines where 6 lines .* 6 are gone, at or before step 20"),
        (lambda path: _cut(path, 4), r"m has 4 lines where 6 lines .* 2 are gone, between the steps 10 and 20"),
        (lambda path: _alter(path, 0), r"m was altered at or before step 20"),
        (lambda path: _alter(path, 4), r"m was altered between the steps 10 and 20"),
        (lambda path: path.with_name(SEAL).unlink(), r"metrics\.seal\.json is missing or damaged"),
        (lambda path: path.with_name(SEAL).write_text("[]"), r"metrics\.seal\.json is missing or damaged"),
    ],
)
def test_what_is_gone_is_said(sealed: Path, damage: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage(sealed)
    kept = [entry["step"] for entry in read_metrics(sealed)]
    with MetricsLog(sealed, 20, logged=6) as log:
        log.add("train", 25, {})
        logged = log.seal(25)
    assert re.search(said, capsys.readouterr().err)
    assert [entry["step"] for entry in read_metrics(sealed)] == [*kept, 25]
    MetricsLog(sealed, 25, logged=logged)  # said once: what is left is sealed anew
    assert capsys.readouterr().err == ""


def _cut(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def _alter(path: Path, line: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    assert "1.6" in lines[0]
    lines[line] = re.sub(r"(loss.: \d)", lambda match: match[0][:-1] + str((int(match[0][-1]) + 1) % 10), lines[line])
    path.write_text("".join(lines))


def test_no_file_is_no_entries(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "m") == []


def test_a_full_disk_is_an_output_error(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log._handle.close()
        with (
            Path("/dev/full").open("ab", buffering=0) as log._handle,
            pytest.raises(OutputError, match="No space left"),
        ):
            log.add("train", 1, {})


def test_nothing_is_written_before_the_log_is_entered(tmp_path: Path) -> None:
    _fill(tmp_path / "m", [5, 10])
    before = (tmp_path / "m").read_bytes()
    MetricsLog(tmp_path / "m", after_step=5)
    assert (tmp_path / "m").read_bytes() == before


def test_an_event_without_time_does_not_set_the_clock_back(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log.add("train", 5, {"seconds": 7.0})
        log.add("average", 5, {"loss": 1.0})
    assert MetricsLog(tmp_path / "m", after_step=5).seconds == 7.0


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

    monkeypatch.setattr("phmctl.training.metrics_log.summary_writer", lambda: Writer)
    with MetricsLog(tmp_path / "m", after_step=3, tensorboard=tmp_path / "board") as log:
        log.add("validation", 4, {"loss": 0.5})
    assert scalars == [("validation/loss", 0.5, 4), ("closed", 0, 0)]
