"""The gate: of all lines of a source, those that can matter to a diagnosis, with their physical line numbers."""

from __future__ import annotations

from collections.abc import Iterator

from lifesign.logs.sources import Source, read_blocks

BLOCK_BYTES = 1 << 20
MAX_RAW_BYTES = 64_000


def interesting_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """`(line number, raw bytes without the newline)` of the lines of `source`; counts all of them in `source.lines`."""
    number = 0
    rest = b""
    for block in read_blocks(source, BLOCK_BYTES):
        rows = (rest + block).split(b"\n")
        rest = rows.pop()
        for row in rows:
            number += 1
            yield number, row[:MAX_RAW_BYTES]
    if rest:
        number += 1
        yield number, rest[:MAX_RAW_BYTES]
    source.lines = number
