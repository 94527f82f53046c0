"""DEGRADED: alive, but slower than this engine was once it had settled. A reason to report, never one to kill.

The costs of the first few hundred steps are frozen as the engine's own level; actual over expected is then averaged
over about 30 looks. Leaving needs a lower ratio than entering, so that the flag doesn't flutter.
"""

from __future__ import annotations

from lifesign.guard.detector.events import Command, Degraded
from lifesign.guard.detector.policy import Prior, StepCost, StepSize

SETTLED_STEPS = 400
JUDGED_STEPS = 500
KEEP = 0.97
RATIO_ON = 1.8
RATIO_OFF = 1.4
SHOCK_RATIO = 20.0


class Slowness:
    """Compares steps with the engine's settled level."""

    __slots__ = ("_actual_s", "_expected_s", "_level", "on")

    def __init__(self) -> None:
        self._level: Prior | None = None
        self._actual_s = 0.0
        self._expected_s = 0.0
        self.on = False

    @property
    def ratio(self) -> float:
        """Recent time over the settled level's; 1 before there is one."""
        return self._actual_s / self._expected_s if self._expected_s > 0.0 else 1.0

    def observe(self, cost: StepCost, size: StepSize, step_s: float) -> list[Command]:
        """One finished step; gives a `Degraded` command when the flag turns."""
        if cost.steps < SETTLED_STEPS:
            return []
        if self._level is None:
            self._level = cost.costs()
        level = self._level
        expected_s = level.base_s + level.per_token_s * size.prefill_tokens + level.per_sequence_s * size.sequences
        expected_s = max(1e-4, expected_s)
        self._actual_s = KEEP * self._actual_s + min(step_s, SHOCK_RATIO * expected_s)
        self._expected_s = KEEP * self._expected_s + expected_s
        if cost.steps < JUDGED_STEPS:
            return []
        ratio = self.ratio
        if self.on == (ratio > (RATIO_OFF if self.on else RATIO_ON)):
            return []
        self.on = not self.on
        return [Degraded(self.on, ratio)]
