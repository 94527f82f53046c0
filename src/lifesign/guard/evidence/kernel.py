"""What the kernel said while the engine lived: OOM kills, GPU errors (Xid), segmentation faults.

/dev/kmsg is opened when the life starts and emptied every few moments, so that neither a noisy kernel nor a long life
hides the last message, which is the one that matters. Without permission `dmesg` is tried at the end, and the note says
what would give access.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from lifesign.guard.helpers import MAX_OUTPUT_BYTES, Helpers

MAX_LINES = 2000
MAX_EVENT_LINES = 400
MAX_KILLS = 1000
MAX_XIDS = 1000
RECORDS_PER_DRAIN = 5000
RECORDS_AT_END = 200_000
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,20})\): (\d{1,4})(?:, pid=(\d{1,9}))?")
_OOM = re.compile(r"(?:Killed process|oom_reaper: reaped process) (\d{1,9}) \(([^)]{1,40})\)")

_VICTIM = re.compile(
    r"(?:[Kk]ill(?:ed)? process |reaped process |oom-kill:[^\n]{0,400},pid=)(\d{1,9})|\[(\d{1,9})\]:? (?:segfault at|general protection)"
)


class Xid(NamedTuple):
    """An error that the NVIDIA driver reported: its number, the device's PCI address as `pci_address` writes it, the
    process that it names (0 for none), and when it came last, in seconds on the guard's clock."""

    number: int
    pci: str = ""
    pid: int = 0
    at_s: float = 0.0


@dataclass(frozen=True)
class KernelReport:
    """Lines as `dmesg` prints them, the newest; `xids` and `oom_kills` (pid, name) of the whole life.

    note: messages may have been missed, so that silence proves nothing. dropped: older lines that are not in `lines`;
    what they said of Xids and kills was taken down all the same.
    """

    lines: tuple[str, ...] = ()
    xids: tuple[Xid, ...] = ()
    oom_kills: tuple[tuple[int, str], ...] = ()
    note: str = ""
    dropped: int = 0


@dataclass
class _Heard:
    """Everything that was heard: the newest lines, and apart from them those that name an event."""

    count: int = 0
    newest: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    events: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MAX_EVENT_LINES))
    xids: dict[tuple[int, str, int], float] = field(default_factory=dict)
    kills: dict[int, str] = field(default_factory=dict)

    def add(self, line: str, at_s: float) -> None:
        """Take down one line that came at `at_s`."""
        self.count += 1
        numbered = (self.count, line)
        self.newest.append(numbered)
        found = _XID.search(line)
        if found:
            key = (int(found.group(2)), pci_address(found.group(1)), int(found.group(3) or 0))
            if key in self.xids or len(self.xids) < MAX_XIDS:
                self.xids[key] = at_s
        killed = _OOM.search(line)
        if killed:
            if len(self.kills) >= MAX_KILLS:
                del self.kills[next(iter(self.kills))]
            self.kills.setdefault(int(killed.group(1)), killed.group(2))
        if found or killed:
            self.events.append(numbered)

    def report(self, note: str) -> KernelReport:
        """What is to be kept of it."""
        kept = sorted({*self.newest, *self.events})
        return KernelReport(
            tuple(line for _, line in kept),
            tuple(Xid(*key, at_s) for key, at_s in self.xids.items()),
            tuple(self.kills.items()),
            note,
            self.count - len(kept),
        )


