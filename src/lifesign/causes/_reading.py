"""Small readers that several causes share: which line to cite, how loud an event is, what runs, how large a figure is.

Everything here looks at one event or one life and answers one question; no cause is known here.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from lifesign.causes.model import Evidence, Finding
from lifesign.facts.model import Event, Life
from lifesign.remedies.model import Computed, Remedy
from lifesign.text import T

EDGE_EVENTS = 2000
"""How many events from each end of a life (or before an event) are searched: an error storm must stay cheap."""
QUIET_LEVELS = ("DEBUG", "INFO", "WARNING", "WARN")
_UNITS_GIB = {
    "B": 2.0**-30,
    "KiB": 2.0**-20,
    "KB": 2.0**-20,
    "MiB": 2.0**-10,
    "MB": 2.0**-10,
    "GiB": 1.0,
    "GB": 1.0,
    "TiB": 1024.0,
}
NCCL_ERRORS = (
    "NCCL error",
    "NCCL Error",
    "NCCL_ERROR_",
    "RCCL error",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "unhandled system error",
)
"""How an NCCL return code surfaces: vLLM's pynccl, torch's ProcessGroupNCCL, cupy."""
UNIFIED_DEVICES = (
    "gfx1151",
    "gfx1150",
    "Strix Halo",
    "NVIDIA GB10",
    "DGX Spark",
    "dgx-spark",
    "Jetson",
    "NVIDIA Thor",
    "sm_121",
)
"""Names of machines whose GPU has no memory of its own (a GH200 has: its GPU memory is separate)."""
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?([KMGT]?i?B)\b")


def is_loud(event: Event, life: Life) -> bool:
    """Whether the event is more than a notice: warnings and information that mention an error prove nothing."""
    return event.kind != "log" or event.level not in QUIET_LEVELS


def gib(text: str) -> float | None:
    """`512.00 MiB` as GiB; None when the text holds no size."""
    match = _SIZE.search(text)
    if match is None:
        return None
    return float(match[1]) * _UNITS_GIB.get(match[2], 0.0)


def is_listed(event: Event, life: Life) -> bool:
    """Whether a refused architecture stands in the message's own list of supported ones: then its inspection failed."""
    head, _, listed = event.text.partition("Supported architectures")
    start = head.find("['")
    name = head[start + 2 : head.find("'", start + 2)] if start >= 0 else ""
    return bool(name) and f"'{name}'" in listed


def ascend_code(*codes: str) -> str:
    """A pattern for an Ascend error number said to be one (`error code is 507035`, `runtime result = 507014`).

    The bare digits also stand in time stamps, ids and counts of cache blocks.
    """
    return rf"(?i)(?:code|result|err\w{{0,8}}|\bret\w{{0,6}})\W{{1,4}}(?:is )?(?:{'|'.join(codes)})(?!\d)"


def cite(finding: Finding, *parts: str) -> Finding:
    """Lets the report cite the first line of the message that carries one of `parts`.

    The proof often stands below the line with the exception's name (`Last error:` of NCCL, the output of a compiler).
    """
    event = finding.event
    first = event.text.split("\n", 1)[0]
    if event.exc is None or any(part in first for part in parts):
        finding.line = event.line
        return finding
    for number, text in event.exc.more:
        if any(part in text for part in parts):
            finding.line = number
            break
    return finding


def told_by(event: Event, life: Life, *parts: str) -> Event:
    """The event that carries the traceback of what `event` reports.

    A program may log the text first and print its traceback after it; frames are then those of the next exception with
    any of `parts` in its text. Without one the event speaks for itself.
    """
    if event.exc is not None:
        return event
    for other in life.events[event.index + 1 : event.index + 81]:
        if other.exc is not None and other.exc.frames and other.has(*parts):
            return other
    return event


def runs_model(life: Life, event: Event, *names: str) -> bool:
    """Whether the served model, or a file of the event's traceback, is called one of `names` (lower case)."""
    model = life.model.lower()
    if any(name in model for name in names):
        return True
    if event.exc is None:
        return False
    return any(
        name in frame.file.lower().replace("\\", "/").rpartition("/")[2] for frame in event.exc.frames for name in names
    )


def is_eager(life: Life) -> bool:
    """Whether the log says that CUDA graphs and compilation are off."""
    return str(life.config.get("enforce_eager", "")).lower() == "true"


def speculates(life: Life) -> str:
    """The method of speculative decoding (`mtp`, `eagle3`, ...), `on` when only its use is known, empty when it is off."""
    config = str(life.config.get("speculative_config") or "")
    if not config or config in ("None", "{}"):
        return ""
    match = re.search(r"['\"]?method['\"]?[=:] ?['\"]?(\w{1,40})", config)
    return match[1].lower() if match else "on"


def with_value(remedy: Remedy, value: str, how: T, line: int = 0, direction: int = 0) -> Remedy:
    """The remedy with a value that was read or computed from the log's own numbers. direction: as in `Computed`."""
    computed = Computed(value, how, (line,) if line else (), direction)
    return replace(remedy, value=lambda _life: computed, unless=None)


def explain(finding: Finding, base: T, *more: T) -> Finding:
    """Sets the finding's reason: the subtype's text followed by what this log adds to it."""
    finding.why = T(" ".join([base.en, *(text.en for text in more)]), "".join([base.zh, *(text.zh for text in more)]))
    finding.values["why_is_whole"] = "yes"
    return finding


def for_sglang(finding: Finding, life: Life, remedies: tuple[Remedy, ...], *own: Remedy) -> Finding:
    """In a log of SGLang: its own advice instead of vLLM's flags and variables, which it doesn't have."""
    event = finding.event
    frames = event.exc.frames if event.exc is not None else []
    if life.engine == "sglang" or event.origin == "sglang" or any("/sglang/" in frame.file for frame in frames):
        kept = (finding.remedies if finding.remedies is not None else remedies) or ()
        foreign = ("flag", "upgrade")
        finding.remedies = (
            *own,
            *(
                remedy
                for remedy in kept
                if remedy.kind not in foreign and not any(form.knob.startswith("VLLM_") for form in remedy.forms)
            ),
        )
    return finding


def add_context(finding: Finding, event: Event | None, why: T) -> None:
    """Adds a line that speaks for the finding without being its root."""
    if event is not None and event.index != finding.event.index:
        finding.evidence.append(Evidence(event, "context", why))


def edges(life: Life) -> list[Event]:
    """The events of a life, in a long one those near its two ends."""
    if len(life.events) <= 2 * EDGE_EVENTS:
        return life.events
    return life.events[:EDGE_EVENTS] + life.events[-EDGE_EVENTS:]


def seen(life: Life, *parts: str) -> Event | None:
    """The first event near the ends of a life that contains any of `parts`; users' text excluded."""
    for event in edges(life):
        if event.weight not in ("quoted", "foreign") and event.has(*parts):
            return event
    return None


def first_before(event: Event, life: Life, *parts: str) -> Event | None:
    """The first loud, engine-made event among those before `event` whose text contains any of `parts`."""
    for other in life.events[max(0, event.index - EDGE_EVENTS) : event.index]:
        if other.kind in ("progress", "milestone", "signal") or not other.has(*parts):
            continue
        if other.weight not in ("quoted", "foreign", "advice", "request", "teardown") and is_loud(other, life):
            return other
    return None
