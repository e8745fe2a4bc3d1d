"""The content of exports, their verification, wrong options, and failures while writing."""

import json
import resource
import shutil
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest
import torch

import phmctl
from phmctl import plain
from phmctl.answering import opening as exports
from phmctl.answering.base import Hypothesis
from phmctl.answering.opening import Export, find, load_translator
from phmctl.answering.translator import Translator
from phmctl.data.tokenizer import train_tokenizer
from phmctl.errors import MissingExtraError, OutputError, PhmctlError, RunError, UserError
from phmctl.export import verb
from phmctl.export.verb import Exported, export
from phmctl.export.verify import verify
from phmctl.recipe.schema import DecodingSection
from phmctl.runs import Run
from phmctl.storage import file_entry, write_json
from phmctl.storage import verify as verify_files
from tests.data.helpers import flip
from tests.export.conftest import needs, reseal
from tests.tasks.translation.runs import SOURCES, evaluate, make_run

CT2 = exports.CTRANSLATE2


def copy_of(exported: Exported, folder: Path) -> Path:
    return Path(shutil.copytree(exported.export.folder, folder / "copy"))


def test_files_and_manifest_of_an_export(exported: Exported, tiny_run: Run) -> None:
    folder, manifest = exported.export.folder, exported.export.manifest
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {entry["name"] for entry in manifest["files"]} | {"export.json"}
    verify_files(folder, manifest["files"], RunError, "")
    assert {"README.md", "recipe.yaml", "data.json", "tokenizer/tokenizer.json"} <= names
    assert not [name for name in names if name.startswith("text/")]
    assert (manifest["run"], manifest["checkpoint"]) == (tiny_run.name, tiny_run.checkpoint("auto").name)
    assert manifest["verification"]["texts"] == 16
    assert exported.export.recipe == tiny_run.recipe


def test_scores_of_the_run_are_in_the_card_with_their_signature(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    report = evaluate(run)
    card = (export(run, exports.SAFETENSORS, tmp_path / "out").export.folder / "README.md").read_text(encoding="utf-8")
    score = f"test: BLEU {report.scores[0].value:.2f} ({report.scores[0].signature})"
    for content in (score, "dense maps", "licence of the data:", "7 texts of test", "parameters as trained"):
        assert content in card


@torch.no_grad()
def test_the_plain_form_holds_the_code_that_computes_the_model(tiny_run: Run, tmp_path: Path) -> None:
    folder = export(tiny_run, exports.SAFETENSORS, tmp_path / "export", texts=4).export.folder
    code = (folder / "plain.py").read_text(encoding="utf-8")
    assert code == Path(plain.__file__).read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 250
    with pytest.raises(ValueError, match="id 3"):
        plain.load(folder)(torch.tensor([[5, 6, 3], [5, 6, 7]]), torch.tensor([[2], [2]]))
    source, target = torch.tensor([[5, 6, 7, 3], [9, 3, 0, 0]]), torch.tensor([[2, 8, 9], [2, 7, 7]])
    theirs, model = plain.load(folder)(source, target), load_translator(tiny_run, device="cpu").engine.model
    ours = model.logits(model(source, target))
    torch.testing.assert_close(theirs, ours[..., : theirs.shape[-1]], rtol=1e-4, atol=1e-4)
    rows = json.loads((folder / "config.json").read_text())["rows"]
    assert rows["encoder.0.attention.key.weight"][0][0] == "encoder.0.attention.query_key_value"


def test_the_card_names_maps_of_two_factors(tmp_path: Path) -> None:
    run = make_run(tmp_path, maps={"algebra": "low-rank", "rank": 8})
    folder = export(run, exports.SAFETENSORS, tmp_path / "export").export.folder
    assert "low-rank maps with rank 8" in (folder / "README.md").read_text(encoding="utf-8")


def test_precision_of_the_recipe_does_not_apply_to_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: True)
    run = make_run(tmp_path, decoding={"precision": "bfloat16"})
    result = export(run, exports.SAFETENSORS, tmp_path / "export")
    assert result.verification.largest < 1e-4
    assert load_translator(result.export, device="cpu").translate(SOURCES)
    assert phmctl.load(result.export.folder, device="cpu").translate(SOURCES)


