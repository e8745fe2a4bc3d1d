"""The commands as functions, for programs: ``phmctl.prepare``, ``phmctl.train``, ``phmctl.evaluate``.

Each is what the command of that name calls, with the names that its options have. Nothing is printed unless ``quiet``
is False. Importing this module does not import torch.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from phmctl.console import silence
from phmctl.errors import RunError, UserError

if TYPE_CHECKING:
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.recipe.loading import RecipeLike
    from phmctl.tasks.base import Report
    from phmctl.training.train import TrainingResult

Settings = Mapping[str, Any] | Sequence[str]
Files = str | Path | Sequence[Any]  # a table, (source, target), or a list of such


class VocabularyOptions(TypedDict, total=False):
    """How text becomes tokens, instead of as the recipe or the card says."""

    tokenizer: str | None  # bpe or word
    vocabulary: int | None  # number of token types
    joint: bool | None  # one vocabulary for both sides
    max_tokens: int | None  # length of the longest text kept in train, in tokens
    direction: str | None  # reverse: from the corpus' target language to its source language
    copies: bool | None  # train on each target as its own source too


class CleaningOptions(TypedDict, total=False):
    """How text is cleaned, instead of as the card says."""

    lowercase: bool | None
    normalise: bool | None  # apply Unicode NFC; replace blanks of all kinds by one
    entities: str | None  # decode: turn ``&apos;`` and the like into characters; or keep
    max_ratio: float | None  # largest ratio of the lengths of a train pair in tokens; 0 keeps all
    min_count: int | None  # least number of occurrences of a word, or of a pair that BPE joins


class TableOptions(TypedDict, total=False):
    """How tables are read, and what labelled text has besides."""

    columns: str | Sequence[str | int] | None  # of source and target: ``"de,en"``, or numbers from 0
    languages: str | Sequence[str] | None  # of your own parallel text: ``"de,en"``
    table: Mapping[str, str | Path] | Sequence[str] | None  # your own labelled text: ``{"train": "train.tsv", …}``
    text: str | Sequence[str] | None  # column of the text; two for pairs
    label: str | None  # column of the label
    quoting: bool | None  # whether cells may be quoted; by default only in CSV
    header: bool | None  # whether tables have a header; without one, columns are numbers from 0
    extra: str | Sequence[str] | None  # columns of whole numbers; scores are told for each value
    extra_split: Mapping[str, str | Path] | Sequence[str] | None  # a split that the card borrows, and its folder
    vectors: str | Path | None  # word vectors for labelled text, in GloVe's text format
    skip_bad_lines: bool | None  # leave out and count lines that cannot be read


class PrepareOptions(VocabularyOptions, CleaningOptions, TableOptions):
    """What :func:`prepare` takes besides; what is None is as if it were not given."""


class EvaluateOptions(TypedDict, total=False):
    """What :func:`evaluate` takes besides, as far as the task has it; None is as if it were not given."""

    beam: int | None  # translators
    alpha: float | None  # translators: exponent of the length penalty
    batch_tokens: int | None  # translators: source tokens in a batch
    execution: str | None  # how PHM maps are applied: dense, or rank if they hold factors
    precision: str | None  # translators: float32 or bfloat16
    lowercase: bool | None  # translators: score in lower case; by default as the corpus
    tokenize: str | None  # translators: tokenizer of BLEU
    source: str | Path | None  # translators: text to score in place of a split
    reference: str | Path | Sequence[str | Path] | None  # its reference translations
    table: str | Path | None  # classifiers: labelled text to score on in place of a split
    text: str | Sequence[str] | None  # column of its text; two for pairs
    label: str | None  # column of its label


def prepare(
    name: str,
    *,
    data: str | Path | None = None,
    source: str | Path | None = None,
    recipe: str | Path | None = None,
    files: Mapping[str, "Files"] | None = None,
    vocabulary_of: str | Path | None = None,
    workers: int = 1,
    force: bool = False,
    refetch: bool = False,
    quiet: bool = True,
    **options: Unpack[PrepareOptions],
) -> "PreparedData":
    """Clean and tokenize a corpus, once for all runs that use it: ``phmctl prepare-data``.

    Args:
        name: a dataset card, or a name for your own files.
        data: the data folder; by default ``$PHMCTL_DATA`` or ``data``.
        source: a folder with the card's files; without it they are downloaded.
        recipe: take the settings of the vocabulary from this recipe, not from the card.
        files: your own parallel text, by split: ``{"train": ("train.de", "train.en"), "valid": …}``. A split may also
            be the name of a table with both sides in it, or a list of such pairs and tables, which follow one
            another. Beside ``test`` there may be ``test_news`` and the like.
        vocabulary_of: a run, or a folder of prepared data, whose vocabulary is taken instead of a new one.
        workers: threads of the tokenizer.
        force: prepare even if nothing has changed.
        refetch: download the card's files again.
        quiet: print nothing on stderr.
        options: further options by the command's names: :class:`PrepareOptions`.

    Returns:
        the prepared data: its ``folder`` and its ``manifest``, which counts what was read, kept and dropped.

    Raises:
        DataError: there is no such card, or files are missing or malformed.
        RecipeError: a setting is out of range.
        UserError: there is no such option.
        OutputError: the folder cannot be written.
    """
    from phmctl.data.prepared.folder import data_root
    from phmctl.errors import check_known
    from phmctl.tasks.base import Preparation
    from phmctl.tasks.registry import kind_for_corpus

    given = _as_given(options)
    for key in given:
        if key in ("train", "valid", "test"):
            raise UserError(f'no option {key!r}: name your own files by split, files={{"{key}": "{given[key]}", …}}')
        check_known("option", key, PrepareOptions.__annotations__)
    if isinstance(given.get("table"), str | Path) or not isinstance(files or {}, Mapping):
        raise UserError("files and table are mappings of splits to files: {'train': 'train.tsv', 'valid': 'valid.tsv'}")
    groups = {split: _groups(named) for split, named in (files or {}).items()}
    vocabulary, cleaning, own = (
        {key: value for key, value in given.items() if key in kind.__annotations__}
        for kind in (VocabularyOptions, CleaningOptions, TableOptions)
    )
    if "vectors" in own:
        own["vectors"] = Path(own["vectors"])
    with _quiet(quiet):
        kind = kind_for_corpus(name, None if recipe is None else str(recipe), [*groups, *own])
        asked = Preparation(
            name,
            data_root() if data is None else Path(data),
            None if recipe is None else str(recipe),
            settings=vocabulary,
            source=None if source is None else Path(source),
            files=groups,
            cleaning=cleaning,
            vocabulary_of=None if vocabulary_of is None else Path(vocabulary_of),
            options=own,
            workers=workers,
            force=force,
            refetch=refetch,
        )
        return kind.prepare(asked)


def _as_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the command has them: one value for a list of one, names with values, names in a list."""
    given = {key: value for key, value in options.items() if value not in (None, [])}
    for key, value in given.items():
        if key in ("columns", "languages") and not isinstance(value, str):
            given[key] = ",".join(map(str, value))
        elif key in ("table", "extra_split") and isinstance(value, Mapping):
            given[key] = [f"{name}={path}" for name, path in value.items()]
        elif key in ("text", "extra"):
            given[key] = [str(each) for each in ([value] if isinstance(value, str | int) else value)]
        elif key == "reference" and isinstance(value, str | Path):
            given[key] = [value]
        elif key in ("source", "label") and not isinstance(value, str | Path | int):
            raise UserError(f"{key} is one {'file' if key == 'source' else 'column'}, not {value!r}")
        elif key == "label":
            given[key] = str(value)
    return given


