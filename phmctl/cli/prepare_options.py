"""The options of ``phmctl prepare-data``: what is read, how tables are read, and how text is cleaned."""

from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.options import complete_card, complete_recipe

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A dataset card, or a name for your own files.",
        autocompletion=complete_card,
        show_default=False,
    ),
]
Source = Annotated[Path | None, typer.Option(help="Folder with the card's files; without it they are downloaded.")]
Recipe = Annotated[
    str | None,
    typer.Option(help="Take the settings below from this recipe, not from the card.", autocompletion=complete_recipe),
]
Tokenizer = Annotated[str | None, typer.Option(help="bpe or word.")]
Vocabulary = Annotated[int | None, typer.Option(help="Token types, a side if separate.")]
VocabularyOf = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Take the vocabulary of a run, or of a prepared folder.")
]
Joint = Annotated[
    bool | None, typer.Option("--joint/--separate", help="Translation: one vocabulary for both sides, or one each.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest text kept in train, in tokens of the text itself.")]
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
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="SRC,TGT", help="Where --train FILE and the like have both sides: names, or numbers counted from 0."
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Whole numbers of tables by which scores are broken down. Repeatable."),
]
Lowercase = Annotated[
    bool | None, typer.Option("--lowercase/--no-lowercase", help="Lower-case what is tokenized (default: the card's).")
]
Normalise = Annotated[
    bool | None, typer.Option("--normalise/--no-normalise", help="Unicode NFC, and blanks of all kinds to one.")
]
Entities = Annotated[str | None, typer.Option(help="decode: Moses' &apos; and the like become characters; or keep.")]
MaxRatio = Annotated[
    float | None, typer.Option(help="Of the longer to the shorter text in tokens, in train; 0 keeps all.")
]
MinCount = Annotated[
    int | None, typer.Option(min=1, help="Occurrences that a word, or a BPE pair, wants to be learned.")
]
ExtraSplit = Annotated[
    list[str] | None,
    typer.Option(metavar="SPLIT=DIR", help="Files of a split that a card borrows from another. Repeatable."),
]
Vectors = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Word vectors for labelled text, in GloVe's text format.")
]
