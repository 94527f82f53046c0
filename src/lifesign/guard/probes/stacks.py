"""Takes the Python stacks of a process with py-spy, without stopping it, to see whether they change.

One busy thread that computes and one that spins have the same counters; their stacks differ. Taking one costs some
tenths of a second of processor time, so it is done only for a process that would otherwise be called stuck, one at a
time, in the background. py-spy is optional (`pip install lifesign[stacks]`); without it, or without the right to read
the process, the evidence is simply missing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 5.0
OUTPUT_BYTES = 8 << 20
FAILURES_BORNE = 3


def find_py_spy() -> str | None:
    """The py-spy program beside this interpreter or on the path; None if there is none."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


class StackProbe:
    """Takes stacks in the background; `poll` never waits. Call `close` at the end."""

    def __init__(self, program: str | None = None) -> None:
        self._program = program if program is not None else find_py_spy()
        self._running: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._pid = 0
        self._deadline_s = 0.0
        self._failures: dict[int, int] = {}

    @property
    def available(self) -> bool:
        """Whether there is a py-spy to ask."""
        return self._program is not None

    def request(self, pid: int) -> bool:
        """Begin to take the stacks of `pid`; False if one is being taken, or it failed too often."""
        if self._program is None or self._running is not None or self._failures.get(pid, 0) >= FAILURES_BORNE:
            return False
        command = [self._program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        # A file, for nobody reads while it runs: a pipe holds 64 KiB, and a worker of fifty threads has more to say.
        try:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed in _end)
        except OSError:
            return False
        try:
            self._running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._program = None
            self._output.close()
            return False
        self._pid = pid
        self._deadline_s = time.monotonic() + TIMEOUT_S
        return True

    def poll(self) -> tuple[int, dict[str, int]] | None:
        """(pid, fingerprint of the stack of each thread by its number in the kernel) once a dump is ready; else None."""
        running = self._running
        if running is None:
            return None
        if running.poll() is None:
            if time.monotonic() > self._deadline_s:
                self._end()
                self._failures[self._pid] = self._failures.get(self._pid, 0) + 1
            return None
        assert self._output is not None
        self._output.seek(0)
        output = self._output.read(OUTPUT_BYTES)
        good = running.returncode == 0
        self._end()
        marks = fingerprints(output) if good else {}
        if not marks:
            self._failures[self._pid] = self._failures.get(self._pid, 0) + 1
            return None
        return self._pid, marks

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(OSError):
            running.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(5.0)
        if self._output is not None:
            self._output.close()

    def close(self) -> None:
        """End a dump that is under way."""
        self._end()


def fingerprints(output: bytes) -> dict[str, int]:
    """A number for the stack of each thread in py-spy's JSON, by the thread's number; empty if it isn't that.

    Functions count, lines don't: a loop that does nothing has several lines, too.
    """
    try:
        threads: list[dict[str, Any]] = json.loads(output)
        return {
            str(one.get("os_thread_id")): hash(
                tuple((frame.get("filename"), frame.get("name")) for frame in one.get("frames", []))
            )
            for one in threads
        }
    except (ValueError, TypeError, AttributeError):
        return {}
