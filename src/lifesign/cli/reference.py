"""The reference page of all commands, options and LIFESIGN_* variables, read from the commands and sources themselves."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import typer

from lifesign.cli.main import COMMANDS

_ENV = re.compile(r"\bLIFESIGN_[A-Z_]+\b")


def reference() -> str:
    """Markdown: one section per command, then the variables with the files that read them."""
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
    rows += ["## Environment variables", "", "| variable | read in |", "|---|---|"]
    found: dict[str, set[str]] = {}
    source = here.parent
    for path in sorted(source.rglob("*.py")):
        for variable in _ENV.findall(path.read_text(encoding="utf-8")):
            found.setdefault(variable, set()).add(str(path.relative_to(source)))
    rows += [f"| `{variable}` | {', '.join(sorted(files))} |" for variable, files in sorted(found.items())]
    return "\n".join(rows) + "\n"


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