def test_eval_scores_an_export_as_its_run_if_it_has_the_text(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    extras = {"length": [len(line) for line in SOURCES]}
    write_json(run.text_folder / "test.extras", extras)
    ours = evaluate(run)
    exported = export(run, exports.SAFETENSORS, tmp_path / "export", with_text=True).export
    theirs = evaluate(exported)
    assert [score.value for score in theirs.scores] == pytest.approx([score.value for score in ours.scores])
    for name, old, new in (("test.extras", "1", "2"), ("test.target", "e", "a")):
        path = tmp_path / "export/text" / name
        content = path.read_text()
        path.write_text(content.replace(old, new, 1))
        with pytest.raises(RunError, match=name):
            evaluate(exported)
        path.write_text(content)
    without = export(run, exports.SAFETENSORS, tmp_path / "without").export
    assert without.splits() == []
    with pytest.raises(RunError, match=r"test\.source"):
        evaluate(without)
    (tmp_path / "mine").write_text("".join(f"{line}\n" for line in SOURCES))
    phmctl.evaluate(without.folder, source=tmp_path / "mine", reference=tmp_path / "mine")


def test_a_run_without_text_is_exported_without_a_comparison_if_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    shutil.rmtree(run.text_folder)
    with pytest.raises(RunError, match="--texts 0"):
        export(run, exports.SAFETENSORS, tmp_path / "out")
    made = export(run, exports.SAFETENSORS, tmp_path / "out", texts=0)
    assert (made.verification, made.export.manifest["verification"]) == (None, None)
    assert "not verified" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert load_translator(made.export, device="cpu").translate(SOURCES)
    assert [row for table in made.tables() for row in table.rows if row[0] == "verified"] == []


# --------------------------------------------------------------------------------------------------- verification


class Wrong:
    """Wraps an engine and changes its answer to the first sentence of each batch."""

    name = "torch"

    def __init__(self, engine):
        self.engine = engine

    def search(self, sources, settings, *, allowed, n_best):
        answers = self.engine.search(sources, settings, allowed=allowed, n_best=n_best)
        best = answers[0][0]
        return [[Hypothesis([*best.tokens[:-1], 9, 9], best.score, best.log_prob)], *answers[1:]]


def broken(translator: Translator) -> Translator:
    changed = copy(translator)
    changed.engine = Wrong(translator.engine)
    return changed


def test_different_answers_are_counted(tiny_run: Run) -> None:
    translator = load_translator(tiny_run, device="cpu", cleaned=True)
    same = verify(tiny_run, translator, translator, 8)
    assert (same.texts, same.equal, same.ties, same.different, same.largest) == (8, 8, 0, 0, 0.0)
    wrong = verify(tiny_run, translator, broken(translator), 8)
    assert (wrong.equal + wrong.ties + wrong.different, wrong.equal) == (8, 7)
    assert wrong.scores["torch"] == same.scores["torch"]


def test_bleu_uses_the_tokenizer_of_the_language(tiny_run: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    write_json(run.folder / "data.json", run.data() | {"target_language": "zh"})
    translator = load_translator(run, device="cpu", cleaned=True)
    verification = verify(run, translator, translator, 4)
    assert "tok:zh" in verification.scores["signature"]


def test_an_export_with_different_answers_is_not_written(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_engine = verb.open_engine
    monkeypatch.setattr(verb, "open_engine", lambda *arguments, **options: Wrong(open_engine(*arguments, **options)))
    monkeypatch.setattr("phmctl.export.verify.TIE", 0.0)
    with pytest.raises(PhmctlError, match=r"1 of 8 texts of valid"):
        export(tiny_run, exports.SAFETENSORS, tmp_path / "out", texts=8)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------ bad input


def test_a_quantisation_that_the_processor_cannot_run(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("ctranslate2")
    monkeypatch.setattr(library, "get_supported_compute_types", lambda device: {"float32", "int8"})
    with pytest.raises(UserError, match=r"bfloat16.*float32, int8$"):
        export(tiny_run, CT2, tmp_path / "out", quantize="bfloat16")


def test_an_engine_that_is_not_installed(tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra, to in (("ctranslate2", "ctranslate2", CT2), ("onnxruntime", "onnx", exports.ONNX)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"{name}.*phmctl\[{extra}\]"):
            export(tiny_run, to, tmp_path / "out")


def test_a_folder_that_is_not_empty(small_run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputError, match=r"mine\.txt"):
            export(small_run, exports.SAFETENSORS, tmp_path, force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    export(small_run, exports.SAFETENSORS, tmp_path / "out")
    with pytest.raises(OutputError, match="--force"):
        export(small_run, exports.SAFETENSORS, tmp_path / "out")
    (tmp_path / "out" / "results").mkdir()
    for name in ("results/test.json", "results/note.txt", "old"):
        (tmp_path / "out" / name).touch()
    with pytest.raises(OutputError, match=r"old, results/note\.txt "):
        export(small_run, exports.SAFETENSORS, tmp_path / "out", force=True)
    (tmp_path / "out" / "old").unlink()
    (tmp_path / "out" / "results" / "note.txt").unlink()
    export(small_run, exports.SAFETENSORS, tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "results").exists()
    (tmp_path / "out" / "export.json").write_text('{"name": "of another program"}')
    with pytest.raises(OutputError, match=r"export\.json"):
        export(small_run, exports.SAFETENSORS, tmp_path / "out", force=True)


def test_a_folder_that_cannot_be_replaced(small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, target in (("link", "missing"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    for output in ("/", "", "../working", "/proc", "/proc/phmctl", "../link", "../loop"):
        with pytest.raises(OutputError):
            export(small_run, exports.SAFETENSORS, Path(output), texts=0)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "loop", "working"]


@pytest.mark.parametrize("to", exports.FORMATS)
def test_a_disk_that_is_full(small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    needs(to)
    largest, limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    write = verb._write

    def write_little(*arguments: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, limit))
        try:
            write(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limit))

    monkeypatch.setattr(verb, "_write", write_little)
    with pytest.raises(OutputError, match=r"cannot write"):
        export(small_run, to, tmp_path / "out", texts=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model/model.bin", "model/config.json", "tokenizer/tokenizer.json", "data.json"])
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_export_is_refused(exported: Exported, tmp_path: Path, name: str, damage: str) -> None:
    folder = copy_of(exported, tmp_path)
    path = folder / name
    if damage == "flipped":
        flip(path, path.stat().st_size // 2)
    else:
        path.unlink()
    with pytest.raises(RunError, match=Path(name).name):
        load_translator(find(folder))


def test_hidden_files_of_other_programs_damage_nothing(exported: Exported, tmp_path: Path) -> None:
    folder = copy_of(exported, tmp_path)
    for name in ("tokenizer/._tokenizer.json", "text/._valid.source", "text/.DS_Store"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    export = find(folder)
    load_translator(export)
    assert not any(split.startswith(".") for split in export.splits())


@pytest.mark.parametrize(
    ("to", "name", "content"),
    [
        (exports.SAFETENSORS, "model.safetensors", b"\xff" * 8 + b"{}"),  # a header of 2 ** 64 - 1 bytes
        (exports.SAFETENSORS, "config.json", b"[" * 100_000 + b"]" * 100_000),
        (CT2, "model/model.bin", bytes(4096)),
        (exports.ONNX, "decoder.onnx", bytes(4096)),
    ],
    ids=["safetensors", "json", "ctranslate2", "onnx"],
)
def test_a_foreign_file_with_its_digest_in_the_manifest_is_a_run_error(
    small_run: Run, tmp_path: Path, to: str, name: str, content: bytes
) -> None:
    needs(to)
    folder = export(small_run, to, tmp_path / "out", texts=2).export.folder
    (folder / name).write_bytes(content)
    reseal(folder)
    with pytest.raises(RunError, match="out"):
        phmctl.load(folder)


@pytest.mark.parametrize("to", [CT2, exports.ONNX])
def test_files_that_do_not_fit_together_are_a_run_error_when_they_answer(
    small_run: Run, tmp_path: Path, to: str
) -> None:
    """Another vocabulary, and the graphs swapped."""
    needs(to)
    folder = export(small_run, to, tmp_path / "out", texts=2).export.folder
    if to == CT2:
        other = train_tokenizer(["un autre texte, d'autres mots"] * 9, "bpe", 300)
        other.save(folder / "tokenizer" / "tokenizer.json")
        copies = [file_entry(folder, "tokenizer/tokenizer.json")]
        write_json(folder / "data.json", json.loads((folder / "data.json").read_text()) | {"copies": copies})
    else:
        (folder / "encoder.onnx").rename(folder / "other")
        (folder / "decoder.onnx").rename(folder / "encoder.onnx")
        (folder / "other").rename(folder / "decoder.onnx")
    reseal(folder)
    with pytest.raises(RunError, match="out"):
        phmctl.load(folder).translate(SOURCES)


@pytest.mark.parametrize("name", ["model/model.bin", "tokenizer/tokenizer.json", "recipe.yaml", "data.json"])
def test_a_file_that_the_manifest_does_not_list_is_refused(exported: Exported, tmp_path: Path, name: str) -> None:
    folder, manifest = copy_of(exported, tmp_path), exported.export.manifest
    entries = [entry for entry in manifest["files"] if entry["name"] != name]
    write_json(folder / "export.json", manifest | {"files": entries})
    (folder / "translations.txt").touch()  # no file of the model
    with pytest.raises(RunError, match=Path(name).name):
        load_translator(find(folder))


def test_a_damaged_recipe_or_manifest_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = copy_of(exported, tmp_path)
    with (folder / "recipe.yaml").open("a") as handle:
        handle.write("#\n")
    with pytest.raises(RunError, match=r"recipe\.yaml"):
        find(folder)
    (folder / "export.json").write_text("{}")
    with pytest.raises(RunError, match=r"export\.json"):
        find(folder)
    manifest = exported.export.manifest
    for content, place in (
        (manifest | {"format": None}, "format None"),
        (manifest | {"format": exports.FORMAT - 1}, f"format {exports.FORMAT - 1}"),
        (manifest | {"format": exports.FORMAT + 1, "phmctl": "9.9"}, "phmctl 9.9"),
    ):
        write_json(folder / "export.json", content)
        with pytest.raises(RunError, match=place):
            find(folder)


@pytest.mark.parametrize("take", [Run.open, phmctl.compare])
def test_an_export_is_not_taken_as_a_run(exported: Exported, take: Callable[[Path], object]) -> None:
    with pytest.raises(RunError, match=f"phmctl eval .*{exported.export.folder.name}"):
        take(exported.export.folder)


@pytest.mark.parametrize(
    ("ask", "place"),
    [
        (
            lambda exported: load_translator(exported, decoding=DecodingSection(precision="bfloat16")),
            "precision",
        ),
        (lambda exported: phmctl.load(exported.folder, device="cuda"), "CPU"),
        (lambda exported: phmctl.load(exported.folder, checkpoint="last"), "'last'"),
    ],
)
def test_what_an_export_cannot_do(exported: Exported, ask: Callable[[Export], object], place: str) -> None:
    with pytest.raises(UserError, match=place):
        ask(exported.export)
