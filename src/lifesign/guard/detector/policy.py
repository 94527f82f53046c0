"""How long may a step take? The documented simple policy, and the cost model that learns better limits.

Two answers live here because one is the floor and the baseline of the other:

- `simple_limit_s`: a formula of backend and batch, the same for every machine. It knows that a CPU is slower and that a
  larger batch takes longer, and nothing else.
- `StepCost`: step time = a + b x prefill tokens + c x sequences, learned online by recursive least squares from a
  start-up prior, plus the ratio actual / predicted tracked at its 99.9 % quantile (one update per step, after adaptive
  conformal inference: Gibbs and Candes 2021). Its limit decides when to *look*, never when to kill: compile stalls and
  starvation are outside its world.

Standard library only, and a few microseconds per call: this runs inside an engine, once per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Backend = Literal["gpu", "cpu"]

BASE_GPU_S = 30.0
PER_SEQUENCE_GPU_S = 0.2
CPU_BASE_FACTOR = 10.0
CPU_PER_SEQUENCE_FACTOR = 5.0
LIMIT_CAP_S = 1800.0

LIMIT_FLOOR_S = 5.0
"""No step is looked at earlier: steps under 0.1 s were seen to take up to 33 times their usual time."""
MARGIN = 1.25
RATIO_START, RATIO_MIN, RATIO_MAX = 3.0, 1.5, 12.0
RATIO_MISS_RATE = 0.001
RATIO_STEP = 0.5
RATIO_MIN_STEP_S = 0.25
OUTLIER_RATIO = 4.0
OUTLIERS_BELIEVED = 8
FORGET = 0.9995
COLD_STEPS = 50
SMALLEST_STEP_S = 1e-4
CORRELATION_MAX_SQUARED = 0.95**2
_LOG_RATIO_MIN, _LOG_RATIO_MAX, _LOG_OUTLIER = math.log(RATIO_MIN), math.log(RATIO_MAX), math.log(OUTLIER_RATIO)


def simple_limit_s(backend: Backend, sequences: int) -> float:
    """The simple policy's limit for one step, in seconds: base + per sequence, times ten and five on a CPU, capped.

    GPU: 30 s + 0.2 s per sequence. CPU: 300 s + 1 s per sequence. Never more than 1800 s.
    """
    count = max(0, sequences)
    if backend == "cpu":
        limit_s = BASE_GPU_S * CPU_BASE_FACTOR + PER_SEQUENCE_GPU_S * CPU_PER_SEQUENCE_FACTOR * count
    else:
        limit_s = BASE_GPU_S + PER_SEQUENCE_GPU_S * count
    return min(LIMIT_CAP_S, limit_s)


def simple_verdict(alive: bool, working: bool) -> Literal["retry", "dead"]:
    """What the simple policy does when its limit expires: alive and working -> retry (UNHEALTHY), else DEAD."""
    return "retry" if alive and working else "dead"


class StepSize(NamedTuple):
    """How much one step has to do: scheduled requests, and all their scheduled tokens (one each while decoding)."""

    sequences: int
    tokens: int

    @property
    def prefill_tokens(self) -> int:
        """Tokens beyond one per sequence: what a prefill adds to a decode step."""
        return max(0, self.tokens - self.sequences)


@dataclass(frozen=True, slots=True)
class Prior:
    """What to expect before the first step was seen: `base_s` + `per_token_s` x prefill + `per_sequence_s` x sequences.

    Deliberately high: a wrong prior then costs some seconds of detection, never a false suspicion.
    """

    base_s: float
    per_token_s: float
    per_sequence_s: float


GPU_PRIOR = Prior(0.1, 2e-4, 6e-4)
CPU_PRIOR = Prior(1.0, 3e-2, 3e-1)


def prior_for(backend: Backend, model_bytes: int = 0, bandwidth_bytes_per_s: float = 0.0) -> Prior:
    """The start-up prior of a backend, doubled on purpose.

    With the model's size and the memory bandwidth known, one decode step reads every weight once (the roofline of
    decoding), which replaces the generic base. A prefill token then costs 1/50 of that and a sequence 1/10, the ratios
    of the generic priors.
    """
    generic = CPU_PRIOR if backend == "cpu" else GPU_PRIOR
    if model_bytes <= 0 or bandwidth_bytes_per_s <= 0:
        return generic
    base_s = 2.0 * model_bytes / bandwidth_bytes_per_s
    return Prior(max(base_s, 1e-3), base_s / 50.0, base_s / 10.0)


class StepCost:
    """Learns what a step of a given size takes on this engine; see the module's text for the model.

    Every call takes a few microseconds. Not thread-safe: the engine's step loop owns it.
    """

    __slots__ = (
        "_a", "_a_min", "_b", "_b_min", "_c", "_c_min", "_caa", "_cab", "_cac", "_cbb", "_cbc", "_ccc",
        "_log_ratio", "_outliers", "steps",
    )  # fmt: skip

    def __init__(self, backend: Backend = "gpu", prior: Prior | None = None) -> None:
        start = prior if prior is not None else prior_for(backend)
        self._a, self._b, self._c = start.base_s, start.per_token_s, start.per_sequence_s
        # A cost that was pushed to zero must be able to come back: doubt never shrinks below a share of the prior.
        self._a_min, self._b_min, self._c_min = self._a * 0.02, self._b * 0.02, self._c * 0.02
        self._doubt()
        self._log_ratio = math.log(RATIO_START)
        self._outliers = 0
        self.steps = 0

    def _doubt(self) -> None:
        """Begin to learn anew: each cost may be wrong by one and a half times itself, independently of the others."""
        self._caa = (1.5 * _above(self._a, self._a_min)) ** 2 + 1e-12
        self._cbb = (1.5 * _above(self._b, self._b_min)) ** 2 + 1e-18
        self._ccc = (1.5 * _above(self._c, self._c_min)) ** 2 + 1e-16
        self._cab = self._cac = self._cbc = 0.0

    @property
    def ratio(self) -> float:
        """The tracked 99.9 % quantile of actual / predicted time, within [1.5, 12]."""
        return math.exp(self._log_ratio)

    @property
    def learned(self) -> bool:
        """Whether enough steps were seen for the prediction to be worth printing."""
        return self.steps >= COLD_STEPS

    def predicted_s(self, size: StepSize) -> float:
        """Seconds that a step of this size is expected to take."""
        sequences, tokens = size
        prefill = tokens - sequences
        return self._a + (self._b * prefill if prefill > 0 else 0.0) + self._c * sequences

    def suspect_limit_s(self, size: StepSize) -> float:
        """Seconds after which a running step of this size deserves a look: 1.25 x ratio x predicted, in [5, 1800]."""
        limit_s = MARGIN * math.exp(self._log_ratio) * self.predicted_s(size)
        return _between(limit_s, LIMIT_FLOOR_S, LIMIT_CAP_S)

    def observe(self, size: StepSize, seconds: float) -> None:
        """Learn from a finished step. Ignores what can't be a duration (negative, not finite)."""
        if not 0.0 <= seconds < 1e6:
            return
        predicted_s = max(SMALLEST_STEP_S, self.predicted_s(size))
        log_ratio = math.log(max(seconds, SMALLEST_STEP_S) / predicted_s)
        self.steps += 1
        if seconds >= RATIO_MIN_STEP_S or predicted_s >= RATIO_MIN_STEP_S:
            missed = 1.0 if log_ratio > self._log_ratio else 0.0
            moved = self._log_ratio + RATIO_STEP * (missed - RATIO_MISS_RATE)
            self._log_ratio = _between(moved, _LOG_RATIO_MIN, _LOG_RATIO_MAX)
        # One slow step (a collection, a page-in) must not teach; many in a row are the new truth.
        if log_ratio > _LOG_OUTLIER:
            self._outliers += 1
            if self._outliers <= OUTLIERS_BELIEVED:
                return
            self._doubt()
        else:
            self._outliers = 0
        self._update(size, seconds, predicted_s)

    def _update(self, size: StepSize, seconds: float, predicted_s: float) -> None:
        """One step of recursive least squares with forgetting; costs stay non-negative, the covariance bounded."""
        sequences, tokens = size
        x = float(tokens - sequences) if tokens > sequences else 0.0
        y = float(sequences)
        caa, cbb, ccc, cab, cac, cbc = self._caa, self._cbb, self._ccc, self._cab, self._cac, self._cbc
        ga = caa + cab * x + cac * y
        gb = cab + cbb * x + cbc * y
        gc = cac + cbc * x + ccc * y
        noise = 0.04 * predicted_s * predicted_s + 1e-10
        gain = 1.0 / (noise + ga + gb * x + gc * y)
        error = seconds - predicted_s
        bound = 2.0 * predicted_s
        pull = gain * (bound if error > bound else -bound if error < -bound else error)
        self._a = a = _above(self._a + ga * pull, 0.0)
        self._b = b = _above(self._b + gb * pull, 0.0)
        self._c = c = _above(self._c + gc * pull, 0.0)
        keep = 1.0 / FORGET
        # Doubt is at most twice the cost itself, and never so small that nothing can be learned any more.
        self._caa = caa = _between((caa - ga * ga * gain) * keep, 1e-14, 4.0 * _above(a, self._a_min) ** 2)
        self._cbb = cbb = _between((cbb - gb * gb * gain) * keep, 1e-22, 4.0 * _above(b, self._b_min) ** 2)
        self._ccc = ccc = _between((ccc - gc * gc * gain) * keep, 1e-20, 4.0 * _above(c, self._c_min) ** 2)
        # Rounding and these bounds must not make the covariance indefinite: the model would diverge.
        self._cab = _tied((cab - ga * gb * gain) * keep, caa * cbb)
        self._cac = _tied((cac - ga * gc * gain) * keep, caa * ccc)
        self._cbc = _tied((cbc - gb * gc * gain) * keep, cbb * ccc)

    def costs(self) -> Prior:
        """The learned costs; hand them to the next engine of the same configuration as its prior."""
        return Prior(self._a, self._b, self._c)


def _above(value: float, low: float) -> float:
    return value if value > low else low


def _between(value: float, low: float, high: float) -> float:
    return low if value < low else high if value > high else value


def _tied(covariance: float, product: float) -> float:
    """The covariance, with a correlation of at most 0.95; `product` is that of both variances."""
    if covariance * covariance <= CORRELATION_MAX_SQUARED * product:
        return covariance
    return math.copysign(math.sqrt(CORRELATION_MAX_SQUARED * product), covariance)
