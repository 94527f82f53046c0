"""The terminal report : what, proof, do now."""

from __future__ import annotations

from lifesign.report.model import Report
from lifesign.text import Lang


def render_terminal(report: Report, lang: Lang, *, all_lives: bool = False, to_file: bool = False) -> str:
    """Plain text."""
    verdict = report.verdict
    rows = [
        f"{verdict.title}  [{verdict.certainty}]",
        f"{verdict.cause} / {verdict.subtype} · {verdict.phase}",
        verdict.why,
        "",
    ]
    rows += [f"{line.role}  {line.path}:{line.line}  {line.text}" for line in verdict.evidence]
    rows += [
        f"{item.rank} {item.title} {item.knob} {item.value} {item.command}\n   {item.why}" for item in verdict.remedies
    ]
    return "\n".join(rows) + "\n"
