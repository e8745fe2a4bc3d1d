"""The options of ``phmctl prepare-data`` that are for labelled text."""

from pathlib import Path
from typing import Annotated

import typer

Table = Annotated[
    list[str] | None,
    typer.Option(metavar="SPLIT=FILE", help="Your own labelled text: TSV, CSV or JSON lines. Repeatable."),
]
Text = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Where tables have the text; twice for pairs.")]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="Where tables have the label.")]
Quoting = Annotated[
    bool | None,
    typer.Option("--quoting/--no-quoting", help="Whether cells may stand in quotes (default: in CSV only)."),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Without a header, columns are numbers, counted from 0."),
]
ExtraSplit = Annotated[
    list[str] | None,
    typer.Option(metavar="SPLIT=DIR", help="Files of a split that a card borrows from another. Repeatable."),
]
Vectors = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Word vectors for labelled text, in GloVe's text format.")
]
