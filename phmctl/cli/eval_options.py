"""The options of ``phmctl eval``."""

from pathlib import Path
from typing import Annotated

import typer

Names = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Runs, folders of versions (the newest run is used), tags or exports."),
]
Split = Annotated[str, typer.Option(help="test, valid, test_NAME (a named test set) or all (test sets).")]
Against = Annotated[
    list[Path] | None,
    typer.Option(metavar="RUN2", help="Compare with this run by a paired test; it is only read. Repeatable."),
]
Beam = Annotated[str | None, typer.Option(help="Beam size; 1 is greedy. Default: the recipe's.")]
Alpha = Annotated[str | None, typer.Option(help="Exponent of the length penalty. Default: the recipe's.")]
Probing = Annotated[bool, typer.Option("--probing", help="Probe a translator's encoder (Table 3 of Li et al. 2020).")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="With --probing: set a key of the recipe 'probe'. Repeatable."),
]
Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase/--cased", help="Score BLEU and chrF in lower case (default: as the corpus)."),
]
Tokenize = Annotated[
    str | None,
    typer.Option(help="Tokenizer of BLEU: 13a, zh, ja-mecab, flores200, … (default: the language's)."),
]
Source = Annotated[Path | None, typer.Option(metavar="FILE", help="Source text to score in place of a split.")]
Reference = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Reference translations of --source. Repeatable.")
]
Every = Annotated[bool, typer.Option("--all", help="Score every run that RUN names, not only the newest.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of scorings that run at once; they share the threads.")]
List = Annotated[
    bool, typer.Option("--list", help="Print one command for each scoring, for a job array; score nothing.")
]
