"""``phmctl count-params``."""

from typing import Annotated

import typer

from phmctl.cli import options
from phmctl.console import emit_json


def count_params(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="Recipe: a path or a shipped name; with --paper also a table: table1, 2, 4, 5, ni, or all.",
            autocompletion=options.complete_recipe,
        ),
    ] = None,
    n: Annotated[
        str | None, typer.Option("--n", help="One n, or several to compare: 1,2,4,8,16.", show_default=False)
    ] = None,
    algebra: Annotated[
        str | None, typer.Option(help="One algebra, or several to compare: phm,quaternion.", show_default=False)
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Print the published figures beside ours.")] = False,
    settings: options.Settings = None,
    json: options.Json = False,
) -> None:
    """Count a recipe's parameters by component, beside its dense twin's; nothing is allocated."""
    from phmctl.accounting.counting import count_parameters, parse_ns, split_list
    from phmctl.accounting.printing import print_count

    count = count_parameters(
        recipe, ns=parse_ns(n), algebras=split_list(algebra), overrides=settings or [], paper=paper
    )
    if json:
        emit_json(count.as_json())
    else:
        print_count(count)
