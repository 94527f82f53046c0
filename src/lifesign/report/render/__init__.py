"""Renders a report. One file per format; all text from a log is shown as text, whatever it contains."""

from __future__ import annotations

from lifesign.report.model import Report
from lifesign.text import Lang

FORMATS = ("terminal", "json", "markdown", "html", "sarif")


def render(
    report: Report, format: str, lang: Lang, *, all_lives: bool = False, redact: bool = True, to_file: bool = False
) -> str:
    """The report as text in one of FORMATS, with secrets and prompts taken out unless `redact` is false."""
    if redact:
        from lifesign.report.redact import redact_report

        report = redact_report(report)
    if format == "json":
        from lifesign.report.render.json import render_json

        return render_json(report)
    if format == "markdown":
        from lifesign.report.render.markdown import render_markdown

        return render_markdown(report, lang, all_lives=all_lives)
    if format == "html":
        from lifesign.report.render.html import render_html

        return render_html(report, lang, all_lives=all_lives)
    if format == "sarif":
        from lifesign.report.render.sarif import render_sarif

        return render_sarif(report)
    from lifesign.report.render.terminal import render_terminal

    return render_terminal(report, lang, all_lives=all_lives, to_file=to_file)
