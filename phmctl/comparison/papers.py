"""``compare --paper``: a published table, and beside each of its cells what was trained here."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from phmctl.accounting.ledger import ledger_for_recipe
from phmctl.accounting.published import Column, PublishedTable, Row, published_tables, table_names
from phmctl.comparison.compare import check_asked, copy_notes, readable_runs
from phmctl.comparison.formats import as_csv, as_latex
from phmctl.comparison.variants import Trained, Variant, conditions, group, mean_and_spread, settle
from phmctl.console import Table
from phmctl.errors import check_known
from phmctl.recipe.loading import flatten
from phmctl.runs.metrics import read_metrics, series
from phmctl.runs.summary import value_words
from phmctl.tasks.answers import spread

SPEED = "seconds/100 steps"  # the metric that is read from a training's log


@dataclass(frozen=True)
class Cell:
    """A cell of a published table."""

    row: Row  # where it stands
    column: Column
    published: str  # what is printed there
    variant: Variant | None  # what was trained here of it; None where nothing was
    root: Path | None = None  # the folder of runs that was asked for; None is the usual one

    @property
    def recipe(self) -> str:
        """The recipe that reproduces it."""
        return self.column.recipe + self.row.size

    @cached_property
    def values(self) -> list[float]:
        """What was reached here, a number a seed."""
        if self.variant is None:
            return []
        if self.column.metric == SPEED:
            return [seconds for one in self.variant.runs if (seconds := _seconds(one)) is not None]
        if self.column.metric == "seconds":
            kept = [one.result.report.get("decoding_seconds") for one in self.variant.scored if one.result is not None]
            return [float(seconds) for seconds in kept if isinstance(seconds, (int, float))]
        scale = 100 if self.column.metric.startswith("accuracy") else 1
        scores = [one.result.scores for one in self.variant.scored if one.result is not None]
        return [scale * each[self.column.metric] for each in scores if self.column.metric in each]

    @property
    def stands_in(self) -> bool:
        """Whether what was trained is of another recipe."""
        return self.variant is not None and self.variant.first.run.recipe.name != self.recipe

    @property
    def command(self) -> str | None:
        """What fills the cell; None where it is filled, or where no training does."""
        if self.values:
            return None
        if self.variant is not None and self.column.metric not in (SPEED, "seconds"):
            return shlex.join(["phmctl", "eval", str(self.variant.first.run.folder)])
        if self.column.metric == "seconds":
            return shlex.join(["phmctl", "bench", "decode", self.recipe, *self.row.options])
        return self.training(self.row.options)

    def training(self, options: Sequence[str]) -> str:
        """The command that trains the recipe, into the folder where it is looked for."""
        place = [] if self.root is None else ["--runs", str(self.root)]
        return shlex.join(["phmctl", "train", self.recipe, *options, *place])

    def differences(self) -> Iterator[str]:
        """A line for each thing that is published of the setup and is another here."""
        if self.variant is None:
            return
        recipe = self.variant.first.run.recipe
        own = dict(flatten(recipe.model_dump()))
        if self.stands_in:
            yield f"{recipe.name} stands in for {self.recipe}, which was not trained"
        for key, value in self.column.setup.items():
            if own.get(key) != value and key in own:
                yield f"{key}: {value_words(own[key])} here, {value_words(value)} published"
        for one in self.variant.runs:
            if one.summary.state != "finished":
                yield f"{one.run.name} is {one.summary.state}, at step {one.summary.step:,}"


def _seconds(one: Trained) -> float | None:
    """The seconds of 100 steps, the median of the log."""
    steps = sorted(value for _, value in series(read_metrics(one.run.metrics_path), "train", "seconds_per_step"))
    return 100 * steps[len(steps) // 2] if steps else None


@dataclass(frozen=True)
class PaperComparison:
    """A published table beside what was trained here."""

    printed: PublishedTable  # the table
    cells: tuple[Cell, ...]  # its cells, row by row
    counts: Mapping[str, int]  # by row, parameters of what was trained here, counted as the table counts them

    def tables(self) -> Iterator[Table]:
        """The table as printed, where it has several columns, and one for each column that was trained here."""
        columns = self.printed.columns
        if len(columns) > 1:
            rows = [
                [row.label, row.figure, *(cell.published for cell in self._of(row=row))] for row in self.printed.rows
            ]
            yield Table(f"{self.printed.title}, as published", ["model", "#", *(one.label for one in columns)], rows)
        for column in columns:
            cells = self._of(column=column)
            if len(columns) == 1 or any(cell.variant for cell in cells):
                named = (
                    f"{self.printed.title}: {column.metric}"
                    if len(columns) == 1
                    else f"{column.label}: published, and here"
                )
                below = conditions(cell.variant for cell in cells if cell.variant is not None)
                yield Table(named, _HEAD, [self._cells(cell) for cell in cells], below=below)

    def _of(self, row: Row | None = None, column: Column | None = None) -> list[Cell]:
        return [cell for cell in self.cells if row in (None, cell.row) and column in (None, cell.column)]

    def _cells(self, cell: Cell) -> list[str]:
        count = self.counts.get(cell.row.label)
        here = mean_and_spread(cell.values) + (" ‡" if cell.stands_in and cell.values else "")
        shown = f"{count:,}" if count is not None and cell.variant is not None else "–"
        return [cell.row.label, cell.row.figure, shown, cell.published, here, str(len(cell.values) or "–")]

    def notes(self) -> list[str]:
        """What must be read with the table: how it is scored and counted, and what differs in the setup."""
        lines = [self.printed.score, f"not published: {self.printed.unsaid}"]
        if self.counts:
            lines.append(f"counted here: {self.printed.counted}")
        for column in self.printed.columns:
            cells = [cell for cell in self._of(column=column) if cell.variant is not None]
            if cells and column.remark:
                lines.append(f"{column.label}: {column.remark}")
            lines += [f"{column.label}: {line}" for line in copy_notes(one.variant for one in cells if one.variant)]
            lines += [f"{column.label}, {where}{line}" for line, where in _shared(cells)]
        if any(cell.stands_in and cell.values for cell in self.cells):
            lines.append("‡ another recipe stands in")
        return lines

    def missing(self) -> list[str]:
        """The commands that fill the empty cells, those that differ in n only as one."""
        grouped: dict[tuple[str, tuple[str, ...]], list[Cell]] = {}
        plain = []
        for cell in self.cells:
            if cell.command is None:
                continue
            train = cell.command.startswith("phmctl train") and cell.row.options[:1] == ("--n",)
            if train:
                grouped.setdefault((cell.recipe, cell.row.options[2:]), []).append(cell)
            else:
                plain.append(cell.command)
        sweeps = [
            cells[0].training(["--n", ",".join(dict.fromkeys(cell.row.options[1] for cell in cells)), *rest])
            for (_, rest), cells in grouped.items()
        ]
        return [*sweeps, *dict.fromkeys(plain)]

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.printed.key,
            "title": self.printed.title,
            "cells": [self._cell_json(cell) for cell in self.cells],
            "notes": self.notes(),
            "missing": self.missing(),
        }

    def _cell_json(self, cell: Cell) -> dict[str, Any]:
        runs = [] if cell.variant is None else [str(one.run.folder) for one in cell.variant.runs]
        return {
            "row": cell.row.label,
            "column": cell.column.label,
            "parameters_published": cell.row.figure,
            "parameters_counted": self.counts.get(cell.row.label) if runs else None,
            "published": cell.published,
            "here": sum(cell.values) / len(cell.values) if cell.values else None,
            "standard_deviation": spread(cell.values),
            "seeds": len(cell.values),
            "stands_in": cell.variant.first.run.recipe.name if cell.stands_in and cell.variant else None,
            "runs": runs,
            "differences": list(cell.differences()),
            "command": cell.command,
        }

    def as_csv(self) -> str:
        lines = [self._cell_json(cell) for cell in self.cells]
        plain = [name for name in lines[0] if name not in ("runs", "differences")]
        return as_csv([plain, *([line[name] for name in plain] for line in lines)])

    def as_latex(self) -> str:
        return "\n".join(
            as_latex([list(table.columns), *([str(cell) for cell in row] for row in table.rows)], table.below)
            for table in self.tables()
        )


_HEAD = ["model", "published #", "counted here", "published", "here", "seeds"]


def _shared(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """Each difference once, with the rows that it is about where it is not about all."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        for line in cell.differences():
            found.setdefault(line, []).append(cell.row.label)
    return [(line, "" if len(rows) == len(cells) else f"{', '.join(rows)}: ") for line, rows in found.items()]


