"""Real classifiers behind the service: what a client gets is what the library says."""

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

import phmctl
from phmctl.runs import Run
from phmctl.serving.app import build_app
from phmctl.serving.batching import Service
from phmctl.tasks.model import Model


def answers(model: Model, texts: list) -> list[dict]:
    found = TestClient(build_app(Service(model))).post("/classify", json={"texts": texts, "cut": True})
    assert found.status_code == 200, found.text
    return found.json()["answers"]


def expected(model: Model, texts: list) -> list[dict]:
    return [
        {"label": one.label, "probabilities": pytest.approx(dict(one.probabilities), abs=1e-6), "cut": one.cut}
        for one in model.classify(texts)
    ]


def test_texts(runs: dict[str, Run]) -> None:
    model = phmctl.load(runs["encoder"].folder, device="cpu")
    texts = ["the cat", "the dogs near the key", " ", "the cat " * 200]
    found = answers(model, texts)
    assert [*found[:2], found[3]] == expected(model, [*texts[:2], texts[3]])
    assert found[2] == {"label": None, "probabilities": {}, "cut": False}
    assert found[3]["cut"]


def test_pairs(runs: dict[str, Run]) -> None:
    model = phmctl.load(runs["lstm-pair"].folder, device="cpu")
    pairs = [("see the cat", "the cat is here"), ("see the dog", "the key is here")]
    assert answers(model, [list(pair) for pair in pairs]) == expected(model, pairs)
