import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from phmctl.decoding.loading import load_translator
from phmctl.export.verb import export
from phmctl.exports import CTRANSLATE2, open_run_or_export
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from tests.serving.processes import Server
from tests.tasks.translation.runs import SOURCES, make_run

MAIN = "from phmctl.cli.main import run; run()"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def server(run: Run) -> Iterator[Server]:
    server = Server(["-c", MAIN, "serve", str(run.folder), "--port", "0", "--device", "cpu", "--threads", "1"])
    try:
        yield server
    finally:
        code, said = server.end(signal.SIGTERM)
        assert code == 143
        assert said == f"serving {run.name}; Ctrl-C stops\n"


def test_answers_are_those_of_decode(server: Server, run: Run) -> None:
    assert isinstance(run.recipe, TranslationRecipe)
    decoded = load_translator(run, "best", "cpu").translate(SOURCES, n_best=2)
    expected = [[{"text": one.text, "score": one.score} for one in each] for each in decoded]
    found = server.ask(*SOURCES, n_best=2, cut=True).json()["answers"]
    assert [[each["text"] for each in answer["translations"]] for answer in found] == [
        [each["text"] for each in best] for best in expected
    ]
    assert [answer["translations"][0]["score"] for answer in found] == pytest.approx(
        [best[0]["score"] for best in expected], abs=1e-5
    )
    assert [answer["cut"] for answer in found] == [best[0].cut for best in decoded]
    health = server.health()
    assert (health["model"], health["about"]["checkpoint"]) == (run.name, run.checkpoint("best").name)


def test_the_address_is_json_if_wanted(run: Run) -> None:
    command = ["-c", MAIN, "serve", str(run.folder), "--port", "0", "--json", "--checkpoint", "last"]
    server = Server(command, json_lines=5)
    assert (server.about["model"], server.about["task"]) == (run.name, "translation")
    assert server.health()["about"]["checkpoint"] == run.checkpoint("last").name
    assert server.end(signal.SIGINT)[0] == 130


# ------------------------------------------------------------------------------------------------------- exports


def test_an_export_is_served_as_decode_answers_it(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    export(tiny_run, CTRANSLATE2, tmp_path / "ct2", texts=4)
    lines = (tiny_run.text_folder / "test.source").read_text(encoding="utf-8").split("\n")[:8]
    expected = load_translator(open_run_or_export(tmp_path / "ct2")).translate(lines)
    server = Server(["-c", MAIN, "serve", str(tmp_path / "ct2"), "--port", "0", "--threads", "1"])
    try:
        found = server.ask(*lines, cut=True).json()["answers"]
        assert [answer["translations"][0]["text"] for answer in found] == [best[0].text for best in expected]
        health = server.health()
        assert (health["about"]["engine"], health["answers"]) == ("ctranslate2", ["/translate"])
    finally:
        assert server.end(signal.SIGTERM)[0] == 143
