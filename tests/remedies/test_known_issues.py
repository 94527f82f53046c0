"""Each known issue: it matches the death that it describes, and not the neighbours of it."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from lifesign.causes import registry
from lifesign.remedies import known_issues, versions
from lifesign.remedies.catalog import load
from lifesign.remedies.known_issues import KnownIssue
from lifesign.report.diagnose import diagnose_paths

ISSUES = known_issues.load()
CAUSES = {cause.slug: cause for cause in registry.load()[0]}
each = pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.ref)


ROOT = Path(__file__).resolve().parents[2]
# For each entry a log with the program's real message (of the thread itself where the corpora have it, else an excerpt in
# the folder), and one of the same cause that is another death. The excerpts are written after the threads.
LOGS: dict[str, dict[str, str]] = json.loads(
    (ROOT / "tests/remedies/known_issue_logs/logs.json").read_text(encoding="utf-8")
)


class Asked(NamedTuple):
    """One question that the diagnosis of a log asks the list."""

    cause: str
    subtype: str
    text: str
    version: str
    platform: str


@lru_cache(maxsize=256)
def asked(path: str) -> tuple[Asked, ...]:
    """What the diagnosis of a log looks for in the list, one question for each life."""
    found: list[Asked] = []

    def record(cause: str, subtype: str, text: str, version: str, platform: str, _limit: int) -> list[KnownIssue]:
        found.append(Asked(cause, subtype, text, version, platform))
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_issues, "match", record)
        diagnose_paths([str(ROOT / path)])
    return tuple(found)


def own(issue: KnownIssue) -> Asked:
    """The question of the entry's own log that the entry answers."""
    questions = asked(LOGS[issue.ref]["log"])
    return next((each for each in questions if issue.matches(*each)), questions[-1])


def inside(issue: KnownIssue) -> str:
    return issue.since or issue.until or load().newest


def test_there_are_enough_and_no_reference_twice() -> None:
    assert len(ISSUES) >= 60
    assert len({issue.ref for issue in ISSUES}) == len(ISSUES)
    assert sum(issue.checked in ("thread", "source") for issue in ISSUES) >= 60


@each
def test_the_diagnosis_of_its_own_death_finds_it(issue: KnownIssue) -> None:
    question = own(issue)
    assert issue.matches(*question)
    assert issue.matches(question.cause, question.subtype, question.text), "an unknown release excludes nothing"
    assert issue.matches(question.cause, question.subtype, question.text.upper(), question.version, question.platform)


@each
def test_another_death_of_the_same_cause_is_left_alone(issue: KnownIssue) -> None:
    questions = asked(LOGS[issue.ref]["not"])
    assert any(question.cause == issue.cause for question in questions), "a neighbour is of the same cause"
    assert not any(issue.matches(*question) for question in questions)


def test_no_entry_is_without_its_logs() -> None:
    assert set(LOGS) == {issue.ref for issue in ISSUES}
    written = {path.name for path in (ROOT / "tests/remedies/known_issue_logs").glob("*.log")}
    assert written == {Path(row["log"]).name for row in LOGS.values() if row["log"].startswith("tests/")}


def test_a_report_on_a_log_of_the_corpora_is_found_for_that_log() -> None:
    """The labels name the thread behind a log: an entry of that thread whose literals the log lacks is wrong."""
    behind: dict[str, set[str]] = {}
    for labels in sorted((ROOT / "corpus").glob("*/labels.jsonl")):
        for line in labels.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            link = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", row.get("source", ""))
            if link:
                log = str((labels.parent / row["file"]).relative_to(ROOT))
                behind.setdefault(f"{link[1].lower()}#{link[2]}", set()).add(log)
    judged = 0
    for issue in ISSUES:
        home, _, number = issue.url.removeprefix("https://github.com/").partition("/issues/")
        # A thread may hold several deaths; an entry is about the one whose cause it names.
        logs = {
            log for log in behind.get(f"{home.lower()}#{number}", set()) if issue.cause in {q.cause for q in asked(log)}
        }
        judged += bool(logs)
        assert not logs or any(issue.matches(*each) for log in logs for each in asked(log)), (issue.ref, logs)
    assert judged >= 40


