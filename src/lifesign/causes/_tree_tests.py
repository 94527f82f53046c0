"""Predicates of the decision tree: each answers one question from a life and its first decisive line."""

from __future__ import annotations

from collections.abc import Callable

from lifesign.facts.model import Event, Life

Test = Callable[[Life, Event], bool]


def words(*parts: str, none: tuple[str, ...] = ()) -> Test:
    """Any of `parts` stands in the decisive line (or in the message that goes on below it), none of `none`."""

    def test(life: Life, event: Event) -> bool:
        text = event.text[:6000]
        return any(part in text for part in parts) and not any(part in text for part in none)

    return test


def in_frames(*parts: str) -> Test:
    """Any frame of the traceback passes through one of `parts`."""

    def test(life: Life, event: Event) -> bool:
        return event.exc is not None and event.exc.passes(*parts)

    return test


def any_of(*tests: Test) -> Test:
    """At least one of the tests holds."""
    return lambda life, event: any(test(life, event) for test in tests)


def all_of(*tests: Test) -> Test:
    """Every one of the tests holds."""
    return lambda life, event: all(test(life, event) for test in tests)


def said(*parts: str) -> Test:
    """Any line of the log contains one of `parts`."""
    return lambda life, event: life.mentions(*parts) is not None


def nothing_died(life: Life, event: Event) -> bool:
    """Work went on, or the end was asked for before any error."""
    if (
        "out of memory" in event.text
        or only_core_was_signalled(life, event)
        or words(*HANG, "WAITING_FOR_REMOTE_KVS")(life, event)
        or stands_still(life, event)
        or event.kind in ("kernel", "native")
    ):
        return False
    if event.exc is not None and event.weight != "teardown":
        return False
    alive = not life.died and (
        life.served or life.progress_index >= 0 or any(other.name == "weights-done" for other in life.events)
    )
    brought_back = life.mentions("status -> HEALTHY") is not None and event.kind != "exception"
    return (
        life.orderly
        or event.kind in ("progress", "signal")
        or (alive and event.kind != "plain")
        or brought_back
        or script_had_ended(life, event)
    )


def stands_still(life: Life, event: Event) -> bool:
    """A statistics line with requests in the engine and no token per second."""
    return event.name == "idle" and not ("Running: 0 reqs" in event.text and "Waiting: 0 reqs" in event.text)


def script_had_ended(life: Life, event: Event) -> bool:
    """An offline script that had done its work."""
    worked = any(other.kind == "progress" and other.name == "batch" for other in life.events)
    return worked and not any(other.kind in ("exception", "wrapper") for other in life.events)


def only_core_was_signalled(life: Life, event: Event) -> bool:
    """The engine core alone was told to stop; the server was taken by surprise."""
    if said("probe failed")(life, event) or event.text.startswith("KeyboardInterrupt: terminated"):
        # The kubelet (or whoever) stopped an engine that was still starting.
        return True
    core = [other for other in life.events if other.name.startswith("core-signal")]
    own = life.mentions("Process manager: send sigterm to process EngineCore")
    asked = any(
        other.name in ("api-shutdown", "ctrl-c") for other in life.events if not core or other.index <= core[0].index
    )
    surprised = life.mentions("exited unexpectedly", "EngineDeadError", "died unexpectedly") is not None
    return (
        event.name.startswith(("core-signal", "shutdown-step"))
        and not asked
        and surprised
        and (bool(core) or own is not None)
    )


def no_error_text(life: Life, event: Event) -> bool:
    """The decisive line is no error of the engine's own: a report, a signal, the kernel, a crash in native code."""
    if event.kind == "native" and "cublas" in event.text[:500]:
        return False  # the stack names the library that failed
    if event.kind in ("death", "native", "kernel", "signal", "milestone", "progress"):
        return True
    if event.exc is not None and event.exc.short_type in ("ActorDiedError", "RayActorError"):
        return True
    if "A worker died or was killed while executing a task" in event.text:
        return True
    return words(*HANG, *OUTSIDE, "WAITING_FOR_REMOTE_KVS")(life, event) or (
        event.exc is None and event.kind in ("log", "plain") and not life.died
    )


# What a log says while everybody waits.
HANG = ("No available shared memory broadcast block", "core engine proc(s) to start", "Waiting for 1 local")
# What shells, runtimes and orchestrators say about a killed process.
OUTSIDE = (
    "137 true",
    "OOMKilled",
    "exited with code 137",
    "Exit Code: 137",
    "killed due to memory pressure",
    "Illegal instruction",
)


def starts_with_reports(life: Life, event: Event) -> bool:
    """Nothing but reports of a death: the first sign in the log is one, or nobody can tell who died."""
    for other in life.events:
        if other.weight in ("quoted", "foreign"):
            continue
        if other.kind == "death":
            return not names_the_dead(life, other)
        if other.kind in ("progress", "milestone"):
            break
    return (
        event.kind not in ("native",)
        and not names_the_dead(life, event)
        and not words("core engine proc(s)")(life, event)
    )


def names_the_dead(life: Life, event: Event) -> bool:
    """A report that says which process died, or a worker whose parent was gone says it."""
    orphaned = ("Parent process exited, terminating", "BrokenPipeError")
    if "Failed core proc(s): {}" in event.text and life.mentions(*orphaned) is not None:
        return True
    return event.name in ("worker-died", "core-died", "core-exited") or any(
        part in event.text
        for part in ("': -", "died unexpectedly before", "A worker died or was killed", "in a background process")
    )


def library_cut_short(life: Life, event: Event) -> bool:
    """A bus error while NCCL's library was being loaded: it never told its version, and /dev/shm isn't shown as full."""
    loading = "Bus error" in event.text and said("libnccl", "file too short")(life, event)
    return loading and not said("vLLM is using nccl==", "100% /dev/shm")(life, event)


def input_thread_is_late(life: Life, event: Event) -> bool:
    """The assertion behind the wait of ten seconds for the core's own input thread."""
    return event.exc is not None and any(
        "coordinator_input is not None" in frame.code for frame in event.exc.frames[-1:]
    )


def native_isa(life: Life, event: Event) -> bool:
    """An instruction that this processor doesn't have."""
    return "Illegal instruction" in event.text or "SIGILL" in event.text


def request_drains_pool(life: Life, event: Event) -> bool:
    """SGLang: one request alone fills the token pool (a single running request)."""
    return (
        "Prefill out of memory" in event.text
        and life.mentions("#running-req: 0, #queue-req: 0", "one request") is not None
    )
