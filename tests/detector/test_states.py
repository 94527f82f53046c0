"""The tables are total, DEAD is final, and the diagram in the documentation is the one drawn from the tables."""

from __future__ import annotations

from pathlib import Path

from lifesign.guard.detector.states import (
    DEADLY,
    ON_ENTRY,
    TRANSITIONS,
    VIEW,
    Action,
    Finding,
    State,
    mermaid,
    next_state,
)

DOCS = Path(__file__).parents[2] / "docs" / "detector.md"


def test_every_finding_leads_somewhere_from_every_state() -> None:
    assert set(TRANSITIONS) == {(state, finding) for state in State for finding in Finding}
    assert set(VIEW) == set(ON_ENTRY) == set(State)
    assert set(VIEW.values()) == {"HEALTHY", "UNHEALTHY", "DEAD"}


def test_dead_is_final_and_only_deadly_findings_lead_there() -> None:
    for state in State:
        for finding in Finding:
            to_dead = next_state(state, finding) is State.DEAD
            assert to_dead == (state is State.DEAD or finding in DEADLY)
    assert ON_ENTRY[State.DEAD] == (Action.CAPTURE, Action.KILL)
    assert all(Action.KILL not in actions for state, actions in ON_ENTRY.items() if state is not State.DEAD)


def test_progress_and_idleness_end_every_suspicion() -> None:
    for state in State:
        if state is not State.DEAD:
            assert next_state(state, Finding.PROGRESS) is State.OK
            assert next_state(state, Finding.NO_DEMAND) is State.IDLE


def test_the_same_finding_again_changes_nothing() -> None:
    for (state, finding), target in TRANSITIONS.items():
        assert TRANSITIONS[target, finding] is target, (state, finding)


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    drawn = text.split("```mermaid\n", 1)[1].split("```", 1)[0]
    assert drawn == mermaid(), (
        "docs/detector.md is stale: write it anew with `python -m lifesign.guard.detector.states`"
    )
    for state in State:
        assert state.value in drawn
    for finding in Finding:
        assert finding.value in drawn
