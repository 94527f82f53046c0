"""`lifesign drill`: make an engine die in a known way and check the diagnosis. See docs/drill.md."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lifesign.errors import UsageError
from lifesign.text import Lang, default_lang

if TYPE_CHECKING:
    from lifesign.drill.engines import Engine
    from lifesign.drill.model import Fault
    from lifesign.drill.outcome import Outcome

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

ENGINE = typer.Option("vllm", "--engine", help="vllm, fake, or a whole command such as 'vllm serve MODEL'.")
PYTHON = typer.Option(
    "", "--python", help="Interpreter of the vLLM environment (default: LIFESIGN_ENGINE_PYTHON, else ours)."
)
RELEASE = typer.Option("", "--release", help="Whose log the fake engine imitates: 0.8.5, 0.11.2, 0.19.1 or 0.32.0.")
FORMAT = typer.Option("terminal", "--format", "-f", help="terminal or json.")
LANG = typer.Option("", "--lang", help="en or zh; default: the locale's language.")
KEEP = typer.Option(None, "--keep", help="Keep the logs in this folder.")
PATIENCE = typer.Option(False, "--patience", help="Start the engine with LIFESIGN_PATIENCE=1.")


@app.callback()
def drill() -> None:
    """Make an engine die in a known way, on purpose, and check that the diagnosis names what was done."""


@app.command("list")
def list_faults(
    engine: str = typer.Option("", "--engine", help="Only the faults for vllm or for fake."),
    format: str = FORMAT,
    lang: str = LANG,
) -> None:
    """List the faults that can be injected, and what a correct diagnosis says about each."""
    from lifesign.drill.vocabulary import all_faults, load

    if engine not in ("", "vllm", "fake"):
        raise UsageError(f"unknown engine {engine!r}. Choose vllm or fake.")
    for note in load().notes:
        typer.echo(f"lifesign: {note}", err=True)
    faults = [fault for fault in all_faults() if not engine or engine in fault.engines]
    if _format(format) == "json":
        print(json.dumps([_listed(fault) for fault in faults], indent=1, ensure_ascii=False))
        return
    chosen = _lang(lang)
    width = max(len(fault.name) for fault in faults)
    for fault in faults:
        print(f"{fault.name:<{width}}  {fault.expect.slug:<38}  {fault.title.pick(chosen)}")


@app.command("run")
def run_fault(
    fault: str = typer.Argument(..., help="A name of `lifesign drill list`."),
    engine: str = ENGINE,
    expect: str = typer.Option(
        "", "--expect", help="The cause (or cause/subtype) to expect instead of the fault's own."
    ),
    patience: bool = PATIENCE,
    python: str = PYTHON,
    release: str = RELEASE,
    keep: Path | None = KEEP,
    format: str = FORMAT,
    lang: str = LANG,
) -> None:
    """Run one drill and tell what was seen. Exit code 0: as expected (or skipped), 1: not."""
    import dataclasses

    from lifesign.drill import report, runner
    from lifesign.drill.engines import choose
    from lifesign.drill.model import Expect
    from lifesign.drill.vocabulary import find

    wanted = find(fault)
    chosen = choose(engine, python=python or None, release=release or None)
    if patience:
        wanted = runner.with_patience(wanted)
    if expect:
        wanted = dataclasses.replace(wanted, expect=Expect(*_cause_of(expect), wanted.expect.phase))
    form, language = _format(format), _lang(lang)
    outcome = _run_all([wanted], chosen, keep, quiet=True)[0]
    if form == "json":
        print(report.as_json([outcome]))
    else:
        _print_story(report.story(outcome, language))
    raise typer.Exit(1 if outcome.result == "FAIL" else 0)


@app.command("all")
def run_everything(
    engine: str = ENGINE,
    only: list[str] | None = typer.Option(
        None, "--only", help="Only faults that match this pattern (* and ?); repeatable."
    ),
    ci: bool = typer.Option(False, "--ci", help="Only the short selection for continuous integration."),
    reports: list[Path] | None = typer.Option(
        None, "--report", help="Write a report: .xml (JUnit), .json or .md; repeatable."
    ),
    patience: bool = PATIENCE,
    python: str = PYTHON,
    release: str = RELEASE,
    keep: Path | None = KEEP,
    record: Path | None = typer.Option(
        None, "--record", help="Record logs and labels in this folder as well, as `drill record` does."
    ),
    format: str = FORMAT,
) -> None:
    """Run every drill that the engine and this machine allow, one after the other. Exit code 1 when one fails."""
    from lifesign.drill import report, runner
    from lifesign.drill.engines import choose

    for path in reports or []:
        if path.suffix.lower() not in report.WRITERS:
            raise UsageError(f"{path} has no known suffix. Use .xml (JUnit), .json or .md.")
    chosen = choose(engine, python=python or None, release=release or None)
    faults = _selected(chosen, only or [], ci)
    if patience:
        faults = [runner.with_patience(fault) for fault in faults]
    form = _format(format)
    outcomes = _run_all(faults, chosen, keep, quiet=False, record_into=record)
    for path in reports or []:
        report.write_report(outcomes, path)
    if form == "json":
        print(report.as_json(outcomes))
    else:
        _print_table(outcomes)
    raise typer.Exit(1 if report.tally(outcomes)["failed"] else 0)


@app.command("record")
def record_faults(
    into: Path = typer.Option(
        ..., "--into", help="Folder for the logs and labels.jsonl (for example corpus/recorded/0.32.0)."
    ),
    only: list[str] | None = typer.Argument(
        None, help="Names or patterns of faults; default: all.", metavar="[FAULT ...]"
    ),
    engine: str = ENGINE,
    python: str = PYTHON,
    release: str = RELEASE,
    keep: Path | None = KEEP,
    relabel: bool = typer.Option(
        False, "--relabel", help="Run nothing: make the labels of INTO anew from the vocabulary."
    ),
    again: bool = typer.Option(False, "--again", help="Record also what is recorded there already."),
) -> None:
    """Run drills and keep each log with its label: redacted, with neutral paths. Exit code 1 when one couldn't be recorded."""
    from lifesign.drill import record
    from lifesign.drill.engines import choose

    if relabel:
        if not (into / "labels.jsonl").exists():
            raise UsageError(f"{into} holds no labels.jsonl. Name a folder of recorded drills.")
        for line in (problems := record.relabel(into)):
            typer.echo(f"lifesign: {line}", err=True)
        raise typer.Exit(1 if problems else 0)
    chosen = choose(engine, python=python or None, release=release or None)
    faults = _selected(chosen, only or [], ci=False)
    have = set() if again else record.recorded(into)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="lifesign-record-") as folder:
        for fault in faults:
            if fault.name in have:
                continue
            outcome = _run_all([fault], chosen, keep or Path(folder), quiet=False)[0]
            problem = record.keep(outcome, chosen, into)
            if problem:
                failed += 1
                typer.echo(f"lifesign: {fault.name} is not recorded: {problem}", err=True)
    raise typer.Exit(1 if failed else 0)


