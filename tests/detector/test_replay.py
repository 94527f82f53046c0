"""A recorded stream of events gives the same commands again, bit for bit; rubbish gives a sentence."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from story import deadly_story, safe_story

from lifesign.errors import SourceError, UsageError
from lifesign.guard.detector.checkpoint import freeze, thaw
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import (
    AskOperator,
    Begin,
    Canary,
    CanaryAnswered,
    Exited,
    Kill,
    Milestone,
    Note,
    Poll,
    Ready,
    Resume,
    command_from_dict,
    event_from_dict,
    to_dict,
)
from lifesign.guard.detector.evidence import GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import Prior, StepSize
from lifesign.guard.detector.replay import RecordingDetector, replay


@pytest.mark.parametrize("seed", range(40))
def test_replay_is_the_same_bit_for_bit(seed: int) -> None:
    story = deadly_story(seed)[0] if seed % 2 else safe_story(seed)
    settings = Settings(patience=story.detector.settings.patience)
    out = io.StringIO()
    recorder = RecordingDetector(Detector(settings), out)
    for at, event in story.events:
        recorder.handle(event, at)
    lines = out.getvalue().splitlines()
    told = list(replay(lines))
    assert len(told) == len(story.events)
    assert all(one.same for one in told)
    assert [(one.now_s, one.event) for one in told] == story.events
    assert [command for one in told for command in one.commands] == story.commands


def test_a_changed_verdict_is_seen() -> None:
    story = deadly_story(1)[0]
    out = io.StringIO()
    recorder = RecordingDetector(Detector(Settings(patience=story.detector.settings.patience)), out)
    for at, event in story.events:
        recorder.handle(event, at)
    lines = out.getvalue().splitlines()
    broken = [line for line in lines if '"kill"' not in line]
    assert len(broken) == len(lines) - 1
    data = json.loads(lines[-1])
    data["commands"] = []
    assert not list(replay([*lines[:-1], json.dumps(data)], Settings(patience=story.detector.settings.patience)))[
        -1
    ].same


def test_every_event_and_command_survives_json() -> None:
    events = [
        Begin("cpu", "beacon", True, 33.3, StepSize(256, 8448), Prior(0.1, 0.2, 0.3), {"load": 4.5}),
        Begin(),
        Milestone("load"),
        Ready(),
        Note("compile", 5.0),
        Exited("worker 1", 4, None, 9),
        Exited("engine", 4, 0),
        Poll(None, True, 0.1, StepSize(1, 2), None, (ProcessSignals(1, frozen=True),), (GpuSignals(0, 1.5, 2.5),)),
        Poll(),
        CanaryAnswered(0.1),
    ]
    for event in events:
        assert event_from_dict(json.loads(json.dumps(to_dict(event)))) == event
    commands = [*deadly_story(3)[0].commands, Resume((3, 4)), AskOperator("x"), Canary(5.0)]
    for command in commands:
        assert command_from_dict(json.loads(json.dumps(to_dict(command)))) == command


def recorded(detector: Detector, events: list[tuple[float, Any]]) -> list[str]:
    out = io.StringIO()
    recorder = RecordingDetector(detector, out)
    for at, event in events:
        recorder.handle(event, at)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("seed", range(20))
def test_a_detector_goes_on_from_any_checkpoint(seed: int) -> None:
    story = deadly_story(seed)[0] if seed % 2 else safe_story(seed)
    cuts = {0, 1, len(story.events) // 3, len(story.events) // 2, len(story.events) - 1}
    first = Detector(Settings(patience=story.detector.settings.patience))
    for index, (at, event) in enumerate(story.events):
        if index in cuts:
            data = json.loads(json.dumps(freeze(first)))
            other = thaw(data)
            assert freeze(other) == data
            for later, one in story.events[index:]:
                last = other.handle(one, later)
            if index == len(story.events) - 1:
                assert last == first.handle(event, at)
                break
            end = freeze(other)
        first.handle(event, at)
    assert freeze(first) == end


LESSON: list[tuple[float, Any]] = [
    (0.0, Begin("cpu", "outside", True)),
    *[(float(at), Poll(1, True, 0.2 + 0.001 * at, StepSize(2, 40 + at))) for at in range(1, 200)],
    (201.0, Exited("worker 0", 7, None, 9)),
]


def late(start_s: float) -> list[tuple[float, Any]]:
    """Some steps, then nothing: when it is suspected depends on what was learned before."""
    events: list[tuple[float, Any]] = [(start_s, Begin("cpu", "outside", True))]
    events += [(start_s + at, Poll(1, True, 0.2, StepSize(2, 40))) for at in range(1, 10)]
    return events + [(start_s + at, Poll(0, True)) for at in range(10, 300)]


def test_the_second_life_replays_with_what_the_first_one_taught() -> None:
    detector = Detector(Settings(patience=0.7, canary=True))
    recorded(detector, LESSON)
    lines = recorded(detector, late(1000.0))
    told = list(replay(lines))
    assert len(told) == len(late(0.0))
    assert all(one.same for one in told)
    without = [line for line in lines if "checkpoint" not in line]
    assert not all(one.same for one in replay(without)), "a fresh detector would judge otherwise"


def test_a_recording_says_what_was_allowed() -> None:
    idle: list[tuple[float, Any]] = [(0.0, Begin("cpu", "outside", True))]
    idle += [(float(at), Poll(0, False)) for at in range(1, 62)]
    lines = recorded(Detector(Settings(canary=True)), idle)
    assert any('"canary"' in line.partition("commands")[2] for line in lines)
    assert all(one.same for one in replay(lines))
    assert all(one.same for one in replay(lines, Settings(canary=False))), "the recorded settings count"


def test_settings_that_change_on_the_way_are_recorded() -> None:
    detector = Detector(Settings(canary=True))
    out = io.StringIO()
    recorder = RecordingDetector(detector, out)
    recorder.handle(Begin("cpu", "outside", True), 0.0)
    for at in range(1, 100):
        if at == 20:
            detector.settings.canary = False  # as `watch` does when the server refuses
        recorder.handle(Poll(0, False), float(at))
    lines = out.getvalue().splitlines()
    assert sum("checkpoint" in line for line in lines) == 2
    assert all(one.same for one in replay(lines))


def stuck_events() -> list[tuple[float, Any]]:
    """A worker that does nothing while somebody waits: it is killed after a part of a restart's cost."""
    idle = ProcessSignals(7, "worker", 0, "S", 1.0)
    events: list[tuple[float, Any]] = [(0.0, Begin("cpu", "outside", True, 100.0))]
    return events + [(float(at), Poll(0, True, processes=(idle,))) for at in range(1, 200)]


