"""Fuzz the readers: each mutated file must be read or raise an error of phmctl, in bounded time.

The normal suite tries a few fixed files of each kind. ``make faults`` tries PHMCTL_FUZZ new files of each kind, and
prints the numbers of rejected and accepted files.
"""

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phmctl.data.card import RowFormat, load_card
from phmctl.data.corpus import extract
from phmctl.data.prepare import labels_of
from phmctl.data.prepared import read_vectors
from phmctl.data.readers import Format, read_sentences, tables, translation_memory
from phmctl.data.tokenizer import Tokenizer, train_tokenizer
from phmctl.errors import PhmctlError
from phmctl.recipe.loading import dump_recipe, load_recipe
from phmctl.runs import Run
from phmctl.shipped import shipped
from phmctl.storage import file_entry, read_checkpoint
from tests.fuzz.mutations import TOKENS, as_json, changed_bytes, changed_values
from tests.recipe.parsing import parse_recipe

EXAMPLES = int(os.environ.get("PHMCTL_FUZZ", "40"))
SLOW = 10.0  # seconds for one file

RECIPES = [path.read_bytes() for path in sorted(shipped("recipes").glob("*.yaml"))]
CARDS = [path.read_bytes() for path in sorted(shipped("cards").glob("*.yaml"))]

Make = Callable[[Random], bytes]
Use = Callable[[bytes], Any]


def attack(name: str, make: Make, use: Use) -> None:
    """Call `use` with EXAMPLES inputs from `make`."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=True))
    def check(random: Random) -> None:
        content = make(random)
        started = time.process_time()  # excludes other load on the machine
        message = None
        try:
            use(content)
            outcomes["read"] += 1
        except PhmctlError as error:
            message = str(error)
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"{name}: {error!r} for {content[:3000]!r}") from error
        assert message is None or message.strip(), f"{name}: an empty message for {content[:3000]!r}"
        assert time.process_time() - started < SLOW, f"{name}: too slow for {content[:3000]!r}"

    check()
    refused, read = outcomes["refused"], outcomes["read"]
    sys.stdout.write(f"\n{name}: {outcomes.total():,} inputs, {refused:,} refused, {read:,} read\n")


def bytes_of(*seeds: bytes) -> Make:
    return lambda random: changed_bytes(random.choice(seeds), seeds, random)


def values_of(*seeds: Any, dump: Callable[[Any], bytes] = as_json) -> Make:
    return lambda random: dump(changed_values(random.choice(seeds), random))


def as_yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


def at(path: Path, use: Callable[[Path], Any]) -> Use:
    """Return a function that writes its input to a file and calls `use` with the path."""

    def write(content: bytes) -> Any:
        path.write_bytes(content)
        return use(path)

    return write


def read_recipe(path: Path) -> None:
    recipe = parse_recipe(path.read_bytes().decode("utf-8", "replace"))
    assert parse_recipe(dump_recipe(recipe)) == recipe


def test_overrides() -> None:
    text = RECIPES[0].decode()
    keys = ["training.steps", "model.width", "data.card", "model", "a.b", "training.seed", ""]

    def make(random: Random) -> bytes:
        value = b"".join(random.choices(TOKENS, k=random.randint(1, 4)))
        return random.choice(keys).encode() + random.choice((b"=", b"=", b"")) + value

    def use(content: bytes) -> None:
        parse_recipe(text, [content.decode("utf-8", "replace")])

    attack("--set", make, use)


XML = b'<doc>\n<title>T</title><seg id="1"> ein &amp; Hund &#228; </seg><seg>zwei\nZeilen</seg><seg>x</seg></doc>\n'
TEXT = "Ein Hund läuft .\tA dog runs .\tx\nZwei@@ Katzen\ttwo cats\ty\r\n\n".encode()


@pytest.mark.parametrize("form", ["text", "bpe", "iwslt-xml", "iwslt-tags"])
def test_sentences(tmp_path: Path, form: Format) -> None:
    attack(
        f"sentences, {form}", bytes_of(XML, TEXT), at(tmp_path / "a.txt", lambda path: list(read_sentences(path, form)))
    )


TABLE = b'text,label,extra\n"a, ""b""",x,1\nc d,y,-2\n"e\nf",-5,3\n'
LINES = b'{"text": "a b", "label": "x", "extra": 1}\n{"text": "\\u00e4", "label": 2, "extra": "3"}\n'


