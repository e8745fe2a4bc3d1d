"""What a user got wrong is said in a few lines on stderr, with exit code 2, and nothing is written."""

import sys
from pathlib import Path

import pytest

from phmctl.cli.main import run
from phmctl.runs import Run

PREPARE = [
    ("multi30k", "did you mean 'multi30k-de-en'"),
    ("", "no corpus is named"),
    ("miniatur --list", "did you mean 'miniature'"),
    ("multi30k-de-en --source nowhere", "nowhere"),
    ("../mine --train t.tsv --valid t.tsv", "cannot name a corpus"),
    ("mine --train t.tsv --valid t.tsv --vocabulary 3", "--vocabulary 3"),
    ("mine --train t.tsv --valid t.tsv --tokenizer x", "--tokenizer x"),
    ("mine --train t.tsv --valid t.tsv --refetch", "--refetch"),
    ("mine --vocabulary 5 --vocabulary 6", "--vocabulary is given 2 times"),
    ("mine --train t.tsv --valid t.tsv --columns 0", "--columns 0: wants two"),
    ("mine --train t.tsv --valid t.tsv --columns 1,2", "column 3 is wanted"),
    ("mine --train t.tsv --valid t.tsv --columns de,en", "has no column 'de'"),
    ("mine --train t.tsv --valid t.tsv --columns a,b --no-header", "with --no-header"),
    ("mine --train empty.tsv --valid t.tsv --columns 0,1 --header", "empty.tsv is empty"),
    ("mine --train t.tsv --valid t.tsv --label de", "--label is for labelled text"),
    ("mine --train t.tsv --valid t.tsv --source .", "--source is for a card's files"),
    ("shakespeare --train t.tsv --valid t.tsv", "'shakespeare' is a card"),
    ("mine --train wide.tsv --valid t.tsv", "--columns SOURCE,TARGET"),
    ("mine --train t.jsonl --valid t.tsv", "or columns: --columns SOURCE,TARGET"),
    ("mine --train t.de t.en --valid t.tsv --columns 0,1", "--columns, --header, --quoting"),
    ("mine --train t.de --valid t.tsv", "name two files, SOURCE TARGET"),
    ("mine --train t.tsv --valid t.tsv --test t.de nope", "--test: nope is no file"),
    ("mine --train t.tsv --valid t.tsv --test News=t.de t.en", "no split can be called 'test_News'"),
    ("mine --train t.tsv --valid t.tsv --languages de", "--languages de"),
    ("miniature --columns 0,1", "--columns"),
    ("mine --train wide.tsv --valid wide.tsv --columns a,b --extra c", "not a whole number"),
    ("mine --train wide.tsv --valid wide.tsv --columns a,b --extra cc", "did you mean 'c'"),
    ("snli --joint", "--joint or --separate is for parallel text"),
    ("snli --text a", "--text is for your own files"),
    ("miniature --vectors v", "--vectors is for labelled text"),
    ("mine --table train", "wants SPLIT=FILE"),
    ("mine --table train=a --table train=b", "--table train is given twice"),
    ("mine --table train=t.tsv --text a", "--label COLUMN"),
    ("mine --table valid=t.tsv --text a --label b", "--table of both, are needed"),
    ("mine --table train=t.tsv --text a --label a", "column 'a' is named twice"),
    ("mine --train t.tsv --valid t.tsv --vocabulary-of RUN --tokenizer word", "was made with 'bpe'"),
    ("mine --train t.tsv --valid t.tsv --vocabulary-of RUN --lowercase", "--lowercase: the vocabulary of"),
]
TRAIN = [
    ("multi30k-deen", "did you mean 'multi30k-de-en'"),
    ("", "train needs a RECIPE"),
    ("probe", "eval RUN --probing"),
    ("miniature --n 3", "n = 3 does not divide"),
    ("miniature --n 3,4", "n=3"),
    ("miniature --seed 1,x", "--seed x: expected a whole number"),
    ("miniature --set training.stesp=1", "did you mean 'steps'"),
    ("miniature --steps 5 --set training.steps=3", "both set training.steps"),
    ("miniature --data nowhere", "phmctl prepare-data miniature"),
    ("miniature --frobnicate", "No such option"),
    ("miniature --checkpoint best", "--checkpoint best says where to continue from"),
    ("miniature --tag a/b", "--tag a/b: want a name of letters"),
    ("miniature --seed 1,2 --resume", "--resume is for one training"),
    ("miniature --seed 1,2 --jobs 999", "--jobs 999: this machine has"),
    ("miniature --seed 1,2 --init nope", "no run at nope"),
    ("--resume RUN --tag x", "--tag x names a new run"),
    ("--resume nope", "no run at nope"),
    ("x" * 300, "so long a name"),
]
OTHERS = [
    ("decode no-such-run", "no-such-run"),
    ("decode RUN --input x --split test", "exclude each other"),
    ("decode RUN --resume", "add --output FILE"),
    ("decode RUN --n-best 4 --beam 2 --split test", "--beam 4"),
    ("decode RUN --beam 0", "--beam 0"),
    ("decode RUN --quantize int8", "--quantize is CTranslate2's"),
    ("eval RUN --split dev", "it has test, valid"),
    ("eval RUN --beam 1,x", "--beam x: "),
    ("eval RUN --all --probing", "--probing is for one run"),
    ("eval RUN --set training.steps=1", "--set: belongs to --probing"),
    ("eval RUN --probing --beam 1", "--beam: has no part in --probing"),
    ("compare", "--recipe"),
    ("compare RUN --baseline phm-n8", "did you mean 'phm-n4'"),
    ("compare RUN --split tset", "did you mean 'test'"),
    ("compare RUN --checkpoint avrage", "average"),
    ("compare RUN --format latx", "did you mean 'latex'"),
    ("compare RUN --budget dollars", "dollars"),
    ("compare --paper tabel2", "did you mean 'table2'"),
    ("compare --paper table4 --recipe multi30k-de-en", "no recipe of table4 'multi30k-de-en'"),
    ("compare RUN --best-of training.learning_rat", "did you mean 'training.learning_rate'"),
    ("recipes hamiltn", "did you mean 'hamilton'"),
    ("count-params", "needs a RECIPE, or --paper"),
    ("count-params miniature --n 0", "--n 0"),
    ("count-params miniature --n 1,,2", "--n"),
    ("count-params miniature --algebra quaternions", "did you mean 'quaternion'"),
    ("count-params table8 --paper", "table1, "),
    ("serve nope --port 0", "no run at nope"),
    ("serve RUN --port 0 --host no-such-host.invalid", "no-such-host"),
    ("bench layer --n x", "--n x: expected a whole number"),
    ("bench layer --tokens 0", "--tokens 0"),
]
SAID = [
    *((f"prepare-data {words}", said) for words, said in PREPARE),
    *((f"train {words}", said) for words, said in TRAIN),
]


@pytest.mark.parametrize(("command", "said"), [*SAID, *OTHERS], ids=lambda value: value[:60])
def test_what_is_wrong_is_said(
    command: str,
    said: str,
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
    assert said in err
    assert len(err[err.index("error: " if "error: " in err else "Usage") :].splitlines()) <= 4
    assert sorted(tmp_path.iterdir()) == before  # nothing half written