def test_another_patience_may_be_tried() -> None:
    lines = recorded(Detector(Settings(patience=0.5)), stuck_events())
    assert all(one.same for one in replay(lines))
    kills = [
        [one.now_s for one in replay(lines, patience=patience) if any(isinstance(cmd, Kill) for cmd in one.commands)]
        for patience in (None, 0.5, 1.0)
    ]
    assert kills[0] == kills[1]
    assert 50.0 < kills[1][0] < 55.0
    assert 100.0 < kills[2][0] < 105.0


def test_an_old_recording_still_replays() -> None:
    lines = [line for line in recorded(Detector(), late(0.0)) if "checkpoint" not in line]
    assert len(lines) == len(late(0.0))
    assert all(one.same for one in replay(lines))


def test_a_damaged_checkpoint_is_refused_with_its_line() -> None:
    good = freeze(Detector())
    parts = good["Detector"]
    bad: list[Any] = [
        3,
        None,
        {},
        {"Detector": {}},
        {"Settings": good["Detector"]["settings"]["Settings"]},
        {"Detector": {**parts, "clock": 3}},
        {"Detector": {**parts, "more": 3}},
        {"Detector": {**parts, "limit_s": "x"}},
        {"Detector": {**parts, "state": {"State": "SINGING"}}},
        {"Detector": {**parts, "process_channel": parts["gpu_channel"]}},
        {"Detector": {**parts, "life": {"Poll": {}}}},
    ]
    for data in bad:
        text = json.dumps({"t": 1.0, "checkpoint": data})
        event = json.dumps({"t": 1.0, "event": {"kind": "poll"}, "commands": []})
        with pytest.raises(SourceError, match="story:1"):
            list(replay([text, event], name="story"))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        '{"t": 1}',
        '{"t": 1, "event": {"kind": "sing"}}',
        '{"t":1,"event":{"kind":"poll","x":1}}',
        '{"t":1,"event":{"kind":"poll","size":5}}',
    ],
)
def test_rubbish_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(SourceError, match="story:2"):
        list(replay(["", line], name="story"))
    with pytest.raises(UsageError):
        event_from_dict({"kind": "kill"})
