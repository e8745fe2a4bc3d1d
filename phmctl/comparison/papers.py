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
from phmctl.comparison.variants import Variant, conditions, group, mean_and_spread, settle
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
        if self.column.metric == SPEED:  # the median of the log
            logs = [read_metrics(one.run.metrics_path) for one in self.variant.runs]
            steps = [sorted(value for _, value in series(log, "train", "seconds_per_step")) for log in logs]
            return [100 * each[len(each) // 2] for each in steps if each]
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
            printed = self.printed.rows
            rows = [[row.label, row.figure, *(cell.published for cell in self._of(row=row))] for row in printed]
            yield Table(f"{self.printed.title}, as published", ["model", "#", *(one.label for one in columns)], rows)
        for column in columns:
            cells = self._of(column=column)
            variants = [cell.variant for cell in cells if cell.variant is not None]
            if len(columns) > 1 and not variants:
                continue
            rows = []
            for cell in cells:
                count = self.counts.get(cell.row.label)
                here = mean_and_spread(cell.values) + (" ‡" if cell.stands_in and cell.values else "")
                shown = f"{count:,}" if count is not None and cell.variant is not None else "–"
                seeds = str(len(cell.values) or "–")
                rows.append([cell.row.label, cell.row.figure, shown, cell.published, here, seeds])
            alone = f"{self.printed.title}: {column.metric}"
            named = alone if len(columns) == 1 else f"{column.label}: published, and here"
            head = ["model", "published #", "counted here", "published", "here", "seeds"]
            yield Table(named, head, rows, below=conditions(variants))

    def _of(self, row: Row | None = None, column: Column | None = None) -> list[Cell]:
        return [cell for cell in self.cells if row in (None, cell.row) and column in (None, cell.column)]

    def said(self) -> list[str]:
        """What must be read with the table: how it is scored and counted, and what differs in the setup."""
        lines = [self.printed.score, f"not published: {self.printed.unsaid}"]
        if self.counts:
            lines.append(f"counted here: {self.printed.counted}")
        for column in self.printed.columns:
            cells = [cell for cell in self._of(column=column) if cell.variant is not None]
            if cells and column.remark:
                lines.append(f"{column.label}: {column.remark}")
            lines += [f"{column.label}: {line}" for line in copy_notes(one.variant for one in cells if one.variant)]
            rows: dict[str, list[str]] = {}
            for cell in cells:
                for line in cell.differences():
                    rows.setdefault(line, []).append(cell.row.label)
            for line, about in rows.items():  # each once, with the rows that it is about where these are not all
                lines.append(f"{column.label}, " + ("" if len(about) == len(cells) else f"{', '.join(about)}: ") + line)
        if any(cell.stands_in and cell.values for cell in self.cells):
            lines.append("‡ another recipe stands in")
        return lines

    def missing(self) -> list[str]:
        """The commands that fill the empty cells, those that differ in n only as one."""
        grouped: dict[tuple[str, tuple[str, ...]], list[Cell]] = {}
        plain = []
        for cell in self.cells:
            command = cell.command or ""
            if command.startswith("phmctl train") and cell.row.options[:1] == ("--n",):
                grouped.setdefault((cell.recipe, cell.row.options[2:]), []).append(cell)
            elif command:
                plain.append(command)
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
            "notes": self.said(),
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

    def records(self) -> list[dict[str, Any]]:
        """A record a cell."""
        told = [{"table": self.printed.key, **self._cell_json(cell)} for cell in self.cells]
        return [{name: value for name, value in each.items() if not isinstance(value, list)} for each in told]


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
    known: dict[str, None] = {}  # the recipes that reproduce a table, and those that stand in
    for table in tables:
        for column in table.columns:
            known |= dict.fromkeys([*(column.recipe + row.size for row in table.rows), *column.stand_ins])
    if recipe:
        check_known(f"recipe of {name}", recipe, known)
    summaries = readable_runs(names, root)
    for summary in summaries if names and not any(one.run.recipe.name in known for one in summaries) else ():
        check_known(f"recipe of {name}", summary.run.recipe.name, known)
    check_asked(summaries, "test", checkpoint)
    variants = group(settle(summaries, "test", checkpoint))
    return [_compare(table, variants, root) for table in tables]


def _compare(printed: PublishedTable, variants: Sequence[Variant], root: Path | None) -> PaperComparison:
    cells, counts = [], dict[str, int | None]()
    for index, row in enumerate(printed.rows):
        for column in printed.columns:
            cell = Cell(row, column, column.scores[index], _fitting(row, column, variants), root)
            cells.append(cell)
            if cell.variant is None or (cell.stands_in and row.label in counts):
                continue
            sizes = cell.variant.parameters
            counts[row.label] = None if sizes is None else sizes.total
            if printed.maps is not None:
                counts[row.label] = printed.measure(ledger_for_recipe(cell.variant.first.run.recipe))
    known = {label: count for label, count in counts.items() if count is not None}
    return PaperComparison(printed, tuple(cells), known)


def _fitting(row: Row, column: Column, variants: Sequence[Variant]) -> Variant | None:
    """What was trained of a cell: of the recipe itself, or of the first that stands in; the one scored first."""
    for recipe in (column.recipe + row.size, *column.stand_ins):
        own = ((one, one.first.run.recipe) for one in variants)
        found = [one for one, of in own if (of.name, of.variant) == (recipe, row.variant)]
        if found:
            return max(found, key=lambda one: (len(one.scored), one.first.run.recipe.training.steps))
    return None
