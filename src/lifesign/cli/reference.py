"""The reference page of all commands, options and LIFESIGN_* variables, read from the commands and sources themselves."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import typer

from lifesign.cli.main import COMMANDS

_ENV = re.compile(r"\bLIFESIGN_[A-Z_]+\b")
VARIABLES = {
    "LIFESIGN_BEACON_DIR": "folder for the progress beacons, for the engine and whoever watches it; default: the memory file system (see docs/detector.md)",
    "LIFESIGN_CHECK_LOOPBACK": "set: `lifesign check` over several nodes may use 127.0.0.1 as the master's address without a warning",
    "LIFESIGN_DRILL": "set by `lifesign drill` in the processes it starts, so that it finds all of them again; not for you",
    "LIFESIGN_ENGINE_PYTHON": "interpreter of the vLLM environment that `lifesign drill` uses",
    "LIFESIGN_FAULT": "set by `lifesign drill`: the fault to inject (JSON); an engine without it is never touched",
    "LIFESIGN_LIFE": "set by `lifesign guard` in the engine it starts, so that it finds all processes of that life again; not for you",
    "LIFESIGN_PATIENCE": "1 in the engine's environment: the plugin's patient waits and the beacon (see docs/patience.md); without it vLLM is left as it is",
    "LIFESIGN_STATE_DIR": "where guard keeps logs, incidents and its memory; default: ~/.local/state/lifesign",
}
"""What each variable does. A test holds that none is missing."""


def reference() -> str:
    """Markdown: one section per command, then the variables with what they do and the files that read them."""
    rows = ["# Reference", "", "Generated from the code (`make docs`).", ""]
    here = Path(__file__).parent
    for name, (module, help_line) in COMMANDS.items():
        if not (here / f"{name}.py").exists():
            continue
        command = typer.main.get_command(importlib.import_module(module).app)
        rows += [f"## lifesign {name}", "", help_line, ""]
        rows += _options(command)
        for sub, child in sorted(getattr(command, "commands", {}).items()):
            rows += [f"### lifesign {name} {sub}", "", (child.help or "").split("\n")[0], "", *_options(child)]
    rows += ["## Environment variables", "", "| variable | what it does | read in |", "|---|---|---|"]
    rows += [
        f"| `{variable}` | {VARIABLES.get(variable, '')} | {', '.join(sorted(files))} |"
        for variable, files in sorted(variables().items())
    ]
    return "\n".join(rows) + "\n"


def variables() -> dict[str, set[str]]:
    """Every LIFESIGN_* variable in the sources, with the files that name it (this one doesn't count)."""
    found: dict[str, set[str]] = {}
    source = Path(__file__).parent.parent
    for path in sorted(source.rglob("*.py")):
        if path == Path(__file__):
            continue
        for variable in _ENV.findall(path.read_text(encoding="utf-8")):
            found.setdefault(variable, set()).add(str(path.relative_to(source)))
    return found


def _options(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        names = [*getattr(parameter, "opts", []), *getattr(parameter, "secondary_opts", [])]
        text = " ".join((getattr(parameter, "help", "") or "").split())
        if parameter.param_type_name == "argument":
            names = [parameter.metavar or parameter.name.upper()]
        default = parameter.default
        shown = (
            f" (default `{default}`)"
            if isinstance(default, (int, float, str)) and not isinstance(default, bool) and default != ""
            else ""
        )
        rows.append(f"- `{', '.join(names)}`: {text}{shown}".rstrip(": "))
    return [*rows, ""] if rows else []
