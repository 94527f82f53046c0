"""The human tree and the machine can't drift apart: every case of every page is walked along the questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lifesign.causes import pages, registry
from lifesign.causes.questions import questions, walk
from lifesign.facts.lives import build
from lifesign.facts.model import Event, Life
from lifesign.logs.reader import read
from lifesign.report.book.tree import FORMATS, flat, render_tree
from lifesign.report.diagnose import choose_life
from lifesign.report.rank import rank

CAUSES = registry.load()[0]
CASES = [case for cause in CAUSES for case in pages.cases(cause) if not case.expect.startswith("not ")]
CORPUS = Path(__file__).resolve().parents[2] / "corpus"


def decisive(path: Path) -> tuple[Life, Event, str]:
    lives = build(read([str(path)]).statements)
    rankings = [rank(life, CAUSES) for life in lives]
    index = choose_life(lives, rankings)
    return lives[index], rankings[index].verdict.event, rankings[index].verdict.cause


@pytest.mark.parametrize("case", CASES, ids=[f"{case.cause}: {case.name}" for case in CASES])
def test_case_walks_to_its_cause(case: pages.Case, tmp_path: Path) -> None:
    log = tmp_path / "case.log"
    log.write_text(case.log, encoding="utf-8")
    life, event, _ = decisive(log)
    path, cause = walk(life, event)
    assert cause == case.expect.split("/")[0], [question.id for question, answer in path if answer]


@pytest.mark.parametrize("folder", ["public", "lab"])
def test_corpus_walks_to_its_verdict(folder: str) -> None:
    """At most one log in a hundred may end elsewhere: a tree for people has fewer distinctions than the rules."""
    labels = [json.loads(line) for line in (CORPUS / folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    missed = []
    for label in labels:
        life, event, verdict = decisive(CORPUS / folder / label["file"])
        if walk(life, event)[1] != verdict:
            missed.append(label["file"])
    assert len(missed) * 100 <= len(labels), missed


def test_every_cause_is_a_leaf() -> None:
    leaves = {question.cause for _, question in flat() if question.cause}
    assert leaves == {cause.slug for cause in CAUSES} - {"unclassified"}


def test_questions_are_distinct_and_bilingual() -> None:
    ids = [question.id for _, question in flat()]
    assert len(ids) == len(set(ids))
    for _, question in flat():
        assert question.ask.en.endswith("?")
        assert question.ask.zh.endswith("？")
        cause = registry.by_slug(question.cause)
        assert not question.card or (cause is not None and question.card in cause.subtypes)


def test_an_unknown_error_ends_at_none_of_them() -> None:
    event = Event(0, "x.log", 1, "exception", "FooError: bar")
    life = Life(events=[event], died=True)
    from lifesign.logs.model import Traceback

    event.exc = Traceback("FooError", "bar", 1, 1)
    path, cause = walk(life, event)
    assert cause == "unclassified"
    assert len(path) == len(questions())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_renderings_hold_every_question(format: str, lang: str) -> None:
    text = render_tree(format, lang)  # type: ignore[arg-type]
    for _, question in flat():
        asked = question.ask.pick(lang)  # type: ignore[arg-type]
        assert asked in text or asked.replace('"', "'") in text or asked.replace("&", "&amp;") in text
