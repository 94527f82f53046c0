"""The report as JSON, schema `lifesign.report/1`."""

from __future__ import annotations

import msgspec

from lifesign.report.model import Report


def render_json(report: Report) -> str:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
