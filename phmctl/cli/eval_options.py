"""The options of ``phmctl eval``."""

from pathlib import Path
from typing import Annotated

import typer

Names = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Runs, folders of versions (the newest is taken), tags, or exports."),
]
Split = Annotated[str, typer.Option(help="test, valid, a test set by its name (test_NAME), or all (test sets).")]
Against = Annotated[
    list[Path] | None,
    typer.Option(metavar="RUN2", help="Compare with this run, which is only read, by a paired test. Repeatable."),
]
Beam = Annotated[str | None, typer.Option(help="Beam size; 1 is greedy. Default: the recipe's.")]
Alpha = Annotated[str | None, typer.Option(help="Exponent of the length penalty. Default: the recipe's.")]
Probing = Annotated[
    bool, typer.Option("--probing", help="Score what a translator's encoder knows: Table 3 of Li et al. 2020.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="With --probing: a key of the recipe 'probe'. Repeatable."),
]
Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase/--cased", help="BLEU and chrF in lower case (default: if the corpus is lower-cased)."),
]
Tokenize = Annotated[
    str | None,
    typer.Option(help="What BLEU splits by: 13a, zh, ja-mecab, flores200 (default: the language's)."),
]
Source = Annotated[Path | None, typer.Option(metavar="FILE", help="Score on this text, not on a split.")]
Reference = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Right translations of --source. Repeatable.")
]
Every = Annotated[bool, typer.Option("--all", help="Score all runs that RUN means, not the newest one.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Of several, so many at once; the threads are divided among them.")
]
List = Annotated[
    bool, typer.Option("--list", help="Print one command each, for a scheduler's job array; score nothing.")
]
