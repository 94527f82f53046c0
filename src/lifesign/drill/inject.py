"""Turns a `Hook` into what a process understands: the JSON of LIFESIGN_FAULT (read by `lifesign.vllm_plugin.faults`)."""

from __future__ import annotations

import json
from pathlib import Path

from lifesign.drill.model import Action, Change, Cut, Hog, Hook, KillParent, Leave, Raise, Say, Stall
from lifesign.drill.points import point


def encode(hook: Hook, *, armed_by: Path | None, fired: Path, scale: float = 1.0) -> str:
    """The JSON of a hook. `scale` shortens stalls (the fake engine is in a hurry); files say when to act and that it acted."""
    place = point(hook.point)
    return json.dumps(
        {
            "process": place.role,
            "point": hook.point,
            "rank": hook.rank,
            "targets": list(place.targets),
            "at": place.at,
            "frames": [[frame.path, frame.function, frame.code, frame.line] for frame in hook.frames],
            "armed_by": str(armed_by) if armed_by else None,
            "fired": str(fired),
            "after": hook.after,
            "once": hook.once,
            "actions": [_action(action, scale) for action in hook.actions],
        }
    )


def _action(action: Action, scale: float) -> list[object]:
    match action:
        case Raise(kind, text):
            return ["raise", kind, text]
        case Say(text):
            return ["say", text]
        case Stall(kind, seconds, growing):
            return ["stall", kind, seconds * scale, growing]
        case Leave(how, code):
            return ["leave", how, code]
        case Hog(mib):
            return ["hog", mib]
        case Cut():
            return ["cut"]
        case KillParent():
            return ["kill-parent"]
        case Change(name, value):
            return ["set", name, value]
