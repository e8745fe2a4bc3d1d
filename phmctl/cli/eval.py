"""``phmctl eval``: score a trained run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phmctl.console import Shown, Table, once
from phmctl.errors import UserError
from phmctl.options import EVAL, EVAL_AXES, read_axes


def evaluate(
    names: list[Path], *, probing: bool, every: bool, jobs: int | None, list_: bool, threads: int, **given: Any
) -> Shown:
    """Score a run on a split of its text: translators by BLEU, chrF and TER, classifiers by accuracy.

    Translations are kept in the run. --beam, --alpha, --batch-tokens, --precision, --lowercase, --tokenize, --source
    and --reference are for translators.

    Several runs or values (--beam 1,4 --checkpoint best,average) are scored one by one.

    --probing trains a probe for each probing task prepared in --data, each once: its answers are kept there.
    """
    probed = {name: given.pop(name) for name in ("settings", "data")}
    if not probing:
        _refuse({"set": probed["settings"], "data": probed["data"]}, "belongs to --probing")
    if not probing and given["source"] is None and given["table"] is None:
        given["split"] = _splits(names, every, given["split"])
    parted = any("," in given[name] for name in EVAL_AXES if given[name])
    if len(names) > 1 or every or jobs or list_ or parted:
        from phmctl.sweeps.evaluate import EvalSweep

        if probing:
            raise UserError("--probing is for one run: its probes are many already; leave it out, or name one run")
        sweep = EvalSweep.of(names, every, given | {"threads": threads})
        return sweep.listed() if list_ else sweep.evaluate(jobs or 1)
    from phmctl.devices import set_threads

    set_threads(threads)
    given = read_axes(EVAL, EVAL_AXES, given)
    against: Sequence[Path] | None = given.pop("against")
    return _scored(names[0], against, given, probed | {"settings": probed["settings"] or ()} if probing else None)


def _scored(run: Path, against: Sequence[Path] | None, given: dict[str, Any], probed: dict[str, Any] | None) -> Shown:
    """Score a run, against each baseline in turn."""
    from phmctl import verbs

    common: dict[str, Any] = {"checkpoint": given.pop("checkpoint"), "device": given.pop("device") or "auto"}
    split = given.pop("split")
    if probed is not None:
        _refuse({**given, "split": None if split == "test" else split}, "has no part in --probing")
    rivals: Sequence[Path | None] = against or [None]
    with once():
        if probed is None:
            reports = [verbs.evaluate(run, split, against=each, **common, quiet=False, **given) for each in rivals]
        else:
            from phmctl.probes import probe

            reports = [probe(run, against=each, **common, **probed) for each in rivals]
    told, tables, notes = [], list[Table](), list[str]()
    for report, rival in zip(reports, rivals, strict=True):
        found = [] if rival is None else verbs.differences(run, rival)
        told.append(report.as_json() | ({"differences": found} if against else {}))
        tables += [table for table in report.tables() if table not in tables]  # the run's own scores once
        notes += [*getattr(report, "notes", tuple)(), *(f"· {text}" for text in found)]
    return Shown(told[0] if len(told) == 1 else {"comparisons": told}, tables, notes=notes)


def _splits(names: Sequence[Path], every: bool, split: str) -> str:
    """The splits that are meant, parted by commas: where the runs have only named test sets, these are ``test``."""
    from phmctl.exports import open_model
    from phmctl.runs import splits_asked
    from phmctl.runs.find import select_runs

    if split not in ("test", "all"):
        return split
    return ",".join(splits_asked([open_model(run) for run in (select_runs(names) if every else names)], split))


def _refuse(options: dict[str, Any], why: str) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{', '.join(wrong)} {why}: leave it out")
