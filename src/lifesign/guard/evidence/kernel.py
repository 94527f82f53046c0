"""What the kernel said while the engine lived: OOM kills, GPU errors (Xid), segmentation faults.

/dev/kmsg is opened when the life starts, so that what is read at its end is exactly what came in between. Without
permission `dmesg` is tried, and the note says what would give access.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field

from lifesign.guard.helpers import Helpers

MAX_LINES = 2000
MAX_BYTES = 256 << 10
_XID = re.compile(r"NVRM: Xid \(PCI:[0-9A-Fa-f:.]{1,20}\): (\d{1,4})")
_OOM = re.compile(r"(?:Killed process|oom_reaper: reaped process) (\d{1,9}) \(([^)]{1,40})\)")


@dataclass(frozen=True)
class KernelReport:
    """Lines as `dmesg` prints them; `xids` and `oom_kills` (pid, name) found in them; `note` when it is incomplete."""

    lines: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    oom_kills: tuple[tuple[int, str], ...] = ()
    note: str = ""


@dataclass
class KernelTail:
    """The kernel's messages since `open`."""

    _fd: int = -1
    _error: str = ""
    _opened_s: float = 0.0
    _lines: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Start here."""
        self.close()
        self._lines = []
        self._opened_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self._error = error.strerror or str(error)

    def close(self) -> None:
        """Close the device."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def read(self, helpers: Helpers) -> KernelReport:
        """Everything since `open`, bounded."""
        if self._fd < 0:
            return self._from_dmesg(helpers)
        size = sum(map(len, self._lines))
        while len(self._lines) < MAX_LINES and size < MAX_BYTES:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring buffer has wrapped over our place: go on with the oldest record
                continue
            except OSError:
                break
            line = format_record(record)
            if line:
                self._lines.append(line)
                size += len(line)
        return report_of(self._lines)

    def _from_dmesg(self, helpers: Helpers) -> KernelReport:
        result = helpers.run(["dmesg"], 3.0)
        if result.code != 0:
            reason = result.note or " ".join(result.output.split())[:200]
            return KernelReport(
                note=f"kernel messages can't be read (/dev/kmsg: {self._error}; dmesg: {reason}); run guard as root, or with "
                "CAP_SYSLOG, or set kernel.dmesg_restrict=0"
            )
        kept = []
        for line in result.output.splitlines()[-MAX_LINES:]:
            stamp = line.removeprefix("[").split("]", 1)[0].strip()
            with suppress(ValueError):
                if float(stamp) >= self._opened_s - 1.0:
                    kept.append(line)
        return report_of(kept)


def format_record(record: bytes) -> str:
    """A /dev/kmsg record (`6,1234,5678901,-;text`, continuation lines below) as a line of dmesg; empty if it is cut."""
    head, separator, text = record.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not fields[2].isdigit():
        return ""
    first = text.split(b"\n", 1)[0].decode("utf-8", "replace")
    return f"[{int(fields[2]) / 1e6:12.6f}] {first[:1000]}"


def report_of(lines: list[str]) -> KernelReport:
    """Find the events in kernel lines."""
    xids: list[int] = []
    kills: dict[int, str] = {}
    for line in lines:
        found = _XID.search(line)
        if found:
            xids.append(int(found.group(1)))
        killed = _OOM.search(line)
        if killed:
            kills.setdefault(int(killed.group(1)), killed.group(2))
    return KernelReport(tuple(lines), tuple(xids), tuple(kills.items()))
