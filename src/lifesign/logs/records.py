"""Unwrapped lines to records: process prefix, level header, source position, time; per process, in file order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lifesign.logs.lines import Line, is_progress_bar
from lifesign.logs.model import Process, Record
from lifesign.logs.wrappers import Unwrapped, Unwrapper, unpack_json_body
from lifesign.text import is_whole

_PREFIX = re.compile(
    r"\((?P<name>(?:APIServer|ApiServer|EngineCore|VllmWorkerProcess|VllmWorker|Worker|RayWorkerWrapper|RayWorker|DPCoordinator|DPAsyncScheduler|Router|LLMEngine)"
    r"[\w.\-]{0,40})(?P<rest>(?: [\w=.:\-]{1,40}){0,4})\) ?"
)
_HEADER = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL) +(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,6})? "
    r"(?:\[?(?P<origin>[\w./\\<>\-]{1,120}:\d+)\] ?)?"
)
_UVICORN = re.compile(r"(?P<level>INFO|WARNING|ERROR|CRITICAL): {4,6}")
_SGLANG = re.compile(r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<rank>(?: (?:DP|TP|PP|EP)\d+){0,4})\] ?")
_PLAIN_LOGGER = re.compile(
    r"(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.,]\d{1,6} - (?:[\w.]{1,60} - )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - "
)
_RANK = re.compile(r"\[(rank\d+)\]:? ?")
_ROOT_LOGGER = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]{1,60}:")
_SECONDS = (31 * 86400, 86400, 3600, 60, 1)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# journald and `dmesg -T`: `Oct 11 19:02:44`, `[Mon Nov 30 10:28:26 2026]`.
_NAMED_MONTH = re.compile(rf"({'|'.join(_MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d):(\d\d)")
_WEEKDAY = re.compile(r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [\d ]\d \d\d:\d\d:\d\d \d{4}\] ")
_DIGITS = re.compile(r"(?:(\d\d)-)?(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")


class Head(NamedTuple):
    """The parts of a record's head."""

    process: Process
    level: str
    stamp: str
    origin: str
    text: str
    bare: bool


def seconds(stamp: str) -> float | None:
    """Seconds since the start of a (31-day-month) year of `MM-DD HH:MM:SS` or an ISO time; None if it is neither.

    Only differences within one log matter, so the calendar is simplified.
    """
    match = _DIGITS.search(stamp)
    if match is None:
        named = _NAMED_MONTH.search(stamp)
        if named is None:
            return None
        parts = (_MONTHS.index(named[1]) + 1, *(int(named[number]) for number in range(2, 6)))
        return float(sum(value * unit for value, unit in zip(parts, _SECONDS, strict=True)))
    month, day, hour, minute, second = (int(match[number]) for number in range(2, 7))
    if month == 0:
        return None
    fraction = float("0." + match[7]) if match[7] else 0.0
    return (
        sum(value * unit for value, unit in zip((month, day, hour, minute, second), _SECONDS, strict=True)) + fraction
    )


def parse_head(text: str, source: str) -> Head:
    """Splits one unwrapped line into process, level, time, origin and text."""
    process = Process("", None, source)
    level, stamp, origin = "", "", ""
    bare = True
    # Nested prefixes (`(EngineCore_DP0 pid=1) (Worker_PP3 pid=2)`): the innermost names the writer.
    for _ in range(3):
        match = _PREFIX.match(text) if text.startswith("(") else None
        if match is None:
            break
        process = _process(match["name"], match["rest"], source)
        text = text[match.end() :]
        bare = True
    match = _RANK.match(text) if text.startswith("[rank") else None
    if match:
        if not process.name:
            process = Process(match[1], None, source)
        text = text[match.end() :]
    match = _HEADER.match(text)
    if match:
        level = "WARNING" if match["level"] == "WARN" else match["level"]
        return Head(process, level, match["stamp"], match["origin"] or "", text[match.end() :], False)
    match = _UVICORN.match(text)
    if match:
        return Head(process, match["level"], "", "uvicorn", text[match.end() :], False)
    match = _SGLANG.match(text) if text.startswith("[2") else None
    if match:
        rank = match["rank"].strip().replace(" ", "_")
        name = process.name or (f"Worker_{rank}" if rank else "")
        inner = _UVICORN.match(text[match.end() :])
        rest = text[match.end() + (inner.end() if inner else 0) :]
        level = inner["level"] if inner else ""
        return Head(Process(name, process.pid, source), level, match["stamp"], "sglang", rest, not level)
    match = _PLAIN_LOGGER.match(text) if is_whole(text[:1]) else None
    if match:
        return Head(process, match["level"], match["stamp"], "", text[match.end() :], False)
    match = _ROOT_LOGGER.match(text)
    if match:
        return Head(process, match["level"], "", "", text[match.end() :], False)
    return Head(process, level, stamp, origin, text, bare)


def _process(name: str, rest: str, source: str) -> Process:
    """`Worker` with ` TP0 pid=12` or ` rank=1 pid=12` becomes `Worker_TP0`, pid 12."""
    pid: int | None = None
    for part in rest.split():
        key, _, value = part.partition("=")
        if key == "pid" and is_whole(value):
            pid = int(value)
        elif key == "rank" and is_whole(value):
            name = f"{name}_rank{value}"
        elif "=" not in part and key not in ("ip",):
            name = f"{name}_{part}"
    return Process(name, pid, source)


def records(path: str, lines: Iterable[Line], unwrapper: Unwrapper) -> Iterator[Record]:
    """The records of one source, one per piece of a line."""
    for line in lines:
        for part in unwrapper.unwrap(line.text):
            head = parse_head(part.text, part.tag)
            if head.text.startswith("{") and head.process.name and (body := unpack_json_body(head.text)) is not None:
                for text in body:
                    inner = parse_head(text, part.tag)
                    yield _record(path, line.number, inner._replace(process=head.process), part)
                continue
            yield _record(path, line.number, head, part)


def _kernel_time(text: str) -> float | None:
    """The time of a line of `dmesg -T` that was pasted below a log, `[Mon Nov 30 10:28:26 2026] ...`; None for any other."""
    return seconds(text[5:20]) if text[:1] == "[" and _WEEKDAY.match(text) else None


def _record(path: str, number: int, head: Head, part: Unwrapped) -> Record:
    stamp = head.stamp if head.stamp and not head.stamp.startswith("00-00") else part.stamp
    return Record(
        path=path,
        line=number,
        process=head.process,
        level=head.level,
        time_s=seconds(stamp) if stamp else _kernel_time(head.text),
        origin=head.origin,
        text=head.text.rstrip(),
        bare=head.bare and not is_progress_bar(head.text),
        stamp=stamp,
        head_stamp=head.stamp if not head.stamp.startswith("00-00") else "",
    )