if importlib.util.find_spec("lifesign.drill.sim.cli") is not None:
    app.add_typer(importlib.import_module("lifesign.drill.sim.cli").app, name="sim")


def _listed(fault: Fault) -> dict[str, object]:
    return {
        "fault": fault.name,
        "expect": fault.expect.slug,
        "engines": list(fault.engines),
        "accept": list(fault.expect.accept),
        "accept_subtypes": list(fault.expect.accept_subtypes),
        "phase": fault.expect.phase,
        "when": fault.when,
        "how": fault.how,
        "fate": fault.fate,
        "needs": list(fault.needs),
        "bound_s": fault.bound_s,
        "ci": fault.ci,
        "title": fault.title.en,
        "title_zh": fault.title.zh,
    }


def _cause_of(text: str) -> tuple[str, str]:
    """Cause and subtype (may be empty) that `--expect` names. Raises UsageError for ones that no diagnosis ever gives."""
    import difflib

    from lifesign.causes import registry

    cause, _, subtype = text.partition("/")
    known = registry.by_slug(cause)
    if known is None:
        slugs = [each.slug for each in registry.load()[0]]
        near = difflib.get_close_matches(cause, slugs, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"choose one of {', '.join(slugs)}."
        raise UsageError(f"--expect: there is no cause called {cause[:60]!r}; {hint}")
    if subtype and subtype not in known.subtypes:
        near = difflib.get_close_matches(subtype, known.subtypes, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known.subtypes)}."
        raise UsageError(f"--expect: {cause} has no subtype called {subtype[:60]!r}; {hint}")
    return cause, subtype


