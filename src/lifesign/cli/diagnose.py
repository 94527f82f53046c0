"""`lifesign diagnose`: the main job. Reads logs, prints the verdict in the format asked for, sets the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import typer

from lifesign.errors import UsageError
from lifesign.text import Lang, T, default_lang

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FORMATS = ("terminal", "json", "markdown", "html", "sarif")


@app.command()
def diagnose(
    paths: list[str] | None = typer.Argument(
        None, help="Log files, folders, globs, or - for standard input.", metavar="[PATH ...]"
    ),
    lang: str = typer.Option("", "--lang", help="en or zh; default: the locale's language."),
    format: str = typer.Option("terminal", "--format", "-f", help="terminal, json, markdown, html or sarif."),
    output: Path | None = typer.Option(None, "--output", "-o", help="Write the report to this file."),
    all_lives: bool = typer.Option(
        False, "--all-lives", help="Report every engine life in the log, not just the last death."
    ),
    vllm_version: str | None = typer.Option(
        None, "--vllm-version", help="The vLLM release, if the log doesn't say it (or says it wrong)."
    ),
    with_: list[str] | None = typer.Option(
        None, "--with", help="More evidence: kernel log, `kubectl describe`, `nvidia-smi -q`, exit code."
    ),
    command: str | None = typer.Option(
        None, "--command", help="Your own command line, as one string; the report corrects it."
    ),
    redact: bool = typer.Option(True, "--redact/--no-redact", help="Hide secrets and prompts."),
) -> None:
    """Name the root cause of the (last) engine death in a log, with the lines that prove it and the fix to type.

    Exit code: 0 no death found, 1 a death was found (diagnosed or not), 2 the input is unusable.
    """
    from lifesign.logs.scan import Ahead

    chosen = chosen_language(lang)
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}. Choose one of: {', '.join(FORMATS)}.")
    if not paths:
        if sys.stdin.isatty():
            raise UsageError(
                "no log given. Name a file (`lifesign diagnose vllm.log`) or pipe one in (`docker logs NAME 2>&1 | lifesign diagnose -`)."
            )
        paths = ["-"]
    if vllm_version is not None:
        from lifesign.remedies.versions import known_or_refuse

        known_or_refuse(vllm_version)
    if command is not None:
        from lifesign.facts import command_line
        from lifesign.facts.shell_words import Unreadable

        try:
            command_line.read(command)
        except Unreadable as error:
            raise UsageError(
                T(
                    f"--command can't be corrected: {error.reason.en}. Give the one line that starts vLLM, quoted for your shell, or leave --command out.",
                    f"无法修改 --command 给出的命令：{error.reason.zh}。请给出启动 vLLM 的那一行（按 shell 规则加引号），或去掉 --command。",
                ).pick(chosen)
            ) from None
    # Large files are searched while the rest of the program is still being loaded.
    ahead = Ahead(paths)
    from lifesign.report.diagnose import diagnose_paths
    from lifesign.report.render import render

    try:
        report = diagnose_paths(
            paths, lang=chosen, vllm_version=vllm_version, extra=with_ or [], ahead=ahead, command=command
        )
    finally:
        ahead.close()

    text = render(report, format, chosen, all_lives=all_lives, redact=redact, to_file=output is not None)
    write_or_print(text, output, sys.stdout)
    raise typer.Exit(1 if report.found_death else 0)


def write_or_print(text: str, output: Path | None, stream: TextIO) -> None:
    """Writes `text` to the file asked for, or to `stream`. Raises UsageError when the file can't be written."""
    if output is None:
        stream.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {output}: {error.strerror}. Choose another file with --output.") from error


def chosen_language(value: str) -> Lang:
    """The language of `--lang`, or the locale's. Raises UsageError for one that lifesign doesn't speak."""
    if not value:
        return default_lang()
    lower = value.lower().replace("_", "-")
    if lower in ("en", "zh"):
        return "zh" if lower == "zh" else "en"
    if lower.startswith("zh"):
        return "zh"
    raise UsageError(f"unknown language {value!r}. Choose en or zh.")
