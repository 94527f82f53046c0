"""The whole way from paths to statements: sources, lines, wrappers, records, tracebacks; reversed and pasted logs too."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from lifesign.logs.lines import Line, pieces
from lifesign.logs.model import Record
from lifesign.logs.records import parse_head, records, seconds
from lifesign.logs.scan import interesting_lines
from lifesign.logs.sources import Source, expand, open_source
from lifesign.logs.tracebacks import Assembler, Statement
from lifesign.logs.wrappers import CORE, Unwrapper

SAMPLE_LINES = 400


@dataclass(slots=True)
class Reading:
    """Everything that was read: statements per source in causal order, and what was left out."""

    statements: list[Statement] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    bytes_read: int = 0
    lines: int = 0
    lines_cut: int = 0
    lines_unparsed: int = 0
    notes: list[str] = field(default_factory=list)


def read(paths: list[str]) -> Reading:
    """Reads all sources. Raises SourceError when one can't be read at all."""
    reading = Reading()
    per_source: list[list[Record]] = []
    for name in expand(paths):
        source = open_source(name)
        reading.paths.append(source.name)
        rows = _rows(source, reading)
        per_source.append(rows)
        reading.bytes_read += source.bytes_read
        reading.lines += source.lines
        reading.notes.extend(source.notes)
    for rows in _merge(per_source):
        assembler = Assembler()
        statements: list[Statement] = []
        for order, record in enumerate(rows):
            record.order = order
            statements.extend(assembler.feed(record))
        statements.extend(assembler.finish())
        # An exception is complete only when something else follows it in its stream: back to the order of the log.
        statements.sort(key=lambda statement: statement.record.order)
        reading.statements.extend(statements)
    return reading


def _rows(source: Source, reading: Reading) -> list[Record]:
    """The records of one source, oldest first."""
    lines: list[Line] = []
    for number, raw in interesting_lines(source):
        if len(raw) > 16_000:
            reading.lines_cut += 1
        lines.extend(pieces(number, raw))
    lines = _unfence(lines)
    sample = [line.text for line in lines[:SAMPLE_LINES]] + [line.text for line in lines[SAMPLE_LINES:][-SAMPLE_LINES:]]
    unwrapper = Unwrapper()
    unwrapper.learn(sample)
    lines = _unwrap_width(lines, sample)
    rows = list(records(source.name, lines, unwrapper))
    if _newest_first(rows):
        rows.reverse()
        reading.notes.append(f"{source.name}: the newest line comes first in this file; it was read backwards")
    return rows


def _unfence(lines: list[Line]) -> list[Line]:
    """Markdown pastes: quote marks (`> `) in front of most lines are taken off."""
    quoted = sum(1 for line in lines[:200] if line.text.startswith("> "))
    if quoted * 2 < min(len(lines), 200) or quoted < 5:
        return lines
    return [
        Line(line.number, line.text[2:] if line.text.startswith("> ") else line.text.removeprefix(">"))
        for line in lines
    ]


_FRESH = re.compile(
    r"\s|\(|\[|INFO|WARNING|ERROR|DEBUG|CRITICAL|Traceback|File |\d{4}-|[A-Za-z_][\w.]{1,80}(?:Error|Exception)\b|Loading |Capturing |```|\$ |$"
)


def _unwrap_width(lines: list[Line], sample: list[str]) -> list[Line]:
    """Joins lines that a terminal or a form cut at a fixed width. The first part keeps its number."""
    lengths: dict[int, int] = {}
    for text in sample:
        lengths[len(text)] = lengths.get(len(text), 0) + 1
    if not lengths:
        return lines
    width = max(lengths)
    if not 60 <= width <= 250 or lengths[width] < 3 or lengths[width] * 40 < len(sample):
        return lines
    joined: list[Line] = []
    open_line = False
    for line in lines:
        if open_line and joined and not (_FRESH.match(line.text) and CORE.match(line.text.lstrip()[:120] or " ")):
            previous = joined[-1]
            fresh = _FRESH.match(line.text) is not None and len(previous.text) % width != 0
            if not fresh:
                joined[-1] = Line(previous.number, (previous.text + line.text)[:16_000])
                open_line = len(line.text) == width
                continue
        joined.append(line)
        open_line = len(line.text) == width
    return joined


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


def _merge(per_source: list[list[Record]]) -> list[list[Record]]:
    """One list when the sources are parts of one incident (their times overlap), else one per source in order.

    Within a source file order is kept; between sources the time decides, and a line without time goes with the one
    before it.
    """
    if len(per_source) < 2:
        return per_source
    keyed: list[tuple[float, int, int, Record]] = []
    for index, rows in enumerate(per_source):
        latest = next((row.time_s for row in rows if row.time_s is not None), None)
        if latest is None:
            latest = float("inf") if index else float("-inf")
        for position, row in enumerate(rows):
            if row.time_s is not None and row.time_s > latest:
                latest = row.time_s
            if not row.process.source:
                row.process = row.process._replace(source=row.path)
            keyed.append((latest, index, position, row))
    keyed.sort(key=lambda item: item[:3])
    return [[item[3] for item in keyed]]


__all__ = ["Reading", "Statement", "parse_head", "read", "seconds"]
