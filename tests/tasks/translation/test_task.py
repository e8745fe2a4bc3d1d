"""The translation task: its batches, its loss, and a run that works far from home."""

import math
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from phmctl.answering.beam import BeamEngine
from phmctl.data import PAD
from phmctl.data.corpus import Corpus, own_corpus
from phmctl.data.prepare import prepare
from phmctl.data.prepared import PreparedData
from phmctl.data.tokenizer import Tokenizer, TokenizerPair
from phmctl.errors import DataError, RunError, UserError
from phmctl.metrics.text import CorpusScore
from phmctl.processes import Processes
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.storage import write_json
from phmctl.tasks.translation_training import TranslationTask
from phmctl.training.train import train_task
from tests.calls import call
from tests.data.helpers import flip
from tests.tasks.translation.runs import evaluate


@pytest.fixture(scope="module")
def task(tiny_recipe: TranslationRecipe, miniature_data: Path) -> TranslationTask:
    return TranslationTask(tiny_recipe, PreparedData.find(tiny_recipe.data, miniature_data))


def test_loss_is_the_summed_cross_entropy_of_the_target(task: TranslationTask) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    batch = task.collate(task.plan(0)[0])
    loss, tokens = task.loss(model, batch)
    logits = model.logits(model(batch.source, batch.target[:, :-1]))
    targets = batch.target[:, 1:]
    assert tokens == int((targets != PAD).sum())
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-3)


