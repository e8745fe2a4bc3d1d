"""The same loop on a GPU. Skipped where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from phmctl.data.prepared import PreparedData
from phmctl.errors import NonFiniteError
from phmctl.runs import Run
from phmctl.runs.results import read_metrics
from phmctl.signals import StopRequest
from phmctl.storage import read_checkpoint
from phmctl.tasks.translation_training import TranslationTask
from phmctl.training.trainer import Trainer
from tests.training.conftest import Fit
from tests.training.copying import copying_recipe
from tests.training.fake import FakeTask
from tests.training.test_resume import SETTINGS, Interrupting, contents

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class CudaTask(FakeTask):
    def validate(self, model, *options):
        self.validations += 1
        batch = self.make(999_999, 64).to(torch.device("cuda"))
        with torch.no_grad():
            return {"loss": self.loss(model, batch)[0].item() / 64}


class InterruptingCudaTask(Interrupting, CudaTask):
    pass


def test_resuming_on_the_gpu_is_exact(fit: Fit, tmp_path: Path) -> None:
    settings = SETTINGS | {"device": "cuda"}
    uninterrupted = fit(CudaTask(), root=tmp_path / "whole", **settings)
    stopped = fit(InterruptingCudaTask(38), root=tmp_path / "cut", **settings)
    assert stopped.steps == 13
    resumed = fit(CudaTask(), old=stopped.run, **settings)
    assert contents(resumed.run) == contents(uninterrupted.run)


def test_a_bad_step_is_named_later_and_the_weights_stay(fit: Fit, tmp_path: Path) -> None:
    """The host looks at the log interval only: step 9 is bad, step 10 is the log line."""
    with pytest.raises(NonFiniteError, match="step 9;"):
        fit(CudaTask(poison=(1, 1)), steps=20, device="cuda")
    run = Run.open(tmp_path / "fake/phm-n4")
    tensors = read_checkpoint(run.checkpoint("last"), ["model"]).tensors["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


@contextmanager
def translation(data: Path, runs: Path, device: str, **training: object) -> Iterator[Trainer]:
    """A trainer of the real task, with the same weights at the start on every device."""
    recipe = copying_recipe(dropout=0.0, clip=1.0, accumulate=2, log_every=1, **training)
    task = TranslationTask(recipe, PreparedData.find(recipe.data, data))
    torch.manual_seed(1)
    weights = task.build_model("cpu").state_dict()
    run = Run.create(runs, recipe)
    trainer = Trainer(task, run, torch.device(device))
    trainer.begin()
    with trainer.log:
        trainer.model.load_state_dict(weights)
        yield trainer


def test_translation_in_bfloat16_follows_the_cpu_in_float32(copying_data: Path, tmp_path: Path) -> None:
    """Training, validation with greedy BLEU, saving: the losses agree to the precision of bfloat16."""
    losses: dict[str, dict[str, list[float]]] = {}
    settings = {"steps": 20, "validate_every": 10, "validate_bleu": True}
    for device, precision in (("cpu", "float32"), ("cuda", "bfloat16")):
        with translation(copying_data, tmp_path / device, device, precision=precision, **settings) as trainer:
            trainer.fit(StopRequest())
            entries = read_metrics(trainer.run.metrics_path)
            losses[device] = {
                event: [entry["loss"] for entry in entries if entry["event"] == event]
                for event in ("train", "validation")
            }
            assert trainer.run.checkpoint("last").name == "step-000020"
    assert (len(losses["cuda"]["train"]), len(losses["cuda"]["validation"])) == (20, 2)
    assert losses["cuda"]["train"][-1] < losses["cuda"]["train"][0] - 0.3
    for event, values in losses["cpu"].items():
        assert losses["cuda"][event] == pytest.approx(values, rel=0.02)


def test_a_step_of_translation_never_waits_for_the_device(copying_data: Path, tmp_path: Path) -> None:
    with translation(copying_data, tmp_path, "cuda", steps=100, precision="bfloat16") as trainer:
        trainer._step()  # the optimiser makes its state
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                trainer._step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
