"""The numbers of README and docs/ as text and tables of Markdown.

A page contains blocks between ``<!-- results: NAME -->`` and ``<!-- end -->``; :func:`fill` writes the block that the
function of that name (:data:`BLOCKS`) returns. Each number is stored once, in the table of trainings.
"""

import re
from collections.abc import Callable, Sequence

from tools.results import (
    COMPARED_FILES,
    EIGHT,
    FORMS,
    MARGIN,
    STRUCTURES,
    TASKS,
    WIDE,
    Change,
    File,
    against_dense,
    at_steps,
    duration,
    equal_score,
    file_steps,
    files,
    parameters,
    plateau,
    sample,
    select,
    task,
    welch,
)

BLOCKS: dict[str, Callable[[], str]] = {}


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def probability(value: float) -> str:
    """Return a probability with two digits, three below 0.1."""
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def interval(change: Change) -> str:
    """Return a difference with its 95 % interval."""
    value = change.value
    return f"{signed(value.value)} ({signed(value.low)} to {signed(value.high)})"


def beside(value: float, unit: str = "BLEU") -> str:
    """Return a difference as words: 0.24 BLEU below."""
    return f"{abs(value):.2f} {unit} {'above' if value > 0 else 'below'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def block(function: Callable[[], str]) -> Callable[[], str]:
    BLOCKS[function.__name__.replace("_", "-")] = function
    return function


def fill(page: str) -> str:
    """Return a page with its blocks computed from the table."""
    pattern = r"(<!-- results: ([a-z0-9-]+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", page, flags=re.DOTALL)


# --------------------------------------------------------------------------------------------------------- README


@block
def bullets() -> str:
    half, quarter, wide = (against_dense(model) for model in ("PHM, n = 2", "PHM, n = 4", WIDE))
    taught = against_dense("PHM, n = 4, taught")
    dense = parameters("dense")
    shares = [f"{100 * parameters(model) / dense:.0f} %" for model in ("PHM, n = 2", "PHM, n = 4")]
    time = duration(WIDE, "Zen 4") / duration("dense", "Zen 4")
    return "\n".join(
        [
            f"- **{shares[0]} of the weights (n = 2), level**: {interval(half)}.",
            f"- **{shares[1]} of the weights (n = 4)**: {interval(quarter)}; taught by a dense model "
            f"{interval(taught)}.",
            f"- **The size of the dense model (n = 4, d = 512), ahead**: {interval(wide)}; it trains {time:.1f} times "
            "as long on a CPU.",
        ]
    )


# ------------------------------------------------------------------------------------------------- docs/results.md


def picture(name: str, alt: str) -> str:
    """Return the line that shows a figure."""
    return f"![{alt}](img/{name}.svg)"


def section(verdict: str, figure: str, numbers: str) -> str:
    """Return a section's verdict, figure and table, with empty lines between them."""
    return f"{verdict}\n\n{figure}\n\n{numbers}"


@block
def size() -> str:
    two, four, eight, fixed = (against_dense(model) for model in STRUCTURES)
    chrf = against_dense("PHM, n = 4", "chrF").value.value
    rows = [["dense", f"{parameters('dense'):,}", plateau("dense").text(), plateau("dense", "chrF").text(), "–", "–"]]
    rows[0].append("–")
    for model, change in zip(STRUCTURES, (two, four, eight, fixed), strict=True):
        scores = [plateau(model, metric).text() for metric in ("BLEU", "chrF")]
        tests = [interval(change), probability(change.p_value), probability(change.p_inferior)]
        rows.append([model, f"{parameters(model):,}", *scores, *tests])
    return section(
        f"**Half of the weights cost nothing (n = 2: {signed(two.value.value)} BLEU), a quarter "
        f"{abs(four.value.value):.2f} BLEU (n = 4; p {_is(four.p_value)}, chrF {signed(chrf)}), an eighth "
        f"{abs(eight.value.value):.2f} (n = 8; p {_is(eight.p_value)}).**",
        picture("parameters", "BLEU over parameters of dense and PHM models after 4,000 steps"),
        table(["model", "parameters", "BLEU", "chrF", "BLEU less dense (95 %)", "p", f"p of a loss of {MARGIN}"], rows),
    )


def _is(p_value: float) -> str:
    text = probability(p_value)
    return text if text.startswith("<") else f"= {text}"


