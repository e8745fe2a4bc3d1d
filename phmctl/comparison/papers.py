"""``compare --paper``: a published table next to the results of the runs that reproduce its cells."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
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

SPEED = "seconds/100 steps"  # the metric that comes from training logs


@dataclass(frozen=True)
class Cell:
    row: Row
    column: Column
    published: str  # the printed score
    variant: Variant | None  # the runs of this cell
    count: int | None  # their parameters, counted as the table counts them
    root: Path | None = None  # the folder of runs, if it was given

    @cached_property
    def recipe(self) -> str:
        return self.column.recipe + self.row.size

    @cached_property
    def values(self) -> list[float]:
        """The score of each seed."""
        if self.variant is None:
            return []
        if self.column.metric == SPEED:
            logs = [read_metrics(member.run.metrics_path) for member in self.variant.runs]
            seconds = [[value for _, value in series(log, "train", "seconds_per_step")] for log in logs]
            return [100 * median(values) for values in seconds if values]
        if self.column.metric == "seconds":
            times = [result.report.get("decoding_seconds") for result in self.variant.results]
            return [float(time) for time in times if time is not None]
        scale = 100 if self.column.metric == "accuracy" else 1
        return self.variant.values(Metric(self.column.metric, scale=scale))

    @property
    def stand_in(self) -> str | None:
        """The name of the trained recipe, if it is not the table's."""
        if self.variant is None or self.variant.first.run.recipe.name == self.recipe:
            return None
        return self.variant.first.run.recipe.name

    @property
    def command(self) -> str | None:
        """The command that fills the cell; None if the cell is filled."""
        if self.values:
            return None
        if self.variant is not None and self.variant.first.run.checkpoint_names() and self.column.metric != SPEED:
            return self.variant.first.eval_command(self.column.split)
        arguments = ["phmctl", "train", self.recipe, *self.row.options]
        return shlex.join(arguments if self.root is None else [*arguments, "--runs", str(self.root)])

    def differences(self) -> Iterator[str]:
        """Yield a line for each difference from the published setup."""
        if self.variant is None:
            return
        if self.stand_in:
            yield f"{self.stand_in} stands in for {self.recipe}, which was not trained"
        values = dict(flatten(self.variant.first.run.recipe.model_dump()))
        for key, value in self.column.setup.items():
            if key in values and values[key] != value:
                yield f"{key}: {format_value(values[key])} here, {format_value(value)} published"
        for member in self.variant.runs:
            if member.summary.state != "finished":
                yield f"{member.run.name} is {member.summary.state}, at step {member.summary.step:,}"

    def as_row(self) -> list[str]:
        score = mean_and_spread(self.values) + (" ‡" if self.stand_in and self.values else "")
        count = "–" if self.count is None else f"{self.count:,}"
        return [self.row.label, self.row.figure, count, self.published, score, str(len(self.values) or "–")]

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
            "stands_in": self.stand_in,
            "runs": [] if self.variant is None else [str(member.run.folder) for member in self.variant.runs],
            "differences": list(self.differences()),
            "command": self.command,
        }


@dataclass(frozen=True)
class PaperComparison:
    """A published table next to our results."""

    published: PublishedTable
    columns: tuple[tuple[Cell, ...], ...]

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*self.columns, strict=True))

    @property
    def cells(self) -> list[Cell]:
        """The cells, row by row."""
        return list(chain(*self.rows))

    def tables(self) -> Iterator[Table]:
        """Yield the published table if it has several columns, then a table for each column that has runs."""
        several = len(self.columns) > 1
        if several:
            labels = [column.label for column in self.published.columns]
            rows = [
                [cells[0].row.label, cells[0].row.figure, *(cell.published for cell in cells)] for cells in self.rows
            ]
            yield Table(f"{self.published.title}, as published", ["model", "#", *labels], rows)
        for cells in self.columns:
            column, variants = cells[0].column, _variants(cells)
            if several and not variants:
                continue
            title = f"{column.label}: published, and here" if several else f"{self.published.title}: {column.metric}"
            head = ["model", "published #", "counted here", "published", "here", "seeds"]
            yield Table(title, head, [cell.as_row() for cell in cells], below=conditions(variants))

    def remarks(self) -> list[str]:
        """Return how the table is scored and counted, and how the setups differ."""
        lines = [self.published.score, f"not published: {self.published.unsaid}"]
        if any(cell.count is not None for cell in self.cells):
            lines.append(f"counted here: {self.published.counted}")
        for cells in self.columns:
            column, variants = cells[0].column, _variants(cells)
            if variants and column.remark:
                lines.append(f"{column.label}: {column.remark}")
            lines += [f"{column.label}: {note}" for note in copy_notes(variants)]
            differences = [(cell.row.label, list(cell.differences())) for cell in cells]
            lines += [f"{column.label}, {line}" for line in merge_lines(differences, len(cells))]
        if any(cell.stand_in and cell.values for cell in self.cells):
            lines.append("‡ another recipe stands in")
        return lines

    def missing(self) -> list[str]:
        """Return the commands that fill the empty cells."""
        return list(dict.fromkeys(cell.command for cell in self.cells if cell.command))

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.published.key,
            "title": self.published.title,
            "cells": [cell.as_json() for cell in self.cells],
            "notes": self.remarks(),
            "missing": self.missing(),
        }


