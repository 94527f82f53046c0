"""The shape of a cause: signatures (which text, in which company, means it), subtypes (what to say and do), findings.

A cause is data where it can be (signatures) and a function where it must be (`Cause.find`). Signatures are literal
text first; a regular expression is only searched in text that passed the literal and was cut to `TEXT_LIMIT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Literal

import msgspec

from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies.model import Remedy
from lifesign.text import T

TEXT_LIMIT = 4000
"""Characters of an event's text that a signature looks at."""

CauseRole = Literal["root", "confirmation", "cascade", "teardown", "advice", "context"]
Certainty = Literal["established", "supported", "possible"]

DECISIVE, SYMPTOM, TRACE = 3, 2, 1
"""Strength of a signature. DECISIVE: the text itself names the cause. SYMPTOM: it names what failed, and something
deeper may stand elsewhere (RPC timeout, watchdog, peer lost, library error after a device fault). TRACE: only that
something ended (died unexpectedly, exit -9). The report prefers the earliest finding of the highest strength."""


class Signature(msgspec.Struct, frozen=True):
    """When does an event show this subtype? All given conditions must hold; empty ones don't count.

    any: at least one of these texts is in the event's text (case matters). all: every one of them. none: not one.
    regex: found in the text, cut to TEXT_LIMIT; no nested quantifiers.
    types: short class name of the exception is one of these.
    frames / no_frames: some / no frame `file:func` of the traceback contains one of these.
    phases: the event's phase is one of these. roles: the process role (`worker`, `core`, `api`, `none`).
    kinds: event kinds that may match. when: a last test with the whole life at hand.
    near: `(before, after)` is searched for any of `near_any` within that many events.
    """

    subtype: str
    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    regex: str = ""
    types: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    no_frames: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    roles: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("exception", "log", "plain", "kernel", "native", "wrapper")
    when: Callable[[Event, Life], bool] | None = None
    strength: int = DECISIVE
    role: CauseRole = "root"
    certainty: Certainty = "established"
    why: T | None = None
    """Why this line is proof, one sentence; default: the subtype's `why`."""

    def candidates(self, life: Life) -> Collection[int]:
        """Indices of the events of `life` that hold the words which an event must have; without words, those of the right kind."""
        if not self.any and not self.all:
            raised = bool(self.types or self.frames)
            return [
                place
                for place, event in enumerate(life.events)
                if event.kind in self.kinds and not (raised and event.exc is None)
            ]
        parts = iter(self.all)
        if self.any:
            found = {index for part in self.any for index in life.holding(part, TEXT_LIMIT)}
        else:
            found = life.holding(next(parts), TEXT_LIMIT)
        for part in parts:
            if not found:
                break
            found = found & life.holding(part, TEXT_LIMIT)
        return found

    def matches(self, event: Event, life: Life) -> bool:
        """Whether `event` of `life` shows this subtype."""
        if event.kind not in self.kinds or event.weight in ("quoted", "foreign", "advice"):
            return False
        text = event.text if len(event.text) <= TEXT_LIMIT else event.text[:TEXT_LIMIT]
        if self.any and not any(part in text for part in self.any):
            return False
        if self.all and not all(part in text for part in self.all):
            return False
        if self.none and any(part in text for part in self.none):
            return False
        if self.phases and event.phase not in self.phases:
            return False
        if self.roles and event.process.role not in self.roles:
            return False
        if self.types and (event.exc is None or event.exc.short_type not in self.types):
            return False
        if self.frames and (event.exc is None or not event.exc.passes(*self.frames)):
            return False
        if self.no_frames and event.exc is not None and event.exc.passes(*self.no_frames):
            return False
        if self.regex and re.search(self.regex, text) is None:
            return False
        return self.when is None or self.when(event, life)


class Subtype(msgspec.Struct, frozen=True):
    """What a reader is told about one subtype.

    title: the cause of death in one line, no jargon. why: what happened, one to three sentences; `{name}` fields are
    filled from the finding's `values`. remedies: in the order in which they should be tried. known: references of
    public reports (`vllm#48179`) that describe exactly this.
    """

    title: T
    why: T
    remedies: tuple[Remedy, ...] = ()
    known: tuple[str, ...] = ()


class Evidence(msgspec.Struct):
    """One line that speaks for a finding, and why."""

    event: Event
    role: CauseRole
    why: T


class Finding(msgspec.Struct):
    """A cause seen at one event. The report ranks findings; only one with role `root` can become the verdict."""

    cause: str
    subtype: str
    event: Event
    role: CauseRole = "root"
    certainty: Certainty = "established"
    strength: int = DECISIVE
    why: T | None = None
    evidence: list[Evidence] = msgspec.field(default_factory=list)
    values: dict[str, str] = msgspec.field(default_factory=dict)
    line: int = 0
    """The physical line to cite when it isn't the event's first (a message over several lines); 0 for the event's."""
    remedies: tuple[Remedy, ...] | None = None
    """Overrides the subtype's remedies when the log calls for others."""


Refine = Callable[[Finding, Life], "Finding | None"]
Find = Callable[[Life], Iterable[Finding]]


class Cause(msgspec.Struct, frozen=True, dict=True):
    """One cause of engine deaths.

    slug: public name (never changes). code: short immutable id. title: one line. subtypes: by slug.
    signatures: tried in order; the first that matches an event decides its subtype for this cause.
    refine: sees each finding with its life and may change it (subtype, values, certainty) or drop it (None).
    find: for causes that no single line shows; its findings are added to those of the signatures.
    order: reading order in book, tree and cheat sheet (1 first). classical: number in the classical seven, or 0.
    """

    slug: str
    code: str
    title: T
    summary: T
    subtypes: dict[str, Subtype]
    signatures: tuple[Signature, ...] = ()
    refine: Refine | None = None
    find: Find | None = None
    order: int = 50
    classical: int = 0

    @cached_property
    def literals(self) -> frozenset[str]:
        """Every literal of the signatures: the words a log must contain for this cause to be looked for."""
        return frozenset(part for signature in self.signatures for part in (*signature.any, *signature.all))

    def findings(self, life: Life) -> list[Finding]:
        """Every finding of this cause in `life`, in event order."""
        found: list[Finding] = []
        # Most words of most signatures stand nowhere in the log: one look at the whole text spares a look at each event.
        asked: dict[int, list[Signature]] = {}
        for signature in self.signatures:
            for index in signature.candidates(life):
                asked.setdefault(index, []).append(signature)
        for index in sorted(asked):
            event = life.events[index]
            shown = next((one for one in asked[index] if one.matches(event, life)), None)
            if shown is not None:
                found.append(
                    Finding(
                        cause=self.slug,
                        subtype=shown.subtype,
                        event=event,
                        role=shown.role,
                        certainty=shown.certainty,
                        strength=shown.strength,
                        why=shown.why,
                        line=event.line_of(*shown.any, *shown.all),
                    )
                )
        if self.find is not None:
            found.extend(self.find(life))
        if self.refine is not None:
            found = [kept for finding in found if (kept := self.refine(finding, life)) is not None]
        return found
