"""Exporting: what an export holds, that it answers as its run, and that nothing is lost or half written."""

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import phmctl
from phmctl import exports
from phmctl.decoding.translator import Hypothesis, load_translator
from phmctl.errors import MissingExtraError, OutputError, PhmctlError, RunError, UserError
from phmctl.export import verb, with_engine
from phmctl.export.verb import Exported, export
from phmctl.export.verify import open_subject, verify_translator
from phmctl.exports import Export, open_model
from phmctl.files import verify, write_json
from phmctl.models import plain
from phmctl.recipe.schema import DecodingSection
from phmctl.runs import Run
from phmctl.runs.results import read_results
from tests.data.helpers import flip
from tests.export.conftest import needs
from tests.tasks.translation.runs import SOURCES, evaluate, make_run

CT2 = exports.CTRANSLATE2


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a random model with seven lines of text. Shared: do not change it."""
    return make_run(tmp_path_factory.mktemp("runs"))


def copy_of(exported: Exported, folder: Path) -> Path:
    return Path(shutil.copytree(exported.export.folder, folder / "copy"))


def test_what_an_export_holds(exported: Exported, tiny_run: Run) -> None:
    folder, manifest = exported.export.folder, exported.export.manifest
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {entry["name"] for entry in manifest["files"]} | {"export.json"}
    verify(folder, manifest["files"], RunError, "")
    assert {"README.md", "recipe.yaml", "data.json", "tokenizer/tokenizer.json", "text/test.source"} <= names
    assert (manifest["run"], manifest["checkpoint"]) == (tiny_run.name, tiny_run.checkpoint("auto").name)
    assert manifest["verification"]["texts"] == 16
    assert exported.export.recipe == tiny_run.recipe


def test_scores_of_the_run_are_in_the_card_with_their_signature(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    found = evaluate(run)
    card = (export(run, exports.SAFETENSORS, tmp_path / "out").export.folder / "README.md").read_text(encoding="utf-8")
    measured = f"test: BLEU {found.scores[0].value:.2f} ({found.scores[0].signature})"
    for words in (measured, "dense maps", "licence of the data:", "7 texts of test", "parameters as trained"):
        assert words in card


@torch.no_grad()
def test_the_plain_form_is_read_by_the_code_beside_it_alone(tiny_run: Run, tmp_path: Path) -> None:
    folder = export(tiny_run, exports.SAFETENSORS, tmp_path / "export", texts=4).export.folder
    docs = Path(__file__).parents[2] / "docs" / "export.md"
    assert '--8<-- "phmctl/models/plain.py"' in docs.read_text(encoding="utf-8")
    assert (folder / "plain.py").read_bytes() == Path(plain.__file__).read_bytes()
    source, target = [[5, 6, 7, 3], [9, 3, 0, 0]], [[2, 8, 9], [2, 7, 7]]
    code = (
        "import sys, torch; sys.modules['phmctl'] = None; import plain; model = plain.load('.');"
        f"torch.save(model(torch.tensor({source}), torch.tensor({target})), '../logits.pt')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    theirs, model = torch.load(tmp_path / "logits.pt"), load_translator(tiny_run, device="cpu").engine.model
    ours = model.logits(model(torch.tensor(source), torch.tensor(target)))
    torch.testing.assert_close(theirs, ours[..., : theirs.shape[-1]], rtol=1e-4, atol=1e-4)
    assert (folder / "phm.safetensors").is_file()
    described = json.loads((folder / "phm.json").read_text())
    assert described["maps"]["encoder.0.attention.query_key_value"]["n"] == 4


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        ({"algebra": "monarch", "n": 4}, "monarch maps with n = 4"),
        ({"algebra": "low-rank", "rank": 8}, "low-rank maps with rank 8"),
    ],
)
def test_maps_of_two_factors_have_no_phm_form(tmp_path: Path, maps: dict[str, object], words: str) -> None:
    made = export(make_run(tmp_path, maps=maps), exports.SAFETENSORS, tmp_path / "export").export
    assert not list(made.folder.glob("phm.*"))
    assert words in (made.folder / "README.md").read_text(encoding="utf-8")


def test_how_a_recipe_has_its_run_decoded_is_not_asked_of_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the export compared with what the run answers in a lower precision."""
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: True)
    run = make_run(tmp_path, decoding={"precision": "bfloat16", "execution": "dense"})
    made = export(run, exports.SAFETENSORS, tmp_path / "export")
    assert made.verification.largest < 1e-4
    assert load_translator(made.export, device="cpu").translate(SOURCES)
    assert phmctl.load(made.export.folder, device="cpu").translate(SOURCES)