def _groups(named: "Files") -> list[tuple[Path, ...]]:
    """Return the files of a split, those of each pair or table together."""
    if isinstance(named, str | Path):
        return [(Path(named),)]
    if all(isinstance(each, str | Path) for each in named) and isinstance(named, tuple):
        return [tuple(map(Path, named))]
    return [(Path(each),) if isinstance(each, str | Path) else tuple(map(Path, each)) for each in named]


def train(
    recipe: "RecipeLike | None" = None,
    *,
    n: int | None = None,
    algebra: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    steps: int | None = None,
    execution: str | None = None,
    init: str | Path | None = None,
    settings: Settings = (),
    data: str | Path | None = None,
    runs: str | Path | None = None,
    resume: bool | str | Path = False,
    checkpoint: str = "last",
    tag: str | None = None,
    quiet: bool = True,
) -> "TrainingResult":
    """Train a recipe's model on its prepared data: ``phmctl train``.

    A training is no reader: it seeds torch's random numbers and, if the recipe says so, sets torch's threads. In the
    main thread Ctrl-C and SIGTERM make it save and return (``exit_code`` 130 or 143).

    Args:
        recipe: a shipped name, a path, a mapping with the keys of the YAML, or a
            :class:`~phmctl.recipe.schema.Recipe`; None with a run in `resume` is the run's own.
        n: the PHM hyperparameter; 4 alone means ``phm``, 1 means ``real``.
        algebra: ``real``, ``phm``, or a fixed algebra.
        seed: of initialisation, dropout and the order of batches.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        steps: of the optimiser.
        execution: how maps that hold factors are applied: ``dense``, ``rank``, or ``auto``, which times both.
        init: begin with this run's tensors of the same name and shape.
        settings: any recipe keys: ``{"training.clip": 1.0}``, or ``["training.clip=1.0"]``.
        data: the data folder; by default that of the run in `resume`, ``$PHMCTL_DATA`` or ``data``.
        runs: the folder of runs; by default ``$PHMCTL_RUNS`` or ``runs``.
        resume: instead of starting a run continue this one, or with True the newest that differs from the recipe in
            nothing that a step computes; ``"auto"`` starts one where there is none.
        checkpoint: where to continue from: ``last``, ``best`` or ``step-…``.
        tag: a name for a new run, which ``phmctl runs`` shows and takes.
        quiet: print nothing on stderr.

    Returns:
        how it ended: ``run`` (with its ``folder``, for :func:`phmctl.load`), ``steps``, ``seconds``, ``best_score``,
        ``exit_code``.

    Raises:
        RecipeError: with all problems of the recipe at once.
        DataError: the data is not prepared.
        UserError: there is no recipe.
        RunError: the run cannot be resumed, or not with this recipe.
        NonFiniteError: a loss or a gradient became NaN or infinite.
        OutputError: the folder of runs cannot be written.
    """
    from phmctl.recipe.loading import common_overrides, resolve, unmodified
    from phmctl.runs import Run
    from phmctl.runs.find import check_tag
    from phmctl.training.train import train as run_training

    run = None if isinstance(resume, bool) or resume == "auto" else Run.open(resume)
    if recipe is None:
        if run is None:
            raise UserError("train needs a recipe, or a run to continue: --resume RUN")
        recipe = run.recipe
    if tag is not None:
        check_tag(tag)
        if run is not None or resume is True:
            raise UserError(f"--tag {tag} names a new run; leave it out with --resume, or give --resume auto")
    begun = None if init is None else str(init)
    common = common_overrides(
        n=n, algebra=algebra, seed=seed, device=device, steps=steps, execution=execution, init=begun
    )
    with _quiet(quiet):
        resolved = resolve(recipe, common, settings)
        return run_training(
            resolved,
            data=None if data is None else Path(data),
            runs=None if runs is None else Path(runs),
            resume="auto" if resume == "auto" else bool(resume),
            run=run,
            checkpoint=checkpoint,
            quiet=quiet,
            noted={"tag": tag, "unmodified": unmodified(recipe, resolved)},
        )


