"""The way of the engine's output: nothing lost, nothing blocked, everything found again after rotation."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lifesign.guard.helpers import Helpers
from lifesign.guard.logstore import (
    RETRY_S,
    SegmentWriter,
    compress_segment,
    read_segment,
    segments,
)
from lifesign.guard.spawn import Streams, spawn_keeper

PATIENCE_S = 30.0


def whole(folder: Path) -> bytes:
    return b"".join(chunk for _, path in segments(folder) for chunk in read_segment(path))


def test_segments_rotate_compress_and_read_as_one(tmp_path: Path) -> None:
    full: list[int] = []
    writer = SegmentWriter(tmp_path, segment_bytes=1000, on_full=full.append)
    lines = [f"line {index:05d}\n".encode() for index in range(500)]
    places = [writer.write(line) for line in lines]
    writer.close()
    assert full == [1, 2, 3, 4, 5]
    for number in full:
        compress_segment(tmp_path, number)
    assert sorted({path.suffix for _, path in segments(tmp_path)}) == [".log", ".zst"]
    assert whole(tmp_path) == b"".join(lines)
    place = places[123]
    assert place is not None
    path = dict(segments(tmp_path))[place.segment]
    assert b"".join(read_segment(path, place.offset, place.length)) == lines[123]


def test_the_first_segment_and_the_newest_are_kept(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, segment_bytes=1000, keep_bytes=3000)
    for index in range(2000):
        writer.write(f"line {index:05d}\n".encode())
    writer.close()
    kept = whole(tmp_path)
    assert kept.startswith(b"line 00000\n")
    assert kept.endswith(b"line 01999\n")
    assert len(kept) <= 5000


def test_a_full_disk_is_counted_remembered_and_tried_again() -> None:
    """/dev/full takes the open and refuses the write, like a disk without room."""
    now = [100.0]
    writer = SegmentWriter(Path("/dev/full"), clock=lambda: now[0])
    assert writer.write(b"lost line\n") is None
    assert writer.losses.unsaved_bytes == 10
    assert writer.losses.disk_error
    assert writer.tail() == b"lost line\n"
    now[0] += RETRY_S / 2
    assert writer.write(b"x") is None


def test_writing_goes_on_once_there_is_room(tmp_path: Path) -> None:
    now = [0.0]
    blocker = tmp_path / "logs"
    blocker.write_text("a file where a folder should be")
    writer = SegmentWriter(blocker, clock=lambda: now[0])
    assert writer.write(b"a\n") is None
    blocker.unlink()
    assert writer.write(b"b\n") is None, "not before the pause is over"
    now[0] += RETRY_S
    assert writer.write(b"c\n") is not None
    assert whole(blocker) == b"c\n"
    assert writer.losses.unsaved_bytes == 4


def test_damaged_compression_is_an_oserror(tmp_path: Path) -> None:
    path = tmp_path / "000001.log.zst"
    path.write_bytes(b"not zstandard")
    with pytest.raises(OSError, match="000001"):
        list(read_segment(path))


class Pipe:
    """A keeper on one pipe, with our ends of everything."""

    def __init__(self, folder: Path, *, channels: int = 1, segment_bytes: int = 64 << 20) -> None:
        self.folder = folder
        self.helpers = Helpers()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        streams = Streams(-1, -1)
        ends = []
        for _ in range(channels):
            read_fd, write_fd = os.pipe()
            shown_fd, out_fd = os.pipe()
            streams.channels.append((read_fd, out_fd))
            self.inputs.append(write_fd)
            self.outputs.append(shown_fd)
            ends.append(out_fd)
        self.link = spawn_keeper(
            self.helpers, streams, folder, marks=["READY mark"], segment_bytes=segment_bytes, keep_bytes=1 << 30
        )
        for out_fd in ends:
            os.close(out_fd)
        streams.close()

    def messages(self, until: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found += self.link.receive()
            for index, message in enumerate(found):
                if message["op"] == until:
                    if until == "eof":
                        self.link.control.close()
                    return found[: index + 1]
            time.sleep(0.02)
        raise AssertionError(f"no {until!r} in {found}")

    def end(self) -> None:
        for fd in [*self.inputs, *self.outputs]:
            with suppress(OSError):
                os.close(fd)
        self.link.process.kill()
        self.link.process.wait()
        self.link.control.close()


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "log")
    yield made
    made.end()


def read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 1 << 20):
        data += chunk
    return data


def test_bytes_pass_unchanged_and_are_kept(pipe: Pipe) -> None:
    raw = b"\x1b[31mred\x1b[0m \xff\xfe\r progress\r\nREADY mark here\nlast without end"
    os.write(pipe.inputs[0], raw)
    os.close(pipe.inputs[0])
    messages = pipe.messages("eof")
    assert read_all(pipe.outputs[0]) == raw
    assert whole(pipe.folder) == raw
    assert [message["line"] for message in messages if message["op"] == "mark"] == ["READY mark here"]
    assert messages[-1]["unsaved_bytes"] == 0


def test_a_mark_cut_in_two_is_seen_once(pipe: Pipe) -> None:
    os.write(pipe.inputs[0], b"READY ma")
    time.sleep(0.3)
    os.write(pipe.inputs[0], b"rk\n")
    os.close(pipe.inputs[0])
    assert len([message for message in pipe.messages("eof") if message["op"] == "mark"]) == 1


@pytest.mark.parametrize("channels", [1, 2])
def test_a_reader_that_stopped_reading_stops_nobody_and_gets_everything_later(tmp_path: Path, channels: int) -> None:
    """48 MiB while nobody reads our stdout: more than what is held in memory, so the rest comes back from disk."""
    pipe = Pipe(tmp_path / "log", channels=channels)
    try:
        block = b"".join(b"%015d\n" % index for index in range(65536))
        started = time.monotonic()
        for _ in range(48):
            view = memoryview(block)
            while view:
                view = view[os.write(pipe.inputs[0], view) :]
        assert time.monotonic() - started < PATIENCE_S
        for fd in pipe.inputs:
            os.close(fd)
        total, twice = 0, block * 2
        while chunk := os.read(pipe.outputs[0], 1 << 20):
            at = total % len(block)
            assert chunk == twice[at : at + len(chunk)]
            total += len(chunk)
        assert total == 48 * len(block)
        assert whole(pipe.folder) == block * 48
    finally:
        pipe.end()


def test_a_reader_that_went_away_stops_nobody(pipe: Pipe) -> None:
    os.close(pipe.outputs[0])
    for _ in range(50):
        os.write(pipe.inputs[0], b"x" * 1000 + b"\n")
    os.close(pipe.inputs[0])
    assert pipe.messages("eof")[-1]["bytes"] == 50 * 1001
    assert len(whole(pipe.folder)) == 50 * 1001


def test_the_keeper_outlives_its_guard(pipe: Pipe) -> None:
    os.write(pipe.inputs[0], b"before\n")
    pipe.link.control.shutdown(socket.SHUT_RDWR)
    pipe.link.control.close()
    time.sleep(0.3)
    os.write(pipe.inputs[0], b"after\n")
    os.close(pipe.inputs[0])
    assert pipe.link.process.wait(PATIENCE_S) == 0
    assert whole(pipe.folder) == b"before\nafter\n"


def test_two_channels_meet_in_whole_lines(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path / "log", channels=2)
    try:
        for index in range(200):
            os.write(pipe.inputs[0], b"out-%d-" % index)
            os.write(pipe.inputs[1], b"err-%d-" % index)
            os.write(pipe.inputs[1], b"end\n")
            os.write(pipe.inputs[0], b"end\n")
        for fd in pipe.inputs:
            os.close(fd)
        pipe.messages("eof")
        lines = whole(pipe.folder).splitlines()
        assert sorted(lines) == sorted(
            b"%s-%d-end" % (name, index) for name in (b"out", b"err") for index in range(200)
        )
        assert read_all(pipe.outputs[0]).count(b"out") == 200
    finally:
        pipe.end()


def test_sync_and_tail_answer(pipe: Pipe, tmp_path: Path) -> None:
    os.write(pipe.inputs[0], b"one\ntwo\n")
    assert os.read(pipe.outputs[0], 100) == b"one\ntwo\n"
    pipe.link.send({"op": "sync"})
    assert pipe.messages("synced")[-1]["bytes"] == 8
    pipe.link.send({"op": "tail", "path": str(tmp_path / "tail"), "bytes": 4})
    pipe.messages("tailed")
    assert (tmp_path / "tail").read_bytes() == b"two\n"
    assert whole(pipe.folder) == b"one\ntwo\n"
