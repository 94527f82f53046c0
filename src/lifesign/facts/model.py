"""Typed facts about one engine life: events in causal order, configuration, phases, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

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


@dataclass(slots=True)
class Event:
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
    process: Process = field(default_factory=Process)
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


@dataclass(slots=True)
class Life:
    """One engine life in a log: from its first line to its end (or to the end of the log).

    config: values from `non-default args`, the engine config line and the command line, keys with underscores.
    figures: numbers that the log prints, by name (`free_gib`, `total_gib`, `kv_cache_gib`, ...), each (value, line).
    progress_index: index of the last event that shows the engine doing work; -1 if none.
    """

    events: list[Event] = field(default_factory=list)
    started_line: int = 0
    ended_line: int = 0
    ended_order: int = 0
    version: str = ""
    version_line: int = 0
    platform: str = "cuda"
    engine: str = "vllm"
    model: str = ""
    world_size: int = 1
    config: dict[str, object] = field(default_factory=dict)
    user_args: dict[str, object] = field(default_factory=dict)
    """The part of `config` that the user set (`non-default args`)."""
    env: dict[str, str] = field(default_factory=dict)
    command: str = ""
    figures: dict[str, tuple[float, int]] = field(default_factory=dict)
    progress_index: int = -1
    served: bool = False
    died: bool = False
    orderly: bool = False
    followed: bool = False
    """Whether another life of the same log comes after it."""
    last_phase: Phase = Phase.LOAD
    error_lines: set[int] = field(default_factory=set)
    """Lines of errors that gave figures."""
    _joined: tuple[int, str] = field(default=(-1, ""), repr=False, compare=False)

    def joined_text(self, limit: int) -> str:
        """The texts of all events, `limit` characters of each, one below the other: to ask whether a word stands anywhere."""
        if self._joined[0] != len(self.events):
            self._joined = (len(self.events), "\n\0".join(event.text[:limit] for event in self.events))
        return self._joined[1]

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
