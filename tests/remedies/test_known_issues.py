"""Each known issue: it matches the death that it describes, and not the neighbours of it."""

from __future__ import annotations

import re

import pytest

from lifesign.causes import registry
from lifesign.remedies import known_issues, versions
from lifesign.remedies.catalog import load
from lifesign.remedies.known_issues import KnownIssue

ISSUES = known_issues.load()
CAUSES = {cause.slug: cause for cause in registry.load()[0]}
each = pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.ref)


def example(issue: KnownIssue) -> tuple[str, str]:
    """A subtype and a text that the entry must recognise."""
    subtype = issue.subtypes[0] if issue.subtypes else "anything"
    return subtype, " ... ".join([*issue.any[:1], *issue.all])


def inside(issue: KnownIssue) -> str:
    return issue.since or issue.until or load().newest


def test_there_are_enough_and_no_reference_twice() -> None:
    assert len(ISSUES) >= 60
    assert len({issue.ref for issue in ISSUES}) == len(ISSUES)
    assert sum(issue.checked in ("thread", "source") for issue in ISSUES) >= 40


@each
def test_it_recognises_its_own_death(issue: KnownIssue) -> None:
    subtype, text = example(issue)
    platform = issue.platforms[0] if issue.platforms else "cuda"
    assert issue.matches(issue.cause, subtype, text, inside(issue), platform)
    assert issue.matches(issue.cause, subtype, text)
    assert issue.matches(issue.cause, subtype, text.upper(), inside(issue), platform)


@each
def test_it_leaves_its_neighbours_alone(issue: KnownIssue) -> None:
    subtype, text = example(issue)
    version, platform = inside(issue), (issue.platforms[0] if issue.platforms else "cuda")
    assert not issue.matches("no-such-cause", subtype, text, version, platform)
    assert not issue.matches(issue.cause, subtype, "an unrelated line", version, platform)
    if issue.subtypes:
        assert not issue.matches(issue.cause, "no-such-subtype", text, version, platform)
    if issue.platforms:
        assert not issue.matches(issue.cause, subtype, text, version, "tpu")
    if issue.since:
        assert not issue.matches(issue.cause, subtype, text, "0.1.0", platform)
    if issue.until:
        assert not issue.matches(issue.cause, subtype, text, "9.9.9", platform)
    for word in issue.none:
        assert not issue.matches(issue.cause, subtype, f"{text} {word}", version, platform)


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
