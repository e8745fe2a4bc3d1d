"""A comparison as tables for people, as CSV and as LaTeX."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from phmctl.comparison.compare import Comparison
from phmctl.comparison.variants import Variant, conditions, mean_and_spread
from phmctl.console import Table
from phmctl.tasks.answers import ONE_SEED, p_words, within

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
}
_LATEX |= {each: f"\\{each}" for each in "&%$#_{}"} | {"–": "--", "−": "$-$", "Δ": r"$\Delta$", "<": "$<$", ">": "$>$"}


_RUN = ("=", "+", "-", "@", "\t")  # what a spreadsheet takes for a formula


def comparison_tables(found: Comparison) -> Iterator[Table]:
    """Yield the scores, the tested differences, and sizes and speeds; each fits 80 columns unless names are long."""
    names = [metric.name + ("" if metric.scale == 1 else " %") for metric in found.metrics]
    yield Table(
        f"{found.split}: mean ± standard deviation over seeds",
        ["model", "seeds", *names],
        [
            (each.label, len(each.scored), *(mean_and_spread(each.values(metric)) for metric in found.metrics))
            for each in found.variants
        ],
        below=conditions(found.variants),
    )
    if found.tests:
        single = [label for label, (test, *_) in found.tests.items() if test.method.endswith(ONE_SEED)]
        about = "" if len(single) == len(found.tests) else f"{', '.join(single)}: "
        rows = []
        for label, test in ((label, test) for label, tests in found.tests.items() for test in tests):
            change = test.found.difference
            p_values = (test.found.p_value, found.corrected[label, test.metric])
            interval = within(change.value, change.low, change.high, "+.2f")
            rows.append((label, test.metric, interval, *map(p_words, p_values)))
        yield Table(
            f"difference from {found.baseline.label} (95 % interval)" + (f";\n{about}{ONE_SEED}" if single else ""),
            ["model", "metric", "difference", "p", "p (Holm)"],
            rows,
            text=(1,),
            below=found.methods,
        )
    speed = "tokens/s" if found.same_machine else "tokens/s *"
    yield Table(
        "size and speed of training",
        ["model", "parameters", "without emb.", speed, "minutes"],
        [_size_cells(variant) for variant in found.variants],
    )


def _size_cells(variant: Variant) -> list[str]:
    sizes, minutes = variant.parameters, variant.minutes
    counts = (sizes and sizes.total, sizes and sizes.without_embeddings, variant.speed)
    shown = ["–" if count is None else f"{count:,.0f}" for count in counts]
    return [variant.label, *shown, "–" if minutes is None else f"{minutes:,.1f}"]


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
    for row in rows:
        inert = [f"'{cell}" if str(cell).startswith(_RUN) and isinstance(cell, str) else cell for cell in row]
        csv.writer(text, lineterminator="\n").writerow(inert)
    return text.getvalue()


def comparison_latex(found: Comparison) -> str:
    """A table for the package ``booktabs``."""
    head = ["model", "parameters", "without emb.", "seeds"]
    tested = [metric for metric in found.metrics if metric.tested and found.tests]
    for metric in found.metrics:
        head += [metric.name] + (["p (Holm)"] if metric in tested else [])
    rows = []
    for variant in found.variants:
        cells = [*_size_cells(variant)[:3], str(len(variant.scored))]
        for metric in found.metrics:
            p_value = found.corrected.get((variant.label, metric.name))
            cells += [mean_and_spread(variant.values(metric))]
            cells += ["" if p_value is None else p_words(p_value)] if metric in tested else []
        rows.append(cells)
    lines = [*conditions(found.variants), *found.methods, *found.differences(), *found.notes()]
    return as_latex([head, *rows], lines)


def as_latex(rows: Sequence[Sequence[str]], below: Iterable[str]) -> str:
    """Rows, the first of them the headings, as a ``tabular`` of ``booktabs``, with comments below it."""
    head, *body = ([latex_escape(cell) for cell in row] for row in rows)
    first, *others = (f"  {' & '.join(cells)} \\\\" for cells in (head, *body))
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    lines = [begin, r"  \toprule", first, r"  \midrule", *others, r"  \bottomrule", r"\end{tabular}"]
    return "".join(f"{line}\n" for line in (*lines, *(f"% {latex_escape(text)}" for text in below)))


def latex_escape(text: str) -> str:
    """Text that LaTeX sets as it is; a line break becomes a blank."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
