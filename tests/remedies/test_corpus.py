"""No report on the labelled logs names a knob that its log's release doesn't have, and none gives harmful advice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lifesign.remedies.apply import is_env, knob_is_valid
from lifesign.remedies.catalog import load, normal
from lifesign.report.diagnose import diagnose_paths

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
CATALOG = load()


def labelled() -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for folder in ("public", "lab"):
        for line in (CORPUS / folder / "labels.jsonl").read_text(encoding="utf-8").splitlines():
            label = json.loads(line)
            found.append((CORPUS / folder / label["file"], label))
    return found


LOGS = labelled()


@pytest.mark.parametrize(("path", "label"), LOGS, ids=[path.name for path, _ in LOGS])
def test_knobs_of_a_report_exist_in_its_release(path: Path, label: dict[str, Any]) -> None:
    report = diagnose_paths([str(path)])
    release = CATALOG.basis(report.facts.version).release
    for advice in report.verdict.remedies:
        if not advice.knob:
            assert not advice.value
            continue
        assert knob_is_valid(advice.knob, advice.value or None, release, CATALOG), (report.facts.version, advice)
        for word in advice.command.split():
            if word.startswith("--") and "vllm serve" in advice.command:
                assert CATALOG.option(normal(word), release) is not None, (report.facts.version, word)


@pytest.mark.parametrize(("path", "label"), LOGS, ids=[path.name for path, _ in LOGS])
def test_the_corrected_command_is_accepted_by_lint(path: Path, label: dict[str, Any]) -> None:
    from lifesign.remedies.lint import check, readers

    report = diagnose_paths([str(path)])
    if not report.verdict.command or not report.facts.version:
        return
    found = check(readers.script(report.verdict.command, "command"), report.facts.version).problems
    added = {normal(advice.knob) for advice in report.verdict.remedies if advice.knob and not is_env(advice.knob)}
    bad = [problem for problem in found if problem.severity == "error" and normal(problem.name) in added]
    assert bad == []


def test_logs_with_the_allocator_hint_never_get_it_as_advice() -> None:
    for path, _ in LOGS:
        report = diagnose_paths([str(path)])
        shown = " ".join(f"{advice.command} {advice.knob}={advice.value}" for advice in report.verdict.remedies)
        assert not re.search(r"expandable_segments:True", shown), path.name