@each
def test_it_leaves_its_neighbours_alone(issue: KnownIssue) -> None:
    question = own(issue)
    cause, subtype, text = question.cause, question.subtype, question.text
    version, platform = inside(issue), (issue.platforms[0] if issue.platforms else "cuda")
    assert issue.matches(cause, subtype, text, version, platform)
    assert not issue.matches("no-such-cause", subtype, text, version, platform)
    assert not issue.matches(cause, subtype, "an unrelated line", version, platform)
    if issue.subtypes:
        assert not issue.matches(cause, "no-such-subtype", text, version, platform)
    if issue.platforms:
        assert not issue.matches(cause, subtype, text, version, "tpu")
    if issue.since:
        assert not issue.matches(cause, subtype, text, "0.1.0", platform)
    if issue.until:
        assert not issue.matches(cause, subtype, text, "9.9.9", platform)
    for word in issue.none:
        assert not issue.matches(cause, subtype, f"{word} {text}", version, platform)


def test_a_segment_that_could_not_be_attached_is_told_from_one_that_could_not_be_made() -> None:
    text = "misc/shmutils.cc:95 NCCL WARN Error while {} shared memory segment /dev/shm/nccl-t9ZcVb (size 192814336), error: {}"
    attach = text.format("attaching to", "No such file or directory (2)")
    create = text.format("creating", "No space left on device (28)")
    for message, refs in ((attach, ["vllm#18831"]), (create, ["vllm#4383"])):
        assert [issue.ref for issue in known_issues.match("host-resource", "shm-namespace", message)] == refs


@each
def test_it_is_well_formed(issue: KnownIssue) -> None:
    assert re.fullmatch(r"[\w./-]+#\d+", issue.ref)
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", issue.url)
    cause = CAUSES[issue.cause]
    assert set(issue.subtypes) <= set(cause.subtypes)
    assert issue.any
    assert all(len(part) >= 2 for part in (*issue.any, *issue.all))
    for text in (issue.why, issue.do):
        assert len(text.en) > 5
        assert text.zh
        assert "expandable_segments:True" not in text.en
    assert re.search(r"[\u4e00-\u9fff]", issue.why.zh)
    if issue.since and issue.until:
        assert versions.within(issue.since, None, issue.until)
    if issue.fixed_in and issue.until:
        assert versions.within(issue.until, None, issue.fixed_in)
        assert versions.key(issue.until) != versions.key(issue.fixed_in)
    if issue.state == "fixed":
        assert issue.fixed_in


def test_the_most_specific_comes_first_and_the_number_is_limited() -> None:
    text = "AssertionError: Workspace is locked but allocation from 'turboquant_attn.py:747:_continuation_prefill' requires 8.12 MB"
    found = known_issues.match("graph-capture", "workspace-locked", text, "0.21.0", "cuda")
    assert {issue.ref for issue in found} == {"vllm#43357", "vllm#42544"}
    moe = known_issues.match(
        "graph-capture", "workspace-locked", "Workspace is locked but allocation from 'fused_moe.py:1:f'", "0.26.0"
    )
    assert [issue.ref for issue in moe] == ["vllm#48179"]
    many = known_issues.match("timeout-hang", "execute-model-rpc", "RPC call to execute_model timed out", "", "")
    assert len(many) == known_issues.MAX_MATCHES


def test_references_lead_to_their_entry() -> None:
    assert [issue.ref for issue in known_issues.by_ref(["vllm#56180"])] == ["vllm#42609"]
    assert known_issues.about("graph-capture", "workspace-locked")
    assert known_issues.about("graph-capture", "no-such") == []
    assert known_issues.reference_url("ROCm/vllm#390") == "https://github.com/ROCm/vllm/issues/390"


def test_a_long_text_is_cut_before_it_is_searched() -> None:
    text = "x" * known_issues.TEXT_LIMIT + " custom_all_reduce.cuh invalid argument"
    assert known_issues.match("collective-comm", "custom-allreduce", text) == []
