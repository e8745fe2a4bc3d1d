"""The same loop on a GPU. Skipped where there is none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from phmctl.checkpoints import read_checkpoint
from phmctl.errors import NonFiniteError
from phmctl.runs import Run
from phmctl.training.metrics_log import MetricsLog
from phmctl.training.progress import ProgressLine
from phmctl.training.trainer import Trainer
from tests.training.conftest import Fit
from tests.training.fake import FakeTask, make_recipe
from tests.training.test_resume import SETTINGS, Interrupting, _contents

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class CudaTask(FakeTask):
    def validate(self, model, autocast):
        self.validations += 1
        batch = self.make(999_999, 64).to(torch.device("cuda"))
        with torch.no_grad():
            return {"loss": self.loss(model, batch)[0].item() / 64}


class InterruptingCudaTask(Interrupting, CudaTask):
    pass


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    recipe = make_recipe(clip=1.0, accumulate=2, precision="bfloat16")
    run = Run.create(tmp_path, recipe)
    with MetricsLog(run.metrics_path) as log:
        yield Trainer(CudaTask(), recipe.training, run, torch.device("cuda"), log, ProgressLine(1, 0, quiet=True))


def test_a_step_never_waits_for_the_device(trainer: Trainer) -> None:
    trainer._step()  # the optimiser makes its state
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            trainer._step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer._log()
    assert trainer.state.step == 6


def test_resuming_on_the_gpu_is_exact(fit: Fit, tmp_path: Path) -> None:
    settings = SETTINGS | {"device": "cuda"}
    whole = fit(CudaTask(), root=tmp_path / "whole", **settings)
    stopped = fit(InterruptingCudaTask(38), root=tmp_path / "cut", **settings)
    assert stopped.steps == 13
    resumed = fit(CudaTask(), old=stopped.run, **settings)
    assert _contents(resumed.run) == _contents(whole.run)


def test_a_bad_step_is_named_later_and_the_weights_stay(fit: Fit, tmp_path: Path) -> None:
    """The host looks at the log interval only: step 9 is bad, step 10 is the log line."""
    with pytest.raises(NonFiniteError, match=r"step 9: the output of first is NaN or infinite \(epoch 1, batch 1\)"):
        fit(CudaTask(poison=(1, 1)), steps=20, device="cuda")
    run = Run.open(tmp_path / "fake/phm-n4")
    tensors = read_checkpoint(run.checkpoint("last"), ["model"]).tensors["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
