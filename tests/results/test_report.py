import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phmctl.errors import MissingExtraError, OutputError
from phmctl.results.report import render
from tests.calls import call
from tests.references import compare_runs
from tests.results.runs import REFERENCES, SOURCES, make_classifier, make_run, worse

SMALL = ("model.width=16", "model.feed_forward=16", "model.encoder_layers=1", "model.decoder_layers=1")
PHM = (*SMALL, "model.algebra=phm", "model.n=4")
HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)> & $x_1$ </style></svg>'


class Reader:
    """The tags, attributes, cells and text of a page, which must be well-formed XML."""

    def __init__(self, page: str) -> None:
        root = ElementTree.fromstring(page)
        elements = list(root.iter())
        self.tags = {element.tag for element in elements}
        self.attributes = [pair for element in elements for pair in element.attrib.items()]
        self.cells = ["".join(element.itertext()) for element in elements if element.tag in ("td", "th")]
        self.text = "".join(root.itertext())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of the dense model, and one of n = 4 with a hostile translation and description."""
    root = tmp_path_factory.mktemp("runs")
    for seed, every in ((1, 6), (2, 8)):
        make_run(root, settings=SMALL, seed=seed, hypotheses=worse(REFERENCES, every))
    lines = [HOSTILE if row == 3 else line for row, line in enumerate(worse(REFERENCES, 2))]
    make_run(root, settings=(*PHM, "description=" + '"<script>alert(3)</script>"'), hypotheses=lines)
    return root


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return render(compare_runs([str(root)]))


def test_the_page_is_well_formed_and_needs_no_network(page: str) -> None:
    reader = Reader(page)
    assert not {"script", "link"} & reader.tags
    references = [value for name, value in reader.attributes if name in ("src", "href")]
    assert references
    assert all(value.startswith(("#", "data:image/svg+xml;base64,")) for value in references)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", re.sub(r'"data:[^"]*"', "", page))
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in references if value.startswith("#")} <= set(ids)


def test_hostile_text_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(" in page
    reader = Reader(page)
    assert HOSTILE in reader.cells
    assert not [name for name, _ in reader.attributes if name.startswith("on")]


def test_the_page_shows_the_tables_of_the_comparison_and_is_reproducible(page: str, root: Path) -> None:
    comparison, cells = compare_runs([str(root)]), set(Reader(page).cells)
    for table in comparison.tables():
        assert {str(cell) for row in table.rows for cell in row} <= cells
    assert render(comparison) == page


def test_pictures_have_descriptions(page: str) -> None:
    labels = [value for name, value in Reader(page).attributes if name == "alt"]
    ends = "training loss over the steps: phm-n4 ends at 4.00; real ends at 4.00 ± 0.00"
    assert any(label.startswith(ends) for label in labels)
    cells = Reader(page).cells
    assert cells[cells.index("words of the source") :][1:5] == ["items", "phm-n4", "real", "11–20"]
    assert page.count("<img ") == len(labels) == page.count("<figcaption>")


def test_samples_differ_most_in_either_direction(page: str) -> None:
    """In line 4 (row 3) the answer of n = 4 is hostile and the dense model's is right."""
    cells = Reader(page).cells
    lines = cells[cells.index("source") + 5 :]
    assert page.index("most in favour of real") > 0
    row = lines.index(HOSTILE) - 4
    assert lines[row : row + 4] == ["4", SOURCES[3], REFERENCES[3], REFERENCES[3]]


def test_classifiers_are_broken_down_by_label_and_group(tmp_path: Path) -> None:
    make_classifier(tmp_path, [True] * 20 + [False] * 10)
    settings = ("model.algebra=phm", "model.n=8")
    make_classifier(tmp_path, [True] * 15 + [False] * 5 + [True] * 10, settings=settings)
    reader = Reader(render(compare_runs([str(tmp_path)])))
    cells = reader.cells[reader.cells.index("attractors") :]
    assert cells[2:12] == ["phm-n8", "real", "0", "10", "80.00", "70.00", "1", "10", "80.00", "70.00"]
    assert "McNemar's exact test" in reader.text
    assert "text 15" in reader.cells


def test_runs_without_results_still_have_curves(tmp_path: Path) -> None:
    make_run(tmp_path, settings=PHM, hypotheses=None)
    text = Reader(render(compare_runs([str(tmp_path)]))).text
    assert "no result yet: phmctl eval" in text
    assert "Learning curves" in text
    assert "Samples" not in text


def test_the_command_writes_the_file_and_prints_its_path(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    result = call("report", root, "-o", output)
    assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    assert Reader(output.read_text(encoding="utf-8")).text
    document = json.loads(call("report", root, "-o", output, "--json").stdout)
    assert (document["report"], document["baseline"]) == (str(output), "real")


def test_without_matplotlib_or_a_file_to_write_nothing_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, "/", ".", ""):
        with pytest.raises(OutputError):
            call("report", root, "-o", folder)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError):
        call("report", root, "-o", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
