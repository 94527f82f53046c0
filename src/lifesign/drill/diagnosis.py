"""What `lifesign diagnose` says about a drill's log: the same command that a user runs, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifesign.drill.model import Expect

TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict; `problem` is set instead when there is none because the command failed."""

    cause: str = ""
    subtype: str = ""
    certainty: str = ""
    line: int | None = None
    text: str = ""
    problem: str = ""

    @property
    def slug(self) -> str:
        """`cause/subtype`."""
        return f"{self.cause}/{self.subtype}" if self.subtype else self.cause


def exit_line(code: int | None) -> str:
    """How `docker compose` tells the end of a server that a signal killed; empty for another end: the log tells that itself."""
    return f"vllm-1 exited with code {128 - code}\n" if code is not None and code < 0 else ""


def diagnose(log: Path, *evidence: Path) -> Diagnosis:
    """Run `lifesign diagnose --format json` on a log and what a drill has beside it: the kernel's lines, the exit status."""
    command = [sys.executable, "-m", "lifesign.cli.main", "diagnose", "--format", "json", str(log)]
    for path in evidence:
        command += ["--with", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis(problem=f"the diagnosis failed: {error}")
    if done.returncode not in (0, 1):
        return Diagnosis(problem=f"the diagnosis failed ({done.returncode}): {done.stderr.strip()[-300:]}")
    try:
        verdict = json.loads(done.stdout)["verdict"]
    except (ValueError, KeyError) as error:
        return Diagnosis(problem=f"the diagnosis gave no report: {error}; {done.stderr.strip()[-300:]}")
    root: dict[str, Any] = next((entry for entry in verdict.get("evidence") or [] if entry.get("role") == "root"), {})
    return Diagnosis(
        str(verdict.get("cause") or ""),
        str(verdict.get("subtype") or ""),
        str(verdict.get("certainty") or ""),
        root.get("line"),
        str(root.get("text") or "")[:200],
    )


def agrees(expect: Expect, got: Diagnosis) -> bool:
    """Whether the cause is the injected one, or another that the log supports equally well."""
    return got.cause == expect.cause or got.cause in expect.accept


def strictly_agrees(expect: Expect, got: Diagnosis) -> bool:
    """Whether the cause is the injected one and no other, however defensible."""
    return got.cause == expect.cause


def subtype_agrees(expect: Expect, got: Diagnosis) -> bool:
    """Whether the subtype is right as well; an accepted other cause brings its own subtypes, which aren't judged."""
    if got.cause != expect.cause:
        return got.cause in expect.accept
    return not expect.subtype or got.subtype == expect.subtype or got.subtype in expect.accept_subtypes
