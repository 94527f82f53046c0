"""Reassembles Python tracebacks from records, per process and logger position, also when they are woven together.

vLLM logs a traceback as one record whose every line carries the header; uncaught ones have no header; several workers
write at once. So lines are collected per stream (process, source position). Each exception of a chain becomes its own
statement at the line that carries `Type: message`; everything else passes through unchanged, in order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from lifesign.logs.model import Frame, Process, Record, Traceback

MAX_FRAMES = 120
MAX_MESSAGE_LINES = 24
MAX_MESSAGE_CHARS = 6000
MAX_STREAMS = 512
MAX_STRANGERS = 40
"""Lines of other origin that may stand between the frames of one traceback before it is given up as cut."""

_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s{0,12}File "([^"]{1,400})", line (\d{1,7})(?:, in (.{1,160}))?')
_CAUSE = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
_EXCEPTION = re.compile(r"([A-Za-z_]\w{0,80}(?:\.[A-Za-z_]\w{0,80}){0,8})(\([\w.]{1,80}\))?(?::(?: |$)|$)")
_ALONE = re.compile(
    r"((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|OutOfResources|Timeout|Died|Failure|Interrupt)|"
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}(?:gaierror|OSError))(\([\w.]{1,80}\))?:(?: |$)"
)
_STARTERS = re.compile(
    r"\[|\$ |# |\*\*\*|!!!|={4}|-{4}|```|</|Traceback|Failed: |Process \w|Loading |Capturing |Killed|Aborted|Segmentation|Bus error|"
    r"terminate called|[\w.\-]+:\d+:\d+ |\d{4}-\d\d|/\S{1,200}\.(?:cu|cuh|cpp|cc|h|hpp):\d|Memory access fault|INFO|WARNING|nanobind|"
    r"/\S{0,200}resource_tracker|Exception (?:in|ignored)|kernel: |Dumping |warnings\.warn|Fatal Python|\(raylet\)|"
    # The kernel's lines without their prefix, as `journalctl -k -o cat` gives them.
    r"NVRM: |Out of memory: Killed|Memory cgroup out of memory|oom-kill:|oom_reaper: |[\w:.\-]{1,40} invoked oom-killer|"
    r"[\w:.\-]{1,40}\[\d{1,9}\]: segfault at|traps: |mce: |EDAC |amdgpu[ :]"
)
MAX_NATIVE_FRAMES = 24
_NATIVE = (
    "Segfault encountered",
    "Fatal Python error:",
    "SIGSEGV received",
    "SIGBUS received",
    "SIGABRT received",
    "Signal: Segmentation fault",
    "Caught signal ",
)
_NATIVE_FRAME = re.compile(
    r"(?:\[[\w.\-]{1,60}:\d+\] )?(?:\[ ?\d+\]|#\d+|PC: @|@|={4} backtrace| {0,3}\d{1,3} +0x[0-9a-f]{8,16}) "
)
_SYSTEM_EXIT = ("SystemExit", "KeyboardInterrupt", "CancelledError")


class Statement(NamedTuple):
    """One thing said: a record, and the exception it completes (None for an ordinary record)."""

    record: Record
    exc: Traceback | None


class _Stream(msgspec.Struct):
    """The state of one stream: `frames` while inside a traceback, `message` after its exception line."""

    state: str = "idle"
    frames: list[Frame] = msgspec.field(default_factory=list)
    start_line: int = 0
    header: str = ""
    strangers: int = 0
    last: Traceback | None = None
    done: Statement | None = None
    extra: list[tuple[int, str]] = msgspec.field(default_factory=list)
    extra_chars: int = 0
    chained: bool = False
    native: Record | None = None
    native_frames: int = 0


class Assembler:
    """Feed records in order; statements come out, a traceback's at the place of its exception line."""

    def __init__(self) -> None:
        self._streams: dict[tuple[Process, str], _Stream] = {}
        self._waiting: list[Statement] = []

    def feed(self, record: Record) -> list[Statement]:
        """The statements that `record` completes (often none or one)."""
        key = (record.process, "" if record.bare else record.origin or record.level)
        if record.origin == "sglang" and record.text.rstrip().endswith(_START):
            # SGLang prints the heading with its prefix and the traceback below it without one.
            key = (Process("", None, record.process.source), "")
        stream = self._streams.get(key)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                self._streams.pop(next(iter(self._streams)))
            stream = self._streams[key] = _Stream()
        return self._step(stream, record)

    def finish(self) -> list[Statement]:
        """What is still open at the end of the log: complete exceptions, and tracebacks that were cut off."""
        out: list[Statement] = []
        for stream in self._streams.values():
            if stream.state == "message" and stream.done is not None:
                out.append(_complete(stream))
            stream.state = "idle"
        return out

    def _step(self, stream: _Stream, record: Record) -> list[Statement]:
        text = record.text
        out: list[Statement] = []
        if stream.state == "message":
            if self._continues(stream, record):
                stream.extra.append((record.line, text))
                stream.extra_chars += len(text)
                return out
            out.append(_complete(stream))
        stripped = text.lstrip()
        if stripped.endswith(_START):
            stream.state = "frames"
            stream.frames = []
            stream.start_line = record.line
            stream.strangers = 0
            before = stripped[: -len(_START)].strip(" +|:")
            if before:
                # `Scheduler hit an exception: Traceback (most recent call last):`
                stream.header = before[:400]
            return out
        if stripped.startswith((_CAUSE, _CONTEXT)):
            stream.chained = True
            return out
        frame = _FRAME.match(text) if 'File "' in text[:20] else None
        if stream.native is not None and self._in_native_stack(stream, record, frame):
            return out
        if stream.state == "frames":
            return out + self._in_frames(stream, record, frame)
        if frame is not None and frame[3] is not None:
            # A paste that starts in mid-traceback, or ray's nested stack without its own heading.
            stream.state = "frames"
            stream.frames = [Frame(frame[1], int(frame[2]), frame[3])]
            stream.start_line = record.line
            stream.strangers = 0
            return out
        if record.bare and any(mark in text for mark in _NATIVE):
            stream.native, stream.native_frames = record, 0
            out.append(Statement(record, None))
            return out
        alone = _ALONE.match(stripped)
        if alone is not None:
            self._open_message(stream, record, alone, [], record.line)
            return out
        if not record.bare or stripped:
            stream.header = text[:400]
            if not stripped.startswith(" "):
                stream.chained = False
        out.append(Statement(record, None))
        return out

    def _in_native_stack(self, stream: _Stream, record: Record, frame: re.Match[str] | None) -> bool:
        """Adds the frames below a native crash to its line: they name the library. False when the stack is over."""
        assert stream.native is not None
        text = record.text.strip()
        if frame is not None:
            if stream.native_frames < MAX_NATIVE_FRAMES:
                stream.native.text += f"\n{frame[3] or frame[1]} ({frame[1].rpartition('/')[2]})"
            stream.native_frames += 1
            return True
        if (
            not text
            or text.startswith(("Current thread", "Thread 0x", "Extension modules", "..."))
            or _NATIVE_FRAME.match(text)
        ):
            if _NATIVE_FRAME.match(text) and stream.native_frames < MAX_NATIVE_FRAMES:
                stream.native.text += f"\n{text[:160]}"
                stream.native_frames += 1
            return True
        stream.native = None
        return False

    def _in_frames(self, stream: _Stream, record: Record, frame: re.Match[str] | None) -> list[Statement]:
        text = record.text
        if frame is not None:
            if len(stream.frames) < MAX_FRAMES:
                stream.frames.append(Frame(frame[1], int(frame[2]), frame[3] or ""))
            return []
        if not text.strip():
            return []
        if text.startswith(("    ", "\t")) or text.lstrip().startswith(("^", "~", "[Previous line repeated")):
            if stream.frames and not stream.frames[-1].code and "^" not in text[:200]:
                stream.frames[-1].code = text.strip()[:300]
            return []
        match = _EXCEPTION.match(text)
        if match is not None and (match[0].endswith((":", ": ")) or " " not in text):
            self._open_message(stream, record, match, stream.frames, stream.start_line)
            return []
        stream.strangers += 1
        if stream.strangers > MAX_STRANGERS:
            stream.state = "idle"
        return [Statement(record, None)]

    def _open_message(
        self, stream: _Stream, record: Record, match: re.Match[str], frames: list[Frame], start_line: int
    ) -> None:
        text = record.text.lstrip()
        message = text[match.end() :].strip()
        exc = Traceback(
            type=match[1],
            message=message,
            line=record.line,
            start_line=start_line,
            frames=frames,
            chain_index=stream.last.chain_index + 1 if stream.chained and stream.last else 0,
            chained_to=stream.last if stream.chained else None,
            header=stream.header,
            wraps=(match[2] or "").strip("()"),
        )
        stream.chained = False
        stream.last = exc
        stream.frames = []
        stream.extra = []
        stream.extra_chars = 0
        stream.done = Statement(record, exc)
        stream.state = "message"

    def _continues(self, stream: _Stream, record: Record) -> bool:
        """Whether `record` continues the message of the exception that was just read."""
        text = record.text
        if len(stream.extra) >= MAX_MESSAGE_LINES or stream.extra_chars > MAX_MESSAGE_CHARS:
            return False
        stripped = text.lstrip()
        if stripped.endswith(_START) or stripped.startswith((_CAUSE, _CONTEXT)):
            return False
        if not stripped:
            # A blank line may be inside the message (CUDA's advice has one); two in a row end it.
            return not (stream.extra and not stream.extra[-1][1].strip())
        if 'File "' in text[:20] and _FRAME.match(text):
            return False
        if record.bare and _STARTERS.match(stripped):
            return False
        if _ALONE.match(stripped):
            return False
        return record.bare or not _NEW_MESSAGE.match(stripped)


# With a header on every line only the words tell a new message from a continuation.
_NEW_MESSAGE = re.compile(
    r"EngineCore (?:encountered|failed|hit)|WorkerProc (?:hit|failed|init)|Worker proc |AsyncLLM |Error in |Exception in |Invocation of|"
    r"Engine core |Error executing|Dumping |Failed to |\[shutdown\]|Waiting |Engine background|Task exception"
)


def _complete(stream: _Stream) -> Statement:
    """Closes the open exception: joins its message lines."""
    statement = stream.done
    assert statement is not None
    assert statement.exc is not None
    while stream.extra and not stream.extra[-1][1].strip():
        stream.extra.pop()
    if stream.extra:
        joined = "\n".join([statement.exc.message, *(text for _, text in stream.extra)])
        statement.exc.message = joined[:MAX_MESSAGE_CHARS]
        statement.exc.more = stream.extra
    stream.state = "idle"
    stream.done = None
    stream.extra = []
    return statement


def is_interrupt(exc: Traceback) -> bool:
    """Whether the exception only says that somebody stopped the program."""
    return exc.short_type in _SYSTEM_EXIT
