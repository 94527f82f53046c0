"""Who speaks? Lines of other programs, quotations of other engines' logs, and people's prose are no evidence.

Each function here only lowers the weight of events: `foreign` for another program's, `quoted` for text that somebody
passed on, `advice` for what people say about an error.
"""

from __future__ import annotations

import re

from lifesign.facts.model import Event, Life
from lifesign.logs.records import seconds

_HOUR_S = 3600.0
_ROLLOVER_S = 300 * 86400.0
"""A jump back by more than this is New Year, not an old line."""
_OLD_BLOCK = 60


def mark(life: Life, complete: bool) -> None:
    """Marks every event of `life` that is not this engine's own word."""
    _foreign(life)
    if complete:
        _quotations(life)
    _old_lines(life)
    for event in life.events:
        if event.weight not in ("quoted", "foreign") and _is_prose(event):
            event.weight = "advice"
        elif event.kind == "exception" and event.weight == "unknown" and _of_another_program(event):
            event.weight = "foreign"


_CHAT = re.compile(r"\[?\d{1,2}:\d\d(?::\d\d)?\]? ?<?[A-Za-z][\w.\-]{0,24}>?: ")
_SPEAKER = re.compile(
    r"(?i)\b(?:i|we|he|she|they|somebody|someone|everyone)(?:'m|'ve| am| have| had| was| were| tried| think| see| saw| get| got| use| used| run| ran"
    r"| set| don't| can't| could| would| did| bumped| restarted| know)\b|\b(?:please help|thanks|hello|any idea|no idea|last week|yesterday|same error as)\b"
)


