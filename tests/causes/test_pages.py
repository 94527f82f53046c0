"""Every case of every cause page goes through the whole pipeline: positives, near misses, cascades."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.causes import pages, registry
from lifesign.report.diagnose import diagnose_paths

CAUSES, NOTES = registry.load()
CASES = [case for cause in CAUSES for case in pages.cases(cause)]
HONEST = {"not-a-crash", "insufficient-log", "unclassified"}


def test_no_plugin_is_broken() -> None:
    assert not NOTES


@pytest.mark.parametrize("case", CASES, ids=[f"{case.cause}: {case.name}" for case in CASES])
def test_case(case: pages.Case, tmp_path: Path) -> None:
    log = tmp_path / "case.log"
    log.write_text(case.log, encoding="utf-8")
    verdict = diagnose_paths([str(log)]).verdict
    if case.expect.startswith("not "):
        assert verdict.cause != case.expect[4:]
        return
    assert f"{verdict.cause}/{verdict.subtype}" == case.expect
    if case.root:
        root = [line.text for line in verdict.evidence if line.role == "root"]
        number = [line.line for line in verdict.evidence if line.role == "root"]
        cited = case.log.split("\n")[number[0] - 1] if number else ""
        assert case.root in cited or any(case.root in text for text in root)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_page_is_complete(cause) -> None:  # type: ignore[no-untyped-def]
    cases = pages.cases(cause)
    positive = [case for case in cases if case.expect.startswith(cause.slug + "/")]
    assert positive, "at least one case that the cause wins"
    if cause.slug not in HONEST:
        assert [case for case in cases if case.expect == f"not {cause.slug}"], "at least one near miss"
        others = [case for case in cases if not case.expect.startswith(("not ", cause.slug + "/"))]
        assert others, "at least one case in which it is seen but doesn't win"
    sections = pages.sections(cause)
    assert len(sections) >= 5
    for section in sections:
        assert section.en
        assert section.zh


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_every_signature_has_its_subtype(cause) -> None:  # type: ignore[no-untyped-def]
    assert {signature.subtype for signature in cause.signatures} <= set(cause.subtypes)
    for subtype in cause.subtypes.values():
        for text in (subtype.title, subtype.why):
            assert text.en.strip()
            assert text.zh.strip()
            assert any("\u4e00" <= character <= "\u9fff" for character in text.zh)