def _variants(cells: Sequence[Cell]) -> list[Variant]:
    return [cell.variant for cell in cells if cell.variant is not None]


def compare_papers(
    name: str,
    runs: Sequence[str | Path] = (),
    *,
    recipe: str | None = None,
    root: Path | None = None,
    checkpoint: str | None = None,
) -> list[PaperComparison]:
    """Compare runs with the published tables of a name. Raises UserError for an unknown name, recipe or checkpoint."""
    check_known("published table", name, table_names())
    tables = published_tables(name)
    columns = [(table, column) for table in tables for column in table.columns]
    recipes = {column.recipe + row.size: None for table, column in columns for row in table.rows}
    recipes |= {stand_in: None for _, column in columns for stand_in in column.stand_ins}
    if recipe:
        check_known(f"recipe of {name}", recipe, recipes)
        tables = [narrowed for table in tables if (narrowed := _of_recipe(table, recipe)).columns]
    summaries = list_runs(runs, root)
    if recipe:
        summaries = [summary for summary in summaries if summary.run.recipe.name == recipe]
    trained = [summary.run.recipe.name for summary in summaries]
    if runs and trained and recipes.keys().isdisjoint(trained):
        check_known(f"recipe of {name}", trained[0], recipes)
    checkpoint = checkpoint and folder_name(checkpoint)
    check_split_and_checkpoint(summaries, "test", checkpoint)
    variants = {}
    for split in dict.fromkeys(column.split for _, column in columns):
        variants[split] = group_by_model(choose_results(summaries, split, checkpoint))
    comparisons = []
    for table in tables:
        cells = tuple(tuple(_cells(table, column, variants[column.split], root)) for column in table.columns)
        comparisons.append(PaperComparison(table, cells))
    return comparisons


def _of_recipe(table: PublishedTable, recipe: str) -> PublishedTable:
    """Return the table with the columns that a recipe reproduces or stands in for."""
    columns = tuple(
        column
        for column in table.columns
        if recipe in (*(column.recipe + row.size for row in table.rows), *column.stand_ins)
    )
    return table.model_copy(update={"columns": columns})


def _cells(table: PublishedTable, column: Column, variants: Sequence[Variant], root: Path | None) -> Iterator[Cell]:
    for row, score in zip(table.rows, column.scores, strict=True):
        variant = _find_variant(row, column, variants)
        count = None
        if variant is not None and table.maps is not None:
            count = table.measure(ledger_for_recipe(variant.first.run.recipe))
        elif variant is not None:
            count = variant.parameters
        yield Cell(row, column, score, variant, count, root)


def _find_variant(row: Row, column: Column, variants: Sequence[Variant]) -> Variant | None:
    """Return the variant of a cell's recipe, else of its first stand-in with one; of several, the most scored."""
    same_model = [variant for variant in variants if variant.first.run.recipe.variant == row.variant]
    for name in (column.recipe + row.size, *column.stand_ins):
        matches = [variant for variant in same_model if variant.first.run.recipe.name == name]
        if matches:
            return max(matches, key=lambda match: (len(match.scored), match.first.run.recipe.training.steps))
    return None