@pytest.mark.parametrize(
    ("form", "quoting", "seed"),
    [
        ("csv", True, TABLE),
        ("csv", False, b"text,label,extra\na b,x,1\n"),
        ("tsv", False, b'text\tlabel\textra\na, b\tx\t1\n"c\t-5\t-2\n'),
        ("jsonl", False, LINES),
    ],
)
def test_tables(tmp_path: Path, form: Any, quoting: bool, seed: bytes) -> None:
    rows = RowFormat(format=form, quoting=quoting, texts=("text",), label="label", extras={"extra": "extra"})

    def use(path: Path) -> None:
        source = tables([path], rows)
        for example in source:
            "".join(example.texts).encode()
        labels_of(source)

    attack(f"table, {form}{', quoted' if quoting else ''}", bytes_of(seed), at(tmp_path / "a", use))


MEMORY = (
    b'<?xml version="1.0" encoding="UTF-8"?><tmx><body><tu><tuv xml:lang="de-AT"><seg>ein <bpt>x</bpt>Hund</seg></tuv>'
    b'<tuv lang="en"><seg>a dog</seg></tuv></tu></body></tmx>'
)
VECTORS = b"2 3\nein 0.1 -0.2 3e-1\nHund 1 2 3\nsept 11 0.1 0.2 0.3\n"
VOCABULARY = ["<pad>", "<unk>", "<s>", "</s>", " ein", " Hund"]
CARD_VALUES = values_of(*map(yaml.safe_load, CARDS), dump=as_yaml)
RECIPE_VALUES = values_of(*map(yaml.safe_load, RECIPES), dump=as_yaml)


@pytest.mark.parametrize(
    ("name", "file", "make", "use"),
    [
        ("recipe, bytes", "r.yaml", bytes_of(*RECIPES), read_recipe),
        ("recipe, values", "r.yaml", RECIPE_VALUES, read_recipe),
        ("recipe, file", "r.yaml", bytes_of(*RECIPES), lambda path: load_recipe(str(path))),
        ("card, bytes", "c.yaml", bytes_of(*CARDS), lambda path: load_card(str(path))),
        ("card, values", "c.yaml", CARD_VALUES, lambda path: load_card(str(path)).digest),
        (
            *("sentences, .gz", "a.txt.gz"),
            bytes_of(gzip.compress(TEXT * 20), gzip.compress(XML)),
            lambda path: list(read_sentences(path)),
        ),
        (
            *("pairs, .tsv", "a.tsv", bytes_of(TEXT.rstrip())),
            lambda path: list(tables([path], RowFormat(header=False, texts=(0, 1)))),
        ),
        ("memory", "a.tmx", bytes_of(MEMORY), lambda path: list(translation_memory(path, ("de", "en")))),
        ("vectors", "v.txt", bytes_of(VECTORS, VECTORS[4:]), lambda path: read_vectors(path, VOCABULARY)),
    ],
)
def test_single_files(tmp_path: Path, name: str, file: str, make: Make, use: Callable[[Path], Any]) -> None:
    attack(name, make, at(tmp_path / file, use))


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("tokenizers")
    texts = ["ein Hund läuft .", "eine Katze läuft auch ."] * 3
    train_tokenizer(texts, "bpe", 280).save(folder / "bpe")
    train_tokenizer(texts, "word", 50, lowercase=True).save(folder / "word")
    return [(folder / name).read_bytes() for name in ("bpe", "word")]


def use_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.load(path)
    for ids in tokenizer.encode(["ein Hund", "", "ß\u2028 <s> 漢", "x" * 300]):
        tokenizer.decode(ids)
    tokenizer.decode([0, 1, 5, 10**9])


def test_tokenizers(tmp_path: Path, tokenizer_files: list[bytes]) -> None:
    use = at(tmp_path / "t.json", use_tokenizer)
    attack("tokenizer, bytes", bytes_of(*tokenizer_files), use)
    attack("tokenizer, values", values_of(*map(json.loads, tokenizer_files)), use)


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    files = {"set/train.de": b"eins\n" * 50, "set/deep/train.en": b"one\n", "readme": b""}
    tarred, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar, zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            packed.writestr(name, content)
    return [tarred.getvalue(), gzip.decompress(tarred.getvalue()), zipped.getvalue()]


def test_archives(tmp_path: Path, archives: list[bytes]) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)

    def use(path: Path) -> None:
        try:
            extract(path, folder / "out")
        finally:
            shutil.rmtree(folder / "out", ignore_errors=True)
            assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["a", "b", "x"]

    attack("archive", bytes_of(*archives), at(tmp_path / "x", use))


def test_checkpoints(copied_run: Run) -> None:
    folder = copied_run.checkpoint("best")
    path = folder / "model.safetensors"

    def use(path: Path) -> None:  # the checksums match the changed file, as an attacker's would
        manifest = json.loads((folder / "manifest.json").read_text())
        files = [file_entry(folder, entry["name"]) for entry in manifest["files"]]
        (folder / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
        read_checkpoint(folder, ["model"])

    attack("model of a checkpoint", bytes_of(path.read_bytes()), at(path, use))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from phmctl.console import silence

    with silence():
        yield