@dataclass
class KernelTail:
    """The kernel's messages since `open`. Call `drain` every second or so."""

    clock: Callable[[], float] = time.monotonic
    _fd: int = -1
    _error: str = ""
    _opened_s: float = 0.0
    _missed: str = ""
    _heard: _Heard = field(default_factory=_Heard)

    def open(self) -> None:
        """Start here."""
        self.close()
        self._heard, self._missed = _Heard(), ""
        self._opened_s = time.clock_gettime(time.CLOCK_MONOTONIC)
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

    def drain(self, limit: int = RECORDS_PER_DRAIN) -> None:
        """Take what has come since the last call; never waits."""
        if self._fd < 0:
            return
        now_s = self.clock()
        for _ in range(limit):
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except OSError as error:
                # EPIPE: the ring buffer has wrapped over our place; EINVAL: a record that is too long. Reading goes on.
                if error.errno in (errno.EPIPE, errno.EINVAL):
                    self._missed = "the kernel wrote faster than guard could read: some of its messages were missed"
                    continue
                self._missed = f"reading the kernel's messages broke off ({error.strerror or error})"
                return
            if not record:  # a device never ends: this is something else in its place
                return
            line = format_record(record)
            if line:
                self._heard.add(line, now_s)
        if limit >= RECORDS_AT_END:
            self._missed = "the kernel writes without end: its last messages were not waited for"

    def read(self, helpers: Helpers) -> KernelReport:
        """Everything since `open`, bounded."""
        if self._fd < 0 and not self._heard.count and not self._missed:
            return self._from_dmesg(helpers)
        self.drain(RECORDS_AT_END)
        return self._heard.report(self._missed)

    def _from_dmesg(self, helpers: Helpers) -> KernelReport:
        result = helpers.run(["dmesg"], 3.0)
        if result.code != 0:
            reason = result.note or " ".join(result.output.split())[:200]
            return KernelReport(
                note=f"kernel messages can't be read (/dev/kmsg: {self._error}; dmesg: {reason}); run guard as root, or with "
                "CAP_SYSLOG, or set kernel.dmesg_restrict=0"
            )
        note = ""
        if len(result.output.encode()) >= MAX_OUTPUT_BYTES:
            note = f"dmesg printed more than {MAX_OUTPUT_BYTES >> 20} MiB: its last messages were missed"
        heard, first = _Heard(), True
        for line in result.output.splitlines():
            stamp = line.removeprefix("[").split("]", 1)[0].strip()
            with suppress(ValueError):
                at_s = float(stamp)
                if first and at_s > self._opened_s + 1.0 and not note:
                    note = "the kernel's ring buffer is too small for this life: its first messages were overwritten"
                first = False
                if at_s >= self._opened_s - 1.0:
                    heard.add(line[:1100], at_s)
        return heard.report(note)


def numbers_processes_as_we_do() -> bool:
    """Whether the pids in kernel messages are those that we see: not inside a container with pids of its own."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"  # PROC_PID_INIT_INO: the first pid namespace
    return False


def pci_address(text: str) -> str:
    """`0000:3b:00` for what the driver, NVML (`00000000:3B:00.0`) and nvidia-smi write in several ways."""
    parts = text.lower().partition(".")[0].split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]])


def is_strangers_end(line: str, pids: set[int], *, any_of_ours: bool) -> bool:
    """Whether a line tells of a killed or crashed process that is none of `pids`, or heads the report of such a kill.

    any_of_ours: the kernel killed one of `pids` as well, so that a head without a number may be its.
    """
    found = _VICTIM.search(line[:1000])
    if found is not None:
        return int(found.group(1) or found.group(2)) not in pids
    return "invoked oom-killer" in line and not any_of_ours


def format_record(record: bytes) -> str:
    """A /dev/kmsg record (`6,1234,5678901,-;text`, continuation lines below) as a line of dmesg; empty if it is cut."""
    head, separator, text = record.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not fields[2].isdigit():
        return ""
    first = text.split(b"\n", 1)[0].decode("utf-8", "replace")
    return f"[{int(fields[2]) / 1e6:12.6f}] {first[:1000]}"


def report_of(lines: list[str], at_s: float = 0.0) -> KernelReport:
    """Find the events in kernel lines that all came at `at_s`."""
    heard = _Heard()
    for line in lines:
        heard.add(line, at_s)
    return heard.report("")
