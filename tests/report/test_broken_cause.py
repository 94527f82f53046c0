"""A cause whose code fails costs its own verdict and no other: the report says so, and nobody sees a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from lifesign.causes import registry
from lifesign.report.diagnose import diagnose_paths

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "engine-dead-slow-step.log"


def test_the_others_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    causes, notes = registry.load()

    broken = tuple(replace(cause, find=lambda life: 1 / 0) if cause.slug == "engine-bug" else cause for cause in causes)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(registry, "load", lambda: (broken, notes))
    report = diagnose_paths([str(SAMPLE)])
    assert report.verdict.cause == "timeout-hang"
    told = [note for note in report.coverage.notes if "engine-bug could not be judged" in note]
    assert told == [
        "the cause engine-bug could not be judged (ZeroDivisionError: division by zero): please report this"
    ]


def test_healthy_causes_leave_no_note() -> None:
    assert not [note for note in diagnose_paths([str(SAMPLE)]).coverage.notes if "could not be judged" in note]
