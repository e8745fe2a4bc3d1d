"""The options of ``phmctl prepare-data``: what is read, how tables are read, and how text is cleaned."""

from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.options import complete_card, complete_recipe

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Name of a dataset card, or a name for your own corpus.",
        autocompletion=complete_card,
        show_default=False,
    ),
]
Source = Annotated[Path | None, typer.Option(help="Folder with the card's files; without it they are downloaded.")]
Recipe = Annotated[
    str | None,
    typer.Option(help="Read tokenizer, vocabulary and lengths from this recipe.", autocompletion=complete_recipe),
]
Tokenizer = Annotated[str | None, typer.Option(help="bpe or word.")]
Vocabulary = Annotated[int | None, typer.Option(help="Number of token types; of each side with --separate.")]
VocabularyOf = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Use the vocabulary of a run or of a prepared folder.")
]
Joint = Annotated[
    bool | None, typer.Option("--joint/--separate", help="Translation: one vocabulary for both sides, or one for each.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Length of the longest text kept in train, in tokens.")]
Train = Annotated[
    list[str] | None,
    typer.Option(metavar="SRC TGT", help="Your own training files, or one table of both sides. Repeatable."),
]
Valid = Annotated[list[str] | None, typer.Option(metavar="SRC TGT", help="Your own validation files. Repeatable.")]
Test = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]SRC TGT", help="Your own test files; NAME makes a test set of its own. Repeatable."),
]
Table = Annotated[
    list[str] | None,
    typer.Option(metavar="SPLIT=FILE", help="Your own labelled text: TSV, CSV or JSON lines. Repeatable."),
]
Text = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Column of the text in --table; twice for pairs.")
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the label in --table files.")]
Quoting = Annotated[
    bool | None,
    typer.Option("--quoting/--no-quoting", help="Whether table cells may be quoted (default: only in CSV)."),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether tables have a header; without one, columns are numbers from 0."),
]
SkipBadLines = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Leave out and count lines of your own files that cannot be read.")
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="SRC,TGT", help="Columns of source and target in a table: names, or numbers from 0."),
]
Extra = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Column of whole numbers; eval prints scores for each value. Repeatable."),
]
Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase/--no-lowercase", help="Lower-case the text to tokenize (default: the card's)."),
]
Normalise = Annotated[
    bool | None,
    typer.Option("--normalise/--no-normalise", help="Apply Unicode NFC; replace blanks of all kinds by one."),
]
Entities = Annotated[str | None, typer.Option(help="decode: turn Moses' &apos; and the like into characters; or keep.")]
MaxRatio = Annotated[
    float | None, typer.Option(help="Largest ratio of the lengths of a train pair in tokens; 0 keeps all.")
]
MinCount = Annotated[
    int | None, typer.Option(min=1, help="Least number of occurrences of a word, or of a pair that BPE joins.")
]
ExtraSplit = Annotated[
    list[str] | None,
    typer.Option(metavar="SPLIT=DIR", help="Folder with a split that the card borrows from another card. Repeatable."),
]
Vectors = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Word vectors for labelled text, in GloVe's text format.")
]