def compare_papers(
    name: str,
    runs: Sequence[str | Path] = (),
    *,
    recipe: str | None = None,
    root: Path | None = None,
    checkpoint: str | None = None,
) -> list[PaperComparison]:
    """Put what was trained here beside published tables."""
    name = f"table{name}" if name.isdecimal() else name
    check_known("published table", name, table_names())
    tables = published_tables(name)
    names = [*runs, *([recipe] if recipe else [])]
    known = dict.fromkeys(each for table in tables for each in _recipes(table))
    if recipe:
        check_known(f"recipe of {name}", recipe, known)
    summaries = readable_runs(names, root)
    for summary in summaries if names and not any(one.run.recipe.name in known for one in summaries) else ():
        check_known(f"recipe of {name}", summary.run.recipe.name, known)
    check_asked(summaries, "test", checkpoint)
    variants = group(settle(summaries, "test", checkpoint))
    return [_compare(table, variants, root) for table in tables]


def _recipes(printed: PublishedTable) -> Iterator[str]:
    """The recipes that reproduce a table, and those that stand in."""
    for column in printed.columns:
        yield from dict.fromkeys(column.recipe + row.size for row in printed.rows)
        yield from column.stand_ins


def _compare(printed: PublishedTable, variants: Sequence[Variant], root: Path | None) -> PaperComparison:
    cells = tuple(
        Cell(row, column, score, _fitting(row, column, variants), root)
        for index, row in enumerate(printed.rows)
        for column, score in ((column, column.scores[index]) for column in printed.columns)
    )
    counts = {}
    for cell in cells:
        if cell.variant is not None and not (cell.stands_in and cell.row.label in counts):
            counts[cell.row.label] = _count(cell.variant, printed)
    known = {label: count for label, count in counts.items() if count is not None}
    return PaperComparison(printed, cells, known)


def _fitting(row: Row, column: Column, variants: Sequence[Variant]) -> Variant | None:
    """What was trained of a cell: of the recipe itself, or of the first that stands in; the one scored first."""
    for recipe in (column.recipe + row.size, *column.stand_ins):
        found = [one for one in variants if _is(one, recipe, row.variant)]
        if found:
            return max(found, key=lambda one: (len(one.scored), one.first.run.recipe.training.steps))
    return None


def _is(variant: Variant, recipe: str, name: str) -> bool:
    own = variant.first.run.recipe
    return (own.name, own.variant) == (recipe, name)


def _count(variant: Variant, printed: PublishedTable) -> int | None:
    if printed.maps is not None:
        return printed.measure(ledger_for_recipe(variant.first.run.recipe))
    return None if variant.parameters is None else variant.parameters.total