def test_narrow_tables_are_exported_as_full_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path, maps={"embedding_width": 16, "algebra": "phm", "n": 4})
    made = export(run, exports.SAFETENSORS, tmp_path / "export")
    assert made.verification.largest < 1e-4
    assert load_translator(made.export, device="cpu").translate(SOURCES)


def test_eval_scores_an_export_as_its_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    made = export(run, exports.SAFETENSORS, tmp_path / "export").export
    ours, theirs = evaluate(run), evaluate(made, against=run)
    assert [score.value for score in theirs.scores] == pytest.approx([score.value for score in ours.scores])
    assert theirs.against == run.name
    assert {one.against for one in read_results(made)} == {None, run.name}
    both = evaluate(run, against=made, execution="dense")
    assert both.against == made.name  # what only the run can do is not asked of its baseline
    assert not list(run.results_folder.glob("against*"))


def test_an_engine_for_a_run_is_made_once_and_made_anew_when_it_is_stale(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = make_run(tmp_path)
    first = with_engine(run, CT2)
    made = first.folder / "export.json"
    stamp = made.stat().st_mtime_ns
    assert with_engine(run, CT2).folder == first.folder
    assert made.stat().st_mtime_ns == stamp
    theirs, ours = (load_translator(each).translate(SOURCES, beam=1)[0][0].text for each in (first, run))
    assert theirs == ours
    write_json(made, json.loads(made.read_text()) | {"checkpoint_sha256": "of another"})
    assert with_engine(run, CT2).manifest["checkpoint_sha256"] == run.weights().sha256
    last = with_engine(run, CT2, "last")
    assert (last.checkpoint("last"), last.folder != first.folder) == (last.folder, True)
    assert with_engine(run, "torch") is run
    with pytest.raises(UserError, match="--precision is torch's"):
        with_engine(run, CT2, precision="bfloat16")


# --------------------------------------------------------------------------------------------------- verification


class Wrong:
    """An engine that answers as another, but for the first sentence of each batch."""

    name = "torch"

    def __init__(self, engine):
        self.engine = engine

    def search(self, sources, settings, *, allowed, n_best):
        found = self.engine.search(sources, settings, allowed=allowed, n_best=n_best)
        best = found[0][0]
        return [[Hypothesis([*best.tokens[:-1], 9, 9], best.score, best.log_prob)], *found[1:]]


def test_what_differs_is_counted(tiny_run: Run) -> None:
    subject = open_subject(tiny_run, "best")
    same = verify_translator(subject, subject.answering.engine, 8)
    assert (same.texts, same.equal, same.ties, same.different, same.largest) == (8, 8, 0, 0, 0.0)
    other = verify_translator(subject, Wrong(subject.answering.engine), 8)
    assert (other.equal + other.ties + other.different, other.equal) == (8, 7)
    assert other.scores["torch"] == same.scores["torch"]


def test_bleu_splits_as_the_language_says(tiny_run: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    write_json(run.folder / "data.json", run.data() | {"target_language": "zh"})
    subject = open_subject(run, "best")
    found = verify_translator(subject, subject.answering.engine, 4)
    assert "tok:zh" in found.scores["signature"]


def test_an_export_that_answers_otherwise_is_not_written(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verb.open_engine
    monkeypatch.setattr(verb, "open_engine", lambda *given, **options: Wrong(right(*given, **options)))
    monkeypatch.setattr("phmctl.export.verify.NEAR", 0.0)
    with pytest.raises(PhmctlError, match="answers 1 of 8 texts of valid otherwise than the run"):
        export(tiny_run, exports.SAFETENSORS, tmp_path / "out", texts=8)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "ctranslate"}, "did you mean 'ctranslate2'"),
        ({"to": exports.ONNX, "quantize": "int8"}, "--quantize is CTranslate2's"),
        ({"to": CT2, "quantize": "int9"}, "no quantisation 'int9'"),
        ({"to": CT2, "checkpoint": "step-9"}, "has no checkpoint 'step-9'"),
    ],
)
def test_a_wrong_option_writes_nothing(tiny_run: Run, tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        export(tiny_run, output=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_type_that_the_processor_cannot_run(tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("ctranslate2")
    monkeypatch.setattr(library, "get_supported_compute_types", lambda device: {"float32", "int8"})
    with pytest.raises(UserError, match="bfloat16: this machine's processor cannot run it; it can run float32, int8"):
        export(tiny_run, CT2, tmp_path / "out", quantize="bfloat16")


def test_an_engine_that_is_not_installed(tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra, to in (("ctranslate2", "ctranslate2", CT2), ("onnxruntime", "onnx", exports.ONNX)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"{name} is not installed.*pip install 'phmctl\[{extra}\]'"):
            export(tiny_run, to, tmp_path / "out")


def test_a_folder_that_is_not_empty(small_run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputError, match="is not empty and holds no export"):
            export(small_run, exports.SAFETENSORS, tmp_path, force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    export(small_run, exports.SAFETENSORS, tmp_path / "out")
    with pytest.raises(OutputError, match="--force"):
        export(small_run, exports.SAFETENSORS, tmp_path / "out")
    (tmp_path / "out" / "old").touch()
    export(small_run, exports.SAFETENSORS, tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "old").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_filled_meanwhile(
    small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    def copy(run: Run, folder: Path) -> None:
        copy_run(run, folder)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine.txt").write_text("mine")

    copy_run = verb._copy_run
    monkeypatch.setattr(verb, "_copy_run", copy)
    with pytest.raises(OutputError, match="is not empty"):
        export(small_run, exports.SAFETENSORS, tmp_path / "out", force=force, texts=1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("to", exports.FORMATS)
def test_a_disk_that_is_full(small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    needs(to)
    largest, limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    write = verb._write

    def write_little(*arguments: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, limit))  # the writer hears that they are too large
        try:
            write(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limit))

    monkeypatch.setattr(verb, "_write", write_little)
    with pytest.raises(OutputError, match=r"cannot write .*choose a folder that is writable and has space"):
        export(small_run, to, tmp_path / "out", texts=1)
    assert list(tmp_path.iterdir()) == []


def test_one_that_fails_leaves_what_stood_there(
    small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = export(small_run, exports.SAFETENSORS, tmp_path / "out").export

    def broken(*arguments: object) -> None:
        raise PhmctlError("it answers otherwise")

    monkeypatch.setattr(verb, "_verify", broken)
    with pytest.raises(PhmctlError, match="it answers otherwise"):
        export(small_run, exports.SAFETENSORS, tmp_path / "out", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    Export.open(tmp_path / "out").verify()
    assert Export.open(tmp_path / "out").manifest == before.manifest


@pytest.mark.parametrize("name", ["model/model.bin", "model/config.json", "tokenizer/tokenizer.json", "data.json"])
@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_export_is_refused(exported: Exported, tmp_path: Path, name: str, how: str) -> None:
    folder = copy_of(exported, tmp_path)
    path = folder / name
    if how == "flipped":
        flip(path, path.stat().st_size // 2)
    else:
        path.unlink()
    with pytest.raises(RunError, match=rf"{Path(name).name} is (damaged|missing)|{Path(name).name} cannot be read"):
        load_translator(open_model(folder))


def test_a_damaged_recipe_or_manifest_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = copy_of(exported, tmp_path)
    with (folder / "recipe.yaml").open("a") as handle:
        handle.write("#\n")
    with pytest.raises(RunError, match=r"recipe\.yaml is damaged"):
        open_model(folder)
    (folder / "export.json").write_text("{}")
    with pytest.raises(RunError, match=r"export\.json is damaged"):
        open_model(folder)
    manifest, other = exported.export.manifest, "made by phmctl 9.9, and this version reads 2"
    for wrong, words in (
        ({"format": 2, "to": CT2, "files": []}, r"export\.json is damaged"),
        (manifest | {"format": None}, r"export\.json is damaged"),
        *((manifest | {"format": number, "phmctl": "9.9"}, other) for number in (1, 3)),
    ):
        write_json(folder / "export.json", wrong)
        with pytest.raises(RunError, match=words):
            open_model(folder)


def test_training_does_not_take_an_export(exported: Exported) -> None:
    with pytest.raises(RunError, match="is an export, not a run"):
        Run.open(exported.export.folder)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda made: load_translator(made, decoding=DecodingSection(execution="rank")), "--execution"),
        (
            lambda made: load_translator(made, decoding=DecodingSection(precision="bfloat16")),
            "has its own; leave it out",
        ),
        (lambda made: with_engine(made, "onnx"), "leave --engine and --quantize out"),
        (lambda made: phmctl.load(made.folder, device="cuda"), "runs on the CPU"),
        (lambda made: phmctl.load(made.folder, checkpoint="last"), "no checkpoint 'last'"),
    ],
)
def test_what_an_export_cannot_do(exported: Exported, ask: Callable[[Export], object], words: str) -> None:
    assert with_engine(exported.export, CT2) is exported.export
    with pytest.raises(UserError, match=words):
        ask(exported.export)
