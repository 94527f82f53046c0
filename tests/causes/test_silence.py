"""Healthy logs: no cause, not even alone, may claim a death in one."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest

from lifesign.causes import registry
from lifesign.facts.lives import build
from lifesign.facts.model import Life
from lifesign.logs.reader import read
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.rank import rank

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
CAUSES, _ = registry.load()
HONEST = ("not-a-crash", "insufficient-log", "unclassified")
CLAIMING = tuple(cause for cause in CAUSES if cause.slug not in HONEST)
HEALTHY = [
    path.parent / label["file"]
    for path in sorted(CORPUS.rglob("labels.jsonl"))
    for label in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    if label["cause"] == "not-a-crash"
]


@lru_cache(maxsize=4)
def _lives(log: Path) -> tuple[Life, ...]:
    return tuple(build(read([str(log)]).statements))


def test_there_are_healthy_logs_of_every_collection() -> None:
    assert {log.parent.name for log in HEALTHY} >= {"public", "lab", "blind", "adversarial"}
    assert len(HEALTHY) >= 35


@pytest.mark.parametrize("log", HEALTHY, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_no_cause_claims_a_healthy_log(log: Path) -> None:
    for life in _lives(log):
        for cause in CLAIMING:
            verdict = rank(life, (cause,)).verdict
            assert verdict.cause in HONEST, (cause.slug, verdict.subtype, verdict.event.line)


def test_the_check_would_notice() -> None:
    """The same question of a log that did die: its own cause, alone, claims it."""
    cause = registry.by_slug("device-oom")
    assert cause is not None
    log = next(CORPUS.glob("public/10-kv-too-small-*.log"))
    assert rank(_lives(log)[-1], (cause,)).verdict.cause == "device-oom"


CUT_AT_AN_ERROR = ("12-ft-oom", "ft_forced_exception", "185-nixl")
"""Healthy because the engine came back after an error: cut between the two, the error is the best guess."""


@pytest.mark.parametrize("log", HEALTHY, ids=lambda log: f"{log.parent.name}/{log.name}")
def test_a_death_without_trace_is_not_laid_to_an_old_warning(log: Path, tmp_path: Path) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    death = (
        "(EngineCore pid=77) ERROR 11-30 23:59:00 [multiproc_executor.py:300] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
        "(APIServer pid=7) ERROR 11-30 23:59:01 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    )
    cut = tmp_path / "cut.log"
    for share in (0.3, 0.5, 0.7, 1.0):
        kept = int(len(lines) * share)
        if kept < 6:
            continue
        cut.write_text("\n".join((*lines[:kept], *death)) + "\n", encoding="utf-8")
        verdict = diagnose_paths([str(cut)]).verdict
        if verdict.cause not in (*HONEST, "silent-death"):
            assert verdict.certainty != "established" or log.name.startswith(CUT_AT_AN_ERROR), (share, verdict.cause)
