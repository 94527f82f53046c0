"""A recorded stream of events gives the same commands again, bit for bit; rubbish gives a sentence."""

from __future__ import annotations

import io
import json

import pytest
from story import deadly_story, safe_story

from lifesign.errors import SourceError, UsageError
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import (
    AskOperator,
    Begin,
    Canary,
    CanaryAnswered,
    Exited,
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
    told = list(replay(lines, settings))
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
