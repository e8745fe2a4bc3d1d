"""``eval --probing``: probes of an encoder on all tasks whose data is there, as Table 3 of Li et al. 2020 has them.

Each probe is an ordinary run of its recipe, and so is its baseline. Those that are trained already are taken as they
are: what was interrupted goes on where it stopped.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from phmctl.console import once, progress
from phmctl.data.prepared.folder import data_root, prepare_command, trained_sizes
from phmctl.errors import DataError, RunError, StoppedError, UserError
from phmctl.files import write_json
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import ProbeSection, ProbingRecipe
from phmctl.runs import Run, runs_root
from phmctl.tasks.probing.encoder import KINDS, Encoder
from phmctl.tasks.probing.evaluation import evaluate
from phmctl.tasks.probing.table import RECIPES, Probed, ProbingReport, TaskScores
from phmctl.training.resume import newest_like
from phmctl.training.train import train

_RESULT = "probing.json"
_OWN = ("model.encoder", "model.checkpoint", "model.vectors")  # what this command sets


def probe(
    run: str | Path,
    *,
    against: str | Path | None = None,
    checkpoint: str = "auto",
    device: str = "auto",
    data: Path | None = None,
    runs: Path | None = None,
    settings: Sequence[str] = (),
) -> ProbingReport:
    """Probe a translator's encoder, and write the scores into its results.

    Args:
        run: the translator.
        against: another translator, the table's base; nothing is written into it.
        checkpoint: of both.
        device: where to compute.
        data: the data folder with the prepared tasks; by default ``$PHMCTL_DATA`` or ``data``.
        runs: where the probes' runs lie; by default ``$PHMCTL_RUNS`` or ``runs``.
        settings: keys of the probes' recipes, ``key=value``.

    Raises:
        UserError: a setting is one that this command sets.
        DataError: no task's data is prepared.
        RunError: a run is no translator's, or is damaged.
        StoppedError: it was interrupted; the probes that are trained stay.
        OutputError: a folder cannot be written.
    """
    wrong = next((each for each in settings if each.partition("=")[0].strip() in _OWN), None)
    if wrong is not None:
        raise UserError(f"--set {wrong}: --probing sets that; name the run, --against and --checkpoint")
    places = [str(place) for place in (run, against) if place is not None]
    encoders = [Encoder.of(ProbeSection(encoder=place, checkpoint=checkpoint)) for place in places]
    own, root = encoders[0], data or data_root()
    there = _prepared(own, root, settings)
    settings = (*settings, f"training.device={device}")
    probes: dict[str, list[Run]] = {name: [] for name in there}
    words = f"probing {' and '.join(each.run.name for each in encoders)}"
    with once(), progress(words, len(there) * len(encoders) * len(KINDS)) as advance:
        for name, encoder, vectors in product(there, encoders, KINDS):
            recipe = _recipe(name, encoder, settings, vectors)
            probes[name].append(_trained(recipe, root, runs or runs_root()))
            advance(1)
    scores = {name: _scores(trained, device) for name, trained in probes.items()}
    rival, pooling = [each.run.name for each in encoders[1:]], next(iter(there.values())).model.pooling
    report = ProbingReport(own.run.name, own.checkpoint, scores, rival[0] if rival else None, pooling)
    write_json(own.run.results_folder / _RESULT, report.as_json())
    return report


def _prepared(encoder: Encoder, data: Path, settings: Sequence[str]) -> dict[str, ProbingRecipe]:
    """Return the recipes whose data is there, in the table's order."""
    recipes = {name: _recipe(name, encoder, settings) for name in RECIPES}
    there = {name: recipe for name, recipe in recipes.items() if trained_sizes(recipe.data, data) is not None}
    if not there:
        command = prepare_command(recipes[RECIPES[0]].data, data)
        raise DataError(f"no probing task is prepared in {data}; for the first one, run: {command} --source DIR")
    return there


def _recipe(name: str, encoder: Encoder, settings: Sequence[str], vectors: str = "encoder") -> ProbingRecipe:
    own = f"model.encoder={encoder.run.folder}", f"model.checkpoint={encoder.checkpoint}", f"model.vectors={vectors}"
    return expect(load_recipe(name, [*settings, *own]), ProbingRecipe)


def _trained(recipe: ProbingRecipe, data: Path, runs: Path) -> Run:
    """Return the run of a probe, trained to its end: the one that is there, continued if need be, or a new one."""
    old, result = newest_like(runs, recipe), None
    if old is not None:
        with suppress(RunError):  # of another encoder in the same place, or of other data
            result = train(recipe, data=data, runs=runs, run=old, quiet=True)
    result = result or train(recipe, data=data, runs=runs, quiet=True)
    if result.exit_code:
        raise StoppedError("interrupted; the same command goes on from here")
    return result.run


def _scores(probes: Sequence[Run], device: str) -> TaskScores:
    """Return a task's scores: of the run's probe and bag, and of the baseline's where there are."""
    own, bag, *rival = probes
    reports = [evaluate(each, device=device) for each in (bag, *rival)]
    whole = evaluate(own, against=rival[0] if rival else None, device=device)
    train_size = int(own.data()["splits"]["train"]["kept"])
    against = Probed(reports[1].accuracy, reports[2].accuracy) if rival else None
    return TaskScores(Probed(whole.accuracy, reports[0].accuracy), whole.majority, train_size, against, whole.compared)
