"""The labelled logs: every folder with a labels.jsonl is scored as tools/eval.py scores it, and must reach the targets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from eval import score  # noqa: E402

FOLDERS = sorted(path.parent for path in (ROOT / "corpus").rglob("labels.jsonl"))

# Shares, and counts for the last two. `public` and `lab`: the goals of the project; the others are recorded by drills.
TARGETS = {
    "public": {"cause": 0.97, "subtype_all": 0.92, "line": 0.95, "must": 0.95, "must_not": 1.0},
    "blind": {"cause": 0.97, "subtype_all": 0.92, "line": 0.95, "must": 0.95, "must_not": 1.0},
    "blind-2": {"cause": 0.97, "subtype_all": 0.92, "line": 0.95, "must": 0.95, "must_not": 1.0},
    "blind-3": {"cause": 0.97, "subtype_all": 0.85, "line": 0.95, "must": 0.95, "must_not": 0.97},
    "blind-4": {"cause": 0.97, "subtype_all": 0.92, "line": 0.95, "must": 0.92, "must_not": 0.97},
    "blind-5": {"cause": 0.97, "subtype_all": 0.92, "line": 0.95, "must": 0.95, "must_not": 0.95},
    "blind-6": {"cause": 0.97, "subtype_all": 0.90, "line": 0.95, "must": 0.95, "must_not": 0.97},
    "blind-7": {"cause": 0.97, "subtype_all": 0.80, "line": 0.95, "must": 0.95, "must_not": 0.97},
    "blind-8": {"cause": 0.97, "subtype_all": 0.75, "line": 0.95, "must": 0.95, "must_not": 0.97},
    "adversarial": {"cause": 0.98, "subtype_all": 0.92, "line": 0.95, "must": 0.95, "must_not": 1.0},
    "lab": {"cause": 1.0, "line": 0.97, "must": 0.95, "must_not": 1.0},
}
RECORDED = {"cause": 1.0, "line": 0.95}


@pytest.mark.parametrize("folder", FOLDERS, ids=[str(path.relative_to(ROOT / "corpus")) for path in FOLDERS])
def test_targets(folder: Path) -> None:
    figures, misses = score(folder)
    report = "\n".join([f"{name} {value:.3f}" for name, value in figures.items()] + misses)
    for name, least in TARGETS.get(folder.name, RECORDED).items():
        assert figures.get(name, 1.0) >= least, report
    # One label of the adversarial set accepts the cause but not the line that says it (see its README).
    assert figures["false"] <= (1 if folder.name == "adversarial" else 0), report
    assert figures["wrong_established"] == 0, report
    assert figures["broken"] == 0, report


def test_there_are_folders() -> None:
    assert {path.name for path in FOLDERS} >= {"public", "lab"}
