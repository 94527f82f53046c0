"""`lifesign explain`: the page of a cause or subtype; without argument the list of causes."""

from __future__ import annotations

import sys

import typer

from lifesign.cli.diagnose import chosen_language

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def explain(
    what: str | None = typer.Argument(
        None, help="A cause, or CAUSE/SUBTYPE; without it the list.", metavar="[CAUSE[/SUBTYPE]]"
    ),
    lang: str = typer.Option("", "--lang", help="en or zh; default: the locale's language."),
) -> None:
    """The page of a cause: what you see, why it happens, what it isn't, what to do."""
    from lifesign.report.book.explain import explain_cause, list_causes

    language = chosen_language(lang)
    sys.stdout.write(list_causes(language) if what is None else explain_cause(what, language))
