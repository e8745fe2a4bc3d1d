"""Train a student of a trained model: ``phmctl distil``.

Translation (Kim and Rush 2016, "Sequence-Level Knowledge Distillation", §3.2): the teacher translates the training text
by beam search, and the student trains on these translations and on the references. Classification (Hinton et al. 2015,
"Distilling the Knowledge in a Neural Network", §2): the student learns the teacher's probabilities and the labels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.answering.base import change_decoding
from phmctl.answering.opening import load_translator
from phmctl.console import note, progress, silence
from phmctl.data import UNK
from phmctl.data.prepared import PARALLEL, PreparedData, corpus_name, data_root
from phmctl.errors import RunError, UserError, check_known
from phmctl.metrics.text import is_code
from phmctl.recipe.loading import RecipeLike, common_overrides, parsed, resolve
from phmctl.recipe.models import NOTHING
from phmctl.recipe.schema import DecodingSection, Recipe, TranslationRecipe, flatten, keys_changing
from phmctl.runs import Run
from phmctl.runs.copies import read_text
from phmctl.runs.results import write_record
from phmctl.runs.run import check_tag
from phmctl.storage import sha256_text
from phmctl.tasks import trains
from phmctl.verbs import prepare
from phmctl.verbs import train as train_student

if TYPE_CHECKING:
    from phmctl.training.train import TrainingResult

_SET_KEYS = {  # recipe keys that distil sets, by task
    "translation": {"data.card", "data.direction", "data.copies", "training.initialise_from"},
    "classification": {"training.teacher", "training.initialise_from"},
}
_SHARED_KEYS = {  # keys of the data section on which teacher and student must agree
    "translation": {"tokenizer", "vocabulary", "joint"},
    "classification": {"tokenizer", "vocabulary", "joint", "card"},
}


def distil(
    teacher: str | Path,
    recipe: RecipeLike | None = None,
    *,
    n: int | None = None,
    algebra: str | None = None,
    seed: int | None = None,
    steps: int | None = None,
    settings: Mapping[str, object] | Sequence[str] = (),
    start: str = "nearest",
    beam: int | None = None,
    data: str | Path | None = None,
    runs: str | Path | None = None,
    tag: str | None = None,
    quiet: bool = True,
) -> "TrainingResult":
    """Train a student of a trained translator or classifier: ``phmctl distil``.

    Arguments that are not described here are the command's options, and the student's (``phmctl distil --help``).

    Args:
        teacher: A trained translator or classifier. The student is trained on the same data.
        recipe: The student's recipe (default: the teacher's).
        start: nearest: start with the teacher's tables, norms and biases, and with the Kronecker sums nearest to the
            teacher's weights, if the shapes are equal. random: with random weights.
        beam: Beam size of the teacher (default: the teacher's recipe's).
        quiet: Print nothing on stderr.

    Raises:
        RunError: the run is missing or has a task that cannot be distilled, the student's recipe has another task,
            vocabulary or corpus, the vocabulary lacks words of the training text, or all translations are empty.
        DataError: the teacher's data is not prepared.
        UserError: the start is unknown, an option does not apply to the task, or a setting is one that distil sets.
    """
    from phmctl.training import train  # these import torch
    from phmctl.training.start import differing_shape_key

    check_known("start", start, ("nearest", "random"))
    check_tag(tag)
    run = Run.open(teacher, runs)
    task = run.recipe.task
    if task not in _SET_KEYS:
        raise RunError(f"{run.folder} has task {task!r}, but a teacher is a translator or a classifier")
    if task != "translation" and beam is not None:
        raise UserError("beam applies to translators only, and this teacher is a classifier")
    root = data_root(data)
    if recipe is None:
        recipe = run.recipe
    student = resolve(recipe, common_overrides(n=n, algebra=algebra, seed=seed, steps=steps), settings)
    overrides = settings if isinstance(settings, Mapping) else {entry.key: entry.value for entry in parsed(settings)}
    _check_student(run, student, overrides)
    trains(run.recipe).open(run.recipe, root).check_run(run)
    train.check_machine(student.training)
    folder = str(run.folder.resolve())
    if task == "translation":
        with silence(quiet):
            keys = _prepare_taught_corpus(run, student, root, beam)
    else:
        keys = {"training.teacher": folder}
    differing_key = differing_shape_key(student, run.recipe)
    starts_nearest = start == "nearest" and not differing_key
    keys["training.initialise_from"] = folder if starts_nearest else None
    if start == "nearest" and differing_key and not quiet:
        note(f"the student starts with random weights: its model.{differing_key} is not the teacher's")
    return train_student(
        recipe,
        n=n,
        algebra=algebra,
        seed=seed,
        steps=steps,
        settings={**overrides, **keys},
        data=root,
        runs=runs,
        tag=tag,
        quiet=quiet,
    )


def _check_student(run: Run, student: Recipe, overrides: Mapping[str, object]) -> None:
    """Raise RunError if student and teacher differ in task or tokens, UserError if a setting is what distil sets."""
    task = run.recipe.task
    conflicts = {key for key, _ in flatten(overrides)} & _SET_KEYS[task]
    if conflicts:
        raise UserError(f"distil sets {', '.join(sorted(conflicts))}; leave it out (start sets the initial weights)")
    if student.task != task:
        raise RunError(f"{run.folder} has task {task!r}, the student's recipe {student.task!r}")
    ours, theirs = (recipe.data.model_dump(include=_SHARED_KEYS[task]) for recipe in (student, run.recipe))
    changes = [f"{key}: {theirs[key]!r}, and {ours[key]!r}" for key in theirs if ours[key] != theirs[key]]
    if changes:
        raise RunError(
            f"a student must read the same tokens as its teacher, but {run.folder} and the recipe differ in "
            + "; ".join(changes)
        )


def _prepare_taught_corpus(run: Run, student: Recipe, root: Path, beam: int | None) -> dict[str, Any]:
    """Prepare a corpus with the teacher's translations for all students, and return the recipe keys for it."""
    recipe = run.recipe_of(TranslationRecipe)
    search = change_decoding(recipe.decoding, beam=beam)
    settings = search.model_dump_json(exclude=keys_changing(search, NOTHING))
    identity = f"{run.name} {run.weights('auto').sha256} {settings} torch"
    digest = sha256_text([identity])[:8]
    folder = root / "taught" / f"{corpus_name(recipe.data.card)[:90]}-taught-{digest}"
    source, reference, teacher = (folder / f"train.{side}" for side in ("source", "reference", "teacher"))
    if not teacher.exists():  # it is written last, so the other files are complete
        _translate_training_text(run, search, folder)
    for split in run.splits():
        for side in PARALLEL:
            _write_lines(folder / f"{split}.{side}", read_text(run, split, side))
    # The first side is the corpus' source, which a reversed teacher translates into.
    first, second = PARALLEL if recipe.data.direction == "forward" else PARALLEL[::-1]
    files = {split: [(folder / f"{split}.{first}", folder / f"{split}.{second}")] for split in run.splits()}
    pairs = {"source": [source, source], "target": [reference, teacher]}
    files["train"] = list(zip(pairs[first], pairs[second], strict=True))
    options = {key: getattr(student.data, key) for key in ("tokenizer", "vocabulary", "joint", "max_tokens")}
    languages = run.data()[f"{first}_language"], run.data()[f"{second}_language"]
    if languages[0] != languages[1] and all(map(is_code, languages)):  # both are codes of languages
        options["languages"] = languages
    options["reverse"] = recipe.data.direction == "reverse"
    prepare(folder.name, data=root, files=files, vocabulary_of=run.folder, quiet=False, **options)
    return {"data.card": folder.name, "data.direction": recipe.data.direction, "data.copies": False}