def _is_prose(event: Event) -> bool:
    """A sentence that people wrote about an error: Chinese or Japanese text, a chat line, a first person."""
    if event.kind not in ("plain", "death", "signal", "native") or event.process.name or event.origin or event.level:
        return False
    text = event.text[:600]
    if sum(1 for character in text if "\u3040" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3") >= 2:
        return True
    return _CHAT.match(text) is not None or (text.count(" ") >= 4 and _SPEAKER.search(text) is not None)


_LIBRARIES = (
    "site-packages",
    "dist-packages",
    "/lib/python",
    "\\lib\\",
    "/python3.",
    "<frozen",
    "<string>",
    ".pyx",
    "/torch/",
    "/ray/",
)
_ENGINES = (
    "vllm", "sglang", "lmcache", "nixl", "multiprocessing", "mindie", "text_generation", "ray/", "uvicorn", "uvloop", "lightllm", "lmdeploy", "omni",
)  # fmt: skip


def _of_another_program(event: Event) -> bool:
    """An exception of somebody's own script in which no frame belongs to an engine: it says nothing about one."""
    exc = event.exc
    if (
        exc is None
        or not exc.frames
        or event.process.name.startswith(("APIServer", "EngineCore", "Worker", "VllmWorker"))
    ):
        return False
    files = [frame.file.lower() for frame in exc.frames]
    if any(engine in file for file in files for engine in _ENGINES):
        return False
    return any(not any(part in file for part in _LIBRARIES) for file in files)


def _old_lines(life: Life) -> None:
    """A block of lines dated an hour or more before what surrounds it is a quotation: time goes on after it.

    Only times that the line's own head carries are compared, per source: collectors may use another time zone.
    """
    latest: dict[str, float] = {}
    blocks: dict[str, list[Event]] = {}
    for event in life.events:
        if not event.head_stamp or event.weight in ("quoted", "foreign"):
            continue
        now = seconds(event.head_stamp)
        if now is None:
            continue
        key = f"{event.path}|{event.process.source}"
        before = latest.get(key)
        if before is not None and _HOUR_S < before - now < _ROLLOVER_S:
            blocks.setdefault(key, []).append(event)
            continue
        block = blocks.pop(key, [])
        # An engine that starts is real, whatever its clock says (logs of several machines put together).
        short = 0 < len(block) <= _OLD_BLOCK and not any(old.kind == "milestone" for old in block)
        if before is not None and now >= before - 60 and short:
            stamped = {old.index for old in block}
            for old in life.events[block[0].index : event.index]:
                # Lines that carry no time of their own, up to the next that does, are of the same quotation.
                if old.index in stamped or (not old.head_stamp and f"{old.path}|{old.process.source}" == key):
                    old.weight = "quoted"
        latest[key] = now if before is None else max(before, now)


def _foreign(life: Life) -> None:
    """Lines of other containers or programs in the same log are no evidence about this engine.

    A source is an engine's when a good part of its lines carries a vLLM head; a gateway that once quotes an engine's
    log in a message is none.
    """
    voices: dict[str, list[int]] = {}
    for event in life.events:
        if event.process.source:
            counts = voices.setdefault(event.process.source, [0, 0])
            counts[0] += bool(event.process.name) or (bool(event.origin) and event.origin != "uvicorn")
            counts[1] += 1
    engines = {source for source, (known, total) in voices.items() if known * 4 >= total}
    if not engines or len(engines) == len(voices):
        return
    for event in life.events:
        source = event.process.source
        own = source in engines or source in _SYSTEM_SOURCES or source.startswith(_RAY_ACTORS)
        if source and not own and event.kind != "kernel":
            event.weight = "foreign"


_NAMES_WITHOUT_RANK = ("Worker", "VllmWorker", "VllmWorkerProcess")
_QUOTATION = 60
"""Events that a quotation of another engine's log has at most."""


def _quotations(life: Life) -> None:
    """Lines with a process prefix whose pid never started, while a started process bears that name, are a quotation.

    A user pasted another engine's log into a prompt. A restarted process would have milestones of its own (and a life of
    its own); this pid has none.
    """
    spans: dict[tuple[str, str, int], list[int]] = {}
    started: set[tuple[str, str, int]] = set()
    for event in life.events:
        process = event.process
        if process.role in ("core", "worker", "api") and process.pid is not None:
            key = (process.source, process.name, process.pid)
            spans.setdefault(key, []).append(event.index)
            if event.kind == "milestone":
                started.add(key)
    crew = _has_several_workers(life)
    for (source, name, pid), indexes in spans.items():
        if (source, name, pid) in started or len(indexes) > _QUOTATION:
            continue
        # All workers bear one name until they know their ranks: there a further pid is a colleague.
        if name in _NAMES_WITHOUT_RANK and crew:
            continue
        real = [
            others
            for (other_source, other_name, other_pid), others in spans.items()
            if (other_source, other_name) == (source, name)
            and other_pid != pid
            and (other_source, other_name, other_pid) in started
        ]
        if any(others[0] < indexes[0] for others in real) and not _death_agrees(life, set(indexes)):
            for index in indexes:
                life.events[index].weight = "quoted"


_PARALLEL = re.compile(r"(?:tensor|pipeline)_parallel_size'?[=:] ?(\d{1,4})")


def _has_several_workers(life: Life) -> bool:
    """Whether the first line that tells a parallel size tells one above 1. (Settings are learned later, without quotations.)"""
    for event in life.events:
        if event.process.role in ("api", "core") and "_parallel_size" in event.text:
            return any(int(size) > 1 for size in _PARALLEL.findall(event.text[:8000]))
    return False


def _death_agrees(life: Life, suspects: set[int]) -> bool:
    """Whether the engine did die after the suspect lines, and none of its known processes says why: then they are real.

    (Logs that people retype or anonymise by hand have pids that don't fit together.)
    """
    last = max(suspects)
    others = [
        event
        for event in life.events
        if event.index not in suspects and event.weight not in ("quoted", "foreign", "request")
    ]
    reported = any(event.kind == "death" and event.index > last for event in others)
    explained = any(
        event.kind in ("exception", "wrapper") and event.process.role in ("core", "worker") for event in others
    )
    return reported and not explained


_RAY_ACTORS = ("RayWorker", "EngineCore", "DPEngineCoreActor", "VllmWorker", "_EngineBackgroundProcess")
"""How Ray names vLLM's actors; a crash of one prints native lines only."""
_SYSTEM_SOURCES = ("kernel", "raylet", "gcs_server", "init.scope", "systemd")
