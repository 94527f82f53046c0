"""The whole state of a detector as JSON, and a detector from it that goes on exactly where the other one was.

A recording begins with such a checkpoint: what earlier lives taught the detector, and what its owner allowed it, decide
what it makes of the same events. Python writes a float with as many digits as it takes to read the same one back.
"""

from __future__ import annotations

from typing import Any

from lifesign.errors import UsageError
from lifesign.guard.detector.clock import EngineClock
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Begin, event_from_dict, to_dict
from lifesign.guard.detector.evidence import Activity, GpuChannel, IdleCheck, ProcessChannel, Score
from lifesign.guard.detector.policy import Prior, StepCost, StepSize
from lifesign.guard.detector.slowness import Slowness
from lifesign.guard.detector.states import Finding, State

_OBJECTS: dict[str, type[Any]] = {
    one.__name__: one
    for one in (Detector, EngineClock, GpuChannel, IdleCheck, ProcessChannel, Score, Settings, Slowness, StepCost)
}
_WORDS: dict[str, type[Any]] = {one.__name__: one for one in (Activity, Finding, State)}
_ROWS: dict[str, type[Any]] = {one.__name__: one for one in (Prior, StepSize)}
_UNREADABLE = "the recording's checkpoint can't be read ({}); replay it with the release that wrote it"


def freeze(detector: Detector) -> dict[str, Any]:
    """Everything the detector knows, as JSON values."""
    frozen: dict[str, Any] = _plain(detector)
    return frozen


def thaw(data: object) -> Detector:
    """The detector that `freeze` was given. Raises UsageError when the data isn't that, or another release wrote it."""
    try:
        detector = _build(data, 0)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise UsageError(_UNREADABLE.format(error)) from None
    if not isinstance(detector, Detector):
        raise UsageError(_UNREADABLE.format("it holds no detector"))
    return detector


def _names(one: Any) -> list[str]:
    return sorted(one.__slots__) if hasattr(type(one), "__slots__") else sorted(vars(one))


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value).__name__
    if kind in _OBJECTS:
        return {kind: {name: _plain(getattr(value, name)) for name in _names(value)}}
    if kind in _WORDS:
        return {kind: value.value}
    if kind == "Prior":
        return {kind: [value.base_s, value.per_token_s, value.per_sequence_s]}
    if kind == "StepSize":
        return {kind: list(value)}
    if isinstance(value, Begin):
        return {"Begin": to_dict(value)}
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(one)] for key, one in value.items()]}
    raise TypeError(f"{kind} is not part of a detector's state")


def _fits(part: Any, usual: Any) -> bool:
    """Whether a part is of the kind that a fresh object has in its place."""
    number = (int, float)
    if usual is None:
        return part is None or isinstance(part, Prior)
    if isinstance(usual, dict):
        rows = part.items() if isinstance(part, dict) else [(None, None)]
        return all(
            isinstance(key, int)
            and (
                isinstance(one, (*number, Activity))
                or (isinstance(one, tuple) and list(map(type, one)) == [float, float])
            )
            for key, one in rows
        )
    if isinstance(usual, bool) or type(usual) not in number:
        return type(part) is type(usual)
    return type(part) in number


def _build(data: Any, depth: int) -> Any:
    if data is None or type(data) in (bool, int, float, str):
        return data
    if depth > 12:
        raise ValueError("nested too deep")
    ((kind, value),) = data.items()
    if kind in _OBJECTS:
        made = _OBJECTS[kind]()
        wanted = _names(made)
        if sorted(value) != wanted:
            raise ValueError(f"{kind} has other parts: {', '.join(sorted(set(wanted) ^ set(value)))}")
        for name in wanted:
            part = _build(value[name], depth + 1)
            if not _fits(part, getattr(made, name)):
                raise ValueError(f"{kind}.{name} is not what it should be")
            setattr(made, name, part)
        return made
    if kind in _WORDS:
        return _WORDS[kind](value)
    if kind in _ROWS:
        return _ROWS[kind](*value)
    if kind == "Begin":
        return event_from_dict(value)
    if kind == "tuple":
        return tuple(_build(one, depth + 1) for one in value)
    if kind == "dict":
        return {_build(key, depth + 1): _build(one, depth + 1) for key, one in value}
    raise ValueError(f"unknown part {kind!r}")
