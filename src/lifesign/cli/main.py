"""Entry point of `lifesign`. Commands are imported only when they are called, so that `--help` stays fast."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import typer
import typer.core

from lifesign import __version__
from lifesign.cli.plain_values import use_plain_values
from lifesign.errors import LifesignError

# name -> (module with `app: typer.Typer`, one-line help). The order is that of `lifesign --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "diagnose": ("lifesign.cli.diagnose", "Name the root cause of an engine death from its log."),
    "explain": ("lifesign.cli.explain", "The page of a cause; without argument the list of causes."),
    "tree": ("lifesign.cli.tree", "The decision tree from symptom to cause."),
    "cheatsheet": ("lifesign.cli.cheatsheet", "The one-page card to print."),
    "lint": ("lifesign.cli.lint", "Check flags and variables against a vLLM release."),
    "timeout": ("lifesign.cli.timeout", "The RPC timeout that fits, and the knob that sets it."),
    "check": ("lifesign.cli.check", "Preflight: what would stop an engine on this machine."),
    "guard": ("lifesign.cli.guard", "Run an engine, watch it, keep the evidence, restart with sense."),
    "watch": ("lifesign.cli.watch", "Watch an engine that somebody else runs."),
    "reap": ("lifesign.cli.reap", "Find what dead engines left behind; end it with --yes."),
    "incidents": ("lifesign.cli.incidents", "The incident bundles that guard kept."),
    "drill": ("lifesign.cli.drill", "Make an engine die in a known way and check the diagnosis."),
}


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are imported on first use; `--help` reads the table above."""

    # `Any`: newer typer carries its own copy of click, so the classes' home differs between versions.
    def list_commands(self, ctx: Any) -> list[str]:
        here = Path(__file__).parent
        return [name for name in COMMANDS if (here / f"{name}.py").exists()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"lifesign {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """lifesign: why did the vLLM engine die, and is it dead at all?"""


def main() -> None:
    """Run the command line. Exit codes: 0 nothing found or done, 1 a death or problem was found, 2 unusable input."""
    use_plain_values()
    try:
        app()
    except LifesignError as error:
        typer.echo(f"lifesign: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader went away (`| head`): not our error, and Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
