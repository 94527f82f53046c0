"""`lifesign cheatsheet`: one A4 page to keep beside the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from lifesign.cli.diagnose import chosen_language, write_or_print
from lifesign.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def cheatsheet(
    format: str = typer.Option("markdown", "--format", "-f", help="markdown, html (prints on one A4 page) or svg."),
    lang: str = typer.Option("", "--lang", help="en or zh; default: the locale's language."),
    output: Path | None = typer.Option(None, "--output", "-o", help="Write to this file."),
) -> None:
    """The one-page card: the tree, a row per cause, the four commands. HTML prints on one A4 page (PDF: print to file)."""
    from lifesign.report.book.cheatsheet import FORMATS, render_cheatsheet

    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}. Choose one of: {', '.join(FORMATS)}.")
    write_or_print(render_cheatsheet(format, chosen_language(lang)), output, sys.stdout)
