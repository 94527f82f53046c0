"""`lifesign lint`: check a command line, script or manifest that starts vLLM against what the release really knows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lifesign import __version__
from lifesign.errors import SourceError, UsageError
from lifesign.text import Lang, default_lang

FORMATS = ("terminal", "json", "sarif", "github")
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": True})
def lint(
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE... | -- COMMAND", help="Files to check, `-` for standard input, or a command."),
    ],
    vllm_version: Annotated[
        str | None, typer.Option("--vllm-version", help="The vLLM release to check against.", metavar="X.Y.Z")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="terminal, json, sarif or github.")] = "terminal",
    lang: Annotated[str | None, typer.Option("--lang", help="en or zh; default: the locale.")] = None,
) -> None:
    """Check flags and variables of a vLLM start: command line, script, Dockerfile, compose file, manifest, .env, Python.

    Exit codes: 0 nothing worse than a note, 1 errors or warnings, 2 the input can't be used.
    """
    from lifesign.remedies.lint import check, output, readers

    if output_format not in FORMATS:
        raise UsageError(f"--format {output_format!r} is none of {', '.join(FORMATS)}: choose one of them")
    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {lang!r} is neither en nor zh: choose one of them")
    language: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    if _are_files(words):
        invocations = []
        for word in words:
            invocations += readers.script(_stdin(), "stdin") if word == "-" else readers.read_path(word)
    else:
        invocations = readers.command_line(words)
        if not invocations:
            raise UsageError(
                "this is no vLLM start: write it as `lifesign lint -- vllm serve MODEL ...` or name a file"
            )
    report = check(invocations, vllm_version or "")
    if output_format == "terminal":
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        text = output.terminal(report, language, colour)
    elif output_format == "json":
        text = output.as_json(report, language)
    elif output_format == "sarif":
        text = output.sarif(report, language, __version__)
    else:
        text = output.github(report, language)
    sys.stdout.write(text)
    raise typer.Exit(1 if report.failing() else 0)


def _are_files(words: list[str]) -> bool:
    """Whether the words name files: the first one does, or all look like paths. Raises SourceError for a missing one."""
    first = words[0]
    if first == "-" or Path(first).is_file() or Path(first).is_dir():
        return True
    looks = os.sep in first or Path(first).suffix.lower() in (
        ".sh",
        ".yml",
        ".yaml",
        ".json",
        ".env",
        ".py",
        ".service",
    )
    if looks and os.path.basename(first) not in ("vllm", "python", "python3", "docker") and len(words) == 1:
        raise SourceError(first, "no such file: check the path")
    return False


def _stdin() -> str:
    from lifesign.remedies.lint import readers

    raw = sys.stdin.buffer.read(readers.MAX_BYTES + 1)
    if len(raw) > readers.MAX_BYTES:
        raise SourceError(
            "stdin", f"is larger than {readers.MAX_BYTES >> 20} MiB, too large for a script: name the right file"
        )
    return raw.decode("utf-8", errors="replace")
