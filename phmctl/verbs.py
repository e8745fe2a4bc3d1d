"""The commands as functions, for programs: ``phmctl.prepare``, ``phmctl.train``, ``phmctl.evaluate``, ``phmctl.load``.

Each is what the command of that name calls, with the names that its options have. Nothing is printed unless ``quiet``
is False. Importing this module does not import torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import silence
from phmctl.errors import DataError, RunError, UserError, check_known
from phmctl.options import CLEANING, EVAL, OWN, VOCABULARY, Option

if TYPE_CHECKING:
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.decoding.model import Model
    from phmctl.recipe.loading import RecipeLike
    from phmctl.runs import Run
    from phmctl.tasks.base import Report
    from phmctl.training.train import TrainingResult

Settings = Mapping[str, Any] | Sequence[str]
Files = str | Path | Sequence[Any]  # a table, (source, target), or a list of such


def prepare(
    name: str,
    *,
    data: str | Path | None = None,
    source: str | Path | None = None,
    recipe: str | Path | None = None,
    files: Mapping[str, "Files"] | None = None,
    vocabulary_of: str | Path | None = None,
    force: bool = False,
    refetch: bool = False,
    quiet: bool = True,
    **options: Any,
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
        force: prepare even if nothing has changed.
        refetch: download the card's files again.
        quiet: print nothing on stderr.
        options: the command's options for text, tables and labels by their names: ``vocabulary=8000``,
            ``joint=False`` (``--separate``), ``columns=("de", "en")``, ``table={"train": "train.tsv", …}``. None is as
            if it were not given.

    Returns:
        the prepared data: its ``folder`` and its ``manifest``, which counts what was read, kept and dropped.

    Raises:
        DataError: there is no such card, or files are missing or malformed.
        RecipeError: a setting is out of range.
        UserError: there is no such option.
        OutputError: the folder cannot be written.
    """
    from phmctl.data.prepared.folder import data_root
    from phmctl.data.prepared.provenance import Vocabulary
    from phmctl.tasks.registry import kind_for_corpus

    if not isinstance(name, str):
        raise UserError(f"name is a card's or one for your own files, not {name!r}")
    if not isinstance(files or {}, Mapping):
        raise UserError("files is a mapping of splits to files: {'train': 'train.tsv', 'valid': 'valid.tsv'}")
    groups = {split: _groups(named) for split, named in (files or {}).items()}
    _taken((*VOCABULARY, *CLEANING, *OWN), options)
    vocabulary, cleaning, own = (
        _taken(part, {each.name: options.get(each.name) for each in part}) for part in (VOCABULARY, CLEANING, OWN)
    )
    if vocabulary.pop("reverse", False):
        vocabulary["direction"] = "reverse"
    if refetch and (source or files or own.get("table")):
        raise DataError("--refetch is for what a card downloads; leave it out where the files are given")
    with silence(quiet):
        kind = kind_for_corpus(name, None if recipe is None else str(recipe), [*groups, *own])
        return kind.prepare(
            name,
            recipe=None if recipe is None else str(recipe),
            settings=vocabulary,
            files=groups,
            vocabulary=None if vocabulary_of is None else Vocabulary.of(Path(vocabulary_of)),
            options=own,
            root=data_root() if data is None else Path(data),
            source=None if source is None else Path(source),
            cleaning=cleaning,
            force=force,
            refetch=refetch,
        )


