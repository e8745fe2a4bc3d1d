import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from phmctl.answering.opening import CTRANSLATE2, find, load_translator
from phmctl.export.verb import export
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from tests.serving.processes import Server
from tests.tasks.translation.runs import SOURCES

MAIN = "from phmctl.cli.main import run; run()"


@pytest.fixture(scope="module")
def server(run: Run) -> Iterator[Server]:
    options = ["--checkpoint", "last", "--port", "0", "--device", "cpu", "--threads", "1"]
    server = Server(["-c", MAIN, "serve", str(run.folder), *options])
    try:
        yield server
    finally:
        code, errors = server.end(signal.SIGTERM)
        assert code == 143
        assert run.name in errors.splitlines()[0]


def test_answers_are_those_of_decode(server: Server, run: Run) -> None:
    assert isinstance(run.recipe, TranslationRecipe)
    decoded = load_translator(run, "last", "cpu").translate(SOURCES, n_best=2)
    answers = server.ask(*SOURCES, n_best=2, cut=True).json()["answers"]
    for answer, hypotheses in zip(answers, decoded, strict=True):
        assert [translation["text"] for translation in answer["translations"]] == [best.text for best in hypotheses]
        assert answer["translations"][0]["score"] == pytest.approx(hypotheses[0].score, abs=1e-5)
        assert answer["cut"] == hypotheses[0].cut
    health = server.health()
    assert (health["model"], health["about"]["checkpoint"]) == (run.name, run.checkpoint("last").name)


def test_an_export_answers_like_decode_and_json_prints_its_address(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    export(tiny_run, CTRANSLATE2, tmp_path / "ct2", texts=4)
    lines = (tiny_run.text_folder / "test.source").read_text(encoding="utf-8").split("\n")[:8]
    expected = load_translator(find(tmp_path / "ct2")).translate(lines)
    server = Server(
        ["-c", MAIN, "serve", str(tmp_path / "ct2"), "--port", "0", "--threads", "1", "--json"], json_lines=5
    )
    assert server.about["task"] == "translation"
    assert server.about["model"].startswith(tiny_run.name)
    try:
        answers = server.ask(*lines, cut=True).json()["answers"]
        assert [answer["translations"][0]["text"] for answer in answers] == [best[0].text for best in expected]
        health = server.health()
        assert (health["about"]["engine"], health["answers"]) == ("ctranslate2", ["/translate"])
    finally:
        assert server.end(signal.SIGINT)[0] == 130
