"""Typed facts about one engine life: events in causal order, configuration, phases, and how it ended."""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from itertools import accumulate
from typing import Literal

import msgspec

from lifesign.logs.model import Process, Traceback


class Phase(str, Enum):
    """Where in its life the engine was. The values are those of the report."""

    LOAD = "startup-load"
    PROFILE = "profile-warmup"
    CAPTURE = "graph-capture"
    SERVING = "serving"
    SHUTDOWN = "shutdown"


Kind = Literal["exception", "log", "plain", "kernel", "native", "wrapper", "death", "signal", "progress", "milestone"]
Weight = Literal["fatal", "request", "teardown", "advice", "quoted", "foreign", "unknown"]


class Event(msgspec.Struct):
    """One thing that a log says happened, at one decisive line.

    kind: `exception` (a Python exception; `exc` is set and `text` is `Type: message`), `log` (a record with a level),
        `plain` (a line without header: C printf, shell), `kernel` (a kernel log line), `native` (segfault banner or
        fatal signal text), `wrapper` (repeats another process's error; `text` is the unwrapped inner text), `death`
        (reports a death: EngineDeadError, died unexpectedly, initialization failed), `signal` (a shutdown request),
        `progress` (work was done), `milestone` (start-up went on).
    weight: `fatal` (its header says that it ended a process), `request` (ended one request), `teardown` (clean-up after
        the end), `advice` (hint text), `quoted` (text of users), `foreign` (another program), `unknown`.
    """

    index: int
    path: str
    line: int
    kind: Kind
    text: str
    process: Process = msgspec.field(default_factory=Process)
    level: str = ""
    origin: str = ""
    time_s: float | None = None
    stamp: str = ""
    head_stamp: str = ""
    phase: Phase = Phase.LOAD
    weight: Weight = "unknown"
    exc: Traceback | None = None
    ends: bool = False
    """Whether it reports or causes an end of the engine."""
    name: str = ""
    """For kinds `death`, `signal`, `progress`, `milestone`: which one, as a stable word (see `facts.vocabulary`)."""

    def has(self, *parts: str) -> bool:
        """Whether the text contains any of `parts`."""
        return any(part in self.text for part in parts)

    def line_of(self, *parts: str) -> int:
        """The physical line that holds the first of `parts` found: a message may run over several lines."""
        if self.exc is not None and self.exc.more:
            first = self.text.split("\n", 1)[0]
            for part in parts:
                if part in first:
                    return self.line
                for number, text in self.exc.more:
                    if part in text:
                        return number
        return self.line


class _Words(msgspec.Struct):
    """The texts of all events in one, and where each begins: one search answers for all of them."""

    events: int
    limit: int
    text: str
    starts: list[int]
    known: dict[str, set[int]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, events: list[Event], limit: int) -> _Words:
        texts = [event.text[:limit] for event in events]
        # No word of a signature holds a NUL, so none is found across two events.
        starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        return cls(len(events), limit, "\0".join(texts), starts)

    def holding(self, word: str) -> set[int]:
        found = self.known.get(word)
        if found is None:
            found = self.known[word] = set()
            at = self.text.find(word)
            while at >= 0:
                index = bisect_right(self.starts, at) - 1
                found.add(index)
                # On with the next event.
                at = self.text.find(word, self.starts[index + 1])
        return found


class Life(msgspec.Struct):
    """One engine life in a log: from its first line to its end (or to the end of the log).

    config: values from `non-default args`, the engine config line and the command line, keys with underscores.
    figures: numbers that the log prints, by name (`free_gib`, `total_gib`, `kv_cache_gib`, ...), each (value, line).
    progress_index: index of the last event that shows the engine doing work; -1 if none.
    """

    events: list[Event] = msgspec.field(default_factory=list)
    started_line: int = 0
    ended_line: int = 0
    ended_order: int = 0
    version: str = ""
    version_line: int = 0
    platform: str = "cuda"
    engine: str = "vllm"
    model: str = ""
    world_size: int = 1
    config: dict[str, object] = msgspec.field(default_factory=dict)
    user_args: dict[str, object] = msgspec.field(default_factory=dict)
    """The part of `config` that the user set (`non-default args`)."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    command: str = ""
    figures: dict[str, tuple[float, int]] = msgspec.field(default_factory=dict)
    progress_index: int = -1
    served: bool = False
    died: bool = False
    orderly: bool = False
    followed: bool = False
    """Whether another life of the same log comes after it."""
    last_phase: Phase = Phase.LOAD
    error_lines: set[int] = msgspec.field(default_factory=set)
    """Lines of errors that gave figures."""
    _words: _Words | None = None

    def holding(self, word: str, limit: int) -> set[int]:
        """Which events have `word` in the first `limit` characters of their text: their places in `events`."""
        if self._words is None or self._words.events != len(self.events) or self._words.limit != limit:
            self._words = _Words.of(self.events, limit)
        return self._words.holding(word)

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of the given kinds, in order."""
        return [event for event in self.events if event.kind in kinds]

    def before(self, event: Event, *parts: str, within: int = 400) -> Event | None:
        """The nearest of the `within` events before `event` whose text contains any of `parts`."""
        for other in reversed(self.events[max(0, event.index - within) : event.index]):
            if other.weight not in ("quoted", "foreign") and other.has(*parts):
                return other
        return None

    def after(self, event: Event, *parts: str, within: int = 400) -> Event | None:
        """The nearest of the `within` events after `event` whose text contains any of `parts`."""
        for other in self.events[event.index + 1 : event.index + 1 + within]:
            if other.weight not in ("quoted", "foreign") and other.has(*parts):
                return other
        return None

    def mentions(self, *parts: str) -> Event | None:
        """The first event whose text contains any of `parts`, user text excluded."""
        for event in self.events:
            if event.weight not in ("quoted", "foreign") and event.has(*parts):
                return event
        return None
