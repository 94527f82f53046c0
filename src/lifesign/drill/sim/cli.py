"""`lifesign drill sim`: runs the bench and prints its table, or the JSON of the contract."""

from __future__ import annotations

import json
import time
from typing import Any

import typer

from lifesign.errors import UsageError

DEFAULT_HOURS = 12000.0
DEFAULT_FAULTS = 200
_HEADS = ("exit", "stop", "livelock", "partition", "blocked", "zero-token")


def sim(
    hours: float = typer.Option(DEFAULT_HOURS, help="Clean engine-hours in which every kill is a false one."),
    seed: int = typer.Option(1, help="The same seed gives the same result, however many processes work on it."),
    faults: int = typer.Option(DEFAULT_FAULTS, help="Engines per injected fault."),
    scenario: str = typer.Option("base", help="base, no-opaque, no-evidence, bad-sensors, harsh or bad-prior."),
    patience: float = typer.Option(0.3, help="Part of a restart's cost that a stuck engine is given."),
    rivals: bool = typer.Option(True, help="Run the other detectors on the same traces, too."),
    jobs: int = typer.Option(0, help="Processes; 0 means one per processor, at most 8."),
    format: str = typer.Option("table", help="table or json."),
) -> None:
    """Judge the detector, and those that others use, on simulated engines in virtual time."""
    from lifesign.drill.sim.runner import Plan, rows, run
    from lifesign.drill.sim.world import scenario as named

    if format not in ("table", "json"):
        raise UsageError(f"--format {format} isn't known; choose table or json")
    for value, name, high in ((hours, "--hours", 1e6), (faults, "--faults", 1e5), (patience, "--patience", 100.0)):
        if not 0 <= value <= high:
            raise UsageError(f"{name} must lie between 0 and {high:g}; {value:g} does not")
    if hours == 0 and faults == 0:
        raise UsageError("there is nothing to run; give --hours, --faults or both")
    began_s = time.monotonic()
    result = rows(run(Plan(hours, seed, faults, named(scenario), patience, rivals), max(0, min(jobs, 64))))
    took_s = time.monotonic() - began_s
    if format == "json":
        about = {"hours": hours, "seed": seed, "faults_each": faults, "scenario": scenario, "patience": patience}
        typer.echo(json.dumps({"rows": result, "plan": about}))
        return
    typer.echo(table(result))
    typer.echo(
        f"{hours:g} engine-hours, {faults} engines per fault, seed {seed}, scenario {scenario}: {took_s:.0f} s",
        err=True,
    )


def table(result: list[dict[str, Any]]) -> str:
    """The rows as text: false kills per 1000 h, and p50/p99 seconds to the kill of each fault."""
    head = ["detector", "false kills /1000 h", *_HEADS, "gradual: killed"]
    lines = [head]
    for row in result:
        cells = [str(row["detector"]), _number(row.get("false_kills_per_1000h"))]
        cells += [_pair(row["faults"].get(fault), "p50_s", "p99_s") for fault in _HEADS]
        share = row.get("gradual_killed_share")
        cells.append("-" if share is None else f"{100 * share:.0f} %")
        lines.append(cells)
        if any("suspect_p50_s" in times for times in row["faults"].values()):
            suspicions = _number(row.get("suspicions_per_1000h"))
            cells = ["  suspected", suspicions]
            cells += [_pair(row["faults"].get(fault), "suspect_p50_s", "suspect_p99_s") for fault in _HEADS]
            flagged = row.get("gradual_flagged_share")
            cells.append("-" if flagged is None else f"flagged {100 * flagged:.0f} %")
            lines.append(cells)
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    out = []
    for line in lines:
        first = line[0].ljust(widths[0])
        out.append("  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]))
    return "\n".join(out)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _pair(times: dict[str, float | None] | None, low: str, high: str) -> str:
    if not times or low not in times:
        return "-"
    return f"{_seconds(times[low])}/{_seconds(times[high])}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


app = typer.Typer(invoke_without_command=True, add_completion=False)
app.callback(invoke_without_command=True)(sim)
