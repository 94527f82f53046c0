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
            _refuse_missing(words)
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
    if len(words) == 1 and _looks_like_a_file(first):
        raise SourceError(first, "no such file: check the path")
    return False


_SUFFIXES = (
    ".sh",
    ".yml",
    ".yaml",
    ".json",
    ".env",
    ".py",
    ".service",
    ".conf",
    ".ps1",
    ".fish",
    ".md",
    ".sbatch",
    ".txt",
)


def _looks_like_a_file(word: str) -> bool:
    if os.path.basename(word) in ("vllm", "python", "python3", "docker") or " " in word:
        return False
    return os.sep in word or word.lower().endswith(_SUFFIXES)


def _refuse_missing(words: list[str]) -> None:
    """Raise SourceError for the first missing file when the words, which start nothing, can only be files."""
    plain = [
        word for word in words if not word.startswith("-") and "=" not in word and not any(c.isspace() for c in word)
    ]
    if len(plain) < len(words):
        return
    if len(words) == 1 or all(_looks_like_a_file(word) or Path(word).exists() for word in words):
        missing = next((word for word in words if not Path(word).exists()), words[0])
        raise SourceError(missing, "no such file: check the path (a command begins with `vllm serve`)")


def _stdin() -> str:
    from lifesign.remedies.lint import readers

    raw = sys.stdin.buffer.read(readers.MAX_BYTES + 1)
    if len(raw) > readers.MAX_BYTES:
        raise SourceError(
            "stdin", f"is larger than {readers.MAX_BYTES >> 20} MiB, too large for a script: name the right file"
        )
    return raw.decode("utf-8", errors="replace")
