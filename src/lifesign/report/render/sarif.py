"""The report as SARIF 2.1.0, so that code hosts and viewers show the root line where it stands."""

from __future__ import annotations

from typing import Any

import msgspec

from lifesign.report.model import EvidenceLine, Report

_LEVEL = {"established": "error", "supported": "error", "possible": "warning"}


def render_sarif(report: Report) -> str:
    """SARIF with a final newline: one result for the verdict, its root line first."""
    verdict = report.verdict
    rule = f"{verdict.cause}/{verdict.subtype}"
    root = [line for line in verdict.evidence if line.role == "root"]
    related = [line for line in verdict.evidence if line.role != "root"]
    result: dict[str, Any] = {
        "ruleId": rule,
        "level": "none" if verdict.cause == "not-a-crash" else _LEVEL.get(verdict.certainty, "warning"),
        "kind": "pass" if verdict.cause == "not-a-crash" else "fail",
        "message": {"text": f"{verdict.title}. {verdict.why}".strip()},
        "locations": [_location(line) for line in root[:1]],
        "relatedLocations": [
            {"id": number, **_location(line), "message": {"text": f"{line.role}: {line.text}"}}
            for number, line in enumerate(related, 1)
        ],
    }
    if verdict.fingerprint:
        result["partialFingerprints"] = {"lifesign/1": verdict.fingerprint}
    if result["kind"] == "pass":
        result["level"] = "none"
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "lifesign",
                        "version": report.lifesign_version,
                        "rules": [
                            {
                                "id": rule,
                                "shortDescription": {"text": verdict.title},
                                "help": {
                                    "text": "\n".join(
                                        f"{item.rank}. {item.title} {item.knob} {item.value}".rstrip()
                                        for item in verdict.remedies
                                    )
                                    or verdict.title
                                },
                            }
                        ],
                    }
                },
                "results": [result],
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _location(line: EvidenceLine) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": line.path.replace("\\", "/")},
            "region": {"startLine": max(1, line.line), "snippet": {"text": line.text}},
        }
    }
