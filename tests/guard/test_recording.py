"""What the detector was told is kept to the last moment, in bounded space, and replays from where it begins."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lifesign.guard import recording
from lifesign.guard.bundle import Bundle
from lifesign.guard.closing import _put_events
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Begin, Event, Exited, Poll
from lifesign.guard.detector.policy import StepSize
from lifesign.guard.detector.replay import replay
from lifesign.guard.recording import Recording, drop_recording, newest_events, recording_paths
from lifesign.guard.statedir import StateDir

from .harness import guard


def busy(start_s: float, seconds: int) -> list[tuple[float, Event]]:
    """Steps that get slower and slower, with a pause now and then; ends with a worker's death."""
    events: list[tuple[float, Event]] = [(start_s, Begin("cpu", "outside", True))]
    for at in range(1, seconds):
        steps = 0 if at % 50 > 30 else 1
        events.append((start_s + at, Poll(steps, True, 0.2 + 1e-4 * at, StepSize(2, 20 + at % 7))))
    return [*events, (start_s + seconds, Exited("worker 0", 7, None, 9))]


def tell(one: Recording, events: list[tuple[float, Event]]) -> None:
    for at, event in events:
        one.handle(event, at)
    one.close()


def faithful(content: bytes) -> list[Event]:
    """The events of a recording, every one of which replays bit for bit."""
    told = list(replay(content.decode().splitlines()))
    assert told
    assert [one.line for one in told if not one.same] == []
    return [one.event for one in told]


@pytest.fixture
def notes() -> list[str]:
    return []


def test_the_newest_events_of_a_long_life_are_kept_and_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    monkeypatch.setattr(recording, "FILE_BYTES", 20_000)
    events = busy(0.0, 2000)
    tell(Recording(tmp_path, "life", Detector(Settings(canary=True)), notes.append), events)
    old, new = (path.stat().st_size for path in recording_paths(tmp_path, "life"))
    assert 20_000 <= old < 25_000
    assert new < 25_000
    content, omitted = newest_events(tmp_path, "life", 60_000)
    assert omitted == 0
    told = faithful(content)
    assert 150 < len(told) < len(events)
    assert told == [event for _, event in events][-len(told) :]
    for path in recording_paths(tmp_path, "life"):
        faithful(path.read_bytes())
    assert notes == []


def test_a_second_life_replays_with_what_the_first_one_taught(tmp_path: Path, notes: list[str]) -> None:
    detector = Detector(Settings(may_resume=True, canary=True))
    tell(Recording(tmp_path, "1", detector, notes.append), busy(0.0, 300))
    tell(Recording(tmp_path, "2", detector, notes.append), busy(1000.0, 300))
    for life, start_s in (("1", 0.0), ("2", 1000.0)):
        content, _ = newest_events(tmp_path, life, 1 << 20)
        assert faithful(content) == [event for _, event in busy(start_s, 300)]
    lines = content.decode().splitlines()
    assert not all(one.same for one in replay(line for line in lines if "checkpoint" not in line))


def test_a_full_disk_costs_lines_and_no_half_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    room = [10_000]

    def write(fd: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = real(fd, data[: room[0]])
        room[0] -= taken
        return taken

    real = os.write
    monkeypatch.setattr(recording.os, "write", write)
    one = Recording(tmp_path, "life", Detector(), notes.append)
    events = busy(0.0, 400)
    for at, event in events:
        if at == 300.0:
            room[0] = 1 << 30
        one.handle(event, at)
    one.close()
    content, _ = newest_events(tmp_path, "life", 1 << 20)
    told = faithful(content)
    assert len(told) < 350
    assert told[-1] == events[-1][1]
    assert content.count(b'"checkpoint"') == 2
    assert len(notes) == 2
    assert "can't be recorded" in notes[0]
    assert "again" in notes[1]


def test_a_folder_that_takes_nothing_stops_no_detector(tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "events").write_text("in the way")
    detector = Detector()
    tell(Recording(tmp_path / "events", "life", detector, notes.append), busy(0.0, 60))
    assert detector.view == "DEAD"
    assert len(notes) == 1


def test_too_much_is_cut_where_it_still_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    monkeypatch.setattr(recording, "FILE_BYTES", 20_000)
    tell(Recording(tmp_path, "life", Detector(), notes.append), busy(0.0, 2000))
    whole = b"".join(path.read_bytes() for path in recording_paths(tmp_path, "life"))
    content, omitted = newest_events(tmp_path, "life", len(whole) - 5)
    assert content == recording_paths(tmp_path, "life")[1].read_bytes()
    assert omitted == len(whole) - len(content)
    faithful(content)
    drop_recording(tmp_path, "life")
    assert newest_events(tmp_path, "life", 100) == (b"", 0)
    recording_paths(tmp_path, "life")[1].write_bytes(b"".join(b'{"t":%d}\n' % at for at in range(100)))
    content, omitted = newest_events(tmp_path, "life", 50)  # of an earlier release, without a checkpoint
    assert content.startswith(b'{"t":')
    assert content.endswith(b'{"t":99}\n')
    assert len(content) <= 50
    assert omitted > 0


def test_the_bundle_of_every_life_replays(tmp_path: Path) -> None:
    with guard(tmp_path, "--max-restarts", "1", engine_args=("--die", "worker-exception", "--after", "2.5")) as run:
        assert run.wait() != 0
        found = run.incidents()
        assert [one["life"]["number"] for one in found] == [1, 2]
        for one in found:
            faithful((one["folder"] / "events.jsonl").read_bytes())
        assert list((run.state / "events").iterdir()) == []


class Shared:
    """As much of a context as the bundle's writer wants."""

    def __init__(self, state: StateDir) -> None:
        self.state = state


@pytest.mark.parametrize("full", [True, False])
def test_the_original_goes_only_once_the_bundle_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool, notes: list[str]
) -> None:
    state = StateDir(tmp_path / "state")
    state.open()
    folder = state.root / "events"
    tell(Recording(folder, "life", Detector(), notes.append), busy(0.0, 60))
    bundle = Bundle(state, "i")
    if full:
        monkeypatch.setattr(Bundle, "put", lambda *_: False)
    shared: Any = Shared(state)
    _put_events(shared, bundle, "life")
    assert (folder / "life.jsonl").exists() is full
    assert (bundle.folder / "events.jsonl").exists() is not full
    assert bool(bundle.left_out) is full
    if full:
        assert str(folder) in bundle.left_out[0]
    else:
        faithful((bundle.folder / "events.jsonl").read_bytes())
    state.close()


def shown(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", "watch", "--replay", str(path), "--lang", "en", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_watch_replays_with_the_recorded_settings(tmp_path: Path, notes: list[str]) -> None:
    idle: list[tuple[float, Event]] = [(0.0, Begin("cpu", "outside", True))]
    idle += [(float(at), Poll(0, False)) for at in range(1, 62)]
    tell(Recording(tmp_path, "life", Detector(Settings(canary=True)), notes.append), idle)
    path = recording_paths(tmp_path, "life")[1]
    assert any("canary" in str(json.loads(line).get("commands")) for line in path.read_text().splitlines())
    done = shown(path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in path.read_text().splitlines() if "checkpoint" not in line]
    path.write_text("\n".join(lines))
    assert "other commands" in shown(path).stderr
