"""``compare --paper``: a published table, and beside each of its cells what was trained here."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from phmctl.accounting.ledger import ledger_for_recipe
from phmctl.accounting.published import Column, PublishedTable, Row, published_tables, table_names
from phmctl.checkpoints import folder_name
from phmctl.comparison.compare import check_split_and_checkpoint, copy_notes, merge_lines
from phmctl.comparison.variants import (
    Variant,
    choose_results,
    conditions,
    group_by_model,
    mean,
    mean_and_spread,
    spread,
)
from phmctl.console import Table
from phmctl.errors import check_known
from phmctl.recipe import flatten
from phmctl.runs.results import read_metrics, series
from phmctl.runs.summary import format_value, list_runs
from phmctl.tasks.answers import Metric

SPEED = "seconds/100 steps"  # the metric that is read from a training's log


@dataclass(frozen=True)
class Cell:
    row: Row  # where it stands
    column: Column
    published: str  # what is printed there
    variant: Variant | None  # what was trained here of it; None where nothing was
    count: int | None  # its parameters, counted as the table counts them
    root: Path | None = None  # the folder of runs that was asked for; None is the usual one

    @property
    def recipe(self) -> str:
        return self.column.recipe + self.row.size

    @cached_property
    def values(self) -> list[float]:
        """What was reached here, a number a seed."""
        if self.variant is None:
            return []
        if self.column.metric == SPEED:  # the median of the log
            logs = [read_metrics(one.run.metrics_path) for one in self.variant.runs]
            steps = [[value for _, value in series(log, "train", "seconds_per_step")] for log in logs]
            return [100 * median(each) for each in steps if each]
        if self.column.metric == "seconds":
            kept = [one.report.get("decoding_seconds") for one in self.variant.results]
            return [float(seconds) for seconds in kept if seconds is not None]
        metric = self.column.metric.partition(" ")[0]
        return self.variant.values(Metric(metric, scale=100 if metric == "accuracy" else 1))

    @property
    def stands_in(self) -> bool:
        """Whether what was trained is of another recipe."""
        return self.variant is not None and self.variant.first.run.recipe.name != self.recipe

    @property
    def command(self) -> str | None:
        """What fills the cell; None where it is filled, or where no training does."""
        if self.values:
            return None
        if self.variant is not None and self.variant.first.run.checkpoint_names() and self.column.metric != SPEED:
            return self.variant.first.eval_command(split_of(self.column))
        place = [] if self.root is None else ["--runs", str(self.root)]  # where it is looked for
        return shlex.join(["phmctl", "train", self.recipe, *self.row.options, *place])

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
                yield f"{key}: {format_value(own[key])} here, {format_value(value)} published"
        for one in self.variant.runs:
            if one.summary.state != "finished":
                yield f"{one.run.name} is {one.summary.state}, at step {one.summary.step:,}"

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row.label,
            "column": self.column.label,
            "parameters_published": self.row.figure,
            "parameters_counted": self.count,
            "published": self.published,
            "here": mean(self.values),
            "standard_deviation": spread(self.values),
            "seeds": len(self.values),
            "stands_in": self.variant.first.run.recipe.name if self.stands_in and self.variant else None,
            "runs": [] if self.variant is None else [str(one.run.folder) for one in self.variant.runs],
            "differences": list(self.differences()),
            "command": self.command,
        }


@dataclass(frozen=True)
class PaperComparison:
    """A published table beside what was trained here."""

    printed: PublishedTable  # the table
    columns: tuple[tuple[Cell, ...], ...]  # its cells, column by column

    @property
    def cells(self) -> Iterator[Cell]:
        return (cell for row in zip(*self.columns, strict=True) for cell in row)

    def tables(self) -> Iterator[Table]:
        """The table as printed, where it has several columns, and one for each column that was trained here."""
        several = len(self.columns) > 1
        if several:
            rows = [
                [row[0].row.label, row[0].row.figure, *(cell.published for cell in row)]
                for row in zip(*self.columns, strict=True)
            ]
            heads = [each.label for each in self.printed.columns]
            yield Table(f"{self.printed.title}, as published", ["model", "#", *heads], rows)
        for cells in self.columns:
            variants = [cell.variant for cell in cells if cell.variant is not None]
            if several and not variants:
                continue
            rows = []
            for cell in cells:
                here = mean_and_spread(cell.values) + (" ‡" if cell.stands_in and cell.values else "")
                count = "–" if cell.count is None else f"{cell.count:,}"
                rows.append(
                    [cell.row.label, cell.row.figure, count, cell.published, here, str(len(cell.values) or "–")]
                )
            column = cells[0].column
            title = f"{column.label}: published, and here" if several else f"{self.printed.title}: {column.metric}"
            head = ["model", "published #", "counted here", "published", "here", "seeds"]
            yield Table(title, head, rows, below=conditions(variants))

    def remarks(self) -> list[str]:
        """What must be read with the table: how it is scored and counted, and what differs in the setup."""
        lines = [self.printed.score, f"not published: {self.printed.unsaid}"]
        if any(cell.count is not None for cell in self.cells):
            lines.append(f"counted here: {self.printed.counted}")
        for every in self.columns:
            cells, column = [cell for cell in every if cell.variant is not None], every[0].column
            if cells and column.remark:
                lines.append(f"{column.label}: {column.remark}")
            lines += [f"{column.label}: {line}" for line in copy_notes(one.variant for one in cells if one.variant)]
            found = [(cell.row.label, list(cell.differences())) for cell in cells]
            lines += [f"{column.label}, {line}" for line in merge_lines(found, len(cells))]
        if any(cell.stands_in and cell.values for cell in self.cells):
            lines.append("‡ another recipe stands in")
        return lines

    def missing(self) -> list[str]:
        """The commands that fill the empty cells."""
        return list(dict.fromkeys(filter(None, (cell.command for cell in self.cells))))

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.printed.key,
            "title": self.printed.title,
            "cells": [cell.as_json() for cell in self.cells],
            "notes": self.remarks(),
            "missing": self.missing(),
        }


def compare_papers(
    name: str,
    runs: Sequence[str | Path] = (),
    *,
    recipe: str | None = None,
    root: Path | None = None,
    checkpoint: str | None = None,
) -> list[PaperComparison]:
    """Put what was trained here beside published tables."""
    check_known("published table", name, table_names())
    tables = published_tables(name)
    names = [*runs, *([recipe] if recipe else [])]
    known: dict[str, None] = {}  # the recipes that reproduce a table, and those that stand in
    for table in tables:
        for column in table.columns:
            known |= dict.fromkeys([*(column.recipe + row.size for row in table.rows), *column.stand_ins])
    if recipe:
        check_known(f"recipe of {name}", recipe, known)
    summaries = list_runs(names, root)
    for summary in summaries if names and not any(one.run.recipe.name in known for one in summaries) else ():
        check_known(f"recipe of {name}", summary.run.recipe.name, known)
    checkpoint = checkpoint and folder_name(checkpoint)
    check_split_and_checkpoint(summaries, "test", checkpoint)
    splits = dict.fromkeys(split_of(column) for table in tables for column in table.columns)
    variants = {split: group_by_model(choose_results(summaries, split, checkpoint)) for split in splits}
    return [_compare(table, variants, root) for table in tables]


def split_of(column: Column) -> str:
    """The split of a column's scores, which its metric names if it is not test: ``accuracy test_mismatched``."""
    name, _, split = column.metric.partition(" ")
    return split if name == "accuracy" and split else "test"


def _compare(printed: PublishedTable, variants: Mapping[str, Sequence[Variant]], root: Path | None) -> PaperComparison:
    columns = []
    for column in printed.columns:
        cells = []
        for row, published in zip(printed.rows, column.scores, strict=True):
            variant, count = _fitting(row, column, variants[split_of(column)]), None
            if variant is not None and printed.maps is not None:
                count = printed.measure(ledger_for_recipe(variant.first.run.recipe))
            elif variant is not None and variant.parameters is not None:
                count = variant.parameters.total
            cells.append(Cell(row, column, published, variant, count, root))
        columns.append(tuple(cells))
    return PaperComparison(printed, tuple(columns))


def _fitting(row: Row, column: Column, variants: Sequence[Variant]) -> Variant | None:
    """What was trained of a cell: of the recipe itself, or of the first that stands in; the one scored first."""
    for recipe in (column.recipe + row.size, *column.stand_ins):
        own = ((one, one.first.run.recipe) for one in variants)
        found = [one for one, of in own if (of.name, of.variant) == (recipe, row.variant)]
        if found:
            return max(found, key=lambda one: (len(one.scored), one.first.run.recipe.training.steps))
    return None
