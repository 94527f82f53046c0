"""Splits the events of a log into engine lives, gives every event its phase, and notes how each life ended."""

from __future__ import annotations

import re
from itertools import pairwise

from lifesign.facts import config, voices
from lifesign.facts import vocabulary as words
from lifesign.facts.events import EventMaker
from lifesign.facts.exit_status import ended_by_signal
from lifesign.facts.model import Event, Life, Phase
from lifesign.logs.tracebacks import Statement

_LOAD_FRAMES = (":load_model", ":load_weights", ":_load_model", ":init_device", "model_loader/", ":initialize_model")
_PROFILE_FRAMES = (
    ":determine_available_memory", ":determine_num_available_blocks", ":profile_run", ":_dummy_run", ":_dummy_sampler_run",
    ":compile_or_warm_up_model", ":profile_cudagraph_memory", ":_initialize_kv_caches", ":initialize_from_config", ":kernel_warmup",
    ":initialize_kv_cache", ":warm_up_model", ":warmup", ":profile_multimodal",
)  # fmt: skip
_CAPTURE_FRAMES = (
    ":capture_model",
    ":_capture_cudagraphs",
    ":capture_graph",
    "cuda_graph_runner.py",
    ":capture_one_batch_size",
)
_STEP_FRAMES = (
    ":run_busy_loop", ":_process_engine_step", ":run_engine_loop", ":engine_step", ":step_with_batch_queue",
    ":update_from_output", ":_bookkeeping_sync",
)  # fmt: skip
"""Only the engine's own loop passes these. A traceback that was cut may have lost the loop itself."""
_SERVING_FRAMES = (*_STEP_FRAMES, ":event_loop_", ":worker_busy_loop")

# `docker inspect` and `kubectl get -o json` print this word of every container, the living ones too.
_NOT_FOR_MEMORY = re.compile(r"OOMKilled\W{1,4}false")
_RUN = 4
_LOGO = 8
_RESTART = ("banner", "args")


def build(statements: list[Statement], *, complete: bool = True) -> list[Life]:
    """The lives of a log, oldest first; at least one (perhaps empty). Engines of several containers live apart.

    complete: whether every line of the log is here; without all of them nobody knows which processes started.
    """
    lives: list[Life] = []
    for share in _engines(statements):
        own = _lives_of(share, complete)
        _inherit(own)
        for life in own[:-1]:
            life.followed = True
        lives.extend(own)
    # Of several containers the one that ended last comes last; in one log the order is that of the log already.
    lives.sort(key=lambda life: life.ended_order)
    return lives


_START_WORDS = (
    "non-default args",
    "vLLM API server version",
    "Initializing a V",
    "Initializing an LLM engine",
    "args: Namespace",
)


def _engines(statements: list[Statement]) -> list[list[Statement]]:
    """The statements per engine, where several containers of one log each start one; else all of them together.

    Lines without a container, and those of containers without an engine, stay with the engine that spoke before them.
    Containers whose ranks meet at the same address are nodes of one engine.
    """
    starters = {
        record.process.source
        for record, exc in statements
        if exc is None
        and record.process.source
        and record.process.source != record.path
        and any(word in record.text for word in _START_WORDS)
    }
    if len(starters) < 2:
        return [statements]
    engine_of = _joined(statements, starters)
    if len(set(engine_of.values())) < 2:
        return [statements]
    shares: dict[str, list[Statement]] = {source: [] for source in dict.fromkeys(engine_of.values())}
    current = next(iter(statements)).record.process.source
    for statement in statements:
        source = engine_of.get(statement.record.process.source, "")
        current = source if source in shares else current
        shares[current if current in shares else next(iter(shares))].append(statement)
    return list(shares.values())


_MEETING = re.compile(r"distributed_init_method=tcp://((?!127\.|localhost)[^\s:,]{1,100}:\d{1,5})\b")


def _joined(statements: list[Statement], starters: set[str]) -> dict[str, str]:
    """Each container that starts an engine, and the container that stands for its engine."""
    engine_of = {source: source for source in sorted(starters)}
    met: dict[str, str] = {}
    for record, exc in statements:
        source = record.process.source
        if exc is not None or source not in engine_of or "distributed_init_method" not in record.text:
            continue
        found = _MEETING.search(record.text[:2000])
        if found is None:
            continue
        first = met.setdefault(found[1], engine_of[source])
        if first != engine_of[source]:
            left = engine_of[source]
            engine_of = {each: first if engine == left else engine for each, engine in engine_of.items()}
    return engine_of