def evaluate(
    run: str | Path,
    split: str = "test",
    *,
    against: str | Path | None = None,
    checkpoint: str = "auto",
    device: str = "auto",
    engine: str | None = None,
    quantize: str | None = None,
    quiet: bool = True,
    **options: Unpack[EvaluateOptions],
) -> "Report":
    """Score a split of a run's own text, and write the scores into the run: ``phmctl eval``.

    Args:
        run: a run's folder, a folder of versions, a name below the folder of runs, or an export's folder.
        split: ``test`` or ``valid``.
        against: a run to compare with by a paired test; it is only read.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``, of both; ``auto`` is the average if the recipe asks
            for one and it is made, else ``best``, before the first validation ``last``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        engine: what computes: ``torch``, ``ctranslate2`` or ``onnx``; an export is made of the run and kept in it.
        quantize: CTranslate2's type.
        quiet: print nothing on stderr.
        options: those of the task, by the command's names: :class:`EvaluateOptions`.

    Returns:
        what was found: ``as_json()`` has all figures, ``tables()`` what people are shown. Of a translator it is an
        :class:`~phmctl.tasks.translation.evaluation.Evaluation`.

    Raises:
        RunError: something is missing or damaged, or the runs do not compare.
        UserError: an option that the task does not have.
        OutputError: the run's folder cannot be written.
    """
    from phmctl.export import with_engine
    from phmctl.exports import open_model
    from phmctl.tasks.base import Asked
    from phmctl.tasks.registry import kind_of

    with _quiet(quiet):
        opened = with_engine(open_model(run), engine, checkpoint, quantize, options.get("precision"))
        rival = None if against is None else open_model(against)
        task = opened.recipe.task
        if rival is not None and rival.recipe.task != task:
            raise RunError(f"{rival.folder} is of task {rival.recipe.task!r}, not {task!r}: scores do not compare")
        kind, given = kind_of(opened.recipe), _as_given(options)
        if not isinstance(given.get("table", ""), str | Path):
            raise UserError(f"table is one file to score a classifier on, not {options['table']!r}")
        kind.require("eval", given)
        return kind.evaluate(Asked(opened, checkpoint, device, given, split=split, against=rival))


def differences(run: str | Path, against: str | Path) -> list[str]:
    """Return a line for each thing besides n and the seed in which two runs differ: their scores must be read with it.

    Raises:
        RunError: one of them is no run.
    """
    from phmctl.exports import open_model
    from phmctl.runs.summary import difference_lines, run_differences

    baseline = open_model(against)
    return difference_lines(run_differences(baseline, open_model(run)), baseline.name)


def _quiet(quiet: bool) -> AbstractContextManager[None]:
    return silence() if quiet else nullcontext()
