"""The report as data: the schema `lifesign.report/1` (see report/schema.json), one struct per object."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

SCHEMA = "lifesign.report/1"


class ProcessInfo(Struct):
    """Who the verdict is about: `role` is worker, core, api or none."""

    role: str = "none"
    name: str = ""
    pid: int | None = None
    rank: str = ""


class EvidenceLine(Struct):
    """One line of proof; `line` is its 1-based physical number in `path`."""

    path: str
    line: int
    role: str
    text: str
    why: str = ""


class Advice(Struct):
    """One remedy, rendered for the reader's release and values."""

    rank: int
    kind: str
    title: str
    knob: str = ""
    value: str = ""
    command: str = ""
    valid_in_version: bool | None = None
    why: str = ""
    cost: str = ""
    note: str = ""
    source: str = ""


class KnownIssue(Struct):
    """A public report that describes this."""

    ref: str
    affects: str = ""
    fixed_in: str = ""
    why: str = ""


class Verdict(Struct):
    """What the engine died of (or why nothing can be said), and what to do."""

    cause: str
    subtype: str
    phase: str
    certainty: str
    title: str
    why: str
    process: ProcessInfo = field(default_factory=ProcessInfo)
    evidence: list[EvidenceLine] = field(default_factory=list)
    remedies: list[Advice] = field(default_factory=list)
    command: str = ""
    """The reader's own command with the first remedy applied; empty when it can't be built."""
    changes: list[str] = field(default_factory=list)
    """What that command changes: `--max-num-seqs: 256 -> 64`."""
    known_issues: list[KnownIssue] = field(default_factory=list)
    fingerprint: str = ""


class FindingInfo(Struct):
    """Any finding with its causal role in this death."""

    cause: str
    subtype: str
    role: str
    certainty: str
    title: str
    process: ProcessInfo
    evidence: list[EvidenceLine]


class LifeInfo(Struct):
    """One engine life of the log."""

    started_line: int
    ended_line: int
    verdict: Verdict


class TimelineEntry(Struct):
    """One turning point."""

    line: int
    time: str
    process: str
    event: str
    path: str = ""


class SourceInfo(Struct):
    """What was read."""

    paths: list[str]
    bytes: int
    lines: int


class FactsInfo(Struct):
    """What is known of the engine."""

    engine: str = "vllm"
    version: str = ""
    platform: str = ""
    model: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    lives: int = 1
    figures: dict[str, float] = field(default_factory=dict)


class Coverage(Struct):
    """How much of the input stands behind the report, and what was left out."""

    bytes_read: int = 0
    lines_unparsed: int = 0
    lines_cut: int = 0
    notes: list[str] = field(default_factory=list)


class Report(Struct):
    """The whole report."""

    schema: str
    lifesign_version: str
    source: SourceInfo
    facts: FactsInfo
    verdict: Verdict
    findings: list[FindingInfo] = field(default_factory=list)
    lives: list[LifeInfo] = field(default_factory=list)
    timeline: list[TimelineEntry] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def found_death(self) -> bool:
        """Whether a death was found, diagnosed or not (exit code 1)."""
        if self.verdict.cause == "insufficient-log":
            return self.verdict.subtype == "tail-only"
        return self.verdict.cause != "not-a-crash"