def _lives_of(statements: list[Statement], complete: bool) -> list[Life]:
    maker = EventMaker()
    lives = [Life()]
    repeats = _Repeats()
    index = 0
    for statement in statements:
        event = maker.make(statement, index)
        if event is None:
            continue
        life = lives[-1]
        if _begins_new_life(event, life):
            life = Life()
            lives.append(life)
            index = 0
            repeats = _Repeats()
        elif repeats.too_many(event):
            life.ended_line = event.line
            continue
        if _is_more_of_the_same(event, life):
            life.events[-1] = event
            event.index = index - 1
            _advance(event, life)
            event.phase = life.last_phase
            continue
        event.index = index
        index += 1
        _place(event, life)
        life.ended_order = statement.record.order
    for life in lives:
        voices.mark(life, complete)
        for event in life.events:
            config.learn(event, life)
        config.settle(life)
        _settle(life)
    return lives


def _is_more_of_the_same(event: Event, life: Life) -> bool:
    """A healthy engine repeats itself for days: of a run of progress events the first ones and the latest are kept."""
    if event.kind != "progress" or event.weight == "foreign" or len(life.events) < _RUN:
        return False
    return all(
        other.kind == "progress"
        and (other.name == "idle") == (event.name == "idle")
        and other.process.source == event.process.source
        for other in life.events[-_RUN:]
    )


class _Repeats:
    """Counts lines of a life that say the same (digits apart); the first MAX_SAME of each are kept."""

    MAX_SAME = 40

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def too_many(self, event: Event) -> bool:
        if event.kind in ("progress", "milestone", "signal", "kernel"):
            return False
        key = hash((event.kind, event.process.name, event.text[:300].translate(_NO_DIGITS)))
        count = self._seen.get(key, 0) + 1
        self._seen[key] = count
        return count > self.MAX_SAME


_NO_DIGITS = str.maketrans("", "", "0123456789")


_SCHEDULED = "Scheduled restart job, restart counter is at "
"""systemd's word before it starts a unit again; a start that fails early prints no banner of its own."""


_FIRST_WORDS = "Automatically detected platform "
"""The first words of any start, import errors included: right behind a Ctrl-C the next attempt of a shell session."""
_SHELL_LINES = 6
"""How many lines back: what somebody typed stands between."""


def _begins_new_life(event: Event, life: Life) -> bool:
    """A start-up banner after a death, an orderly end, or from an API server with another pid than the one before."""
    if event.weight in ("quoted", "foreign") or not life.events:
        return False
    if event.kind == "plain" and _SCHEDULED in event.text and _ended(life):
        return True
    if _FIRST_WORDS in event.text and life.orderly and not life.died:
        return any(other.kind == "signal" for other in life.events[-_SHELL_LINES:])
    if event.kind != "milestone":
        return False
    if event.name not in _RESTART and not (event.name == "engine-init" and _ended(life)):
        return False
    if event.name == "engine-init" and any(other.name in _RESTART for other in life.events[-200:]):
        return False
    if _ended(life):
        return True
    if not life.served or event.process.role != "api" or event.process.pid is None:
        return False
    # The lines of the logo come before the one that names the release.
    previous = {
        other.process.pid
        for other in life.events[:-_LOGO]
        if other.process.role == "api" and other.process.source == event.process.source
    }
    return bool(previous) and event.process.pid not in previous


def _ended(life: Life) -> bool:
    return life.died or life.orderly


def _place(event: Event, life: Life) -> None:
    """Appends `event`, with its phase, and keeps the life's flags current."""
    if not life.events:
        life.started_line = event.line
    life.events.append(event)
    life.ended_line = event.line
    if event.weight in ("quoted", "foreign"):
        event.phase = life.last_phase
        return
    # A signal is judged by the phase that it ended.
    before = life.last_phase
    _advance(event, life)
    event.phase = before if event.kind == "signal" and before is not Phase.SHUTDOWN else _phase_of(event, life)
    event.ends = _ends(event, life)
    if event.ends:
        life.died = True
    elif event.kind == "signal" or event.name == "uvicorn-done":
        life.orderly = life.orderly or not life.died
    if event.kind == "progress" and event.name != "idle":
        life.progress_index = event.index


def _ends(event: Event, life: Life) -> bool:
    """Whether this event reports or causes an end of the engine."""
    if event.kind in ("death", "native") or _ended_outside(event):
        return True
    if event.kind != "exception":
        return False
    # An uncaught exception before the server is up ends it. `[rank0]:` is how torch's hook prints uncaught ones.
    uncaught = event.process.role != "worker" or (event.process.name.startswith("rank") and not event.level)
    return event.weight == "fatal" or (event.weight == "unknown" and uncaught and not life.served)