def _translate_training_text(run: Run, search: DecodingSection, folder: Path) -> None:
    """Write the training text of a teacher: sources, references and translations."""
    prepared = PreparedData.find(run.recipe_of(TranslationRecipe).data, folder.parents[1])
    tokenizers, split = prepared.tokenizers, prepared.split("train")
    rows = [(split.source[row], split.target[row]) for row in range(len(split))]
    unknown = sum(UNK in source or UNK in target for source, target in rows)
    if unknown:
        raise RunError(
            f"{unknown:,} of the {len(rows):,} training lines of {run.folder} have words that its vocabulary lacks; "
            "take a teacher with data.tokenizer: bpe"
        )
    model = load_translator(run, decoding=search, cleaned=True)
    sources = [tokenizers.source.decode(source) for source, _ in rows]
    note(f"{run.name} translates its {len(sources):,} training lines, beam {search.beam} ...")
    with progress("translating", len(sources)) as advance:
        translations = [text for text, _ in model.answer(sources, advance=advance)]
    if not any(map(str.strip, translations)):
        raise RunError(f"all translations of {run.folder} are empty: train it longer")
    _write_lines(folder / "train.source", sources)
    _write_lines(folder / "train.reference", [tokenizers.target.decode(target) for _, target in rows])
    _write_lines(folder / "train.teacher", translations)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    write_record(path, "".join(f"{line}\n" for line in lines))