def test_validation_is_the_mean_over_all_tokens_whatever_the_batches(task: TranslationTask) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    metrics = task.validate(model, nullcontext, Processes())
    smaller = task.recipe.training.model_copy(update={"batch_tokens": 300})
    again = TranslationTask(task.recipe.model_copy(update={"training": smaller}), task.prepared).validate(
        model, nullcontext, Processes()
    )
    assert metrics["loss"] == pytest.approx(again["loss"], rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert task.score(metrics) == pytest.approx(metrics.get("bleu", -metrics["loss"]))


def test_the_plan_of_an_epoch_is_its_own_and_has_every_row_once(task: TranslationTask) -> None:
    whole = [rows.tolist() for rows in task.plan(3)]
    assert [rows.tolist() for rows in task.plan(3)] == whole != [rows.tolist() for rows in task.plan(4)]
    assert sorted(row for rows in whole for row in rows) == list(range(len(task.prepared.split("train"))))


def test_the_cost_is_what_the_batch_holds(task: TranslationTask) -> None:
    for rows in task.plan(0)[:3]:
        batch, cost = task.collate(rows), task.cost(rows)
        assert cost.items == batch.target_tokens == int((batch.target[:, 1:] != PAD).sum())
        assert cost.tokens == cost.items + int((batch.source != PAD).sum())


def patterned(folder: Path, pattern: str) -> Corpus:
    splits = {"train": range(40), "valid": range(40, 45), "test": range(45, 50)}
    files = {}
    for split, numbers in splits.items():
        files[split] = [(folder / f"{split}.a", folder / f"{split}.b")]
        for path in files[split][0]:
            path.write_text("".join(pattern.format(number) + "\n" for number in numbers), encoding="utf-8")
    return own_corpus("own", files)


def with_bleu(recipe: TranslationRecipe, tokenizer: str | None = None, **data: Any) -> TranslationRecipe:
    section = recipe.data.model_copy(update={"card": "own", "vocabulary": 300, **data})
    training = recipe.training.model_copy(update={"validate_bleu": True, "bleu_tokenizer": tokenizer})
    return recipe.model_copy(update={"data": section, "training": training})


def test_entities_are_decoded_once_on_every_path(tmp_path, tiny_recipe, monkeypatch) -> None:
    """``&amp;lt;`` stands for ``&lt;``: decoded again it would be another text."""
    seen: list[str] = []
    encode = Tokenizer.encode

    def spy(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        seen.extend(filter(None, texts))  # reading a tokenizer encodes an empty text
        return encode(self, texts)

    recipe = with_bleu(tiny_recipe)
    cleaning = {"entities": "decode", "lowercase": True}
    corpus = patterned(tmp_path, "a &amp;lt; {}")
    task = TranslationTask(recipe, prepare(recipe.data, corpus, cleaning, root=tmp_path))
    monkeypatch.setattr(Tokenizer, "encode", spy)
    run = train_task(task, task.recipe, tmp_path / "runs").run
    assert {line[:-2] for line in seen} == {"a &lt; "}  # validation BLEU
    seen.clear()
    call("decode", run.folder, "--input", tmp_path / "test.a", "--checkpoint", "last", "--output", tmp_path / "out")
    assert seen == [f"a &lt; {number}" for number in range(45, 50)]
    seen.clear()
    scores = evaluate(run, "test", "last").scores
    assert seen == [f"a &lt; {number}" for number in range(45, 50)]
    assert "case:lc" in scores[0].signature  # as the corpus
    assert "case:mixed" in evaluate(run, "test", "last", lowercase=False).scores[0].signature


def test_a_run_is_not_continued_with_other_tokenizers(tiny_run: Run, task: TranslationTask, tmp_path: Path) -> None:
    """The manifests agree, and so do the sizes: two merges have changed places."""
    run = Run.open(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    task.check_run(run)
    tokenizer = TokenizerPair.load(run.tokenizer_folder).source
    merges = [*tokenizer.merges[1::-1], *tokenizer.merges[2:]]
    Tokenizer(tokenizer.algorithm, tokenizer.vocabulary, merges).save(run.tokenizer_folder / "tokenizer.json")
    write_json(run.folder / "data.json", run.data())
    with pytest.raises(RunError, match="tokenizers"):
        task.check_run(run)


@pytest.mark.parametrize("fault", ["damage", "budget"])
def test_data_that_cannot_be_trained_on_shows_before_a_run_is_made(
    tiny_recipe: TranslationRecipe, miniature_data: Path, tmp_path: Path, fault: str
) -> None:
    shutil.copytree(miniature_data, tmp_path / "data")
    prepared, recipe = PreparedData.find(tiny_recipe.data, tmp_path / "data"), tiny_recipe
    path = prepared.folder / "train.arrow"
    if fault == "damage":
        flip(path, path.stat().st_size // 2)  # among the tokens: nothing but the SHA-256 tells
        place = r"train\.arrow"
    else:
        training = recipe.training.model_copy(update={"batch_tokens": 5})
        recipe, place = recipe.model_copy(update={"training": training}), "batch_tokens"
    with pytest.raises(DataError, match=place):
        train_task(TranslationTask(recipe, prepared), recipe, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_validation_bleu_cuts_long_sources_as_decode_does(
    tmp_path: Path, tiny_recipe: TranslationRecipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cut, the search would go on for twice as many steps as the longest line has tokens."""
    corpus = patterned(tmp_path, "Line {} .")
    with (tmp_path / "valid.a").open("a") as source, (tmp_path / "valid.b").open("a") as target:
        source.write("Line " * 20_000 + "\n")
        target.write("Line\n")
    recipe = with_bleu(tiny_recipe, max_tokens=12)
    task = TranslationTask(recipe, prepare(recipe.data, corpus, root=tmp_path))
    searched: list[int] = []
    search = BeamEngine.search

    def look(engine: BeamEngine, sources: list[list[int]], *given: Any, **options: Any) -> Any:
        searched.extend(map(len, sources))
        return search(engine, sources, *given, **options)

    monkeypatch.setattr(BeamEngine, "search", look)
    capsys.readouterr()
    assert 0 <= task._greedy_bleu(task.build_model(), task.prepared.split("valid"), Processes()) <= 100
    assert max(searched) == 13  # with EOS
    assert capsys.readouterr().err == ""  # at each validation


def test_validation_bleu_splits_as_the_language_or_the_recipe_says(tmp_path, tiny_recipe, monkeypatch) -> None:
    corpus = replace(patterned(tmp_path, "Line {} ."), languages=("deu", "zho_Hans"))
    asked = list[str]()
    prepared = prepare(with_bleu(tiny_recipe).data, corpus, root=tmp_path)
    monkeypatch.setattr(
        "phmctl.tasks.translation_training.bleu",
        lambda *_, tokenize, **__: asked.append(tokenize) or CorpusScore("BLEU", 1, ""),
    )
    for name in (None, "char", "13b"):
        task = TranslationTask(with_bleu(tiny_recipe, name), prepared)
        metrics = task.validate(task.build_model(), nullcontext, Processes())
        assert task.score(metrics) == metrics["bleu"] == 1
    assert asked == ["zh", "char", "13b"]
    with pytest.raises(UserError, match="13b"):
        task.check_data()