def _ended_outside(event: Event) -> bool:
    """Whether a shell, the kernel or an orchestrator says that an engine process ended by force or never started."""
    text = event.text
    if event.kind == "kernel":
        return any(part in text for part in ("Killed process", "oom-kill:", "out of memory")) and any(
            name in text for name in ("VLLM", "vllm", "python", "ray::", "sglang", "pt_main_thread")
        )
    if event.kind in ("plain", "log") and "error while attempting to bind on address" in text:
        return True
    if event.kind != "plain":
        return False
    if any(part in text for part in words.USAGE_ERRORS):
        return True
    if ended_by_signal(text):
        return True
    return any(part in text for part in words.OUTSIDE_DEATHS) and not _NOT_FOR_MEMORY.search(text)


_NEXT = {
    "weights-done": Phase.PROFILE,
    "kv": Phase.PROFILE,
    "capture": Phase.CAPTURE,
    "captured": Phase.PROFILE,
    "ready-core": Phase.SERVING,
    "ready": Phase.SERVING,
}
_ORDER = (Phase.LOAD, Phase.PROFILE, Phase.CAPTURE, Phase.SERVING, Phase.SHUTDOWN)


def _advance(event: Event, life: Life) -> None:
    """Moves the life's phase on at a milestone; never back, except out of graph capture."""
    if event.kind == "progress" and event.name in ("request-ok", "stats", "batch"):
        if life.last_phase is not Phase.SHUTDOWN:
            life.last_phase = Phase.SERVING
        life.served = True
        return
    if event.kind == "signal" and not life.died:
        life.last_phase = Phase.SHUTDOWN
        return
    following = _NEXT.get(event.name) if event.kind == "milestone" else None
    if event.name == "core-fatal" and event.has("EngineCore encountered a fatal error"):
        following = Phase.SERVING  # an engine that never came up says `failed to start` (vllm v1/engine/core.py)
    if following is None:
        return
    if event.name == "ready":
        life.served = True
    if event.name == "captured" and life.last_phase is Phase.CAPTURE:
        life.last_phase = Phase.PROFILE
    elif _ORDER.index(following) > _ORDER.index(life.last_phase):
        life.last_phase = following


def _phase_of(event: Event, life: Life) -> Phase:
    """The frames of a traceback know the phase better than the line's place in the log."""
    exc = event.exc
    if exc is None:
        return life.last_phase
    if exc.passes(*_CAPTURE_FRAMES):
        return Phase.CAPTURE
    if exc.passes(*_PROFILE_FRAMES):
        return Phase.PROFILE
    if exc.passes(*_LOAD_FRAMES) and not exc.passes(*_SERVING_FRAMES):
        return Phase.LOAD
    if (
        exc.passes(*_SERVING_FRAMES)
        and life.last_phase is not Phase.SHUTDOWN
        and not exc.passes(":initialize_from_config")
    ):
        # Workers run start-up calls in their busy loop too, so only the engine's own loop proves serving.
        if exc.passes(*_STEP_FRAMES):
            return Phase.SERVING
        if exc.passes(":execute_model", ":sample_tokens"):
            return Phase.SERVING
    return life.last_phase


def _settle(life: Life) -> None:
    """Recomputes the flags now that all weights are known."""
    life.progress_index = max(
        (
            event.index
            for event in life.events
            if event.kind == "progress" and event.name != "idle" and event.weight != "foreign"
        ),
        default=-1,
    )
    # Where several services write one log, the stop of one that is up again later asked nothing of the others.
    up_again = max(
        (event.index for event in life.events if event.kind == "milestone" and event.name == "ready"), default=-1
    )
    first_signal = next(
        (
            event.index
            for event in life.events[up_again + 1 :]
            if event.kind == "signal" and event.name != "exit" and event.weight not in ("quoted", "foreign")
        ),
        None,
    )
    told = [event for event in life.events if event.weight not in ("quoted", "foreign")]
    first_death = next((event.index for event in told if event.ends), None)
    life.died = any(event.ends for event in told)
    life.orderly = first_signal is not None and (first_death is None or first_signal < first_death)


def _inherit(lives: list[Life]) -> None:
    """A restart of the same container runs the same version, even when the new life didn't print it."""
    for before, life in pairwise(lives):
        if not life.version:
            life.version, life.version_line = before.version, before.version_line
        for key, value in before.env.items():
            life.env.setdefault(key, value)
        if not life.command:
            life.command = before.command
        if not life.model:
            life.model = before.model
