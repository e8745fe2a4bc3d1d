"""The commands as functions: ``phmctl.prepare``, ``phmctl.train``, ``phmctl.evaluate``, ``phmctl.load``.

Nothing is printed unless ``quiet`` is False. Importing this module does not import torch.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.answering.opening import find
from phmctl.console import silence
from phmctl.errors import DataError, UserError
from phmctl.recipe.loading import RecipeLike, common_overrides, resolve, unmodified
from phmctl.runs import AUTO, Run
from phmctl.runs.copies import vocabulary_of as read_vocabulary
from phmctl.runs.run import check_tag
from phmctl.shipped import shipped_names
from phmctl.tasks import evaluate as evaluate_model
from phmctl.tasks import load_model

if TYPE_CHECKING:
    from phmctl.answering.classifier import Classifier
    from phmctl.answering.translator import Translator
    from phmctl.data.prepared import PreparedData
    from phmctl.tasks.base import Report
    from phmctl.training.train import TrainingResult

Files = str | Path | Sequence[object]  # a table, a pair (source, target), or a list of tables and pairs
Columns = str | int | Sequence[str | int]
Pair = str | Sequence[str | int]


def prepare(
    name: str | None,
    *,
    data: str | Path | None = None,
    source: str | Path | None = None,
    recipe: str | Path | None = None,
    files: Mapping[str, Files] | None = None,
    columns: Pair | None = None,
    languages: Pair | None = None,
    table: Mapping[str, str | Path] | None = None,
    text: Columns | None = None,
    label: str | int | None = None,
    quoting: bool | None = None,
    header: bool | None = None,
    extra: Columns | None = None,
    vectors: str | Path | None = None,
    split: str | None = None,
    vocabulary_of: str | Path | None = None,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
    joint: bool | None = None,
    reverse: bool = False,
    copies: bool = False,
    max_tokens: int | None = None,
    lowercase: bool | None = None,
    normalise: bool | None = None,
    entities: str | None = None,
    max_ratio: float | None = None,
    min_count: int | None = None,
    force: bool = False,
    quiet: bool = True,
) -> "PreparedData":
    """Clean and tokenize a corpus, once for all runs that use it: ``phmctl prepare-data``.

    Arguments that are not described here are the command's options (``phmctl prepare-data --help``). `columns` and
    `languages` may be pairs: ``("de", "en")``.

    Args:
        name: Name of a dataset card, or a name for your own corpus.
        files: Your own parallel text, by split: ``{"train": ("train.de", "train.en"), "valid": …}``. A split is a pair
            of files, a table with both sides, or a list of pairs and tables, which are concatenated. Further test sets
            are called ``test_NAME``.
        table: Your own labelled text, by split: ``{"train": "train.csv", "valid": "valid.csv"}``.
        quiet: Print nothing on stderr.

    Returns:
        the prepared data: ``folder`` and ``manifest``, which counts the rows read, kept and dropped.

    Raises:
        DataError: the card is unknown, or files are missing or malformed.
        RecipeError: a setting is out of range.
        UserError: files are given in another form.
        OutputError: the folder cannot be written.
    """
    if name is None:
        raise DataError("no corpus is named. phmctl prepare-data --list shows the dataset cards")
    if files and table:
        raise DataError("table is for labelled text, and the other files are parallel text: give only one of them")
    own_files = {split: _file_groups(split_files) for split, split_files in (files or table or {}).items()}
    section = _without_none(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        joint=joint,
        max_tokens=max_tokens,
        direction="reverse" if reverse else None,
        copies=copies or None,
    )
    cleaning = _without_none(
        lowercase=lowercase, normalise=normalise, entities=entities, max_ratio=max_ratio, min_count=min_count
    )
    reading = _without_none(
        columns=_pair("columns", columns),
        languages=_pair("languages", languages),
        text=_texts(text),
        label=None if label is None else str(label),
        header=header,
        quoting=quoting,
        extra=_texts(extra),
        split=split,
    )
    from phmctl.data.prepare import prepare_named
    from phmctl.data.prepared import data_root

    with silence(quiet):
        return prepare_named(
            name,
            root=data_root(data),
            recipe=None if recipe is None else str(recipe),
            settings=section,
            files=own_files,
            labelled=bool(table),
            options=reading,
            cleaning=cleaning,
            vocabulary=None if vocabulary_of is None else read_vocabulary(Path(vocabulary_of)),
            source=_path(source),
            vectors=_path(vectors),
            force=force,
        )


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _pair(option: str, value: Pair | None) -> tuple[str, str] | None:
    if value is None:
        return None
    names = [str(name).strip() for name in (value.split(",") if isinstance(value, str) else value)]
    if len(names) != 2 or "" in names:
        raise DataError(f"{option}={','.join(names)}: expected two names, SOURCE,TARGET")
    return names[0], names[1]


def _texts(values: str | int | Path | Sequence[object] | None) -> list[str] | None:
    """Return the values of a repeatable option as the command line has them."""
    if values is None:
        return None
    if isinstance(values, str | int | Path):
        return [str(values)]
    return [str(value) for value in values] or None


def _file_groups(files: "Files") -> list[tuple[Path, ...]]:
    """Return the pairs and tables of a split, each as a tuple of paths. Raises UserError."""
    is_pair = isinstance(files, tuple) and all(isinstance(file, str | Path) for file in files)
    entries: object = [files] if is_pair or isinstance(files, str | Path) else files
    with suppress(TypeError):
        if isinstance(entries, Sequence):
            return [(Path(entry),) if isinstance(entry, str | Path) else tuple(map(Path, entry)) for entry in entries]
    raise UserError(f"files: a split is a table, a pair (source, target) or a list of these, not {files!r}")


def train(
    recipe: RecipeLike,
    *,
    n: int | None = None,
    algebra: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    steps: int | None = None,
    init: str | Path | None = None,
    settings: Mapping[str, object] | Sequence[str] = (),
    data: str | Path | None = None,
    runs: str | Path | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    tag: str | None = None,
    quiet: bool = True,
) -> "TrainingResult":
    """Train a recipe's model on prepared data: ``phmctl train``.

    Arguments that are not described here are the command's options (``phmctl train --help``).

    Training seeds torch's random numbers and, if the recipe says so, sets the number of torch's threads, so that a
    process trains one model at a time. In the main thread Ctrl-C and SIGTERM make it save and return (``exit_code``
    130 or 143).

    Args:
        recipe: A path or a shipped name, a mapping with the keys of the YAML, or a
            :class:`~phmctl.recipe.schema.Recipe`. With `resume` also a run: a folder, a name below `runs` or a tag.
        settings: Values of recipe keys: ``{"training.clip": 1.0}`` or ``["training.clip=1.0"]``.
        resume: Continue the run, or the newest run whose training steps agree with the recipe. Start one if none does.
        quiet: Print nothing on stderr.

    Returns:
        the result: ``run`` (with ``folder``, for :func:`phmctl.load`), ``steps``, ``seconds``, ``best_score``,
        ``exit_code``.

    Raises:
        RecipeError: the recipe is invalid. The message lists all problems at once.
        DataError: the data is not prepared.
        UserError: options contradict each other.
        RunError: the run cannot be resumed, or not with this recipe.
        NonFiniteError: a loss or a gradient became NaN or infinite.
        OutputError: the folder of runs cannot be written.
    """
    from phmctl.training.train import train as run_training

    if checkpoint is not None and not resume:
        raise UserError(f"checkpoint={checkpoint} says where to continue from. Add resume, or leave it out")
    check_tag(tag)
    written, run = recipe_and_run(recipe, resume=resume, runs=runs)
    overrides = common_overrides(n=n, algebra=algebra, seed=seed, device=device, steps=steps, init=init)
    with silence(quiet):
        resolved = resolve(written, overrides, settings)
        return run_training(
            resolved,
            data=_path(data),
            runs=_path(runs),
            resume=resume,
            run=run,
            checkpoint=checkpoint or "last",
            record={"tag": tag, "unmodified": unmodified(written, resolved)},
        )


def recipe_and_run(
    recipe: RecipeLike, *, resume: bool, runs: str | Path | None = None
) -> tuple[RecipeLike, Run | None]:
    """Return the recipe to train, and the run to continue if `recipe` names a run."""
    if not isinstance(recipe, str | Path) or Path(recipe).is_file() or str(recipe) in shipped_names("recipes"):
        return recipe, None
    if resume:
        run = Run.open(recipe, runs)
        return run.recipe, run
    if Path(recipe).is_dir():
        raise UserError(f"{recipe} is a folder, not a recipe. Add resume to continue a run")
    return recipe, None


def evaluate(
    run: str | Path,
    split: str = "test",
    *,
    checkpoint: str = AUTO,
    beam: int | None = None,
    alpha: float | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    lowercase: bool | None = None,
    tokenize: str | None = None,
    source: str | Path | None = None,
    reference: str | Path | Sequence[str | Path] | None = None,
    table: str | Path | None = None,
    text: Columns | None = None,
    label: str | int | None = None,
    device: str = "auto",
    quiet: bool = True,
) -> "Report":
    """Score a split of a run's own text, and write the scores into the run: ``phmctl eval``.

    Arguments that are not described here are the command's options (``phmctl eval --help``).

    Args:
        run: Run, folder of versions (its newest run is used), tag or export.
        split: ``test``, ``valid`` or ``test_NAME``, a named test set.
        quiet: Print nothing on stderr.

    Returns:
        the report: ``as_json()`` has all figures, ``tables()`` the printed ones. The report of a translator is an
        :class:`~phmctl.tasks.translation.Evaluation`.

    Raises:
        RunError: a file is missing or damaged.
        UserError: the task does not have an option.
        OutputError: the run's folder cannot be written.
    """
    search = {"beam": beam, "alpha": alpha, "batch_tokens": batch_tokens, "precision": precision}
    scoring = {"lowercase": lowercase, "tokenize": tokenize, "source": source, "reference": _texts(reference)}
    labels = {"table": table, "text": _texts(text), "label": None if label is None else str(label)}
    with silence(quiet):
        return evaluate_model(find(run), split, checkpoint, device, **search, **scoring, **labels)


def load(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    precision: str | None = None,
) -> "Translator | Classifier":
    """Load a trained model that translates, scores, classifies or encodes texts.

    Prints and writes nothing, and does not change global state: random numbers, torch's threads,
    signal handlers. Several threads may use the model at once.

    Args:
        path: Folder of a run or an export, folder of versions (its newest run with a checkpoint is used), or a name
            below ``$PHMCTL_RUNS`` or ``runs``.
        checkpoint: ``best``, ``last``, ``average``, ``step-000200`` or ``200``. By default the average if the recipe
            asks for one and it exists, otherwise ``best``, or ``last`` before the first validation.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        threads: Number of CPU threads of an engine other than torch. Set torch's with ``torch.set_num_threads``.
        precision: Translation: ``bfloat16`` stores the weights in bfloat16 if the device supports it, ``float32`` does
            not, and None follows the recipe.

    Raises:
        RunError: the run is not found (the message names the nearest), or a file is missing or damaged.
        RecipeError: this machine does not have the device.
        UserError: the task does not answer texts, `threads` is given for torch, or `precision` is given for a model
            that is not a run's translator.
    """
    with silence():
        return load_model(find(path), checkpoint or AUTO, device, threads=threads or 0, precision=precision)
