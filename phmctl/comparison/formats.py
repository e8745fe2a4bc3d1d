"""A comparison as tables for people, as CSV and as LaTeX."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from phmctl.comparison.compare import Comparison
from phmctl.comparison.variants import Variant, mean_and_spread
from phmctl.console import Table
from phmctl.tasks.answers import ONE_SEED, Metric, Test, within

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
}
_LATEX |= {each: f"\\{each}" for each in "&%$#_{}"} | {"–": "--", "−": "$-$", "Δ": r"$\Delta$", "<": "$<$", ">": "$>$"}


def comparison_tables(found: Comparison) -> Iterator[Table]:
    """Yield the scores, the tested differences, and sizes and speeds; each fits 80 columns unless names are long."""
    names = [metric.name + ("" if metric.scale == 1 else " %") for metric in found.metrics]
    yield Table(
        f"{found.split}: mean ± standard deviation over seeds",
        ["model", "seeds", *names],
        [_score_cells(variant, found.metrics) for variant in found.variants],
        below=found.conditions,
    )
    if found.tests:
        yield Table(
            f"difference from {found.baseline.label} (95 % interval){_of_one_seed(found)}",
            ["model", "metric", "difference", "p", "p (Holm)"],
            [_test_cells(found, label, test) for label, tests in found.tests.items() for test in tests],
            text=(1,),
            below=found.methods,
        )
    speed = "tokens/s" if found.same_machine else "tokens/s *"
    yield Table(
        "size and speed of training",
        ["model", "parameters", "without emb.", speed, "minutes"],
        [_size_cells(variant) for variant in found.variants],
    )


def _of_one_seed(found: Comparison) -> str:
    """What a caption says of differences between single seeds; nothing where there are none."""
    labels = [label for label, (test, *_) in found.tests.items() if test.method.endswith(ONE_SEED)]
    about = "" if len(labels) == len(found.tests) else f"{', '.join(labels)}: "
    return f";\n{about}{ONE_SEED}" if labels else ""


def _score_cells(variant: Variant, metrics: Sequence[Metric]) -> tuple[object, ...]:
    return variant.label, len(variant.scored), *(mean_and_spread(variant.values(metric)) for metric in metrics)


def _test_cells(found: Comparison, label: str, test: Test) -> tuple[object, ...]:
    change = test.found.difference
    interval = within(change.value, change.low, change.high, "+.2f")
    return label, test.metric, interval, p_words(test.found.p_value), p_words(found.corrected[label, test.metric])


def p_words(p_value: float) -> str:
    """A p as people read it."""
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


def _size_cells(variant: Variant) -> tuple[object, ...]:
    sizes = variant.parameters
    counts = (None, None) if sizes is None else (sizes.total, sizes.without_embeddings)
    return variant.label, *map(_count, counts), _count(variant.speed), _count(variant.minutes, 1)


def _count(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


# ------------------------------------------------------------------------------------------------------ CSV and LaTeX


def comparison_csv(found: Comparison) -> str:
    """A line a variant, with every figure in a column of its own; what is not known is empty."""
    rows = []
    for variant in found.as_json()["variants"]:
        row = {"model": variant["label"], **{name: variant[name] for name in ("recipe", "algebra", "n")}}
        row["seeds"] = sum(run["result"] is not None for run in variant["runs"])
        names = ("parameters", "without_embeddings", "tokens_per_second", "minutes")
        row |= {name: variant[name] for name in names}
        tests = {test["metric"]: test for test in variant["tests"]}
        for metric in found.metrics:
            score, test = variant["scores"][metric.name], tests.get(metric.name, {})
            row |= {metric.name: score["mean"], f"{metric.name}_sd": score["standard_deviation"]}
            if metric.tested:
                change = test.get("difference", {})
                told = {"difference": change.get("value"), "low": change.get("low"), "high": change.get("high")}
                told |= {"p": test.get("p_value"), "p_holm": test.get("p_holm")}
                row |= {f"{metric.name}_{name}": value for name, value in told.items()}
        rows.append(row)
    return as_csv([list(rows[0]), *(list(row.values()) for row in rows)])


def as_csv(rows: Sequence[Sequence[object]]) -> str:
    """Rows as CSV (RFC 4180, but for plain line ends). A text that a spreadsheet would run gets a quote."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(cell) for cell in row] for row in rows)
    return text.getvalue()


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t")) else cell


def comparison_latex(found: Comparison) -> str:
    """A table for the package ``booktabs``."""
    head = ["model", "parameters", "without emb.", "seeds"]
    tested = [metric for metric in found.metrics if metric.tested and found.tests]
    for metric in found.metrics:
        head += [metric.name] + (["p (Holm)"] if metric in tested else [])
    rows = []
    for variant in found.variants:
        cells = [*map(str, _size_cells(variant)[:3]), str(len(variant.scored))]
        for metric in found.metrics:
            p_value = found.corrected.get((variant.label, metric.name))
            cells += [mean_and_spread(variant.values(metric))]
            cells += ["" if p_value is None else p_words(p_value)] if metric in tested else []
        rows.append(cells)
    lines = [*found.conditions, *found.methods, *found.differences(), *found.notes()]
    return as_latex([head, *rows], lines)


def as_latex(rows: Sequence[Sequence[str]], below: Iterable[str]) -> str:
    """Rows, the first of them the headings, as a ``tabular`` of ``booktabs``, with comments below it."""
    head, *body = ([latex_escape(cell) for cell in row] for row in rows)
    line: Callable[[Sequence[str]], str] = lambda cells: "  " + " & ".join(cells) + r" \\" + "\n"  # noqa: E731
    columns = "l" + "r" * (len(head) - 1)
    inner = line(head) + "  \\midrule\n" + "".join(map(line, body))
    return f"\\begin{{tabular}}{{{columns}}}\n  \\toprule\n{inner}  \\bottomrule\n\\end{{tabular}}\n" + "".join(
        f"% {latex_escape(text)}\n" for text in below
    )


def latex_escape(text: str) -> str:
    """Text that LaTeX sets as it is; a line break becomes a blank."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