def _selected(engine: Engine, patterns: Sequence[str], ci: bool) -> list[Fault]:
    from fnmatch import fnmatchcase

    from lifesign.drill.vocabulary import find, for_engine

    for pattern in patterns:
        if not set("*?[") & set(pattern):
            find(pattern)
    faults = [
        fault
        for fault in for_engine(engine.name)
        if (not ci or fault.ci) and (not patterns or any(fnmatchcase(fault.name, pattern) for pattern in patterns))
    ]
    if not faults:
        raise UsageError("no fault matches. `lifesign drill list` names them all.")
    return faults


def _run_all(
    faults: Sequence[Fault], engine: Engine, keep: Path | None, *, quiet: bool, record_into: Path | None = None
) -> list[Outcome]:
    """Run drills one after the other; a line a drill on stderr. Without `keep`, logs of failed drills stay in a temp folder."""
    from lifesign.drill import record, report, runner

    folder = keep or Path(tempfile.mkdtemp(prefix="lifesign-drill-logs-"))
    outcomes: list[Outcome] = []
    for number, fault in enumerate(faults, 1):
        try:
            outcome = runner.run(fault, engine, folder)
        except BaseException:
            if keep is None:
                _drop_good_logs(folder, outcomes)
            raise
        outcomes.append(outcome)
        if not quiet:
            result, name, _, got, *_ = report.row(outcome)
            why = f"  {outcome.reason}" if outcome.result == "FAIL" else ""
            typer.echo(
                f"[{number}/{len(faults)}] {result:<7} {name:<26} {got}  ({outcome.wall_s:.0f} s){why}", err=True
            )
        if record_into is not None and outcome.result != "SKIPPED":
            problem = record.keep(outcome, engine, record_into)
            if problem:
                typer.echo(f"lifesign: {fault.name} is not recorded: {problem}", err=True)
    if keep is None:
        _drop_good_logs(folder, outcomes)
    return outcomes


def _drop_good_logs(folder: Path, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.result != "FAIL":
            for path in (outcome.log, outcome.kernel_log, outcome.exit_log):
                if path and Path(path).parent == folder:
                    Path(path).unlink(missing_ok=True)
            outcome.log = outcome.kernel_log = outcome.exit_log = ""
    if not any(folder.iterdir()):
        folder.rmdir()
    else:
        typer.echo(f"lifesign: the logs of failed drills are in {folder}", err=True)


def _print_table(outcomes: Sequence[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lifesign.drill import report

    table = Table(box=None, pad_edge=False)
    for title in ("", "fault", "injected", "diagnosed", "exit", "end after", "client saw"):
        table.add_column(title, overflow="fold")
    style = {"PASS": "green", "FAIL": "bold red", "SKIPPED": "yellow"}
    for outcome in outcomes:
        result, *cells = report.row(outcome)
        table.add_row(Text(result, style[result]), *(Text(cell) for cell in cells))
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(report.summary(outcomes))


def _print_story(lines: Sequence[tuple[str, str]]) -> None:
    from rich.cells import cell_len

    width = max(cell_len(label) for label, _ in lines) + 3
    for label, text in lines:
        print(f" {label}{' ' * (width - cell_len(label))}{text}")


def _format(value: str) -> str:
    if value not in ("terminal", "json"):
        raise UsageError(f"unknown format {value!r}. Choose terminal or json.")
    return value


def _lang(value: str) -> Lang:
    if not value:
        return default_lang()
    lower = value.lower()
    if lower.startswith("zh"):
        return "zh"
    if lower.startswith("en"):
        return "en"
    raise UsageError(f"unknown language {value!r}. Choose en or zh.")
