"""Statements to events: what kind of thing each one is, who says it, and how much it weighs."""

from __future__ import annotations

import re

from lifesign.facts import vocabulary as words
from lifesign.facts.model import Event, Kind, Weight
from lifesign.logs.lines import is_progress_bar
from lifesign.logs.model import Record, Traceback
from lifesign.logs.tracebacks import Statement, is_interrupt

C_ASSERTION = re.compile(r": Assertion `[^\n]{1,600}' failed\.")
"""glibc's assert(): a quote closes the expression. Device assertions of CUDA close it with a back quote, those of CANN say no `failed`."""
_TRIED_AGAIN = re.compile(r"\b[Rr]etrying \d{1,3}(?: of |/)\d{1,3}\b")
_WORKER_FAILED = re.compile(r"Worker failed with error (?:%s, please[^'\"]{0,80}['\"], )?(['\"])(.*)", re.DOTALL)
# V0: `MQEngineDeadError: ... to find the original error: ValueError('...')`.
_ORIGINAL = re.compile(r"original error: ([A-Za-z_]\w{2,60})\(['\"](.{3,2000}?)['\"],?\)\.?$", re.DOTALL)
_RATE = re.compile(r"generation throughput: (\d+\.?\d*)|gen throughput \(token/s\): (\d+\.?\d*)|#new-token: (\d+)")
_KERNEL_LINE = re.compile(
    r"(?:kernel: |\[<\d+>\] |\[ {0,8}\d{1,9}\.\d{3,6}\] |\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\] )"
)
_EXIT = re.compile(r"exit(?:ed with)? (?:code|status):? ?(-?\d{1,3}|None)|exitcode=(-?\d{1,3})")
_FOREIGN_TRACE = re.compile(r"^\s*(?:>>> |In \[\d+\]:)")


_HEAD_CHARS = 80
_ACTOR_ADDRESS = re.compile(r"\[address=[^\]\n]{1,80}\] ")
_NEXT_LINES = 3
"""How many lines further a reason may stand: other processes write between."""


class EventMaker:
    """Turns statements into events, one stream of them in causal order. Keeps the little state that user text needs."""

    def __init__(self) -> None:
        self._quoting: dict[tuple[str, int | None, str], int] = {}
        self._raised: dict[tuple[str, int | None, str], Traceback] = {}

    def make(self, statement: Statement, index: int) -> Event | None:
        """The event of one statement; None for lines that say nothing (blank, banner art, code echo)."""
        record, exc = statement
        if exc is not None:
            return self._exception(record, exc, index)
        text = record.text
        if not text.strip():
            return None
        kind, name = _classify(record)
        event = _event(record, index, kind, text, name)
        event.weight = self._weight(record, event)
        return event

    def _weight(self, record: Record, event: Event) -> Weight:
        text = record.text
        stream = (record.process.name, record.process.pid, record.process.source)
        if event.kind in ("progress", "milestone") and not record.bare:
            self._quoting.pop(stream, None)
            return "unknown"
        # A death line may well name a prompt at its end; a line that begins with one is somebody's text.
        if any(part in text for part in words.QUOTED) and (
            event.kind != "death" or any(0 <= text.find(part) < _HEAD_CHARS for part in words.QUOTED)
        ):
            # Further lines of the same text have no header of their own.
            self._quoting[stream] = 400
            return "quoted"
        left = self._quoting.get(stream, 0)
        if left and record.bare and event.kind not in ("kernel",):
            self._quoting[stream] = left - 1
            return "quoted"
        if left and not record.bare:
            self._quoting.pop(stream, None)
        if record.bare and text.startswith("> "):
            # A mail or a paste within a log; where the whole log is quoted like this, the reader has taken the marks off.
            return "quoted"
        if record.bare and text.startswith(("$ ", "# ")):
            # What somebody typed is no evidence; its output is.
            return "advice"
        if any(0 <= text.find(part) < 120 for part in words.ADVICE):
            return "advice"
        if event.kind == "log" and _TRIED_AGAIN.search(text[-200:]):
            # The attempt failed, the matter isn't lost: what fails in the end is printed as itself.
            return "advice"
        return "unknown"

    def _give_frames(self, stream: tuple[str, int | None, str], exc: Traceback) -> None:
        """`BackendCompilerFailed: backend='inductor' raised:` has its reason on the line below, in the same place."""
        before = self._raised.pop(stream, None)
        if before is not None and not exc.frames and 0 < exc.line - before.line <= _NEXT_LINES:
            exc.frames, exc.header = before.frames, before.header
        elif exc.frames and exc.message.endswith(" raised:"):
            self._raised[stream] = exc

    def _exception(self, record: Record, exc: Traceback, index: int) -> Event:
        stream = (record.process.name, record.process.pid, record.process.source)
        self._give_frames(stream, exc)
        if exc.message.startswith("[address="):
            # Xinference's actor pool puts its own address before the text of whatever it passes on.
            exc.message = _ACTOR_ADDRESS.sub("", exc.message, count=1)
        text = f"{exc.type}: {exc.message}" if exc.message else exc.type
        event = _event(record, index, "exception", text, exc.short_type)
        event.exc = exc
        if self._quoting.get(stream, 0) and record.bare:
            event.weight = "quoted"
            return event
        inner = unwrapped(exc)
        if inner is not None:
            event.kind = "wrapper"
            event.text = inner
            event.weight = "fatal"
            return event
        if is_cascade(exc):
            event.kind = "death"
            event.name = _death_name(text)
            return event
        if is_interrupt(exc):
            event.kind = "signal"
            event.name = "ctrl-c" if exc.short_type == "KeyboardInterrupt" else "exit"
            # vLLM's handler of SIGTERM raises `KeyboardInterrupt: terminated`: somebody else stopped it.
            told = exc.message.startswith("terminated")
            event.name = "sigterm" if told else event.name
            event.weight = "unknown" if told else "teardown"
            return event
        if exc.passes(*words.TEARDOWN_FRAMES):
            event.weight = "teardown"
        elif any(part in exc.header for part in words.FATAL_HEADERS):
            event.weight = "fatal"
        elif exc.header.startswith(words.REQUEST_HEADERS) and record.process.role in ("api", "none"):
            # What the whole process has run out of is no request's own trouble, wherever it is noticed.
            event.weight = "unknown" if any(part in text for part in words.PROCESS_WIDE) else "request"
        return event


