import json
import math
import re
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from phmctl.errors import RunError
from phmctl.metrics.significance import difference
from phmctl.metrics.text import bleu, text_scorer
from phmctl.results.compare import ONE_SEED, OVER_SEEDS, POOLED
from phmctl.results.variants import mean_and_spread
from phmctl.runs import Run
from phmctl.storage import write_json
from phmctl.tasks import TASKS
from tests.calls import call
from tests.references import compare_runs
from tests.results.runs import MACHINE, REFERENCES, make_classifier, make_run, score, worse

PHM = ("model.algebra=phm", "model.n=4", "model.width=32", "model.feed_forward=64")
REAL = ("model.width=32", "model.feed_forward=64")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, the dense one of three seeds, the other of two."""
    root = tmp_path_factory.mktemp("runs")
    for seed, every in ((1, 6), (2, 8), (3, 12)):
        make_run(root, settings=REAL, seed=seed, hypotheses=worse(REFERENCES, every))
    for seed, every in ((1, 2), (2, 3)):
        make_run(root, settings=PHM, seed=seed, hypotheses=worse(REFERENCES, every))
    return root


def test_runs_of_one_model_are_a_row_and_the_difference_is_tested_over_seeds(root: Path) -> None:
    comparison = compare_runs(["miniature"], runs=root)
    assert [variant.label for variant in comparison.variants] == ["phm-n4", "real"]
    assert comparison.baseline.label == "real"
    values = [bleu(worse(REFERENCES, every), REFERENCES).value for every in (6, 8, 12)]
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    scores = comparison.as_json()["variants"][1]["scores"]["BLEU"]
    assert scores["values"] == pytest.approx(values)
    assert (scores["mean"], scores["standard_deviation"]) == pytest.approx((mean, deviation))
    shown = call("compare", "miniature", "--runs", root).stdout
    assert f"{mean:.2f} ± {deviation:.2f}" in shown
    assert max(len(line) for line in shown.split("\n")) <= 80
    (bleu_test, chrf_test) = comparison.tests["phm-n4"]
    phm_mean = statistics.mean(comparison.variants[0].values(comparison.metrics[0]))
    assert bleu_test.estimate.difference.value == pytest.approx(phm_mean - mean)
    assert bleu_test.method == OVER_SEEDS
    assert 0 < bleu_test.estimate.p_value <= bleu_test.p_holm
    assert chrf_test.metric == "chrF2"


def test_one_seed_a_side_is_the_paired_bootstrap(tmp_path: Path) -> None:
    dense, phm = worse(REFERENCES, 6), worse(REFERENCES, 2)
    make_run(tmp_path, settings=REAL, hypotheses=dense)
    make_run(tmp_path, settings=PHM, hypotheses=phm)
    comparison = compare_runs(["miniature"], runs=tmp_path)
    test = comparison.tests["phm-n4"][0]
    assert test.method == f"paired bootstrap; {ONE_SEED}"
    assert ONE_SEED in "".join(list(comparison.tables())[1].below)
    scorers = [text_scorer("BLEU", [lines], REFERENCES) for lines in (dense, phm)]
    assert test.estimate == difference(*scorers, len(REFERENCES))
    assert any("one seed" in line for line in comparison.notes())


def test_a_single_seed_against_several_is_named_in_the_method(tmp_path: Path) -> None:
    for seed, every in ((1, 2), (2, 3), (3, 6)):
        make_run(tmp_path, settings=REAL, seed=seed, hypotheses=worse(REFERENCES, every))
    make_run(tmp_path, settings=PHM, hypotheses=worse(REFERENCES, 2))
    comparison = compare_runs(["miniature"], runs=tmp_path)
    assert {test.method for test in comparison.tests["phm-n4"]} == {POOLED}


def test_classifiers_of_one_seed_are_compared_by_mcnemars_test(tmp_path: Path) -> None:
    make_classifier(tmp_path, [True] * 10 + [False] * 20)
    make_classifier(tmp_path, [True] * 2 + [False] * 8 + [True] * 20, settings=("model.algebra=phm", "model.n=4"))
    comparison = compare_runs(["agreement-resplit"], runs=tmp_path)
    test = comparison.tests["phm-n4"][0]
    assert test.method == f"McNemar's exact test; {ONE_SEED}"
    tail = sum(math.comb(28, k) for k in range(9))  # 8 against 20
    assert test.estimate.p_value == pytest.approx(2 * tail / 2**28)
    assert test.estimate.difference.value == pytest.approx(40)


def test_tables_show_the_conditions_of_their_scores(root: Path) -> None:
    comparison = compare_runs(["miniature"], runs=root)
    result = comparison.variants[0].scored[0].result
    assert result is not None
    signatures = [f"{score['name']}: {score['signature']}" for score in result.report["scores"]]
    settings = f"beam 5; alpha 0.6; checkpoint best; seed 1, 2, 3; scored on {result.date}"
    assert comparison.conditions() == [*signatures, settings]
    assert set(comparison.conditions()) <= set(next(comparison.tables()).below)


def test_other_differences_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    changes = ("model.dropout=0.3", "training.steps=1800")
    make_run(tmp_path, settings=(*PHM, *changes), decoding={"beam": 1, "precision": "bfloat16"}, data="b")
    lines = list(compare_runs(["miniature"], runs=tmp_path).differences())
    for n in (2, 8):
        make_run(tmp_path, settings=(*REAL, "model.algebra=phm", f"model.n={n}", "training.steps=1800"))
    comparison = compare_runs(["miniature"], runs=tmp_path)
    assert "all: training.steps: 1,800; 900 in the baseline" in list(comparison.differences())
    assert any(line.startswith("all: one seed") for line in comparison.notes())
    assert "phm-n4: model.dropout: 0.3; 0.0 in the baseline" in lines
    assert "phm-n4: training.steps: 1,800; 900 in the baseline" in lines
    assert "phm-n4: decoding.beam: 1; 5 in the baseline" in lines
    assert "phm-n4: decoding.precision: bfloat16; none in the baseline" in lines
    assert any(re.fullmatch(r"phm-n4: data: [0-9a-f]{8}; [0-9a-f]{8} in the baseline", line) for line in lines)
    assert not [line for line in lines if "seed" in line or "model.n:" in line or "algebra" in line]


def test_the_newest_of_two_runs_with_one_seed_is_compared(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    make_run(tmp_path, settings=REAL, hypotheses=None)
    newer = make_run(tmp_path, settings=REAL)
    comparison = compare_runs(["miniature"], runs=tmp_path)
    assert [member.run.folder for member in comparison.variants[0].runs] == [newer.folder]
    assert any("miniature/real/v001" in line for line in comparison.notes())


def test_many_runs_of_one_kind_are_one_note(tmp_path: Path) -> None:
    run = make_run(tmp_path, settings=REAL)
    for number in range(2, 26):
        shutil.copytree(run.folder, run.folder.with_name(f"v{number:03d}"))
    notes = list(compare_runs(["miniature"], runs=tmp_path).notes())
    (left_out,) = (note for note in notes if "miniature/real/v001" in note)
    assert "14 more" in left_out
    for seed in range(2, 26):
        make_run(tmp_path, settings=REAL, seed=seed, hypotheses=None)
    shown = call("compare", "miniature", "--runs", tmp_path).stderr
    assert shown.count("phmctl eval") == 1
    assert len(shown.splitlines()) < 30


def test_runs_without_a_result_are_listed_with_their_command(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    unscored = make_run(tmp_path, settings=PHM, hypotheses=None)
    result = call("compare", tmp_path)
    assert f"phmctl eval {unscored.folder}" in result.stderr.split("\n")
    assert "–" in next(line for line in result.stdout.split("\n") if "phm-n4" in line)
    assert json.loads(call("compare", tmp_path, "--json").stdout)["missing"] == [f"phmctl eval {unscored.folder}"]
    (unscored.text_folder / "valid.source").touch()
    commands = compare_runs(["miniature"], runs=tmp_path, split="valid", checkpoint="last").missing()
    assert commands == [f"phmctl eval {unscored.folder} --split valid --checkpoint last"]


def test_scoring_first_uses_the_requested_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unscored = make_run(tmp_path, settings=REAL, hypotheses=None)
    checkpoints: list[str] = []

    def evaluate(run: Run, split: str, checkpoint: str, device: str) -> None:
        checkpoints.append(checkpoint)
        raise RunError("a run that cannot be scored does not stop the others")

    spec = TASKS["translation"]
    monkeypatch.setitem(TASKS, "translation", replace(spec, trains=replace(spec.trains, evaluate=evaluate)))
    compare_runs(["miniature"], runs=tmp_path, score=True)
    compare_runs(["miniature"], runs=tmp_path, score=True, checkpoint="last")
    assert checkpoints == ["auto", "last"]
    shutil.rmtree(unscored.checkpoints_folder)
    assert not compare_runs(["miniature"], runs=tmp_path).missing()


def test_a_result_is_found_by_each_name_of_its_checkpoint_until_training_continues(tmp_path: Path) -> None:
    run = make_run(tmp_path, settings=REAL)
    for name in ("best", "last", "auto", str(run.recipe.training.steps)):
        comparison = compare_runs(["miniature"], runs=tmp_path, checkpoint=name)
        assert [len(variant.scored) for variant in comparison.variants] == [1]
        assert comparison.missing() == []
    steps = run.recipe.training.steps
    place = f"step-{steps:06d}"
    assert place not in "\n".join(compare_runs(["miniature"], runs=tmp_path).notes())
    shutil.copytree(run.checkpoint("best"), run.checkpoints_folder / f"step-{steps + 1:06d}")
    for pointer in ("best", "last"):
        run.set_pointer(pointer, steps + 1)
    assert place in "\n".join(compare_runs(["miniature"], runs=tmp_path).notes())


def test_formatting_of_mean_and_spread() -> None:
    assert mean_and_spread([math.inf, 1.0]) == "inf ± nan"
    assert mean_and_spread([1.0, 2.0]) == "1.50 ± 0.71"
    assert mean_and_spread([1e-4, 5e-4]) == "3.0e-04 ± 2.8e-04"


def test_runs_with_different_test_sets_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    make_run(tmp_path, settings=PHM, references=REFERENCES[:20], hypotheses=REFERENCES[:20])
    with pytest.raises(RunError, match="test text"):
        compare_runs(["miniature"], runs=tmp_path)
    assert call("compare", tmp_path / "miniature" / "real").exit_code == 0
    make_run(tmp_path, settings=(*REAL, "model.dropout=0.3"), hypotheses=None)
    with pytest.raises(RunError, match="test text"):  # the baseline is not scored
        compare_runs(["miniature"], runs=tmp_path, baseline="miniature/real/v002")


def test_the_score_of_copying_the_source_is_shown_if_both_sides_are_one_language(tmp_path: Path) -> None:
    copy = {"bleu": 19.701, "shared_words": 0.4857}
    make_run(tmp_path / "one", settings=REAL, copy=copy)
    make_run(tmp_path / "one", settings=PHM)  # without the copy's scores
    make_run(tmp_path / "two", settings=REAL, copy=copy | {"shared_words": 0.1})
    outputs = [call("compare", "miniature", "--runs", tmp_path / name).stderr for name in ("one", "two")]
    assert ["19.70" in output for output in outputs] == [True, False]


def test_damaged_recipes_and_results_are_each_reported_once(tmp_path: Path) -> None:
    sound, first, second = (make_run(tmp_path, settings=REAL, seed=seed) for seed in (1, 2, 3))
    recipe = first.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 900", "steps: many"))
    (result,) = second.results_folder.glob("*.json")
    result.write_text("{")
    warnings = call("compare", tmp_path).stderr
    assert warnings.count(str(recipe)) == 1
    assert warnings.count(str(result)) == 1
    assert str(sound.folder) not in warnings


@pytest.mark.parametrize("hypotheses", [REFERENCES, None])
def test_a_damaged_manifest_is_named(tmp_path: Path, hypotheses: Sequence[str] | None) -> None:
    run = make_run(tmp_path, settings=REAL, hypotheses=hypotheses)
    manifest = run.checkpoint("best") / "manifest.json"
    comparison = compare_runs(["miniature"], runs=tmp_path)
    assert str(manifest) not in "".join(comparison.notes())
    manifest.write_text("{")
    damaged = compare_runs(["miniature"], runs=tmp_path)
    assert str(manifest) in "".join(damaged.notes())
    assert damaged.missing() == []
    assert damaged.variants[0].values(damaged.metrics[0]) == comparison.variants[0].values(comparison.metrics[0])


def test_speeds_on_different_machines_are_marked(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL, rate=800)
    make_run(tmp_path, settings=PHM, rate=700, environment=MACHINE | {"threads": 2})
    result = call("compare", tmp_path)
    assert "tokens/s *" in result.stdout
    assert "phm-n4 on Test CPU, 2 threads" in result.stderr
    assert not compare_runs([str(tmp_path)]).same_machine


def test_the_baseline_is_a_variant_or_a_run(root: Path) -> None:
    for name in ("phm-n4", "miniature/phm-n4/v001", "miniature/phm-n4", root / "miniature" / "phm-n4" / "v001"):
        comparison = compare_runs([str(root)], runs=root, baseline=str(name))
        assert (comparison.baseline.label, list(comparison.tests)) == ("phm-n4", ["real"])


def test_a_finished_run_represents_its_seed_and_an_ambiguous_baseline_is_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, settings=(*REAL, f"model.dropout=0.{seed}"), seed=seed) for seed in (1, 3, 3)]
    (runs[2].folder / "failure.json").write_text('{"error": "it failed"}')
    comparison = compare_runs([str(tmp_path)])
    members = [member for variant in comparison.variants for member in variant.runs]
    assert [member.run.folder for member in members] == [run.folder for run in runs[:2]]
    with pytest.raises(RunError, match=r"baseline=real: .*real dropout=0\.1, real dropout=0\.3"):
        compare_runs([str(tmp_path)], baseline="real")


def test_runs_with_different_training_settings_are_different_variants(tmp_path: Path) -> None:
    changes = ((), ("training.steps=1800",), ("training.threads=2", "training.keep=3", "decoding.batch_tokens=64"))
    for seed, settings in enumerate(changes, start=1):
        make_run(tmp_path, settings=(*REAL, *settings), seed=seed)
    labels = {variant.label: len(variant.runs) for variant in compare_runs(["miniature"], runs=tmp_path).variants}
    assert labels == {"real steps=900": 2, "real steps=1800": 1}
    make_run(tmp_path, settings=(*REAL, "model.dropout=0.3"))
    comparison = compare_runs([str(tmp_path)])
    labels = [variant.label for variant in comparison.variants]
    assert labels == ["real (1)", "real (2)", "real (3)"]  # no key has three values
    for tokenizer in ("null", "zh"):
        make_run(tmp_path / tokenizer, settings=(*REAL, f"training.bleu_tokenizer={tokenizer}"))
    comparison = compare_runs([str(tmp_path / "null"), str(tmp_path / "zh")])
    assert [variant.label for variant in comparison.variants] == ["real bleu_tokenizer=none", "real bleu_tokenizer=zh"]


def average(run: Run, lines: Sequence[str]) -> None:
    """Write an average of checkpoints into a run, and its result."""
    folder = run.checkpoint("best")
    shutil.copytree(folder, folder.with_name("average"))
    score(run, lines, checkpoint="average")


def test_best_and_average_checkpoints_are_not_averaged_into_one_mean(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path, settings=REAL, seed=seed) for seed in (1, 2))
    third = make_run(tmp_path, settings=REAL, seed=3, hypotheses=None)
    average(third, worse(REFERENCES, 2))
    comparison = compare_runs([str(tmp_path)])
    rows = {variant.label: len(variant.runs) for variant in comparison.variants}
    assert rows == {"real checkpoint=best": 2, "real checkpoint=average": 1}
    for run in (first, second):
        average(run, worse(REFERENCES, 3))
    (variant,) = compare_runs([str(tmp_path)]).variants
    assert [member.checkpoint for member in variant.runs] == ["average"] * 3
    (variant,) = compare_runs([str(tmp_path)], checkpoint="last").variants  # which the best is, too
    assert [member.checkpoint for member in variant.runs] == ["last", "last", None]
    with (third.checkpoint("average") / "manifest.json").open("a") as file:  # an average of other checkpoints
        file.write(" ")
    comparison = compare_runs([str(tmp_path)], checkpoint="average")
    assert comparison.missing() == [f"phmctl eval {third.folder} --checkpoint average"]


def test_results_with_the_same_settings_are_preferred(tmp_path: Path) -> None:
    """One run was decoded twice: what all runs have in common is compared."""
    make_run(tmp_path, settings=REAL, decoding={"beam": 1})
    both = make_run(tmp_path, settings=PHM, decoding={"beam": 1})
    score(both, worse(REFERENCES, 2), decoding={"beam": 5})
    comparison = compare_runs([str(tmp_path)])
    assert not [line for line in comparison.differences() if "beam" in line]
    assert comparison.variants[0].first.result is not None
    assert comparison.variants[0].first.result.settings["decoding"]["beam"] == 1


def test_scores_with_a_different_case_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    score(make_run(tmp_path, settings=PHM, hypotheses=None), REFERENCES, lowercase=True)
    with pytest.raises(RunError, match="tokenizer"):
        compare_runs([str(tmp_path)])


def test_deleted_answers_are_reported_and_not_tested(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    run = make_run(tmp_path, settings=PHM)
    for path in run.results_folder.glob("*.hyp"):
        path.unlink()
    comparison = compare_runs(["miniature"], runs=tmp_path)
    assert comparison.variants[0].values(comparison.metrics[0]) == pytest.approx([100])
    assert not comparison.tests
    assert any(line.startswith("phm-n4: the answers of seed 1") for line in comparison.notes())


@pytest.mark.parametrize("classifier", [False, True])
def test_answers_that_lack_a_line_are_reported_and_not_tested(tmp_path: Path, classifier: bool) -> None:
    if classifier:
        make_classifier(tmp_path, [True] * 9)
        run = make_classifier(tmp_path, [True] * 9, settings=PHM)
        (path,) = run.results_folder.glob("*.predictions.tsv")
    else:
        make_run(tmp_path, settings=REAL)
        run = make_run(tmp_path, settings=PHM)
        (path,) = run.results_folder.glob("*.hyp")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    comparison = compare_runs([run.recipe.name], runs=tmp_path)
    assert len(comparison.variants) == 2
    assert not comparison.tests
    assert any(line.startswith("phm-n4: the answers of seed 1") for line in comparison.notes())


def test_named_test_sets_are_compared_without_a_plain_one(tmp_path: Path) -> None:
    """The printed commands work."""
    from tests.tasks.translation.runs import make_run as make_translator

    run = make_translator(tmp_path)
    for side in ("source", "target"):
        text = (run.text_folder / f"test.{side}").rename(run.text_folder / f"test_a.{side}")
        shutil.copy(text, run.text_folder / f"test_b.{side}")
    write_json(run.folder / "data.json", run.data())
    printed = [line for line in call("compare", run.folder).stderr.split("\n") if line.startswith("phmctl")]
    assert printed == [f"phmctl eval {run.folder} --split test_{name}" for name in "ab"]
    assert call(*printed[0].split()[1:]).exit_code == 0
    comparisons = json.loads(call("compare", run.folder, "--split", "all", "--json").stdout)["comparisons"]
    missing = [(comparison["split"], len(comparison["missing"])) for comparison in comparisons]
    assert missing == [("test_a", 0), ("test_b", 1)]
    assert call("eval", run.folder, "--device", "cpu").exit_code == 0
    assert not compare_runs([str(run.folder)], split="test_b").missing()


def test_a_run_without_the_test_set_has_no_command_for_it(tmp_path: Path) -> None:
    make_run(tmp_path, settings=REAL)
    run = make_run(tmp_path, settings=PHM, hypotheses=None)
    for path in [*run.text_folder.glob("test.*")]:
        path.rename(path.with_name(path.name.replace("test", "test_a")))
    comparison = compare_runs(["miniature"], runs=tmp_path, score=True)
    assert comparison.missing() == []
    assert any("test_a" in line for line in comparison.notes())
