"""Recording what a detector was told, and telling it again: the same events give the same commands, bit for bit.

One JSON object per line: `{"t": seconds, "event": {...}, "commands": [...]}`, and before the first event, and wherever
lines are missing or the settings change, `{"t": seconds, "checkpoint": {...}}`: the detector as it was at that moment
(see `checkpoint`). A recording may therefore begin anywhere in a life. Recordings of earlier releases have no checkpoint;
they are told to a fresh detector.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TextIO

from lifesign.errors import SourceError, UsageError
from lifesign.guard.detector.checkpoint import freeze, thaw
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Command, Event, event_from_dict, to_dict

LINE_MAX = 1 << 20


def checkpoint_line(detector: Detector, now_s: float) -> str:
    """The line that says what the detector was at `now_s`, before the event that follows."""
    return json.dumps({"t": now_s, "checkpoint": freeze(detector)}, separators=(",", ":")) + "\n"


def event_line(now_s: float, event: Event, commands: list[Command]) -> str:
    """The line of one event and what followed from it."""
    line = {"t": now_s, "event": to_dict(event), "commands": [to_dict(one) for one in commands]}
    return json.dumps(line, separators=(",", ":")) + "\n"


class RecordingDetector:
    """A detector that writes every event and what followed from it to a stream."""

    def __init__(self, detector: Detector, out: TextIO) -> None:
        self.detector = detector
        self._out = out
        self._settings: Settings | None = None

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """As `Detector.handle`, recorded."""
        if self._settings != self.detector.settings:  # its owner may change them on the way
            self._settings = replace(self.detector.settings)
            self._out.write(checkpoint_line(self.detector, now_s))
        commands = self.detector.handle(event, now_s)
        self._out.write(event_line(now_s, event, commands))
        return commands


@dataclass(slots=True)
class Replayed:
    """One line of a recording, told again. `same`: the commands are those that were recorded."""

    line: int
    now_s: float
    event: Event
    commands: list[Command]
    same: bool


def replay(
    lines: Iterable[str],
    settings: Settings | None = None,
    name: str = "recording",
    *,
    patience: float | None = None,
) -> Iterator[Replayed]:
    """Tell a detector the recorded events: the recorded one, or a fresh one with `settings` where none was recorded.

    patience: instead of the recorded one, to see what it would have changed. Raises SourceError for a line that can't be
    read.
    """
    detector = Detector(settings)
    if patience is not None:
        detector.settings.patience = patience
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        data, now_s = _read(text, number, name)
        try:
            if "checkpoint" in data:
                detector = thaw(data["checkpoint"])
                if patience is not None:
                    detector.settings.patience = patience
                continue
            event, recorded = event_from_dict(data["event"]), list(data.get("commands", []))
        except UsageError as error:
            raise SourceError(name, str(error), number) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_recording(error, number, name) from None
        commands = detector.handle(event, now_s)
        same = [to_dict(one) for one in commands] == recorded
        yield Replayed(number, now_s, event, commands, same)


def _read(text: str, number: int, name: str) -> tuple[dict[str, Any], float]:
    if len(text) > LINE_MAX:
        raise SourceError(name, "a line is too long for a recording", number)
    try:
        data = json.loads(text)
        return data, float(data["t"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_recording(error, number, name) from None


def _no_recording(error: Exception, number: int, name: str) -> SourceError:
    return SourceError(name, f"not a line of a recording ({error}); give the file that --record wrote", number)