def _taken(known: Iterable[Option], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the command has them, without those that say nothing; raises UserError."""
    named = {each.name: each for each in known}
    for key in options:
        check_known("option", key, named)
    said = {key: value for key, value in options.items() if value is not None and value != []}
    return {
        key: named[key].taken(value) for key, value in said.items() if value is not False or "/" in named[key].flags
    }


def _groups(named: "Files") -> list[tuple[Path, ...]]:
    """Return the files of a split, those of each pair or table together."""
    pair = isinstance(named, tuple) and all(isinstance(each, str | Path) for each in named)
    listed: Any = [named] if pair or isinstance(named, str | Path) else named
    with suppress(TypeError):
        if isinstance(listed, Sequence):
            return [(Path(each),) if isinstance(each, str | Path) else tuple(map(Path, each)) for each in listed]
    raise UserError(f"files: a split is a table, (source, target) or a list of such, not {named!r}")


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
        execution: how PHM maps are applied: ``dense`` or ``rank``; None is ``rank`` where it is faster.
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
    from phmctl.training.train import train as run_training

    recipe, run = recipe_to_train(recipe, resume, tag)
    begun = None if init is None else str(init)
    common = common_overrides(
        n=n, algebra=algebra, seed=seed, device=device, steps=steps, execution=execution, init=begun
    )
    with silence(quiet):
        resolved = resolve(recipe, common, settings)
        return run_training(
            resolved,
            data=None if data is None else Path(data),
            runs=None if runs is None else Path(runs),
            resume="auto" if resume == "auto" else bool(resume),
            run=run,
            checkpoint=checkpoint,
            quiet=quiet,
            record={"tag": tag, "unmodified": unmodified(recipe, resolved)},
        )


def recipe_to_train(
    recipe: "RecipeLike | None", resume: bool | str | Path, tag: str | None
) -> "tuple[RecipeLike, Run | None]":
    """Return the recipe that is trained, and the run that :func:`train` continues if one is named."""
    from phmctl.runs import Run
    from phmctl.runs.find import check_tag

    run = None if isinstance(resume, bool) or resume == "auto" else Run.open(resume)
    check_tag(tag)
    if tag is not None and (run is not None or resume is True):
        raise UserError(f"--tag {tag} names a new run; leave it out with --resume, or give --resume auto")
    if recipe is None:
        if run is None:
            raise UserError("train needs a RECIPE, or a run to continue: --resume RUN")
        recipe = run.recipe
    return recipe, run


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
    **options: Any,
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
        options: those of the task, by the command's names: ``beam=1``, ``reference=["a.en", "b.en"]``,
            ``table="new.csv"``. None is as if it were not given.

    Returns:
        what was found: ``as_json()`` has all figures, ``tables()`` what people are shown. Of a translator it is an
        :class:`~phmctl.tasks.translation.kind.Evaluation`.

    Raises:
        RunError: something is missing or damaged, or the runs do not compare.
        UserError: an option that the task does not have.
        OutputError: the run's folder cannot be written.
    """
    from phmctl.export import with_engine
    from phmctl.exports import open_model
    from phmctl.tasks.base import Asked
    from phmctl.tasks.registry import kind_of

    with silence(quiet):
        opened = with_engine(open_model(run), engine, checkpoint, quantize, options.get("precision"))
        rival = None if against is None else open_model(against)
        task = opened.recipe.task
        if rival is not None and rival.recipe.task != task:
            raise RunError(f"{rival.folder} is of task {rival.recipe.task!r}, not {task!r}: scores do not compare")
        kind = kind_of(opened.recipe)
        kind.require("eval", [name for name, value in options.items() if value is not None])
        given = _taken(EVAL, options)
        if split != "test" and (own := [name for name in ("source", "table") if name in given]):
            raise UserError(f"--split {split} is for the run's own text, --{own[0]} for other text: give one of them")
        return kind.evaluate(Asked(opened, checkpoint, device, given, split=split, against=rival))


def load(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    precision: str | None = None,
) -> "Model":
    """Load a trained model, ready to translate, to score, to classify or to encode texts.

    Nothing is printed and nothing global is changed: no random numbers are drawn, no threads are set, no signal is
    taken, nothing is written. The model may be used by many threads at once.

    Args:
        path: a run's folder wherever it was copied, a folder of versions (the newest with a checkpoint is taken), or a
            name below ``$PHMCTL_RUNS`` or ``runs``; or an export's folder.
        checkpoint: ``best``, ``last``, ``average``, ``step-000200`` or ``200``; by default the average if the recipe
            asks for one and it is made, else ``best``, before the first validation ``last``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        threads: CPU threads of an engine that has its own. torch's are the whole process's: set them yourself, by
            ``torch.set_num_threads``.
        precision: ``bfloat16`` keeps a run's weights in it where the device has it; ``float32`` does not. None is what
            the recipe says. A translator's.

    Raises:
        RunError: there is no run (the message names the nearest), or something of it is missing or damaged.
        RecipeError: there is no such device here.
        UserError: the run's task answers no text, threads are wanted of torch, or a precision
            of anything but a run's translator.
    """
    from phmctl.decoding.translator import TORCH
    from phmctl.exports import Export, open_model
    from phmctl.runs import AUTO
    from phmctl.tasks.base import Asked
    from phmctl.tasks.registry import kind_of

    with silence():
        run = open_model(path)
        if threads and (run.engine if isinstance(run, Export) else TORCH) == TORCH:
            raise UserError(
                "threads: torch's are the whole process's; call torch.set_num_threads, or set OMP_NUM_THREADS"
            )
        kind, options = kind_of(run.recipe), {} if precision is None else {"precision": precision}
        kind.require("decode", options)
        return run.use(
            checkpoint or AUTO, lambda name: kind.load(Asked(run, name, device, options, threads=threads or 0))
        )
