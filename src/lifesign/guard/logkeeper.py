"""A small process that carries the engine's output: pipe or terminal in, log segments and our own stdout out.

It is a process of its own for three reasons. The guard may be killed: the engine's pipe must not break, and what the
engine says afterwards must not be lost, so the keeper reads on until the engine closes its end. The guard may be busy
(collecting stacks, diagnosing): a log line must not wait for that. And a reader of our stdout may stop reading: the
engine must not. Three threads share the work:

    reader (one per channel) --> writer (disk, milestones) --> forwarder (one per channel, our stdout or stderr)

The way to the disk is lossless as long as the disk moves at all (the engine is slowed to its speed); when it stands
still for `STUCK_S` lines are counted as lost rather than let the engine stand too. A forwarder that falls behind by more
than `FORWARD_BYTES` drops the bytes from memory, keeps their place on disk, and reads them from there later.

Messages with the guard are JSON over a SOCK_SEQPACKET pair, never waited for: a lost milestone is only a missed hint.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lifesign.guard.logstore import Place, SegmentWriter, compress_segment

READ_BYTES = 1 << 18
WRITE_BYTES = 1 << 16
QUEUE_BYTES = 32 << 20
FORWARD_BYTES = 32 << 20
STUCK_S = 3.0
LAG_BYTES = 256 << 20
LAG_PAUSE_S = 0.04
"""When a reader of our output is that far behind, but reads, the engine is slowed: to 6 MB/s at worst, never stopped."""
PARTIAL_BYTES = 1 << 16
READERS = 16
"""Segments held for a forwarder that is behind; with the usual 64 MiB that is a GiB of log."""
DRAIN_S = 5.0
HANG_UP_S = 10.0
MILESTONE_BYTES = 600
MILESTONES_PER_S = 50


@dataclass
class Channel:
    """One stream of the engine: `read_fd` is our end of its pipe or terminal, `out_fd` where the bytes go on to."""

    read_fd: int
    out_fd: int
    open: bool = True
    partial: bytes = b""
    chunks: deque[tuple[bytes | None, Place | None]] = field(default_factory=deque)
    held_bytes: int = 0
    behind_bytes: int = 0
    ready: threading.Condition = field(default_factory=threading.Condition)


class Keeper:
    """The threads and what they share. `run` returns when every channel has ended and was written out."""

    def __init__(self, channels: list[Channel], control: socket.socket, writer: SegmentWriter, marks: list[bytes]):
        self.channels = channels
        self.control = control
        self.writer = writer
        self.marks = marks
        self._incoming: deque[tuple[Channel, bytes]] = deque()
        self._incoming_bytes = 0
        self._changed = threading.Condition()
        self._moved = 0
        self._stuck_at = -1
        self._shown_bytes = 0
        self._lock = threading.Lock()
        self._readers: dict[int, int] = {}
        self._sent_in_second = (0, 0)
        self._server = threading.Thread(target=self._serve, daemon=True)

    def run(self) -> None:
        """Carry everything until the engine has closed its ends, then drain and say so."""
        threads = [threading.Thread(target=self._read, args=(channel,), daemon=True) for channel in self.channels]
        threads += [threading.Thread(target=self._forward, args=(channel,), daemon=True) for channel in self.channels]
        self._server.start()
        for thread in threads:
            thread.start()
        self._write()
        self._drain(threads)
        for channel in self.channels:
            self.writer.losses.unshown_bytes += sum(
                len(data) if data is not None else place.length if place else 0 for data, place in list(channel.chunks)
            )
        self._send({"op": "eof", **self._stats()})
        # The guard may still want the end of the log from memory; it hangs up when it has all it wants.
        self._server.join(HANG_UP_S)

    def _drain(self, threads: list[threading.Thread]) -> None:
        """Let the forwarders finish as long as anybody reads: `DRAIN_S` without a byte taken is the end."""
        moved, moved_s = -1, time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.02)
            if self._shown_bytes != moved:
                moved, moved_s = self._shown_bytes, time.monotonic()
            elif time.monotonic() - moved_s > DRAIN_S:
                return

    def _read(self, channel: Channel) -> None:
        shown = 0
        while True:
            try:
                data = os.read(channel.read_fd, READ_BYTES)
            except OSError:  # EIO: the last process with the terminal has closed it
                data = b""
            if channel.behind_bytes > LAG_BYTES and self._shown_bytes != shown:
                time.sleep(LAG_PAUSE_S)
            shown = self._shown_bytes
            with self._changed:
                if not data:
                    channel.open = False
                    self._changed.notify_all()
                    return
                while self._incoming_bytes > QUEUE_BYTES:
                    moved = self._moved
                    if self._stuck_at != moved:
                        self._changed.wait(STUCK_S)
                    if self._moved == moved:  # the disk stands still: the engine must not
                        self._stuck_at = moved
                        self.writer.losses.unsaved_bytes += len(data)
                        self._hand_on(channel, data, None)
                        data = b""
                        break
                if data:
                    self._incoming.append((channel, data))
                    self._incoming_bytes += len(data)
                    self._changed.notify_all()

    def _write(self) -> None:
        tail = b""
        while True:
            with self._changed:
                if not self._incoming:
                    self._changed.wait(0.2)
                item = self._incoming.popleft() if self._incoming else None
                ended = item is None and not any(channel.open for channel in self.channels)
            if item is None:
                for channel in self.channels:
                    self._flush(channel)
                if ended:
                    break
                continue
            channel, data = item
            tail = self._scan(tail, data)
            if len(self.channels) > 1:
                self._store_whole_lines(channel, data)
            else:
                self._store(channel, data)
            with self._changed:
                self._incoming_bytes -= len(data)
                self._moved += 1
                self._changed.notify_all()
        with self._lock:
            self.writer.close()
        for channel in self.channels:
            with channel.ready:
                channel.chunks.append((None, None))
                channel.ready.notify()

    def _store(self, channel: Channel, data: bytes) -> None:
        with self._lock:
            place = self.writer.write(data)
        self._hand_on(channel, data, place)

    def _store_whole_lines(self, channel: Channel, data: bytes) -> None:
        """Two channels share one log: only whole lines may meet there (unless a line is endless or pauses).

        What is shown is not held back: the start of a line goes on at once, its end when it comes.
        """
        shown = len(channel.partial)
        data = channel.partial + data
        cut = data.rfind(b"\n") + 1
        if len(data) - cut > PARTIAL_BYTES:
            cut = len(data)
        if cut:
            with self._lock:
                place = self.writer.write(data[:cut])
            if place is not None:
                place = Place(place.segment, place.offset + shown, place.length - shown)
            self._hand_on(channel, data[shown:cut], place)
            shown = cut
        channel.partial = data[cut:]
        if len(data) > shown:
            self._hand_on(channel, data[shown:], None)

    def _flush(self, channel: Channel) -> None:
        if channel.partial:
            with self._lock:
                self.writer.write(channel.partial)
            channel.partial = b""

    def _hand_on(self, channel: Channel, data: bytes, place: Place | None) -> None:
        with channel.ready:
            # The start of a line has no place on disk yet; it is short.
            if channel.held_bytes + len(data) <= FORWARD_BYTES or (place is None and len(data) <= PARTIAL_BYTES):
                channel.chunks.append((data, place))
                channel.held_bytes += len(data)
            elif place is not None:
                channel.chunks.append((None, place))
                channel.behind_bytes += place.length
            else:
                self.writer.losses.unshown_bytes += len(data)
            channel.ready.notify()

    def _forward(self, channel: Channel) -> None:
        gone = False
        while True:
            with channel.ready:
                while not channel.chunks:
                    channel.ready.wait()
                data, place = channel.chunks[0]
            if data is None and place is None:
                with channel.ready:
                    channel.chunks.popleft()
                return
            if not gone:
                gone = not self._show(channel.out_fd, data, place)
            with channel.ready:
                channel.chunks.popleft()
                if data is not None:
                    channel.held_bytes -= len(data)
                elif place is not None:
                    channel.behind_bytes -= place.length

    def _show(self, out_fd: int, data: bytes | None, place: Place | None) -> bool:
        """Write to our stdout or stderr; False once nobody reads it any more."""
        try:
            if data is not None:
                self._write_out(out_fd, data)
            elif place is not None:
                for chunk in self._read_back(place):
                    self._write_out(out_fd, chunk)
        except OSError:
            return False
        return True

    def _read_back(self, place: Place) -> Iterator[bytes]:
        """What was written at a place, through a descriptor of our own: rotation and compression don't matter to it."""
        with self._lock:
            fd = self._readers.get(place.segment)
        offset, left = place.offset, place.length
        while left > 0:
            try:
                chunk = os.pread(fd, min(left, READ_BYTES), offset) if fd is not None else b""
            except OSError:
                chunk = b""
            if not chunk:
                self.writer.losses.unshown_bytes += left
                return
            yield chunk
            offset += len(chunk)
            left -= len(chunk)

    def opened(self, number: int, fd: int) -> None:
        """A segment was opened (the writer holds the lock): keep a descriptor to read it back, drop those not needed."""
        needed = min(
            (place.segment for channel in self.channels for _, place in list(channel.chunks) if place), default=number
        )
        self._readers[number] = os.dup(fd)
        for old in sorted(self._readers):
            if old < needed or len(self._readers) > READERS:
                os.close(self._readers.pop(old))

    def _write_out(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                written = os.write(fd, view[:WRITE_BYTES])
            except BlockingIOError:  # somebody made the shared description non-blocking
                time.sleep(0.01)
                continue
            view = view[written:]
            self._shown_bytes += written

    def _scan(self, tail: bytes, data: bytes) -> bytes:
        """Report lines with one of the marks; gives the end of the chunk, where a mark may have been cut."""
        text = tail + data
        for mark in self.marks:
            at = text.find(mark)
            if at < 0 or at + len(mark) <= len(tail):
                continue
            start = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\n", at)
            line = text[max(start, at - MILESTONE_BYTES) : end if end >= 0 else len(text)][:MILESTONE_BYTES]
            self._milestone(mark, line)
        return text[-64:]

    def _milestone(self, mark: bytes, line: bytes) -> None:
        second = int(time.monotonic())
        count = self._sent_in_second[1] + 1 if self._sent_in_second[0] == second else 1
        self._sent_in_second = (second, count)
        if count <= MILESTONES_PER_S:
            self._send({"op": "mark", "mark": mark.decode(), "line": line.decode("utf-8", "replace")})

    def _stats(self) -> dict[str, Any]:
        losses = self.writer.losses
        return {
            "bytes": self.writer.total_bytes,
            "unsaved_bytes": losses.unsaved_bytes,
            "unshown_bytes": losses.unshown_bytes,
            "disk_error": losses.disk_error,
        }

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            self.control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _serve(self) -> None:
        """Answer the guard; its end being closed means that it is gone, and changes nothing."""
        while True:
            try:
                raw = self.control.recv(1 << 16)
            except OSError:
                return
            if not raw:
                return
            request = json.loads(raw)
            if request["op"] == "sync":
                self._settle()
                with self._lock:
                    self.writer.sync()
                self._send({"op": "synced", **self._stats()})
            elif request["op"] == "stats":
                self._send({"op": "stats", **self._stats()})
            elif request["op"] == "tail":
                with self._lock:
                    tail = self.writer.tail(int(request["bytes"]))
                with suppress(OSError):
                    Path(request["path"]).write_bytes(tail)
                self._send({"op": "tailed", "tailed_bytes": len(tail)})

    def _settle(self, limit_s: float = 1.0) -> None:
        """Wait until what has been read so far is written."""
        deadline_s = time.monotonic() + limit_s
        while self._incoming_bytes and time.monotonic() < deadline_s:
            time.sleep(0.005)


def main(arguments: list[str]) -> None:
    """Run as `logkeeper CONFIG`: JSON with `channels` [[read_fd, out_fd]], `control` fd, `folder`, `marks`, sizes."""
    config = json.loads(arguments[0])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(0.001)
    folder = Path(config["folder"])
    full: deque[int] = deque()
    wake = threading.Event()

    def compress() -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            wake.wait()
            wake.clear()
            while full:
                compress_segment(folder, full.popleft())

    def on_full(number: int) -> None:
        full.append(number)
        wake.set()

    threading.Thread(target=compress, daemon=True).start()
    channels = [Channel(read_fd, out_fd) for read_fd, out_fd in config["channels"]]
    writer = SegmentWriter(
        folder,
        segment_bytes=config["segment_bytes"],
        keep_bytes=config["keep_bytes"],
        on_open=lambda number, fd: keeper.opened(number, fd),
        on_full=on_full,
    )
    marks = [mark.encode() for mark in config["marks"]]
    keeper = Keeper(channels, socket.socket(fileno=config["control"]), writer, marks)
    keeper.run()
    # Threads that wait for a blocked stdout must not keep us: everything that could be saved is saved.
    os._exit(0)
