"""``phmctl distil``: a small model learns from a trained one.

Translation (Kim and Rush 2016, "Sequence-Level Knowledge Distillation", §3.2): the teacher translates its training text
by beam search, and the student trains on these translations beside the references. Classification (Hinton et al. 2015,
"Distilling the Knowledge in a Neural Network", §2): the student learns the teacher's probabilities beside the labels.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import note, progress, silence
from phmctl.data.special import UNK
from phmctl.errors import RunError, UserError, check_known
from phmctl.files import write_atomic

if TYPE_CHECKING:
    from phmctl.recipe.loading import RecipeLike
    from phmctl.recipe.schema import Recipe
    from phmctl.runs import Run
    from phmctl.training.train import TrainingResult
    from phmctl.verbs import Settings

STARTS = ("nearest", "random")
OWN = {  # the keys that are set here, by task
    "translation": {"data.card", "data.direction", "data.copies", "training.initialise_from"},
    "classification": {"training.teacher", "training.initialise_from"},
}
_SLICE = 2000  # lines between two reports of progress


def distil(
    teacher: str | Path,
    recipe: "RecipeLike | None" = None,
    *,
    n: int | None = None,
    algebra: str | None = None,
    seed: int | None = None,
    steps: int | None = None,
    settings: "Settings" = (),
    start: str = "nearest",
    beam: int | None = None,
    engine: str | None = None,
    references: bool = True,
    data: str | Path | None = None,
    runs: str | Path | None = None,
    tag: str | None = None,
    quiet: bool = True,
) -> "TrainingResult":
    """Train a student of a trained translator or classifier.

    Args:
        teacher: a run, by the data that it was trained on.
        recipe: the student's; by default the teacher's.
        start: ``nearest``: the student begins with the teacher's tables, norms and biases, and with the Kronecker sums
            that are nearest to its weights, where the shapes are equal; ``random``: as any training.
        beam: of the teacher's search; the teacher's recipe's where None.
        engine: what translates: ``torch``, ``ctranslate2`` or ``onnx``; the teacher keeps its export.
        references: train on the references too, not on the teacher's translations alone.

    All else is of the student's training, as :func:`phmctl.train` has it.

    Raises:
        RunError: there is no such run, or it is of a task that has no students, or of another task or other data than
            the student's recipe; its vocabulary lacks words of its training text; or all its translations are empty.
        DataError: the teacher's data is not prepared.
        UserError: no such start, an option that the task does not have, or a key that is set here.
    """
    from phmctl.data.prepared.folder import data_root
    from phmctl.recipe import flatten
    from phmctl.recipe.loading import common_overrides, parsed, resolve
    from phmctl.runs import Run
    from phmctl.runs.find import check_tag
    from phmctl.tasks.registry import kind_of
    from phmctl.training.initial import differing_shape_key
    from phmctl.training.train import check_machine
    from phmctl.verbs import train

    check_known("start", start, STARTS)
    check_tag(tag)
    run = Run.open(teacher)
    task = run.recipe.task
    if task not in OWN:
        raise RunError(f"{run.folder} is a run of task {task!r}; teachers are translators and classifiers")
    if task != "translation" and ((beam, engine) != (None, None) or not references):
        raise UserError("beam, engine and references are of translators; this teacher is a classifier")
    root, recipe = data_root() if data is None else Path(data), run.recipe if recipe is None else recipe
    student = resolve(recipe, common_overrides(n=n, algebra=algebra, seed=seed, steps=steps), settings)
    named = settings if isinstance(settings, Mapping) else {each.key: each.value for each in parsed(settings)}
    if taken := {key for key, _ in flatten(named)} & OWN[task]:
        raise UserError(f"distil sets {', '.join(sorted(taken))} itself; leave it out (a start of its own: --start)")
    if student.task != task:
        raise RunError(f"{run.folder} is a teacher of task {task!r}, and the student's recipe is of {student.task!r}")
    keys = {"tokenizer", "vocabulary", "joint", *(["card"] if task == "classification" else [])}
    theirs, ours = (each.data.model_dump(include=keys) for each in (run.recipe, student))
    if other := [f"{key}: {old!r}, and {ours[key]!r}" for key, old in theirs.items() if ours[key] != old]:
        raise RunError(
            f"a teacher and its student read the same tokens; {run.folder} and the recipe have {'; '.join(other)}"
        )
    kind_of(run.recipe).open(run.recipe, root).check_run(run)
    folder = str(run.folder.resolve())
    check_machine(student.training)
    own: dict[str, Any] = {"training.teacher": folder}
    if task == "translation":
        with silence(quiet):
            own = _taught_corpus(run, student, root, beam, engine, references)
    key = None if start == "random" else differing_shape_key(student, run.recipe)
    own["training.initialise_from"] = None if start == "random" or key else folder
    if key and not quiet:
        note(f"the student begins at random: it has another model.{key} than its teacher")
    more: dict[str, Any] = {"settings": {**named, **own}, "data": root, "runs": runs, "tag": tag, "quiet": quiet}
    return train(recipe, n=n, algebra=algebra, seed=seed, steps=steps, **more)


def _taught_corpus(
    run: "Run", student: "Recipe", root: Path, beam: int | None, engine: str | None, references: bool
) -> dict[str, Any]:
    """Prepare the corpus that the teacher's translations make, once for all its students; return its recipe's keys."""
    from phmctl import load
    from phmctl.data.copies import read_text
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.decoding.translator import TORCH, change_decoding
    from phmctl.export import with_engine
    from phmctl.recipe.models import NOTHING, keys_changing
    from phmctl.recipe.schema import TranslationRecipe
    from phmctl.tasks.translation.kind import CODE
    from phmctl.verbs import prepare

    recipe, checkpoint = run.recipe_of(TranslationRecipe), run.weights("auto")
    search = change_decoding(recipe.decoding, beam=beam)
    how = search.model_dump_json(exclude=keys_changing(search, NOTHING))
    mark = hashlib.sha256(f"{run.name} {checkpoint.sha256} {how} {engine or TORCH}".encode()).hexdigest()[:8]
    folder = root / "taught" / f"{recipe.data.card}-taught-{mark}"
    name = folder.name if references else f"{folder.name}-alone"
    files = {side: folder / f"train.{side}" for side in ("source", "reference", "teacher")}
    splits = {split: (folder / f"{split}.source", folder / f"{split}.target") for split in run.splits()}
    if not files["teacher"].exists():
        prepared = PreparedData.find(recipe.data, root)
        pair, train, found = prepared.tokenizers, prepared.split("train"), list[str]()
        rows = [(train.source[row], train.target[row]) for row in range(len(train))]
        if unknown := sum(UNK in source or (references and UNK in target) for source, target in rows):
            raise RunError(
                f"{unknown:,} of the {len(rows):,} training lines of {run.folder} have words that its vocabulary lacks "
                "and that are lost; take a teacher with data.tokenizer: bpe"
            )
        model = load(with_engine(run, engine, "auto").folder)
        sources = [pair.source.decode(source) for source, _ in rows]
        note(f"{run.name} translates its {len(sources):,} training lines, beam {search.beam} ...")
        with progress("translating", len(sources)) as advance:
            for begin in range(0, len(sources), _SLICE):
                part = sources[begin : begin + _SLICE]
                found += [answers[0].text for answers in model.translate(part, beam=search.beam)]
                advance(len(part))
        if not any(map(str.strip, found)):
            raise RunError(f"{run.folder} translates all its training lines to nothing; train it longer")
        _write(files["source"], sources)
        if not any(UNK in target for _, target in rows):
            _write(files["reference"], [pair.target.decode(target) for _, target in rows])
        _write(files["teacher"], found)  # the last one: where it is all are
    if references and not files["reference"].exists():
        raise RunError(f"the training text of {run.folder} has words that its vocabulary lacks: give --no-references")
    for split, sides in splits.items():
        for path in sides:
            _write(path, read_text(run, split, path.suffix[1:]))
    pairs = [(files["source"], files["reference"])] * references + [(files["source"], files["teacher"])]
    settings = {key: getattr(student.data, key) for key in ("tokenizer", "vocabulary", "joint", "max_tokens")}
    languages = run.data()["source_language"], run.data()["target_language"]
    coded = len({*languages}) == 2 and all(map(CODE.fullmatch, languages))  # not the sides of a style transfer
    settings |= {"languages": languages} if coded else {}
    prepare(name, data=root, files={"train": pairs, **splits}, vocabulary_of=run.folder, quiet=False, **settings)
    return {"data.card": name, "data.direction": "forward", "data.copies": False}


def _write(path: Path, lines: Sequence[str]) -> None:
    write_atomic(path, "".join(f"{line}\n" for line in lines))
