"""What the detector is told (events) and what it asks for (commands), and their JSON form for recording and replay.

Everything is plain data: numbers, words, nested small dataclasses. A recorded stream of events gives the same commands
again, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from lifesign.errors import UsageError
from lifesign.guard.detector.evidence import GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import Backend, Prior, StepSize
from lifesign.guard.detector.states import Finding, State

Tier = Literal["beacon", "outside"]


@dataclass(slots=True)
class Begin:
    """An engine was started, or is seen for the first time.

    serving: it is known to be past its start-up. restart_s: what a restart costs (measured at the last start; a guess
    of 60 s without one): the patience with an engine that gives no evidence is tied to it. max_size: the largest step
    that its configuration allows, used while the size of the running step can't be seen. prior: costs of a step of
    that configuration, if an earlier life learned them. phase_s: how long start-up phases took last time.
    """

    backend: Backend = "gpu"
    tier: Tier = "outside"
    serving: bool = False
    restart_s: float = 60.0
    max_size: StepSize | None = None
    prior: Prior | None = None
    phase_s: dict[str, float] | None = None


@dataclass(slots=True)
class Milestone:
    """Start-up went on: `phase` begins (load, profile, capture, ...)."""

    phase: str


@dataclass(slots=True)
class Ready:
    """The engine answers requests now."""


@dataclass(slots=True)
class Note:
    """A known phase begins that makes no progress and is no fault (compile, lora, weights, sleep, profiler).

    It excuses for `seconds` at most; the next progress ends it.
    """

    phase: str
    seconds: float = 600.0


@dataclass(slots=True)
class Exited:
    """A process of the engine is gone. `who` is its role and rank as a person would name it."""

    who: str = "engine"
    pid: int = 0
    code: int | None = None
    signal: int | None = None


@dataclass(slots=True)
class Poll:
    """One look at the engine, usually once a second.

    steps: steps (or other units of progress) finished since the last look; None if progress can't be seen now.
    step_s, size: duration and size of each of them, where known (0 and None otherwise).
    running: size of the running step, where known. demand: somebody waits for an answer.
    processes, gpus: the counters; empty where they can't be read.
    """

    steps: int | None = 0
    demand: bool = False
    step_s: float = 0.0
    size: StepSize | None = None
    running: StepSize | None = None
    processes: tuple[ProcessSignals, ...] = ()
    gpus: tuple[GpuSignals, ...] = ()


@dataclass(slots=True)
class CanaryAnswered:
    """The one-token request that the detector asked for came back."""

    seconds: float


Event = Begin | Milestone | Ready | Note | Exited | Poll | CanaryAnswered


@dataclass(slots=True)
class Changed:
    """The state changed. `who`: the processes that the evidence points at, as `role rank: activity`."""

    old: State
    new: State
    finding: Finding
    wall_s: float
    own_s: float
    limit_s: float
    who: tuple[str, ...] = ()


@dataclass(slots=True)
class Route:
    """Send new work to this engine, or elsewhere."""

    here: bool


@dataclass(slots=True)
class Capture:
    """Keep stacks, /proc, GPU state, metrics and the last log lines now."""

    why: Finding


@dataclass(slots=True)
class Kill:
    """The engine is dead: end its process group and start anew."""

    why: Finding
    who: tuple[str, ...] = ()


@dataclass(slots=True)
class Resume:
    """One SIGCONT for processes that somebody stopped."""

    pids: tuple[int, ...]


@dataclass(slots=True)
class AskOperator:
    """Somebody holds the engine on purpose (debugger, frozen control group): tell a person and wait."""

    what: str


@dataclass(slots=True)
class Canary:
    """Send a one-token request: an idle engine shows only under demand whether it still works."""

    timeout_s: float


@dataclass(slots=True)
class Degraded:
    """The engine became slower than its settled level (or recovered): report and down-weight, never kill."""

    on: bool
    ratio: float


Command = Changed | Route | Capture | Kill | Resume | AskOperator | Canary | Degraded

_EVENTS: tuple[type[Any], ...] = (Begin, Milestone, Ready, Note, Exited, Poll, CanaryAnswered)
_COMMANDS: tuple[type[Any], ...] = (Changed, Route, Capture, Kill, Resume, AskOperator, Canary, Degraded)


def to_dict(item: Event | Command) -> dict[str, Any]:
    """The JSON form: the kind, and every field that isn't at its default."""
    out: dict[str, Any] = {"kind": type(item).__name__.lower()}
    for one in fields(item):
        value = getattr(item, one.name)
        if value != one.default:
            out[one.name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, StepSize | Prior):
        return list(value) if isinstance(value, StepSize) else [value.base_s, value.per_token_s, value.per_sequence_s]
    if isinstance(value, State | Finding):
        return value.value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, ProcessSignals | GpuSignals):
        defaults = {one.name: one.default for one in fields(value)}
        return {name: getattr(value, name) for name in defaults if getattr(value, name) != defaults[name]}
    return value


_DECODE: dict[str, Callable[[Any], Any]] = {
    "size": lambda v: StepSize(*v),
    "running": lambda v: StepSize(*v),
    "max_size": lambda v: StepSize(*v),
    "prior": lambda v: Prior(*v),
    "processes": lambda v: tuple(ProcessSignals(**one) for one in v),
    "gpus": lambda v: tuple(GpuSignals(**one) for one in v),
    "old": State,
    "new": State,
    "finding": Finding,
    "why": Finding,
    "who": lambda v: v if isinstance(v, str) else tuple(v),
    "pids": tuple,
}


def event_from_dict(data: dict[str, Any]) -> Event:
    """The event whose JSON form is `data`. Raises UsageError if it is none."""
    return _from_dict(data, _EVENTS)  # type: ignore[no-any-return]


def command_from_dict(data: dict[str, Any]) -> Command:
    """The command whose JSON form is `data`. Raises UsageError if it is none."""
    return _from_dict(data, _COMMANDS)  # type: ignore[no-any-return]


def _from_dict(data: dict[str, Any], kinds: tuple[type[Any], ...]) -> Any:
    values = dict(data)
    kind = values.pop("kind", None)
    for one in kinds:
        if one.__name__.lower() == kind:
            try:
                return one(**{name: _DECODE.get(name, _same)(value) for name, value in values.items()})
            except (TypeError, ValueError) as error:
                raise UsageError(
                    f"a recorded {kind} can't be read ({error}); record it again with this release"
                ) from None
    raise UsageError(f"the recording holds an unknown kind of event ({kind!r}); record it again with this release")


def _same(value: Any) -> Any:
    return value
