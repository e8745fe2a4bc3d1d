"""The numbers of README and docs/ as text and tables of Markdown.

A page contains blocks between ``<!-- results: NAME -->`` and ``<!-- end -->``; :func:`fill` writes the block that the
function of that name (:data:`BLOCKS`) returns. Each number is stored once, in the table of trainings.
"""

import re
from collections.abc import Callable, Sequence

import yaml

from phmctl.tasks.base import within
from tools import results
from tools.results import (
    DISTILLED,
    EIGHTH,
    EMBEDDED,
    HALF,
    MARGIN,
    NARROW,
    WIDE,
    against_dense,
    plateau,
    select,
    weights,
    welch,
)

BLOCKS: dict[str, Callable[[], str]] = {}


def signed(difference: float) -> str:
    """Return a difference with its sign and two decimals."""
    return f"{difference:+.2f}".replace("-", "−")


def probability(value: float) -> str:
    """Return a probability with two digits, three below 0.1."""
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def interval(change: results.Change) -> str:
    """Return a difference with its 95 % interval."""
    return within(change.value.value, change.value.low, change.value.high, "+.2f")


def p_is(change: results.Change) -> str:
    """Return the probability of a difference as words: p = 0.19."""
    text = probability(change.p_value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


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


def share(model: str) -> str:
    """Return the share of the dense model's weights, tables included: 25 %."""
    return f"{100 * weights(model) / weights('dense'):.0f} %"


@block
def bullets() -> str:
    half, tables, wide = (against_dense(model) for model in (HALF, "PHM, n = 2", WIDE))
    dense_student = signed(against_dense("dense, distilled").value.value)
    (quarter, quarter_student), (eighth, eighth_student) = (
        (interval(against_dense(model)), interval(against_dense(f"{model}{DISTILLED}"))) for model in (EMBEDDED, EIGHTH)
    )
    (large, dense, _), (rounded, rounded_bleu, _), (small, small_bleu, _) = results.compared_files()
    time = results.duration(WIDE, "Zen 4") / results.duration("dense", "Zen 4")
    lines = [
        f"Difference of BLEU from DENSE ({plateau('dense').mean:.2f}, `phmctl train multi30k-de-en`) on Multi30k De–En,"
        " with a 95 % interval over seeds.",
        "`phmctl prepare-data multi30k-de-en` comes first; trainings have `--set training.precision=bfloat16`:",
        f"- **{share(EMBEDDED)} of all weights (n = 4 everywhere)**: {quarter}, distilled {quarter_student}. "
        "`phmctl train multi30k-de-en-tiny`",
        f"- **{share(EIGHTH)} (n = 8 everywhere)**: {eighth}. "
        f"`phmctl train multi30k-de-en-tiny --n 8 --set training.learning_rate={results.BEST_RATES[EIGHTH]}`",
        f"  Distilled {eighth_student}, dense {dense_student}. "
        "`phmctl distil DENSE --recipe multi30k-de-en-tiny --n 8` (n = 4: without `--n`)",
        f"- **{share(HALF)} (n = 2 everywhere)**: {interval(half)}, {counted(plateau(HALF).count)}. "
        f"`phmctl train multi30k-de-en-tiny --n 2`; dense embeddings ({share('PHM, n = 2')}): "
        f"{signed(tables.value.value)}.",
        f"- **A file of {small:g} MB instead of {large:g} MB** (n = 4 everywhere, 4 bits): "
        f"{interval(welch(dense, small_bleu))}. Dense in 4 bits: {rounded:g} MB,",
        f"  {signed(rounded_bleu.mean - dense.mean)} ({counted(rounded_bleu.count)}). "
        "`phmctl export RUN --to safetensors --quantize int4 --with-text -o DIR; phmctl eval DIR`",
        f"- **The size of the dense model (n = 4, d = 512), ahead**: {interval(wide)}. It trains {time:.1f} times as "
        "long on a CPU.",
        "  `phmctl train multi30k-de-en-fast --set model.embedding_width=256 --set model.heads=4`",
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- docs/results.md


def section(verdict: str, figure: str, alt: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a section's verdict, figure (a name, and its content in words) and table."""
    return f"**{verdict}**\n\n![{alt}](img/{figure}.svg)\n\n{table(head, rows)}"


def scored(model: str) -> list[str]:
    """Return the cells of a model after 4,000 steps: seeds, all weights, BLEU, chrF."""
    bleu, chrf = plateau(model), plateau(model, "chrF")
    return [str(bleu.count), f"{weights(model):,}", bleu.text(), chrf.text()]


def tested(change: results.Change) -> list[str]:
    """Return the cells of a tested difference: the difference with the interval, p."""
    return [interval(change), probability(change.p_value)]


def compared(baseline: results.Sample, system: results.Sample) -> list[str]:
    """Return the cells of the difference of two samples, which is tested if both have several seeds."""
    if min(baseline.count, system.count) > 1:
        return tested(welch(baseline, system))
    return [signed(system.mean - baseline.mean), "one seed"]


@block
def size() -> str:
    changes = {model: against_dense(model) for model in (*results.STRUCTURES, *results.small_models())}
    rows = [["dense", "–", "–", "–", *scored("dense")]]
    for model, change in changes.items():
        rows.append([model, *tested(change), probability(change.p_inferior), *scored(model)])
    two, four, eight = (changes[f"PHM, n = {n}"] for n in (2, 4, 8))
    half, quarter, eighth, narrow = (changes[model] for model in (HALF, EMBEDDED, EIGHTH, NARROW))
    chrf = against_dense(EMBEDDED, "chrF")
    return section(
        f"PHM with a quarter of all weights (n = 4, PHM embeddings) loses nothing: {signed(quarter.value.value)} BLEU "
        f"({p_is(quarter)}), {signed(chrf.value.value)} chrF ({p_is(chrf)}). With half of them (n = 2) it is "
        f"{beside(half.value.value)} dense ({p_is(half)}). With {share(EIGHTH)} (n = 8) it loses "
        f"{abs(eighth.value.value):.2f} ({p_is(eighth)}), and a dense model with a quarter loses "
        f"{abs(narrow.value.value):.2f} ({p_is(narrow)}). With dense embeddings, n = 2 loses nothing "
        f"({signed(two.value.value)}), n = 4 {abs(four.value.value):.2f} ({p_is(four)}) and n = 8 "
        f"{abs(eight.value.value):.2f} ({p_is(eight)}).",
        "parameters",
        "BLEU over all weights of dense and PHM models after 4,000 steps",
        ["model", "difference of BLEU (95 %)", "p", f"p (loss ≥ {MARGIN})", "seeds", "all weights", "BLEU", "chrF"],
        rows,
    )


@block
def steps() -> str:
    rows, changes = [], []
    for number in (800, 2000, 4000):
        dense, four = results.at_steps("dense", number), results.at_steps("PHM, n = 4", number)
        change = welch(dense, four)
        rows.append([f"{number:,}", *tested(change), f"{dense.count}, {four.count}", dense.text(), four.text()])
        changes.append(signed(change.value.value))
    return section(
        f"n = 4 is ahead of dense early ({changes[0]} BLEU after 800 steps, three seeds), but dense overtakes it "
        f"({changes[-1]} after 4,000 steps).",
        "steps",
        "difference of BLEU after 800, 2,000 and 4,000 steps; models are drawn beside each other",
        ["steps", "difference (95 %)", "p", "seeds", "dense: BLEU", "n = 4: BLEU"],
        rows,
    )


@block
def equal_parameters() -> str:
    rows = []
    for number, rate in ((800, "8e-3"), (4000, "4e-3")):
        dense, wide = results.equal_score("dense", number), results.equal_score(WIDE, number)
        difference = welch(dense, wide)
        steps = f"{number:,}"
        rows.append([steps, "dense", "–", "–", str(dense.count), f"{weights('dense'):,}", rate, dense.text()])
        rows.append([steps, WIDE, *tested(difference), str(wide.count), f"{weights(WIDE):,}", "1.6e-2", wide.text()])
    change, chrf = against_dense(WIDE), against_dense(WIDE, "chrF")
    scores = {row["model"]: float(row["BLEU"]) for row in select("equal minutes")}
    times = [
        results.duration(WIDE, processor) / results.duration(dense, processor)
        for dense, processor in (("dense, float32", "Zen 3"), ("dense", "Zen 4"))
    ]
    return section(
        f"Yes: PHM with n = 4, d = 512 is {beside(change.value.value)} and {beside(chrf.value.value, 'chrF')} "
        f"dense of the same size ({p_is(change)} and {probability(chrf.p_value)}), but it "
        f"trains {times[0]:.1f} (float32) to {times[1]:.1f} (bfloat16) times as long. In 25 "
        f"minutes it has no more BLEU ({signed(scores[WIDE] - scores['dense'])}, one seed) and a higher perplexity.",
        "equal-parameters",
        "BLEU of dense and of PHM with d = 512",
        ["steps", "model", "difference (95 %)", "p", "seeds", "all weights", "rate", "BLEU"],
        rows,
    )


@block
def teacher() -> str:
    rows = [["dense, no teacher", "–", "–", "–", *scored("dense")]]
    changes = {model: against_dense(model) for model in results.STUDENTS}
    for model, change in changes.items():
        rows.append([model, *tested(change), probability(change.p_inferior), *scored(model)])
    taught = {
        model: welch(plateau(model), plateau(f"{model}{DISTILLED}"))
        for model in ("dense", "PHM, n = 4", "PHM, n = 8", EMBEDDED, EIGHTH)
    }
    added = [f"{signed(change.value.value)} ({p_is(change)})" for change in taught.values()]
    quarter, eighth = changes[f"{EMBEDDED}{DISTILLED}"], changes[f"{EIGHTH}{DISTILLED}"]
    gains = {model: change.value.value for model, change in changes.items()}
    small = gains["PHM, n = 4, distilled"] - gains["dense, d = 128, distilled"]
    return section(
        f"Yes, if the embeddings are dense: dense {added[0]}, n = 4 {added[1]}, n = 8 {added[2]}, each against itself "
        f"without a teacher. With PHM embeddings the gain is not significant: n = 4 {added[3]}, n = 8 {added[4]}. "
        f"Distilled PHM with {share(EMBEDDED)} of all weights is {beside(quarter.value.value)} ({p_is(quarter)}) a "
        f"dense model without a teacher, with {share(EIGHTH)} {beside(eighth.value.value)} ({p_is(eighth)}). With "
        f"dense embeddings, n = 4 is {beside(small)} a distilled dense model of the same size.",
        "teacher",
        "BLEU of models with and without a teacher",
        ["model", "difference from dense (95 %)", "p", f"p (loss ≥ {MARGIN})", "seeds", "all weights", "BLEU", "chrF"],
        rows,
    )


@block
def by_bytes() -> str:
    rows = []
    files = results.files()
    (large, dense, _), (rounded, _, _), (small, small_bleu, _) = results.compared_files()
    for model, forms in files.items():
        seeds = ", ".join(dict.fromkeys(str(forms[form][1].count) for form in results.FORMS))
        rows.append(
            [model, *compared(dense, forms["int4"][1]), seeds, *(file_text(forms[form]) for form in results.FORMS)]
        )
    change = welch(dense, small_bleu)
    four, eight = (files[f"{model}{DISTILLED}"]["int4"] for model in (EMBEDDED, EIGHTH))
    return section(
        f"PHM (n = 4, PHM embeddings) in 4 bits needs {small:g} MB. The dense model needs {large:g} MB in float32 and "
        f"{rounded:g} MB in 4 bits. PHM in 4 bits is {beside(change.value.value)} dense in float32 ({p_is(change)}, "
        f"{small_bleu.count} seeds against {dense.count}), and a loss of {MARGIN} BLEU is excluded (p = "
        f"{probability(change.p_inferior)}). Distilled from dense, n = 4 has {four[1].text()} BLEU "
        f"({counted(four[1].count)}), and n = 8 {eight[1].text()} in {eight[0]:g} MB ({counted(eight[1].count)}).",
        "bytes",
        "BLEU over megabytes of the file",
        ["model", "4 bits − dense, float32 (95 %)", "p", "seeds", "float32: BLEU, chrF", "int8", "4 bits"],
        rows,
    )


def counted(seeds: int) -> str:
    """Return a number of seeds as words: one seed, 3 seeds."""
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def file_text(file: results.File) -> str:
    """Return megabytes, BLEU and chrF of a file."""
    return f"{file[0]:g} MB: {file[1].text()}, {file[2].mean:.2f}"


@block
def tasks() -> str:
    rows, lost = [], []
    scores = {(name, model): pair for name in results.TASKS for model, *pair in results.task(name)}
    gains = {key: signed(system.mean - dense.mean) for key, (dense, system) in scores.items()}
    for (name, model), (dense, system) in scores.items():
        unit = "BLEU" if results.TASKS[name][0] == "BLEU" else "%"
        rows.append([f"{name}, {unit}", model, *compared(dense, system), dense.text(), system.text()])
        if system.count > 1 and (change := welch(dense, system)).value.high < 0:
            lost.append(f"{model.removeprefix('PHM, ')} on {name} ({gains[name, model]}, {p_is(change)})")
    five, embedded = ("sentence pairs", "PHM, n = 5"), ("Shakespeare", EMBEDDED)
    seeds = scores[embedded][1].seeds
    return section(
        f"Significantly below dense on test: {', '.join(lost)}. Sentence pairs with n = 5 "
        f"({gains[five]}, {p_is(welch(*scores[five]))}) are not. On Shakespeare n = 4 has "
        f"{gains['Shakespeare', 'PHM, n = 4']} BLEU, and with PHM embeddings {gains[embedded]}, where three seeds "
        f"differ by up to {max(seeds) - min(seeds):.1f}. The others are not significant, or of one seed.",
        "tasks",
        "Difference of PHM from dense by task",
        ["task", "model", "difference (95 %)", "p", "score of dense", "score"],
        rows,
    )


@block
def shakespeare() -> str:
    rows = []
    for model, rate in results.TASKS["Shakespeare"][1].items():
        scores = [results.sample("Shakespeare", model, name, rate=rate) for name in ("BLEU", "chrF", "perplexity")]
        count = f"{results.parameters(model, 'Shakespeare'):,}"
        rows.append([model, count, rate, str(scores[0].count), *(score.text() for score in scores)])
    return table(["model", "parameters without embeddings", "rate", "seeds", "BLEU", "chrF", "perplexity"], rows)


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
    for model in ("dense", *results.STRUCTURES, "dense, d = 128"):
        scores = [results.sample("800 steps", model, metric, **results.EIGHT) for metric in ("BLEU", "chrF")]
        count = results.parameters(model, "800 steps")
        rows.append([model, f"{count:,}", *(score.text() for score in scores), str(scores[0].count)])
    for model in ("low rank, r = 46", "Monarch, n = 4"):
        found = next(row for row in select("800 steps", model=model) if row["chrF"])
        rows.append([model, f"{int(found['parameters']):,}", found["BLEU"], found["chrF"], "1"])
    return table(["model", "parameters", "BLEU", "chrF", "seeds"], rows)


@block
def pairs_best() -> str:
    """Return the accuracies of sentence pairs on valid and test, at each model's best rate on valid."""
    name, rows = "sentence pairs", []
    for model in dict.fromkeys(row["model"] for row in select(name)):
        rates = dict.fromkeys(row["rate"] for row in select(name, model=model))
        scores = {rate: results.sample(name, model, "valid_accuracy", rate=rate) for rate in rates}
        best = max(scores, key=lambda rate: scores[rate].mean)
        tested = any(row["accuracy"] for row in select(name, model=model, rate=best))
        test = results.sample(name, model, "accuracy", rate=best).text() if tested else "–"
        rows.append([model, f"{results.parameters(model, name):,}", best, scores[best].text(), test])
    return table(["model", "parameters", "rate", "% of valid", "% of test"], rows)


@block
def interaction() -> str:
    rows = []
    for row in select("neuron interaction"):
        if row["steps"] == "900":
            rows.append([row["model"], f"{int(row['parameters']):,}", row["perplexity"], row["BLEU"], row["chrF"]])
    return table(["maps", "parameters with embeddings", "perplexity", "BLEU", "chrF"], rows)


# ------------------------------------------------------------------------------------------------- docs/reproduce.md


@block
def papers() -> str:
    """Return the scores of docs/lab/published.yaml, a table for each table of the papers."""
    path = results.ROOT / "docs" / "lab" / "published.yaml"
    parts = []
    for published in yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader):  # scores as they are printed
        names = [row["recipe"] for row in published["rows"]]
        title, head, recipes = published["title"], ["recipe"], [[f"`{name}`"] for name in names]
        if len({*names}) == 1:
            title, head, recipes = f"{title}: `{names[0]}`", [], [[] for _ in names]
        rows = []
        for row, cells in zip(published["rows"], recipes, strict=True):
            name = f"{row['name']} (here {row['here']})" if "here" in row else row["name"]
            rows.append([name, *cells, *row["scores"]])
        parts.append(f"**{title}**\n\n{table(['', *head, *published['models']], rows)}")
    return "\n\n".join(parts)


@block
def minilm() -> str:
    """Return the table of all-MiniLM-L6-v2: the dense forms, and each file after as many steps as any."""
    rows = []
    for row, scores in sorted(results.sentence_models(), key=lambda pair: -int(pair[0]["bytes"])):
        numbers = f"{100 * float(row['share'] or 1):g} %"
        form = {"int8": "8 bits", "int4": "4 bits"}.get(row["form"], row["form"])
        steps = f"{int(row['steps']):,}" if row["steps"] else "–"
        rows.append((f"{row['model']}, {form}", numbers, steps, f"{int(row['bytes']):,}", scores.text()))
    return table(("all-MiniLM-L6-v2", "numbers", "steps of healing", "bytes", "Spearman × 100, STS-B dev"), rows)


@block
def minilm_structures() -> str:
    """Return the table of the best rate of each structure at a quarter of the numbers, after few steps."""
    best: dict[str, tuple[str, ...]] = {}
    for row, scores in sorted(results.sentence_models(short=True), key=lambda pair: -pair[1].mean):
        if row["share"] in ("0.232", "0.26") and "," not in row["model"]:  # after the comma: variants
            best.setdefault(row["model"], (row["model"], row["lr"], f"{int(row['bytes']):,}", scores.text()))
    return table(("structure", "lr", "bytes", "Spearman × 100, STS-B dev"), list(best.values()))
