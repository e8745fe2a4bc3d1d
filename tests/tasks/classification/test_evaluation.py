import json
import shutil
from collections import Counter
from pathlib import Path

import pandas
import pytest

import phmctl
from phmctl.answering.classifier import Classified
from phmctl.errors import DataError, UserError
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks.classification import Examples, read_examples, read_predicted, write_predictions
from tests.tasks.classification.conftest import evaluate


def rows_of(run: Run, name: str = "test") -> list[dict[str, str]]:
    (path,) = run.results_folder.glob(f"{name}.*.predictions.tsv")
    lines = path.read_text().splitlines()
    titles = lines[0].split("\t")
    return [dict(zip(titles, line.split("\t"), strict=True)) for line in lines[1:]]


def test_scores_are_those_of_the_predictions(runs: dict[str, Run]) -> None:
    run = runs["encoder"]
    scores, rows = evaluate(run), rows_of(run)
    right = [row["label"] == row["predicted"] for row in rows]
    assert scores.accuracy.total == len(rows) == len(read_examples(run, "test").labels) > 50
    assert scores.accuracy.value == pytest.approx(sum(right) / len(rows))
    pairs = Counter((row["label"], row["predicted"]) for row in rows)
    assert scores.confusion == [[pairs[truth, guess] for guess in scores.labels] for truth in scores.labels]
    assert scores.majority == max(Counter(row["label"] for row in rows).values()) / len(rows)
    assert scores.macro_f1 == pytest.approx(sum(one.f1 for one in scores.classes) / 2)
    for group in scores.groups["distractors"]:
        own = [good for row, good in zip(rows, right, strict=True) if int(row["distractors"]) == group.value]
        assert (group.accuracy.right, group.accuracy.total) == (sum(own), len(own))
    assert sum(group.accuracy.total for group in scores.groups["distractors"]) == len(rows)


@pytest.mark.parametrize(("kind", "columns"), [("encoder", ["first"]), ("lstm-pair", ["first", "second"])])
def test_a_table_is_scored_as_the_split_of_the_same_examples(runs, tmp_path, kind, columns) -> None:
    examples, table = read_examples(runs[kind], "test"), tmp_path / "new.csv"
    lines = [",".join([*texts, label, "x"]) for texts, label in zip(examples.texts, examples.labels, strict=True)]
    table.write_text("\n".join([",".join([*columns, "gold", "more"]), *lines]) + "\n")
    before = sorted(runs[kind].results_folder.iterdir())
    given = {"table": table, "text": columns, "label": "gold"}
    found = phmctl.evaluate(runs[kind].folder, device="cpu", **given)
    assert sorted(runs[kind].results_folder.iterdir()) == before
    own = evaluate(runs[kind])
    assert (found.accuracy, found.confusion, found.split) == (own.accuracy, own.confusion, "new.csv")
    other = columns[:1] if len(columns) == 2 else [*columns, "more"]
    for wrong in ({"text": ["first"]}, {**given, "split": "valid"}, {**given, "text": other}):
        with pytest.raises(UserError):
            phmctl.evaluate(runs[kind].folder, device="cpu", **wrong)
    table.write_text(table.read_text().replace(examples.labels[0], "unheard"))
    with pytest.raises(DataError, match="unheard"):
        phmctl.evaluate(runs[kind].folder, device="cpu", **given)


def test_a_split_without_examples_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(runs["encoder"].folder, tmp_path / "run"))
    (run.text_folder / "empty.jsonl").touch()
    with pytest.raises(DataError, match="empty"):
        evaluate(run, "empty")


def test_predictions_are_a_table_that_other_programs_read(tmp_path: Path) -> None:
    texts = ['"Stop', 'he said "no', "a\tb", "plain", 'x"', "'quoted'"]
    labels = ['a"', '"b"', "c", "d e", "f", "g"]
    examples = Examples([(text,) for text in texts], labels, {"distractors": list(range(len(texts)))})
    path = tmp_path / "predictions.tsv"
    write_predictions(path, examples, [Classified(label, {label: 1.0}) for label in labels])
    table = pandas.read_csv(path, sep="\t")
    assert table["text"].tolist() == [text.replace("\t", " ") for text in texts]
    assert table["predicted"].tolist() == table["label"].tolist() == labels == read_predicted(path)


def test_each_split_has_a_result_of_its_own(runs: dict[str, Run]) -> None:
    for split in ("test", "test_other", "valid"):
        report = evaluate(runs["encoder"], split)
        (written,) = (one for one in read_results(runs["encoder"]) if one.split == split)
        assert written.report == json.loads(json.dumps(report.as_json()))
        assert written.scores == {"accuracy": report.accuracy.value}
        assert len(written.answers.read_text().splitlines()) == report.accuracy.total + 1
    assert (report.split, evaluate(runs["encoder"], "test_other").accuracy.total) == ("valid", 40)