@block
def steps() -> str:
    changes = {}
    for number in (800, 2000, 4000):
        changes[number] = welch(at_steps("dense", number), at_steps("PHM, n = 4", number))
    short, _, long = (change.value.value for change in changes.values())
    rows = []
    for number, change in changes.items():
        dense, four = at_steps("dense", number), at_steps("PHM, n = 4", number)
        seeds = f"{dense.count}, {four.count}"
        rows.append([f"{number:,}", seeds, dense.text(), four.text(), interval(change), probability(change.p_value)])
    return section(
        f"**n = 4 is ahead of dense early ({signed(short)} BLEU after 800 steps), but dense catches up "
        f"({signed(long)} after 4,000 steps).**",
        picture("steps", "BLEU less dense after 800, 2,000 and 4,000 steps"),
        table(["steps", "seeds", "dense: BLEU", "n = 4: BLEU", "difference (95 %)", "p"], rows),
    )


@block
def equal_parameters() -> str:
    change, chrf = against_dense(WIDE), against_dense(WIDE, "chrF")
    rows = []
    for number in (800, 4000):
        for model, rate in (("dense", "8e-3" if number == 800 else "4e-3"), (WIDE, "1.6e-2")):
            score = equal_score(model, number)
            name = "equal parameters" if model == WIDE else "plateau"
            test = "–"
            if model == WIDE:
                difference = welch(equal_score("dense", number), score)
                test = f"{interval(difference)}, p {_is(difference.p_value)}"
            rows.append([f"{number:,}", model, f"{parameters(model, name):,}", rate, score.text(), test])
    scores = {row["model"]: float(row["BLEU"]) for row in select("equal minutes")}
    times = [duration(WIDE, processor) / duration("dense", processor) for processor in ("Zen 3", "Zen 4")]
    return section(
        f"**Yes: PHM with n = 4, d = 512 is {beside(change.value.value)} and {beside(chrf.value.value, 'chrF')} "
        f"dense of the same size (p {_is(change.p_value)} and {probability(chrf.p_value)}), but it "
        f"trains {times[0]:.1f} (float32) to {times[1]:.1f} (bfloat16) times as long; in 25 "
        f"minutes they are level ({signed(scores[WIDE] - scores['dense'])} BLEU, one seed).**",
        picture("equal-parameters", "BLEU of dense and of PHM with d = 512"),
        table(["steps", "model", "parameters", "rate", "BLEU", "difference (95 %)"], rows),
    )


TAUGHT = ("PHM, n = 8, taught", "PHM, n = 4, taught", "dense, d = 128, taught", "dense, taught")


@block
def teacher() -> str:
    changes = {model: against_dense(model) for model in TAUGHT}
    four, eight, dense = (changes[model].value.value for model in (TAUGHT[1], TAUGHT[0], TAUGHT[3]))
    small = welch(plateau(TAUGHT[2]), plateau(TAUGHT[1]))
    alone = plateau("dense")
    rows = [["dense, no teacher", f"{parameters('dense'):,}", alone.text(), plateau("dense", "chrF").text(), "–", "–"]]
    for model, change in changes.items():
        scores = [plateau(model, metric).text() for metric in ("BLEU", "chrF")]
        rows.append([model, f"{parameters(model):,}", *scores, interval(change), probability(change.p_value)])
    return section(
        f"**Yes: taught by a dense model, n = 4 is {beside(four)} it "
        f"and {beside(small.value.value)} a taught dense model of its size, n = 8 is level "
        f"({signed(eight)}); a taught dense model of full size gains most ({signed(dense)}).**",
        picture("teacher", "BLEU of models with and without a teacher"),
        table(["model", "parameters", "BLEU", "chrF", "BLEU less dense without (95 %)", "p"], rows),
    )


@block
def by_bytes() -> str:
    rows = []
    for number in file_steps():
        for model, (rate, forms) in files(number).items():
            cells = [_file_text(forms.get(form)) for form in FORMS]
            seeds = max(bleu.count for _, bleu, _ in forms.values())
            rows.append([f"{int(number):,} at {rate}", model, str(seeds), *cells])
    number = file_steps()[-1]
    (large, dense, _), (small, tables, _) = (files(number)[model][1][form] for model, form in COMPARED_FILES)
    return section(
        f"**The structure and rounding multiply: n = 4 with PHM tables at 4 bits is a file {large / small:.0f} "
        f"times smaller than the dense model in float32, and {beside(tables.mean - dense.mean)} it after "
        f"{int(number):,} steps ({tables.count} seed{'s' * (tables.count > 1)} against {dense.count}).**",
        picture("bytes", "BLEU over megabytes of the file"),
        table(["steps", "model", "seeds", "float32: BLEU, chrF", "int8", "4 bits"], rows),
    )


