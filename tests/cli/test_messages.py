"""A user's mistake ends with exit code 2 and a few lines on stderr that name the place; nothing is written."""

import sys
from pathlib import Path

import pytest

from phmctl.cli.main import run
from phmctl.runs import Run

# Arguments, and the place that the message names: an option, a value, a file, a key, or the nearest valid name.
MISTAKES = [
    ("prepare-data multi30k", "'multi30k-de-en'"),
    ("prepare-data", "prepare-data --list"),
    ("prepare-data multi30k-de-en --source nowhere", "nowhere"),
    ("prepare-data ../mine --train t.tsv --valid t.tsv", "../mine"),
    ("prepare-data mine --train t.tsv --valid t.tsv --vocabulary 3", "vocabulary=3"),
    ("prepare-data mine --train t.tsv --valid t.tsv --tokenizer x", "tokenizer=x"),
    ("prepare-data mine --train t.tsv --valid t.tsv --columns 0", "columns=0"),
    ("prepare-data mine --train t.tsv --valid t.tsv --columns de,en", "'de'"),
    ("prepare-data mine --train t.tsv --valid t.tsv --columns a,b --no-header", "without a header"),
    ("prepare-data mine --train empty.tsv --valid t.tsv --columns 0,1 --header", "empty.tsv"),
    ("prepare-data mine --train t.tsv --valid t.tsv --label de", "label"),
    ("prepare-data mine --train t.tsv --valid t.tsv --source .", "source"),
    ("prepare-data shakespeare --train t.tsv --valid t.tsv", "'shakespeare'"),
    ("prepare-data mine --train wide.tsv --valid t.tsv", "wide.tsv"),
    ("prepare-data mine --train t.de --train t.en --valid t.tsv --columns 0,1", "columns, header, quoting"),
    ("prepare-data mine --train t.de --valid t.tsv", "t.de"),
    ("prepare-data mine --train t.tsv --valid t.tsv --test t.de --test nope", "test: nope"),
    ("prepare-data mine --train t.tsv --valid t.tsv --test News=t.tsv", "'test_News'"),
    ("prepare-data mine --train t.tsv --valid t.tsv --languages de", "languages=de"),
    ("prepare-data miniature --columns 0,1", "columns"),
    ("prepare-data mine --train wide.tsv --valid wide.tsv --columns a,b --extra c", "'x'"),
    ("prepare-data mine --table train", "SPLIT=FILE"),
    ("prepare-data mine --table train=t.tsv --text a", "label, a column"),
    ("prepare-data mine --table valid=t.tsv --text a --label b", "mine"),
    ("prepare-data mine --train t.tsv --valid t.tsv --vocabulary-of RUN --tokenizer word", "'bpe'"),
    ("prepare-data mine --train t.tsv --valid t.tsv --vocabulary-of RUN --lowercase", "lowercase"),
    ("prepare-data " + "x" * 121 + " --train t.tsv --valid t.tsv", "120"),
    ("prepare-data mine --train t.tsv", "split="),
    ("prepare-data mine --train t.tsv --split many", "split="),
    ("prepare-data mine --train t.tsv --split 0,5", "split="),
    ("prepare-data mine --train t.tsv --split 50%,50%", "split="),
    ("prepare-data mine --train t.tsv --split 30,30", "split="),
    ("prepare-data mine --train t.tsv --split 5,5,5", "split="),
    ("prepare-data mine --train t.tsv --split 1 --valid t.tsv", "split="),
    ("train multi30k-deen", "'multi30k-de-en'"),
    ("train", "RECIPE"),
    ("train probe", "probe RUN"),
    ("train miniature --n 3", "n = 3"),
    ("train miniature --set training.stesp=1", "'steps'"),
    ("train miniature --steps 5 --set training.steps=3", "training.steps"),
    ("train miniature --data nowhere", "phmctl prepare-data miniature"),
    ("train miniature --frobnicate", "--frobnicate"),
    ("train miniature --checkpoint best", "checkpoint=best"),
    ("train miniature --tag a/b", "tag=a/b"),
    ("train RUN --tag x --resume", "tag=x"),
    ("sweep miniature --seed 1,x", "--seed x"),
    ("sweep miniature --seed 1,2 --jobs 999", "--jobs 999"),
    ("sweep miniature --set training.clip", "'training.clip'"),
    ("sweep miniature --seed 1,2 --data nowhere", "phmctl prepare-data miniature"),
    ("decode no-such-run", "no-such-run"),
    ("decode RUN --n-best 4 --beam 2", "beam=4"),
    ("decode RUN --beam 0", "beam=0"),
    ("eval RUN --split dev", "test, valid"),
    ("eval RUN --set training.steps=1", "--set"),
    ("eval RUN --split valid --source x", "source"),
    ("compare RUN --baseline phm-n8", "'phm-n4'"),
    ("compare RUN --split tset", "'test'"),
    ("compare RUN --checkpoint avrage", "average"),
    ("export RUN --to ctranslate -o out", "ctranslate2"),
    ("export RUN --to ctranslate2 --weights phm -o out", "--weights phm"),
    ("export RUN --to safetensors --weights sparse -o out", "sparse"),
    ("export RUN --to safetensors --quantize int5 -o out", "int4"),
    ("export RUN --to ctranslate2 --quantize int9 -o out", "int9"),
    ("export RUN --to ctranslate2 --checkpoint step-9 -o out", "step-9"),
    ("recipes hamiltn", "'hamilton'"),
    ("count-params miniature --algebra phm,", "--algebra 'phm,'"),
    ("count-params miniature --algebra quaternions", "'quaternion'"),
    ("serve RUN --port 0 --host no-such-host.invalid", "no-such-host"),
    ("bench layer --tokens 0", "--tokens 0"),
]


@pytest.mark.parametrize(("command", "place"), MISTAKES, ids=lambda value: value[:60])
def test_a_mistake_is_reported_with_its_place(
    command: str,
    place: str,
    tiny_run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = {"t.tsv": "a\tb\nc\td\n", "wide.tsv": "a\tb\tc\n1\t2\tx\n", "t.de": "a\n", "t.en": "b\n"}
    for name, text in (texts | {"t.jsonl": '{"de": "a", "en": "b"}\n', "empty.tsv": ""}).items():
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.iterdir())
    monkeypatch.delenv("PHMCTL_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["phmctl", *command.replace("RUN", str(tiny_run.folder)).split()])
    with pytest.raises(SystemExit) as ended:
        run()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert place in err
    assert ") (" not in err
    assert len(err[err.index("error: " if "error: " in err else "Usage") :].splitlines()) <= 4
    assert sorted(tmp_path.iterdir()) == before  # nothing half written
