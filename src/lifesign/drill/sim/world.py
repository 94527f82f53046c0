"""Every assumption of the simulated world, in one place. None of them is measured unless its line says so.

The defaults are meant to be unkind: rare steps that take ten times as long, compiles of minutes, neighbours that starve
an engine, evidence that lies, and stalls that look exactly like a hang and then heal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifesign.errors import UsageError


@dataclass(frozen=True, slots=True)
class EngineClass:
    """A kind of engine: step time = base + per token x prefill + per sequence x sequences, and what a restart costs."""

    name: str
    share: float
    gpu: bool
    base_s: float
    per_token_s: float
    per_sequence_s: float
    max_tokens: int
    threads: int
    restart_s: float


CLASSES = (
    EngineClass("gpu-small", 0.30, True, 0.008, 2e-5, 3e-5, 8192, 1, 60.0),
    EngineClass("gpu-large", 0.30, True, 0.030, 1e-4, 1.5e-4, 8192, 1, 300.0),
    EngineClass("cpu-small", 0.20, False, 0.05, 2e-3, 0.01, 4096, 16, 40.0),
    EngineClass("cpu-large", 0.20, False, 0.50, 1.5e-2, 0.15, 8192, 48, 120.0),
)
MAX_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class World:
    """Rates are per engine-hour, times in seconds. `*_sigma` are spreads of logarithms."""

    scale_sigma: float = 0.4
    """Spread of hardware and model speed within a class."""
    step_sigma: float = 0.12
    slow_step_share: float = 2e-4
    """Steps that take 3 to 10 times as long: a collection, a preemption, a page-in."""
    regime_s: float = 600.0
    """Mean time between changes of load."""
    regimes: tuple[tuple[int, float], ...] = ((0, 0.15), (1, 0.2), (4, 0.2), (16, 0.15), (64, 0.15), (256, 0.15))
    prefill_share: float = 0.08
    compile_per_h: float = 0.15
    compile_first_per_h: float = 1.5
    compile_median_s: float = 15.0
    compile_sigma: float = 0.9
    compile_max_s: float = 600.0
    compile_logged: float = 0.6
    starve_gpu_per_h: float = 0.05
    starve_cpu_per_h: float = 0.4
    starve_s: float = 120.0
    thermal_per_h: float = 0.05
    thermal_s: float = 1200.0
    opaque_per_h: float = 0.01
    """Stalls of unknown cause that heal by themselves (one public report: 156 a day, 20 s to 16 min, all healed)."""
    opaque_median_s: float = 45.0
    opaque_sigma: float = 1.1
    opaque_looks_stuck: float = 0.5
    pause_per_h: float = 0.01
    pause_s: tuple[float, float] = (5.0, 120.0)
    """The host, and the observer with it, is suspended."""
    scrape_per_h: float = 0.15
    scrape_s: float = 15.0
    """The metrics page is late although the engine is fine."""
    spin_sync: float = 0.5
    """GPU engines whose host thread spins while it waits for the device."""
    evidence_wrong: float = 0.03
    sensor_lies: float = 0.02
    """Engines whose evidence always says that they work."""
    sensor_none: float = 0.0
    prior_sigma: float = 0.7
    prior_bias: float = 2.0
    """Error of the start-up guess of the step's costs."""


SCENARIOS: dict[str, World] = {
    "base": World(),
    "no-opaque": World(opaque_per_h=0.0),
    "no-evidence": World(sensor_none=1.0),
    "bad-sensors": World(sensor_lies=0.2, evidence_wrong=0.15),
    "harsh": replace(
        World(), opaque_per_h=0.1, compile_per_h=0.6, starve_gpu_per_h=0.2, starve_cpu_per_h=1.5, pause_per_h=0.05
    ),
    "bad-prior": World(prior_sigma=1.2, prior_bias=0.5),
}


def scenario(name: str) -> World:
    """The named variant of the world. Raises UsageError for an unknown name."""
    if name not in SCENARIOS:
        raise UsageError(f"there is no scenario {name!r}; choose one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


DEADLY_FAULTS = ("exit", "stop", "livelock", "partition", "blocked", "zero-token")
"""exit: a process is gone. stop: SIGSTOP. livelock: a loop that computes nothing. partition: a rank waits for a lost
peer. blocked: a lock that nobody opens. zero-token: the scheduler polls and schedules nothing, with no call out."""
FAULTS = (*DEADLY_FAULTS, "gradual")
"""gradual: 0.2 % slower every second, down to a twentieth; alive, and no death."""
