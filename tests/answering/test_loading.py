import json
import logging
import random
import shutil
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import phmctl
from phmctl.answering.translator import Translator
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear
from phmctl.runs import Run
from tests.answering.conftest import TEXT


def test_a_copied_folder_loads_and_says_what_it_is(run: Run, translator: Translator, tmp_path: Path) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "elsewhere")
    model = phmctl.load(str(copy), device="cpu")
    assert model.translate(TEXT[:2]) == translator.translate(TEXT[:2])
    assert repr(translator) == "<phmctl translator tiny/real/v001: translate, score, encode>"
    about = json.loads(json.dumps(translator.about()))
    assert about["name"] == translator.name == "tiny/real/v001"
    assert about["task"] == translator.task == "translation"
    assert about["methods"] == ["translate", "score", "encode"]
    assert (about["folder"], about["checkpoint"]) == (str(run.folder), "step-000002")
    assert (about["engine"], about["device"]) == ("torch", "cpu")
    assert about["decoding"]["beam"] == 3
    about["methods"].clear()
    assert translator.about()["methods"]
    last = phmctl.load(run.folder, checkpoint="last", device="cpu")
    assert last.about()["checkpoint"] == "step-000001"
    assert last.translate(TEXT[:3]) != translator.translate(TEXT[:3])


def test_weights_in_bfloat16(run: Run, translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: True)
    half = phmctl.load(run.folder, device="cpu", precision="bfloat16")
    assert {each.dtype for each in half.engine.model.parameters()} == {torch.bfloat16}
    assert half.about()["decoding"]["precision"] == "bfloat16"
    (exact,), (near,) = (model.translate(TEXT[:1], beam=1)[0] for model in (translator, half))
    assert near.log_prob != exact.log_prob
    assert near.log_prob == pytest.approx(exact.log_prob, rel=0.05)


def state_of_the_process() -> list[object]:
    """What a library has no business to change."""
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        [str(each) for each in np.random.get_state()],
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        list(warnings.filters),
        [signal.getsignal(each) for each in signal.valid_signals()],
        logging.getLogger().handlers[:],
        logging.getLogger().level,
        sorted(map(str, logging.getLogger("phmctl").handlers)),
        threading.active_count(),
    ]


@pytest.mark.parametrize("kind", ["translator", "encoder", "lstm-pair"])
def test_nothing_global_is_changed_and_nothing_printed_or_written(run, runs, kind, capfd, monkeypatch) -> None:
    folder = run.folder if kind == "translator" else runs[kind].folder
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    before = state_of_the_process()
    model = phmctl.load(folder, device="cpu")
    monkeypatch.delattr(torch, "set_default_dtype")  # the whole process's, so that two threads would mix it up
    if kind == "translator":
        model.translate([TEXT[2] * 3])  # which is cut
        model.score(TEXT[:2], TEXT[:2])
    else:
        model.classify([("a", "b")] if kind == "lstm-pair" else ["a " * 500])
    model.encode(["a"])
    assert state_of_the_process() == before
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == files
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["translator", "encoder", "lstm-pair"])
def test_threads_at_once_get_equal_answers(run: Run, runs: dict[str, Run], kind: str) -> None:
    model, texts = phmctl.load((runs | {"translator": run})[kind].folder, device="cpu"), [*TEXT[:2], "", TEXT[3]]
    calls: list[Callable[[], object]] = [lambda: model.encode(texts).tolist()]
    if kind == "translator":
        calls += [lambda: model.translate(texts, n_best=2), lambda: model.score(texts, texts)]
    else:
        calls.append(lambda: model.classify([(text, text) for text in texts] if kind == "lstm-pair" else texts))
    wanted = [call() for call in calls]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda call: call(), calls * 16)) == wanted * 16


def test_what_answers_is_a_dense_model(tiny_run: Run, runs: dict[str, Run]) -> None:
    for model in (phmctl.load(tiny_run.folder).engine.model, phmctl.load(runs["encoder"].folder).model):
        assert not [module for module in model.modules() if isinstance(module, PHMLinear | PHMEmbedding)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"checkpoint": "lest"}, RunError, "did you mean 'last'"),
        ({"device": "tpu"}, RecipeError, "device 'tpu' is not known"),
        ({"threads": 2}, UserError, r"call torch\.set_num_threads"),
        ({"precision": "bfloat"}, RecipeError, "bfloat16"),
    ],
)
def test_wrong_arguments(run: Run, arguments: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        phmctl.load(run.folder, **arguments)
