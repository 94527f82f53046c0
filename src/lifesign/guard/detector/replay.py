"""Recording what a detector was told, and telling it again: the same events give the same commands, bit for bit.

One JSON object per line: `{"t": seconds, "event": {...}, "commands": [...]}`. Python writes a float with as many digits
as it takes to read the same float back, so a recording loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from lifesign.errors import SourceError, UsageError
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Command, Event, event_from_dict, to_dict

LINE_MAX = 1 << 20


class RecordingDetector:
    """A detector that writes every event and what followed from it to a stream."""

    def __init__(self, detector: Detector, out: TextIO) -> None:
        self.detector = detector
        self._out = out

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """As `Detector.handle`, recorded."""
        commands = self.detector.handle(event, now_s)
        line = {"t": now_s, "event": to_dict(event), "commands": [to_dict(one) for one in commands]}
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
        return commands


@dataclass(slots=True)
class Replayed:
    """One line of a recording, told again. `same`: the commands are those that were recorded."""

    line: int
    now_s: float
    event: Event
    commands: list[Command]
    same: bool


def replay(lines: Iterable[str], settings: Settings | None = None, name: str = "recording") -> Iterator[Replayed]:
    """Tell a fresh detector the recorded events. Raises SourceError for a line that can't be read."""
    detector = Detector(settings)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        now_s, event, recorded = _parse(text, number, name)
        commands = detector.handle(event, now_s)
        same = [to_dict(one) for one in commands] == recorded
        yield Replayed(number, now_s, event, commands, same)


def _parse(text: str, number: int, name: str) -> tuple[float, Event, list[Any]]:
    if len(text) > LINE_MAX:
        raise SourceError(name, "a line is too long for a recording", number)
    try:
        data = json.loads(text)
        return float(data["t"]), event_from_dict(data["event"]), list(data.get("commands", []))
    except UsageError as error:
        raise SourceError(name, str(error), number) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            name, f"not a line of a recording ({error}); give the file that --record wrote", number
        ) from None
