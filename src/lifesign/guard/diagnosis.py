"""Runs `diagnose` on the log of a bundle in a process of its own: hostile logs and bugs must not reach the guard.

The child writes report.json, report.txt and report.md into the bundle. When it fails or takes too long, a report in the
same schema says so, so that a bundle always has one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lifesign import __version__
from lifesign.guard.helpers import Helpers, python_command
from lifesign.guard.ruling import Facts, Ruling, rule
from lifesign.guard.statedir import read_json, write_atomically, write_json
from lifesign.text import Lang

if TYPE_CHECKING:
    from lifesign.report.model import Advice, Report

TIMEOUT_S = 30.0


def diagnose_bundle(
    helpers: Helpers, folder: Path, *, extra: list[str], facts: Facts, lang: Lang
) -> tuple[dict[str, Any], Ruling]:
    """The report on `engine.log` of a bundle (schema `lifesign.report/1`) and the ruling on it. Never raises."""
    config = json.dumps({"folder": str(folder), "extra": extra, "lang": lang, "facts": facts.as_json()})
    result = helpers.run(python_command("lifesign.guard.diagnosis", config), TIMEOUT_S)
    report = read_json(folder / "report.json") if result.code == 0 else None
    logged = read_json(folder / ".logged.json") if result.code == 0 else None
    with suppress(OSError):
        (folder / ".logged.json").unlink()
    if report is not None and logged is not None:
        return report, rule(logged, facts)
    reason = result.note or (result.output.strip().splitlines() or ["no output"])[-1][:300]
    report = fallback_report(f"the log could not be diagnosed: {reason}")
    ruling = rule(report["verdict"], facts)
    report["verdict"].update(
        cause=ruling.cause, subtype=ruling.subtype, title=ruling.title.pick(lang), why=ruling.why.pick(lang)
    )
    return report, ruling


def fallback_report(note: str) -> dict[str, Any]:
    """A report that says nothing but why it says nothing."""
    return {
        "schema": "lifesign.report/1",
        "lifesign_version": __version__,
        "source": {"paths": [], "bytes": 0, "lines": 0},
        "facts": {"engine": "vllm", "version": "", "platform": "", "model": "", "config": {}, "lives": 0},
        "verdict": {
            "cause": "insufficient-log",
            "subtype": "",
            "phase": "",
            "certainty": "possible",
            "title": note,
            "why": note,
            "process": {"role": "none", "name": "", "pid": None, "rank": ""},
            "evidence": [],
            "remedies": [],
            "known_issues": [],
        },
        "findings": [],
        "lives": [],
        "timeline": [],
        "coverage": {"bytes_read": 0, "lines_unparsed": 0, "lines_cut": 0, "notes": [note]},
    }


def main(arguments: list[str]) -> None:
    """Run as a child: `diagnosis CONFIG` with folder, extra, facts and lang as JSON."""
    from lifesign.report.diagnose import diagnose_paths
    from lifesign.report.render import render

    config = json.loads(arguments[0])
    os.chdir(config["folder"])
    lang: Lang = "zh" if config["lang"] == "zh" else "en"
    extra = [path for path in config["extra"] if Path(path).exists() and Path(path).stat().st_size]
    report = diagnose_paths(["engine.log"], lang=lang, extra=extra)
    logged = msgspec.to_builtins(report.verdict)
    ruling = rule(logged, Facts.load(config["facts"]))
    if ruling.source == "guard":
        overlay(report, ruling, lang)
    # "Run it under guard" is no advice here.
    report.verdict.remedies = [one for one in report.verdict.remedies if not one.command.startswith("lifesign guard")]
    for rank, advice in enumerate(report.verdict.remedies, 1):
        advice.rank = rank
    write_atomically(Path(".logged.json"), json.dumps(logged).encode(), durable=False)
    write_json(Path("report.json"), json.loads(render(report, "json", lang, redact=True, to_file=True)))
    for name, form in (("report.txt", "terminal"), ("report.md", "markdown")):
        with suppress(OSError):  # no room: the verdict is in report.json, and the bundle says what is missing
            write_atomically(Path(name), render(report, form, lang, redact=True, to_file=True).encode())


def overlay(report: Report, ruling: Ruling, lang: Lang) -> None:
    """Put what guard saw in the place of a verdict that only saw the traces; its proof is a line of guard.log."""
    from lifesign.report.model import EvidenceLine, ProcessInfo

    verdict = report.verdict
    same = (verdict.cause, verdict.subtype) == (ruling.cause, ruling.subtype)
    for line in verdict.evidence:
        if line.role == "root":
            line.role = "root" if same else "confirmation"
    verdict.cause, verdict.subtype, verdict.phase = ruling.cause, ruling.subtype, ruling.phase
    verdict.certainty = ruling.certainty
    verdict.title, verdict.why = ruling.title.pick(lang), ruling.why.pick(lang)
    if not same:
        verdict.remedies = plain_advice(ruling.cause, ruling.subtype, lang)
        verdict.command, verdict.known_issues = "", []
    if ruling.end is not None:
        end = ruling.end
        verdict.process = ProcessInfo(end.role, end.name, end.pid, end.name.partition("_")[2])
    number = proof_line(Path("guard.log"), ruling.proof)
    if number:
        seen_by = {"en": "seen by guard, outside the log", "zh": "guard 在日志之外看到的"}
        verdict.evidence.insert(0, EvidenceLine("guard.log", number, "root", ruling.proof, seen_by[lang]))


def proof_line(path: Path, proof: str) -> int:
    """The 1-based line of guard.log that holds the proof; it is added when it is not there yet. 0 without a file."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, 1):
            if line.endswith(proof):
                return number
        with path.open("a", encoding="utf-8") as file:
            file.write(proof + "\n")
    except OSError:
        return 0
    return len(lines)


def plain_advice(cause: str, subtype: str, lang: Lang) -> list[Advice]:
    """The remedies of a cause's page that need no value computed from the log."""
    from lifesign.causes import registry
    from lifesign.report.model import Advice

    page = registry.by_slug(cause)
    known = page.subtypes.get(subtype) if page else None
    if known is None:
        return []
    plain = [remedy for remedy in known.remedies if not remedy.forms]
    return [
        Advice(
            rank,
            remedy.kind,
            remedy.title.pick(lang),
            command=remedy.command or "",
            why=remedy.why.pick(lang),
            source=remedy.source,
        )
        for rank, remedy in enumerate(plain, 1)
    ]
