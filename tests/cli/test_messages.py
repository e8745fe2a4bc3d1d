"""A user's mistake ends with exit code 2 and a few lines on stderr that name the place; nothing is written."""

import sys
from pathlib import Path

import pytest

from phmctl.cli.main import run
from phmctl.runs import Run

# Arguments, and the place that the message names: an option, a value, a file, a key, or the nearest valid name.
PREPARE = [
    ("multi30k", "'multi30k-de-en'"),
    ("", "prepare-data NAME"),
    ("miniatur --list", "'miniature'"),
    ("multi30k-de-en --source nowhere", "nowhere"),
    ("../mine --train t.tsv --valid t.tsv", "../mine"),
    ("mine --train t.tsv --valid t.tsv --vocabulary 3", "--vocabulary 3"),
    ("mine --train t.tsv --valid t.tsv --tokenizer x", "--tokenizer x"),
    ("mine --train t.tsv --valid t.tsv --refetch", "--refetch"),
    ("mine --vocabulary 5 --vocabulary 6", "--vocabulary"),
    ("mine --train t.tsv --valid t.tsv --columns 0", "--columns 0"),
    ("mine --train t.tsv --valid t.tsv --columns 1,2", "t.tsv"),
    ("mine --train t.tsv --valid t.tsv --columns de,en", "'de'"),
    ("mine --train t.tsv --valid t.tsv --columns a,b --no-header", "--no-header"),
    ("mine --train empty.tsv --valid t.tsv --columns 0,1 --header", "empty.tsv"),
    ("mine --train t.tsv --valid t.tsv --label de", "--label"),
    ("mine --train t.tsv --valid t.tsv --source .", "--source"),
    ("shakespeare --train t.tsv --valid t.tsv", "'shakespeare'"),
    ("mine --train wide.tsv --valid t.tsv", "--columns SOURCE,TARGET"),
    ("mine --train t.jsonl --valid t.tsv", "--columns SOURCE,TARGET"),
    ("mine --train t.de t.en --valid t.tsv --columns 0,1", "--columns, --header, --quoting"),
    ("mine --train t.de --valid t.tsv", "t.de"),
    ("mine --train t.tsv --valid t.tsv --test t.de nope", "--test: nope"),
    ("mine --train t.tsv --valid t.tsv --test News=t.de t.en", "'test_News'"),
    ("mine --train t.tsv --valid t.tsv --languages de", "--languages de"),
    ("miniature --columns 0,1", "--columns"),
    ("mine --train wide.tsv --valid wide.tsv --columns a,b --extra c", "'x'"),
    ("mine --train wide.tsv --valid wide.tsv --columns a,b --extra cc", "'c'"),
    ("snli --joint", "--joint or --separate"),
    ("snli --text a", "--text"),
    ("miniature --vectors v", "--vectors"),
    ("mine --table train", "SPLIT=FILE"),
    ("mine --table train=a --table train=b", "--table train"),
    ("mine --table train=t.tsv --text a", "--label COLUMN"),
    ("mine --table valid=t.tsv --text a --label b", "--table"),
    ("mine --table train=t.tsv --text a --label a", "'a'"),
    ("mine --train t.tsv --valid t.tsv --vocabulary-of RUN --tokenizer word", "'bpe'"),
    ("mine --train t.tsv --valid t.tsv --vocabulary-of RUN --lowercase", "--lowercase"),
]
TRAIN = [
    ("multi30k-deen", "'multi30k-de-en'"),
    ("", "RECIPE"),
    ("probe", "eval RUN --probing"),
    ("miniature --n 3", "n = 3"),
    ("miniature --n 3,4", "n=3"),
    ("miniature --seed 1,x", "--seed x"),
    ("miniature --n 1,,2", "--n 1,,2"),
    ("miniature --n=-1", "--n -1"),
    ("miniature --set training.stesp=1", "'steps'"),
    ("miniature --steps 5 --set training.steps=3", "training.steps"),
    ("miniature --data nowhere", "phmctl prepare-data miniature"),
    ("miniature --frobnicate", "--frobnicate"),
    ("miniature --checkpoint best", "--checkpoint best"),
    ("miniature --tag a/b", "--tag a/b"),
    ("miniature --seed 1,2 --resume", "--resume"),
    ("miniature --seed 1,2 --checkpoint best", "--checkpoint"),
    ("miniature --seed 1,2 --dry-run", "--dry-run"),
    ("miniature --seed 1,2 --jobs 999", "--jobs 999"),
    ("miniature --seed 1,2 --init nope", "nope"),
    ("--resume RUN --tag x", "--tag x"),
    ("--resume nope", "nope"),
    ("x" * 300, "x" * 50),
]
OTHERS = [
    ("decode no-such-run", "no-such-run"),
    ("decode RUN --input x --split test", "--split"),
    ("decode RUN --n-best 4 --beam 2 --split test", "--beam 4"),
    ("decode RUN --beam 0", "--beam 0"),
    ("eval RUN --split dev", "test, valid"),
    ("eval RUN --beam 1,x", "--beam x"),
    ("eval RUN --all --probing", "--probing"),
    ("eval RUN --set training.steps=1", "--set"),
    ("eval RUN --probing --beam 1", "--beam"),
    ("eval RUN --split valid --source x", "--source"),
    ("compare", "--recipe"),
    ("compare RUN --baseline phm-n8", "'phm-n4'"),
    ("compare RUN --split tset", "'test'"),
    ("compare RUN --checkpoint avrage", "average"),
    ("recipes hamiltn", "'hamilton'"),
    ("prepare-data " + "x" * 121 + " --train t.de t.en --valid t.de t.en", "120"),
    ("count-params miniature --set name=" + "x" * 101, "100"),
    ("count-params", "RECIPE"),
    ("count-params miniature --n 0", "--n 0"),
    ("count-params miniature --n 1,,2", "--n '1,,2'"),
    ("count-params miniature --algebra phm,", "--algebra 'phm,'"),
    ("count-params miniature --algebra quaternions", "'quaternion'"),
    ("count-params table8 --paper", "table1, "),
    ("serve nope --port 0", "nope"),
    ("serve RUN --port 0 --host no-such-host.invalid", "no-such-host"),
    ("bench layer --n x", "--n x"),
    ("bench layer --tokens 16,", "--tokens '16,'"),
    ("bench layer --tokens 0", "--tokens 0"),
]
MESSAGES = Path(__file__).with_name("messages.txt")  # forty of these commands, each followed by its whole message
MISTAKES = [
    *((f"prepare-data {arguments}", place) for arguments, place in PREPARE),
    *((f"train {arguments}", place) for arguments, place in TRAIN),
    *OTHERS,
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
    assert len(err[err.index("error: " if "error: " in err else "Usage") :].splitlines()) <= 4
    assert sorted(tmp_path.iterdir()) == before  # nothing half written
    message = err.replace(str(tiny_run.folder), "RUN").strip()
    assert recorded_messages().get(command, message) == message


def recorded_messages() -> dict[str, str]:
    """Return the messages in the file by command."""
    messages = {}
    for block in MESSAGES.read_text(encoding="utf-8").strip().split("\n\n"):
        command, _, message = block.partition("\n")
        messages[command.removeprefix("$ phmctl ")] = message
    return messages
