"""Runs the checks in order. A check that breaks becomes a line of its own; the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from lifesign.guard.preflight import collectives, machine, model_files, software
from lifesign.guard.preflight.model import Finding, Plan
from lifesign.text import T

LEVELS = ("stop", "warn", "note", "ok")


def run(plan: Plan, tell: Callable[[str], None] = lambda name: None) -> list[Finding]:
    """Every finding, in the order of the checks. `tell` hears the name of each check before it runs."""
    checks: list[tuple[str, Callable[[Plan], Iterator[Finding]]]] = [
        ("left-overs", machine.check_leftovers),
        ("/dev/shm", machine.check_shm),
        ("limits", machine.check_limits),
        ("port", machine.check_port),
        ("folders", machine.check_homes),
        ("versions", software.check_versions),
        ("devices", software.check_devices),
        ("variables", software.check_variables),
        ("command line", software.check_command_line),
        ("model", model_files.check_model),
        ("memory", _memory),
        ("all-reduce", collectives.check_all_reduce),
    ]
    found: list[Finding] = []
    for name, check in checks:
        tell(name)
        try:
            found += check(plan)
        except Exception as error:  # one broken check must not hide what the others see
            text = f"{type(error).__name__}: {error}"
            found.append(Finding("note", name, T(f"could not be checked ({text})", f"无法检查（{text}）")))
    return found


def _memory(plan: Plan) -> Iterator[Finding]:
    folder = Path(plan.model).expanduser() if plan.model else None
    if folder is not None and not folder.is_dir():
        folder = model_files.cached_snapshot(plan.model or "", plan.environment)
    yield from machine.check_memory(plan, model_files.weights_bytes(folder) if folder else 0)


def would_stop(found: list[Finding]) -> bool:
    """Whether anything found would keep an engine from starting or serving."""
    return any(finding.level == "stop" for finding in found)