def _event(record: Record, index: int, kind: Kind, text: str, name: str) -> Event:
    return Event(
        index=index,
        path=record.path,
        line=record.line,
        kind=kind,
        text=text,
        process=record.process,
        level=record.level,
        origin=record.origin,
        time_s=record.time_s,
        stamp=record.stamp,
        head_stamp=record.head_stamp,
        name=name,
    )


def _classify(record: Record) -> tuple[Kind, str]:
    """Kind and name of a line that is no exception."""
    text = record.text
    if _KERNEL_LINE.match(text) or (record.bare and any(part in text for part in words.KERNEL)):
        return "kernel", ""
    for mark in words.DEATHS:
        if mark.text in text and (not mark.also or mark.also in text):
            return "death", mark.name
    for mark in words.SIGNALS:
        # Ray's clean-up prints SIGTERM too; its stack trace is no request to stop.
        if mark.text in text and "logging.cc" not in text:
            return "signal", _signal_name(mark.name, text)
    if text.strip() in ("^C", "^C^C"):
        return "signal", "ctrl-c"
    for mark in words.SHUTDOWN_STEPS:
        if mark.text in text and (record.origin or record.level or mark.name == "shutdown-step"):
            return "milestone", mark.name
    for mark in words.PROGRESS:
        if mark.text in text and (not mark.also or mark.also in text):
            return _progress(mark, text)
    if is_progress_bar(text):
        # A crash is printed behind a bar that has not been ended: `99%|###| 99/100[host:279] Caught signal 8 (...`.
        if record.bare and "Caught signal " in text and any(part in text for part in words.NATIVE):
            return "native", ""
        return "milestone", "capture" if "Captur" in text else "bar"
    for mark in words.MILESTONES:
        if mark.text in text:
            return "milestone", mark.name
    if record.bare and (any(part in text for part in words.NATIVE) or C_ASSERTION.search(text[:4000])):
        return "native", ""
    return ("plain" if record.bare else "log"), ""


def _signal_name(name: str, text: str) -> str:
    return name + ("-int" if "SIGINT" in text else "") if name == "core-signal" else name


def _progress(mark: words.Mark, text: str) -> tuple[Kind, str]:
    if mark.name != "stats":
        return "progress", mark.name
    rates = [float(value) for match in _RATE.finditer(text) for value in match.groups() if value]
    return "progress", "stats" if any(rate > 0 for rate in rates) else "idle"


def _death_name(text: str) -> str:
    for mark in words.DEATHS:
        if mark.text in text and (not mark.also or mark.also in text):
            return mark.name
    return "cancelled" if "cancelled" in text else "engine-dead"


def unwrapped(exc: Traceback) -> str | None:
    """The inner text of an exception that only repeats another process's; None if it is not such a wrapper.

    `RuntimeError: Worker failed with error 'TEXT', please check the stack trace above for the root cause`.
    """
    match = _WORKER_FAILED.search(exc.message[:6000])
    if match is not None:
        inner, quote = match[2], match[1]
        cut = inner.rfind(quote + ", please check")
        if cut < 0:
            cut = inner.rfind(quote)
        return inner[: cut if cut >= 0 else None].replace("\\n", "\n").strip()
    match = _ORIGINAL.search(exc.message[:6000]) if exc.short_type == "MQEngineDeadError" else None
    if match is not None:
        return f"{match[1]}: {match[2]}"
    return None


def is_cascade(exc: Traceback) -> bool:
    """Whether the exception only follows from the death of another process."""
    if exc.short_type in words.CASCADE_EXCEPTIONS:
        return True
    return any(exc.short_type == kind and exc.message.startswith(start) for kind, start in words.CASCADE_MESSAGES)


def exit_code(text: str) -> int | None:
    """The exit code that a death line names; negative for a signal; None for none or `None`."""
    match = _EXIT.search(text)
    if match is None:
        return None
    value = match[1] or match[2]
    return None if value == "None" else int(value)