def _file_text(file: File | None) -> str:
    """Return megabytes, BLEU and chrF of a file."""
    return "–" if file is None else f"{file[0]:g} MB: {file[1].text()}, {file[2].mean:.2f}"


@block
def tasks() -> str:
    rows = []
    for name, unit in TASKS.items():
        for model, dense, system in task(name):
            value = system.mean - dense.mean
            test = f"{signed(value)} (one seed)"
            if dense.count > 1 and system.count > 1:
                change = welch(dense, system)
                test = f"{interval(change)}, p {_is(change.p_value)}"
            rows.append([f"{name}, {unit}", model, dense.text(), system.text(), test])
    pairs = {model: system.mean - dense.mean for model, dense, system in task("sentence pairs")}
    plays = {model: system.mean - dense.mean for model, dense, system in task("Shakespeare")}
    return section(
        "**n = 2 is level with dense or above it where it was tried, and so is n = 4 on agreement and neuron "
        f"interaction; n = 5 loses {abs(pairs['PHM, n = 5']):.1f} points on sentence pairs, and n = 4 "
        f"{abs(plays['PHM, n = 4']):.2f} BLEU on Shakespeare.**",
        picture("tasks", "Difference of PHM from dense by task"),
        table(["task", "model", "dense", "PHM", "difference (95 %)"], rows),
    )


@block
def rules() -> str:
    worst = {}
    for name in ("rotation-3d", "hamilton", "octonion"):
        worst[name] = max((row["loss"] for row in select("rules", model=name)), key=float)
    return (
        f"**Yes, to float32's precision: after 500 or 1,000 steps the squared error on new examples is at most "
        f"{worst['rotation-3d']} for rotations (n = 3), {worst['hamilton']} for Hamilton's rule (n = 4) and "
        f"{worst['octonion']} for octonions (n = 8), over three seeds each.**"
    )


# ------------------------------------------------------------------------------------------------------- docs/lab


@block
def short_scores() -> str:
    rows = []
    for model in ("dense", *STRUCTURES, "dense, d = 128"):
        found = next(row for row in select("800 steps", model=model) if "-" in row["seed"])
        scores = [sample("800 steps", model, metric, **EIGHT) for metric in ("BLEU", "chrF")]
        cells = [f"{int(found['parameters']):,}", *(score.text() for score in scores), str(scores[0].count)]
        rows.append([model, *cells, found["minutes"]])
    for model in ("low rank, r = 46", "Monarch, n = 4"):
        found = next(row for row in select("800 steps", model=model) if row["chrF"])
        rows.append([model, f"{int(found['parameters']):,}", found["BLEU"], found["chrF"], "1", "–"])
    return table(["model", "parameters", "BLEU", "chrF", "seeds", "minutes"], rows)


@block
def pairs_best() -> str:
    """Return the accuracy of sentence pairs at each model's best rate."""
    name, rows = "sentence pairs", []
    for model in dict.fromkeys(row["model"] for row in select(name)):
        rates = dict.fromkeys(row["rate"] for row in select(name, model=model))
        scores = {rate: sample(name, model, "valid_accuracy", rate=rate) for rate in rates}
        best = max(scores, key=lambda rate: scores[rate].mean)
        rows.append([model, f"{parameters(model, name):,}", best, scores[best].text()])
    return table(["model", "parameters", "rate", "% correct"], rows)


@block
def shakespeare() -> str:
    columns = ("rate", "model", "perplexity", "BLEU", "chrF")
    return table(columns, [[row[column] for column in columns] for row in select("Shakespeare")])


@block
def interaction() -> str:
    rows = []
    for row in select("neuron interaction"):
        if row["steps"] == "900":
            rows.append([row["model"], f"{int(row['parameters']):,}", row["perplexity"], row["BLEU"], row["chrF"]])
    return table(["maps", "parameters with embeddings", "perplexity", "BLEU", "chrF"], rows)
