"""What the reader of logs produces: records of one process each, with physical line numbers kept."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Process(NamedTuple):
    """Who wrote a line, as its prefix says: `name` is e.g. `EngineCore_DP0` or `Worker_TP1`, empty for no prefix.

    `source` tells several files or containers apart (file name or container name).
    """

    name: str = ""
    pid: int | None = None
    source: str = ""

    @property
    def role(self) -> str:
        """`worker`, `core`, `api` or `none`, from the name."""
        name = self.name.lower()
        if "worker" in name or name.startswith("rank"):
            return "worker"
        if "enginecore" in name or "dpcoordinator" in name:
            return "core"
        if "api" in name:
            return "api"
        return "none"

    @property
    def rank(self) -> str:
        """The rank part of the name (`TP1`, `DP0_TP0_EP0`, `rank3`), or empty."""
        _, _, rank = self.name.partition("_")
        return rank


class Frame(msgspec.Struct):
    """One frame of a Python traceback."""

    file: str
    line: int
    func: str
    code: str = ""


class Traceback(msgspec.Struct):
    """One exception with its frames. In a chain each exception is its own `Traceback`, innermost (printed first) first.

    line: number of the physical line that carries `Type: message` (0 when the log was cut before it).
    """

    type: str
    message: str
    line: int
    start_line: int
    frames: list[Frame] = msgspec.field(default_factory=list)
    chain_index: int = 0
    chained_to: Traceback | None = None
    header: str = ""
    wraps: str = ""
    more: list[tuple[int, str]] = msgspec.field(default_factory=list)
    """Further lines of the message, each with its physical line number."""

    @property
    def short_type(self) -> str:
        """The class name without its module."""
        return self.type.rpartition(".")[2]

    def passes(self, *parts: str) -> bool:
        """Whether any frame's `file:func` contains any of `parts`."""
        return any(part in f"{frame.file}:{frame.func}" for frame in self.frames for part in parts)


class Record(msgspec.Struct):
    """One logical line of one process, with wrapper, prefix and level header removed from `text`.

    path, line: file as given and 1-based physical line number.
    level: `ERROR`, `WARNING`, ... or empty. time_s: seconds on a monotone scale within one log, or None.
    origin: source position that the logger printed, e.g. `core.py:1512`, or empty.
    bare: true when the line has neither process prefix nor level header (C printf, uvicorn, continuation, kernel).
    """

    path: str
    line: int
    process: Process
    level: str
    time_s: float | None
    origin: str
    text: str
    bare: bool
    stamp: str = ""
    head_stamp: str = ""
    """The time that the line's own head carries (not a collector's)."""
    order: int = 0
    """Position among all records that were read together; events follow it."""
