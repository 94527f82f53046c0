"""The whole way from paths to statements: sources, lines, wrappers, records, tracebacks; reversed and pasted logs too."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise

import msgspec

from lifesign.errors import SourceError
from lifesign.logs.lines import MAX_LINE_CHARS, Line, pieces
from lifesign.logs.model import Record
from lifesign.logs.records import parse_head, records, seconds
from lifesign.logs.scan import Ahead, Scout, interesting_lines
from lifesign.logs.sources import Source, expand, open_source
from lifesign.logs.tracebacks import Assembler, Statement
from lifesign.logs.wrappers import CORE, Unwrapper

SAMPLE_LINES = 400


class Reading(msgspec.Struct):
    """Everything that was read: statements per source in causal order, and what was left out."""

    statements: list[Statement] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=list)
    bytes_read: int = 0
    lines: int = 0
    lines_cut: int = 0
    lines_unparsed: int = 0
    notes: list[str] = msgspec.field(default_factory=list)
    complete: bool = True
    """Whether every line was read; false when routine of a large log was passed over."""


def read(paths: list[str], ahead: Ahead | None = None, evidence: Sequence[str] = ()) -> Reading:
    """Reads all sources. Raises SourceError when one can't be read at all.

    ahead: scouts that were sent into large files before (see `scan.Ahead`). evidence: further files that the user gave
    about this very engine (exit status, pod description, kernel log).
    """
    reading = Reading()
    sources: list[Iterable[Record]] = []
    beside = set(expand(list(evidence))) - set(expand(paths))
    for name in expand([*paths, *evidence]):
        source = open_source(name)
        reading.paths.append(source.name)
        sources.append(_rows(source, reading, ahead.take(name) if ahead else None))
    rows = sources[0] if len(sources) == 1 else _merge([list(each) for each in sources], beside)
    assembler = Assembler()
    for order, record in enumerate(rows):
        record.order = order
        reading.statements.extend(assembler.feed(record))
    reading.statements.extend(assembler.finish())
    # An exception is complete only when something else follows it in its stream: back to the order of the log.
    reading.statements.sort(key=lambda statement: statement.record.order)
    return reading


def _rows(source: Source, reading: Reading, scout: Scout | None) -> Iterator[Record]:
    """The records of one source, oldest first."""
    raw = list(_without_routine(interesting_lines(source, scout), reading))
    reading.bytes_read += source.bytes_read
    reading.lines += source.lines
    reading.complete = reading.complete and source.complete
    if source.lines == 0:
        raise SourceError(
            source.name,
            "nothing came in: the input is empty. Pipe the log in with both streams: `vllm serve ... 2>&1 | lifesign diagnose -`.",
        )
    sample = _sample(raw)
    unwrapper = Unwrapper()
    unwrapper.learn(sample)
    if _newest_first(list(records(source.name, [Line(0, text) for text in _spread(raw)], unwrapper))):
        raw.reverse()
        source.notes.append(f"{source.name}: the newest line comes first in this file; it was read backwards")
    reading.notes.extend(source.notes)
    return records(source.name, _lines(raw, sample), unwrapper)


_PROBE = b'"GET /'
_ANSWER = b'"POST /v1/'
_STATISTICS = b"generation throughput: "
_RUN = 6
"""Of a run of lines that only show work being done, so many are kept at its start, and the last one."""


_NEWS, _WORK, _PROBED = 0, 1, 2
_BATCH = 4096
_LONG = 600
"""A line this long says more than that work is done."""


def _without_routine(rows: Iterable[tuple[int, bytes]], reading: Reading) -> Iterator[tuple[int, bytes]]:
    """Leaves out what a healthy engine says all day: answered probes, and the middle of long runs of work done."""
    rows = iter(rows)
    run = 0
    latest: tuple[int, bytes] | None = None
    while batch := list(islice(rows, _BATCH)):
        kinds = _kinds([row for _, row in batch])
        if max(len(row) for _, row in batch) > MAX_LINE_CHARS:
            reading.lines_cut += sum(len(row) > MAX_LINE_CHARS for _, row in batch)
        if _PROBED in kinds:
            batch = [row for row, kind in zip(batch, kinds, strict=True) if kind != _PROBED]
            kinds = kinds.replace(bytes([_PROBED]), b"")
        start = 0
        while start < len(batch):
            end = kinds.find(_NEWS if kinds[start] == _WORK else _WORK, start)
            end = end if end >= 0 else len(batch)
            if kinds[start] == _WORK:
                kept = min(end, start + max(0, _RUN - run))
                yield from batch[start:kept]
                latest = batch[end - 1] if kept < end else None
                run += end - start
            else:
                if latest is not None:
                    yield latest
                latest, run = None, 0
                yield from batch[start:end]
            start = end
    if latest is not None:
        yield latest


def _kinds(rows: list[bytes]) -> bytes:
    """One of _NEWS, _WORK, _PROBED for each row. It runs for every line of a log: no call in it that can be spared."""
    return bytes(
        [
            _NEWS
            if len(row) >= _LONG
            else _WORK
            if _STATISTICS in row or (_ANSWER in row and b'" 200' in row)
            else _PROBED
            if _PROBE in row and b'" 200' in row and row.rstrip().endswith(b"OK")
            else _NEWS
            for row in rows
        ]
    )


def _lines(raw: list[tuple[int, bytes]], sample: list[str]) -> Iterator[Line]:
    """Text of the raw lines: pieces, quote marks of pastes, and hard-wrapped lines joined."""
    lines = (piece for number, row in raw for piece in pieces(number, row))
    if _is_quoted(sample):
        lines = (Line(line.number, _unquote(line.text)) for line in lines)
    width = _wrap_width(sample)
    if width == 0:
        return lines
    # Where nearly every line has a header, only a header begins a line: an exception's name may stand after the cut.
    headed = sum(1 for text in sample if CORE.match(text[:120])) * 3 > len(sample)
    return _join_wrapped(lines, width, _HEADED if headed else _FRESH)


def _sample(raw: list[tuple[int, bytes]]) -> list[str]:
    """Text of the first and the last lines."""
    chosen = raw if len(raw) <= 2 * SAMPLE_LINES else raw[:SAMPLE_LINES] + raw[-SAMPLE_LINES:]
    return [piece.text for number, row in chosen for piece in pieces(number, row)]


def _spread(raw: list[tuple[int, bytes]]) -> list[str]:
    """Lines from all over the source, in order."""
    step = max(1, len(raw) // 2000)
    return [pieces(number, row)[0].text for number, row in raw[::step]]


def _is_quoted(sample: list[str]) -> bool:
    """Whether a Markdown quote mark (`> `) stands in front of most lines."""
    quoted = sum(1 for text in sample[:200] if text.startswith("> "))
    return quoted >= 5 and quoted * 2 >= min(len(sample), 200)


def _unquote(text: str) -> str:
    return text[2:] if text.startswith("> ") else text.removeprefix(">")


_FRESH = re.compile(
    r"  File \"|    \S|Traceback \(|\[|\(|\d{4}-\d\d-\d\d|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b|Loading |Capturing |```|\$ "
    r"|(?:[a-z_]\w{0,60}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception): |\{|/\S+:\d+: |\S+ +\| |During handling|The above exception|Failed: |Memory access fault|Process |!!!|\*\*\*"
)


def _wrap_width(sample: list[str]) -> int:
    """The width at which a terminal or a form cut the lines; 0 when they weren't cut.

    Lines of one length are no proof: statistics lines often have one. In a cut log most lines of full width are
    followed by one that doesn't begin like a line of a log.
    """
    width = max((len(text) for text in sample), default=0)
    if not 60 <= width <= 250:
        return 0
    followers = [after for before, after in pairwise(sample) if len(before) == width]
    cut = sum(1 for text in followers if not _begins(text))
    return width if cut >= 3 and cut * 10 >= len(followers) * 6 else 0


def _join_wrapped(lines: Iterable[Line], width: int, fresh: re.Pattern[str]) -> Iterator[Line]:
    """Joins cut lines. The first part keeps its number."""
    current: Line | None = None
    open_line = False
    for line in lines:
        if current is not None and open_line and not _begins(line.text, fresh):
            current = Line(current.number, (current.text + line.text)[:MAX_LINE_CHARS])
        else:
            if current is not None:
                yield current
            current = line
        open_line = len(line.text) == width
    if current is not None:
        yield current


_HEADED = re.compile(r"\d{4}-\d\d-\d\d|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:|\[\d|Loading |Capturing |\{")


def _begins(text: str, fresh: re.Pattern[str] = _FRESH) -> bool:
    """Whether `text` starts a new line of a log rather than going on with one that was cut."""
    return not text.strip() or fresh.match(text) is not None or CORE.match(text[:120]) is not None


def _newest_first(rows: list[Record]) -> bool:
    """Whether time runs backwards through most of the file."""
    times = [row.time_s for row in rows if row.time_s is not None]
    if len(times) < 10:
        return False
    step = max(1, len(times) // 2000)
    sample = times[::step]
    down = sum(1 for before, after in pairwise(sample) if after < before)
    up = sum(1 for before, after in pairwise(sample) if after > before)
    return times[-1] < times[0] and down > 3 * up


def _merge(per_source: list[list[Record]], beside: Collection[str] = ()) -> list[Record]:
    """The records of several parts of one incident on one time line.

    Within a source file order is kept; between sources the time decides, and a line without time goes with the one
    before it. A file in which no engine speaks is a source of its own, hence another program's, unless it was given as
    evidence (`beside`): then its lines are about this engine, as if they had been pasted below the log.
    """
    keyed: list[tuple[float, int, int, Record]] = []
    for index, rows in enumerate(per_source):
        about_us = any(row.path in beside for row in rows[:1]) and not any(row.process.name for row in rows)
        latest = next((row.time_s for row in rows if row.time_s is not None), None)
        if latest is None:
            latest = float("inf") if index else float("-inf")
        for position, row in enumerate(rows):
            if row.time_s is not None and row.time_s > latest:
                latest = row.time_s
            if not row.process.source and not about_us:
                row.process = row.process._replace(source=row.path)
            keyed.append((latest, index, position, row))
    keyed.sort(key=lambda item: item[:3])
    return [item[3] for item in keyed]


__all__ = ["Reading", "Statement", "parse_head", "read", "seconds"]
