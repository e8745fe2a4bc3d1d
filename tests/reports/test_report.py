import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phmctl.errors import MissingExtraError, OutputError
from phmctl.reports.report import learned_rules, render, style, write_report
from tests.calls import call
from tests.comparison.runs import REFERENCES, SOURCES, make_classifier, make_run, worse
from tests.references import compare_runs

SMALL = ("model.width=16", "model.feed_forward=16", "model.encoder_layers=1", "model.decoder_layers=1")
PHM = (*SMALL, "model.algebra=phm", "model.n=4")
HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)> & $x_1$ </style></svg>'


class Reader:
    """The page's tags, attributes, cells and text; it is well-formed XML."""

    def __init__(self, page: str) -> None:
        found = ElementTree.fromstring(page)
        self.tags = {each.tag for each in found.iter()}
        self.attributes = [pair for each in found.iter() for pair in each.attrib.items()]
        self.cells = ["".join(each.itertext()) for each in found.iter() if each.tag in ("td", "th")]
        self.text = "".join(found.itertext())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of the dense model, one of n = 4, whose translations are hostile here and there."""
    root = tmp_path_factory.mktemp("runs")
    for seed, every in ((1, 6), (2, 8)):
        make_run(root, settings=SMALL, seed=seed, hypotheses=worse(REFERENCES, every))
    lines = [HOSTILE if row == 3 else line for row, line in enumerate(worse(REFERENCES, 2))]
    make_run(root, settings=(*PHM, "description=" + '"<script>alert(3)</script>"'), hypotheses=lines)
    return root


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    with style():
        return render(compare_runs([str(root)]))


def test_the_page_is_well_formed_and_needs_no_network(page: str) -> None:
    found = Reader(page)
    assert "script" not in found.tags
    assert "link" not in found.tags
    references = [value for name, value in found.attributes if name in ("src", "href")]
    assert references
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in references)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", re.sub(r'"data:[^"]*"', "", page))
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in references if value.startswith("#")} <= set(ids)


def test_what_others_wrote_is_text(page: str) -> None:
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(" in page
    found = Reader(page)
    assert HOSTILE in found.cells
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_the_figures_are_those_of_the_comparison_and_the_same_runs_give_the_same_page(page: str, root: Path) -> None:
    found, cells = compare_runs([str(root)]), Reader(page).cells
    for table in found.tables():
        for row in table.rows:
            assert {str(cell) for cell in row} <= set(cells)
    with style():
        assert render(found) == page


def test_each_picture_has_its_words(page: str) -> None:
    labels = [value for name, value in Reader(page).attributes if name == "aria-label"]
    ends = "training loss over the steps: phm-n4 ends at 4.00; real ends at 4.00 ± 0.00"
    assert any(one.startswith(ends) for one in labels)
    cells = Reader(page).cells
    assert cells[cells.index("words of the source") :][:5] == [
        "words of the source",
        "items",
        "phm-n4",
        "real",
        "11–20",
    ]
    assert cells[cells.index("rules (A)") + 8 :][0] == "704"
    assert page.count("<svg") == page.count('role="img"') == page.count("<figcaption>")


def test_the_samples_are_the_best_and_the_worst(page: str) -> None:
    """Line 4 (row 3) is the hostile one: the dense model's answer is right there."""
    cells = Reader(page).cells
    lines = cells[cells.index("source") + 5 :]
    assert page.index("most in favour of real") > 0
    row = lines.index(HOSTILE) - 4
    assert lines[row : row + 4] == ["4", SOURCES[3], REFERENCES[3], REFERENCES[3]]


def test_each_rule_is_drawn_with_the_algebra_that_it_is_nearest_to(page: str) -> None:
    text = Reader(page).text
    assert "phm-n4, seed 1: 11 rules, n = 4" in text
    assert len(re.findall(r"decoder\.0\.[a-z_.]+: [^:]+ at 0\.\d\d", text)) == 7
    assert page.count("data:image/png") == 11


def test_a_quaternion_rule_is_found_to_be_one(tmp_path: Path) -> None:
    import torch

    from phmctl.algebra.kronecker import fixed_rule
    from phmctl.checkpoints import write_checkpoint
    from phmctl.comparison.variants import ComparedRun
    from phmctl.runs.summary import summarise

    run = make_run(tmp_path, settings=PHM, hypotheses=None)
    mixing = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    rule = torch.einsum("ij,jab->iab", mixing, fixed_rule("quaternion"))
    tensors = {"map.A": rule, "map.S": torch.ones(4, 2, 2)}
    write_checkpoint(run.checkpoints_folder / "step-009999", {"model": tensors}, {"step": 9999})
    run.point("best", 9999)
    (found,) = learned_rules(ComparedRun(summarise(run.folder), None))
    assert (found.name, found.nearest.name, round(found.nearest.distance, 5)) == ("map", "quaternion", 0)


def test_classifiers_are_broken_down_by_label_and_group(tmp_path: Path) -> None:
    make_classifier(tmp_path, [True] * 20 + [False] * 10)
    settings = ("model.algebra=phm", "model.n=8")
    make_classifier(tmp_path, [True] * 15 + [False] * 5 + [True] * 10, settings=settings)
    with style():
        found = Reader(render(compare_runs([str(tmp_path)])))
    cells = found.cells[found.cells.index("attractors") :]
    assert cells[2:12] == ["phm-n8", "real", "0", "10", "80.00", "70.00", "1", "10", "80.00", "70.00"]
    assert "McNemar's exact test" in found.text
    assert "text 15" in found.cells


def test_runs_without_results_still_have_curves_and_rules(tmp_path: Path) -> None:
    make_run(tmp_path, settings=PHM, hypotheses=None)
    with style():
        text = Reader(render(compare_runs([str(tmp_path)]))).text
    assert "no result yet: phmctl eval" in text
    assert "Learned rules" in text
    assert "Samples" not in text


def test_the_command_writes_the_file_and_prints_its_path(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    result = call("report", root, "-o", output)
    assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    assert Reader(output.read_text(encoding="utf-8")).text
    told = json.loads(call("report", root, "-o", output, "--json").stdout)
    assert (told["report"], told["baseline"]) == (str(output), "real")


def test_without_matplotlib_or_a_file_to_write_nothing_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'phmctl[report]'")):
        write_report([root], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="is a folder"):
        write_report([root], tmp_path)
