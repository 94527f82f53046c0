"""Renders a report. One file per format; all text from a log is shown as text, whatever it contains."""

from __future__ import annotations

from lifesign.report.model import Report
from lifesign.text import Lang


def render(
    report: Report, format: str, lang: Lang, *, all_lives: bool = False, redact: bool = True, to_file: bool = False
) -> str:
    """The report as text in `format` (terminal, json, markdown, html, sarif)."""
    if format == "json":
        from lifesign.report.render.json import render_json

        return render_json(report)
    from lifesign.report.render.terminal import render_terminal

    return render_terminal(report, lang, all_lives=all_lives, to_file=to_file)
