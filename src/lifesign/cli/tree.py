"""`lifesign tree`: the decision tree as text, Mermaid or SVG."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from lifesign.cli.diagnose import chosen_language, write_or_print
from lifesign.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def tree(
    format: str = typer.Option("text", "--format", "-f", help="text, mermaid, svg, markdown or html."),
    lang: str = typer.Option("", "--lang", help="en or zh; default: the locale's language."),
    output: Path | None = typer.Option(None, "--output", "-o", help="Write to this file."),
) -> None:
    """The decision tree from symptom to cause; the same questions that the diagnosis is tested against."""
    from lifesign.report.book.tree import FORMATS, render_tree

    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}. Choose one of: {', '.join(FORMATS)}.")
    write_or_print(render_tree(format, chosen_language(lang)), output, sys.stdout)
