"""A log that is cut before its cause must not get one: honest verdicts, or a guess marked as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
HONEST = ("not-a-crash", "insufficient-log")
# Files in which the newest line comes first, or an earlier life died: what stands before the cause is another death.
OTHER_DEATHS = ("10-", "104-", "164-", "511-", "513-", "903-", "910-")
LABELS = [
    (folder, json.loads(line))
    for folder in ("public", "lab")
    for line in (CORPUS / folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize(("folder", "label"), LABELS, ids=[label["file"] for _, label in LABELS])
def test_cut_before_the_cause(folder: str, label: dict[str, object], tmp_path: Path) -> None:
    name = str(label["file"])
    healthy = label["cause"] == "not-a-crash"
    decisive = [*label["decisive_lines"], *label.get("repeat_lines", [])]  # type: ignore[misc]
    if name.startswith(OTHER_DEATHS) or (not healthy and not decisive):
        pytest.skip("an earlier death, or no cause, in this log")
    lines = (CORPUS / folder / name).read_bytes().split(b"\n")
    limit = len(lines) if healthy else min(decisive) - 1
    for share in (0.2, 0.5, 0.8, 1.0):
        kept = int(limit * share)
        if kept < 5:
            continue
        path = tmp_path / "cut.log"
        path.write_bytes(b"\n".join(lines[:kept]) + b"\n")
        verdict = diagnose_paths([str(path)]).verdict
        expected = (*HONEST, label["cause"], *label.get("accept", []))  # type: ignore[misc]
        if verdict.cause not in expected:
            assert verdict.certainty != "established", (share, verdict.cause, verdict.evidence[:1])
            assert not healthy or name.startswith(("ft_", "hang_70s")), (share, verdict.cause, verdict.evidence[:1])
