"""`python -m lifesign.drill.sim`: the bench without the rest of the command line."""

from __future__ import annotations

import sys

import typer

from lifesign.drill.sim.cli import app
from lifesign.errors import LifesignError

if __name__ == "__main__":
    try:
        app()
    except LifesignError as error:
        typer.echo(f"lifesign: {error}", err=True)
        sys.exit(2)
