"""README and docs/results.md state the numbers of docs/lab/results.csv, and docs/img/ draws them."""

import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest

from phmctl.shipped import shipped_names
from tools import blocks, figures, reference, results

README = figures.ROOT / "README.md"
RESULTS = figures.ROOT / "docs" / "results.md"
SHRINK = figures.ROOT / "docs" / "shrink.md"
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


@pytest.mark.parametrize("path", figures.PAGES, ids=lambda path: path.name)
def test_every_block_of_numbers_is_computed_from_the_table(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == blocks.fill(page), "run python tools/figures.py"


def test_the_recipes_of_the_papers_tables_are_there() -> None:
    published = (figures.ROOT / "docs" / "lab" / "published.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"recipe: ([\w-]+)", published)) <= set(shipped_names("recipes"))


def test_every_block_is_shown() -> None:
    shown = re.findall(r"<!-- results: (\S+) -->", "".join(path.read_text(encoding="utf-8") for path in figures.PAGES))
    assert set(shown) == set(blocks.BLOCKS)


@pytest.mark.parametrize(
    ("path", "lines"), [(README, 110), (RESULTS, 130)], ids=lambda each: getattr(each, "name", each)
)
def test_the_first_pages_are_short_and_type_no_score(path: Path, lines: int) -> None:
    page = path.read_text(encoding="utf-8")
    assert len(page.splitlines()) <= lines
    typed = re.sub(r"<!-- results: .*?<!-- end -->|```.*?```", "", page, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d\d\b(?!\.)", typed.replace("3.11.4", "")) == []


def test_the_table_has_a_row_for_each_training_and_file() -> None:
    names = ("table", "model", "seed", "rate", "steps", "checkpoint", "form", "commit")
    keys = [tuple(row[name] for name in names) for row in results.trainings()]
    assert len(set(keys)) == len(keys)
    scores = ("BLEU", "chrF", "accuracy", "valid_accuracy", "perplexity", "loss")
    for row in results.trainings():
        assert any(float(row[score]) > 0 for score in scores if row[score]), row


@pytest.mark.parametrize(
    ("model", "metric", "value", "low", "high", "p", "lost"),
    [  # tests that were made from the scores by another program
        ("PHM, n = 2", "BLEU", -0.02, -0.35, 0.31, 0.88, 0.005),
        ("PHM, n = 4", "BLEU", -0.40, -0.81, 0.02, 0.057, 0.29),
        ("PHM, n = 4", "chrF", 0.05, -0.37, 0.48, 0.78, 0.009),
        (results.WIDE, "BLEU", 1.61, 1.04, 2.18, 0.002, 0.0003),
    ],
)
def test_differences_over_seeds(
    model: str, metric: str, value: float, low: float, high: float, p: float, lost: float
) -> None:
    change = results.against_dense(model, metric)
    found = (change.value.value, change.value.low, change.value.high, change.p_value, change.p_inferior)
    assert found == pytest.approx((value, low, high, p, lost), abs=0.006)


def test_a_mean_whose_seeds_are_unknown_has_precedence() -> None:
    sample = results.sample("800 steps", "dense", "BLEU", **results.EIGHT)
    assert (sample.mean, sample.deviation, sample.count, sample.seeds) == (33.89, 0.30, 3, (33.56, 33.99))


def test_the_figures_are_drawn_from_the_table(tmp_path: Path) -> None:
    figures.draw(tmp_path)
    for drawn in tmp_path.iterdir():
        texts = [path.read_text(encoding="utf-8") for path in (drawn, figures.IMAGES / drawn.name)]
        assert "dc:date" not in texts[1]
        same, numbers = zip(*(_parts(text) for text in texts), strict=True)
        assert same[0] == same[1], f"{drawn.name}: run python tools/figures.py"
        assert numbers[0] == pytest.approx(numbers[1], abs=0.02), f"{drawn.name}: run python tools/figures.py"


def _parts(text: str) -> tuple[str, list[float]]:
    text = re.sub(r'(id="|#)[a-z]?[0-9a-f]+', r"\1", text)  # ids are digests of coordinates
    return NUMBER.sub("", text), [float(number) for number in NUMBER.findall(text)]


def test_pages_show_every_figure_with_a_text() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (README, RESULTS, SHRINK))
    texts = dict(re.findall(r"!\[([^]]+)\]\((?:docs/)?img/([\w-]+)\.svg\)", pages))
    for path in figures.IMAGES.glob("*.svg"):
        assert path.stem in (*texts.values(), "phm-light", "phm-dark"), path
    assert all(len(text) > 20 for text in texts)
    assert re.search(r"<picture>.*phm-dark\.svg.*phm-light\.svg.*alt=\"[^\"]{80}", pages, re.DOTALL)


def test_the_sites_first_page_has_readmes_picture() -> None:
    page = reference.on_page_markdown((figures.ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', page):
        assert (figures.ROOT / "docs" / name).is_file()
    assert "<picture>" in page
    assert blocks.bullets() in page


def test_readmes_example_prints_what_it_says() -> None:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    said = [line.split("  # ")[1] for line in code.splitlines() if line.startswith("print(")]
    for line, comment in itertools.zip_longest(printed.getvalue().splitlines(), said):
        assert comment.startswith(line)


@pytest.mark.parametrize("model", results.SETTINGS)
def test_the_table_has_the_ledgers_parameters(model: str) -> None:
    ledger = results.ledger(model)
    rows = [row for row in results.trainings() if row["model"] == model and row["steps"] == "4000"]
    assert {row["parameters"] for row in rows} <= {str(ledger.without_embeddings.parameters), ""}
