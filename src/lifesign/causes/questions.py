"""The decision tree for people: yes/no questions, each also a predicate over a life and its first decisive line.

A person walks it with the log in one hand: find the first ERROR of EngineCore or a worker (or the C line that stands
before the reports), then ask from the top. A test walks every case of every cause along its path, so that the tree and
the machine can't drift apart. The order matters: an earlier question has said no before a later one is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lifesign.facts.model import Event, Life
from lifesign.text import T


@dataclass(frozen=True, slots=True)
class Question:
    """One question. A yes leads to `cause` (or to the questions `then`), a no to the next question.

    look_for: what a person looks for; the first one is what the cheat sheet shows.
    """

    id: str
    ask: T
    test: Callable[[Life, Event], bool] = field(compare=False)
    cause: str = ""
    then: tuple[Question, ...] = ()
    look_for: tuple[str, ...] = ()
    card: str = ""
    """The subtype whose first fix stands on the quick card for this line."""


def questions() -> tuple[Question, ...]:
    """The top level of the tree, in reading order."""
    from lifesign.causes._tree_data import QUESTIONS

    return QUESTIONS


def walk(
    life: Life, event: Event, branch: tuple[Question, ...] | None = None
) -> tuple[list[tuple[Question, bool]], str]:
    """The path through the tree for the decisive `event` of `life`: questions with their answers, and the cause.

    Ends in `unclassified` when every question was answered with no: capture again with VLLM_LOGGING_LEVEL=DEBUG.
    """
    path: list[tuple[Question, bool]] = []
    for question in questions() if branch is None else branch:
        answer = question.test(life, event)
        path.append((question, answer))
        if not answer:
            continue
        if question.then:
            inner, cause = walk(life, event, question.then)
            path.extend(inner)
            if cause != "unclassified":
                return path, cause
            continue
        return path, question.cause
    return path, "unclassified"
