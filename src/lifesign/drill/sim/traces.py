"""Makes the trace of one engine: what really happened, from which every detector sees its part.

Time is continuous and jumps from one thing that happens to the next. A trace is a row of `Stretch`es: the time between
two marks of progress (one long step, or a run of short ones, or idleness), cut into `Piece`s where conditions change.
The engine's random numbers depend on the seed and its index alone, so a trace can be made again anywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from lifesign.drill.sim.world import CLASSES, EngineClass, World

RUN_STEP_S = 0.5
"""Steps shorter than this on average are taken together: an observer that looks once a second can't tell them apart."""
RUN_MAX_S = 60.0
GRADUAL_TICK_S = 20.0
BURST_MAX = 12
NEVER = math.inf


@dataclass(slots=True)
class Piece:
    """A span up to `end_s` in which conditions don't change.

    starved: share of the wanted processor time that is given (1: no neighbours). fault: the fault in force, or "".
    """

    end_s: float
    paused: bool = False
    compiling: bool = False
    logged: bool = False
    opaque: bool = False
    opaque_stuck: bool = False
    starved: float = 1.0
    scrape_bad: bool = False
    fault: str = ""
    cause: str = "step"


@dataclass(slots=True)
class Stretch:
    """From one mark of progress to the next. `steps` is 0 for idleness, and for a stall that never ends.

    step_s: mean time of the steps. silent: a prefill-only step that moves no token counter.
    """

    start_s: float
    end_s: float
    steps: int
    step_s: float
    sequences: int
    prefill: int
    busy: bool
    silent: bool
    pieces: list[Piece]


class Engine:
    """One simulated engine. `fault` begins at the first calm, busy moment after `fault_at_s`; then `fault_s` tells when."""

    def __init__(self, seed: int, index: int, world: World, fault: str = "", fault_at_s: float = NEVER) -> None:
        self.name = f"{seed}/{index}/{fault}"
        """Seeds its random numbers; whoever needs more of them adds a word of its own."""
        self.rng = rng = random.Random(self.name)
        self.world = world
        self.kind: EngineClass = rng.choices(CLASSES, [one.share for one in CLASSES])[0]
        self.scale = math.exp(rng.gauss(0.0, world.scale_sigma))
        self.spin_sync = self.kind.gpu and rng.random() < world.spin_sync
        self.sensor_lies = rng.random() < world.sensor_lies
        self.sensor_none = rng.random() < world.sensor_none
        self.prior_error = math.exp(rng.gauss(0.0, world.prior_sigma)) * world.prior_bias
        self.fault = fault
        self.fault_at_s = fault_at_s
        self.fault_s = NEVER
        self.now_s = 0.0
        self._sequences = 0
        self._burst = 0
        self._until = dict.fromkeys(("compile", "opaque", "starve", "thermal", "pause", "scrape"), -1.0)
        self._starved = self._hot = 1.0
        self._logged = self._opaque_stuck = False
        starve_per_h = world.starve_gpu_per_h if self.kind.gpu else world.starve_cpu_per_h
        self._rates_per_s = {
            "opaque": world.opaque_per_h / 3600.0,
            "starve": starve_per_h / 3600.0,
            "thermal": world.thermal_per_h / 3600.0,
            "pause": world.pause_per_h / 3600.0,
            "scrape": world.scrape_per_h / 3600.0,
        }
        self._next = {name: self._gap(rate) for name, rate in self._rates_per_s.items()}
        self._next["regime"] = rng.expovariate(1.0 / 30.0)
        self._next["compile"] = self._compile_gap(0.0)
        self._busy = False
        self._boundary_s = 0.0

    def _gap(self, rate_per_s: float) -> float:
        return self.rng.expovariate(rate_per_s) if rate_per_s > 0.0 else NEVER

    def _compile_gap(self, now_s: float) -> float:
        """Compiles come often in the first hour and seldom afterwards."""
        first = now_s + self._gap(self.world.compile_first_per_h / 3600.0)
        if first < 3600.0:
            return first
        return max(now_s, 3600.0) + self._gap(self.world.compile_per_h / 3600.0)

    def disturbed_until_s(self) -> float:
        """When the disturbances now in force will be over: a restarted engine comes up after them."""
        until = self._until
        return max(until["compile"], until["opaque"], until["pause"])

    def trace(self, until_s: float) -> Iterator[Stretch]:
        """The stretches up to `until_s`. A deadly fault ends the trace with one stretch without progress."""
        while self.now_s < until_s:
            self._happen()
            if self._sequences == 0:
                yield self._idle(until_s)
            elif self._may_run():
                yield self._run(until_s)
            else:
                yield self._step(until_s)

    def _happen(self) -> None:
        """Everything that is due now takes place."""
        now_s = self.now_s
        for name, due_s in self._next.items():
            if due_s <= now_s:
                self._start(name, now_s)
        ends = [end_s for end_s in self._until.values() if end_s > now_s]
        gradual = now_s + GRADUAL_TICK_S if self.fault == "gradual" and self.fault_s <= now_s else NEVER
        fault_s = self.fault_at_s if self.fault and self.fault_s == NEVER and self.fault_at_s > now_s else NEVER
        self._boundary_s = min(min(self._next.values()), min(ends, default=NEVER), gradual, fault_s)

    def _start(self, name: str, now_s: float) -> None:
        rng, world = self.rng, self.world
        if name == "regime":
            self._change_load(now_s)
            return
        if name == "compile":
            self._next[name] = self._compile_gap(now_s)
            if self._busy:
                self._until[name] = now_s + min(
                    world.compile_max_s, self._length(world.compile_median_s, world.compile_sigma)
                )
                self._logged = rng.random() < world.compile_logged
            return
        self._next[name] = now_s + self._gap(self._rates_per_s[name])
        if name == "opaque" and self._busy:
            self._until[name] = now_s + self._length(world.opaque_median_s, world.opaque_sigma)
            self._opaque_stuck = rng.random() < world.opaque_looks_stuck
        elif name == "starve":
            self._until[name] = now_s + rng.expovariate(1.0 / world.starve_s)
            self._starved = math.exp(rng.uniform(math.log(0.02), math.log(0.5)))
        elif name == "thermal":
            self._until[name] = now_s + rng.expovariate(1.0 / world.thermal_s)
            self._hot = rng.uniform(0.3, 0.7)
        elif name == "pause":
            self._until[name] = now_s + rng.uniform(*world.pause_s)
        elif name == "scrape" and self._sequences >= 16:
            self._until[name] = now_s + min(180.0, rng.expovariate(1.0 / world.scrape_s))

    def _length(self, median_s: float, sigma: float) -> float:
        return median_s * math.exp(self.rng.gauss(0.0, sigma))

    def _change_load(self, now_s: float) -> None:
        rng = self.rng
        self._next["regime"] = now_s + rng.expovariate(1.0 / self.world.regime_s)
        wanted = rng.choices([n for n, _ in self.world.regimes], [p for _, p in self.world.regimes])[0]
        if wanted > self._sequences:
            prompt = math.exp(rng.gauss(6.2, 1.0))
            chunks = math.ceil((wanted - self._sequences) * prompt / self.kind.max_tokens)
            self._burst = min(BURST_MAX, max(1, chunks))
        self._sequences = wanted

    def _fault_begins(self) -> None:
        """A fault waits for a moment at which nothing else is the matter."""
        if self.fault and self.fault_s == NEVER and self.now_s >= self.fault_at_s and self._busy:
            until = self._until
            if all(until[name] <= self.now_s for name in ("compile", "opaque", "starve", "pause")):
                self.fault_s = self.now_s

    def _speed(self) -> float:
        now_s, until = self.now_s, self._until
        if until["compile"] > now_s or until["opaque"] > now_s or until["pause"] > now_s:
            return 0.0
        speed = self._starved if until["starve"] > now_s else 1.0
        if until["thermal"] > now_s:
            speed *= self._hot
        if self.fault_s <= now_s:
            if self.fault != "gradual":
                return 0.0
            speed *= max(0.05, 0.998 ** (now_s - self.fault_s))
        return speed

    def _piece(self, end_s: float) -> Piece:
        now_s, until = self.now_s, self._until
        compiling, opaque = until["compile"] > now_s, until["opaque"] > now_s
        paused, starving = until["pause"] > now_s, until["starve"] > now_s
        causes = (("pause", paused), ("compile", compiling), ("opaque", opaque), ("starved", starving))
        cause = next((name for name, there in causes if there), "thermal" if until["thermal"] > now_s else "step")
        return Piece(
            end_s=end_s,
            paused=paused,
            compiling=compiling,
            logged=compiling and self._logged,
            opaque=opaque,
            opaque_stuck=opaque and self._opaque_stuck,
            starved=self._starved if starving else 1.0,
            scrape_bad=until["scrape"] > now_s,
            fault=self.fault if self.fault_s <= now_s else "",
            cause=cause,
        )

    def _idle(self, until_s: float) -> Stretch:
        self._busy = False
        start_s, end_s = self.now_s, min(self._boundary_s, until_s)
        piece = self._piece(end_s)
        self.now_s = end_s
        return Stretch(start_s, end_s, 0, 0.0, 0, 0, False, False, [piece])

    def _mean_work_s(self) -> float:
        kind = self.kind
        prefill = self.world.prefill_share * 0.525 * kind.max_tokens
        return (kind.base_s + kind.per_token_s * prefill + kind.per_sequence_s * self._sequences) * self.scale

    def _may_run(self) -> bool:
        speed = self._speed()
        return (
            self._burst == 0
            and speed > 0.0
            and self._mean_work_s() < RUN_STEP_S * speed
            and self._prefill_is_short(speed)
        )

    def _prefill_is_short(self, speed: float) -> bool:
        # A run hides its longest step, so that step must be too short to matter.
        return self.kind.per_token_s * self.kind.max_tokens * self.scale < 4.0 * speed

    def _run(self, until_s: float) -> Stretch:
        """Many short steps at once, up to the next thing that happens (or the next rare slow step)."""
        self._busy = True
        self._fault_begins()
        speed = self._speed()
        if speed <= 0.0:
            return self._step(until_s)
        start_s = self.now_s
        step_s = self._mean_work_s() * math.exp(self.rng.gauss(0.0, 0.05)) / speed
        slow_s = start_s + self._gap(self.world.slow_step_share / step_s)
        end_s = min(self._boundary_s, until_s, start_s + RUN_MAX_S, slow_s)
        # At least one step is finished: a run that is cut at once still leaves a mark.
        end_s = max(end_s, start_s + step_s)
        prefill = int(self.world.prefill_share * 0.525 * self.kind.max_tokens)
        piece = self._piece(end_s)
        steps = max(1, int((end_s - start_s) / step_s))
        self.now_s = end_s
        return Stretch(start_s, end_s, steps, step_s, self._sequences, prefill, True, False, [piece])

    def _step(self, until_s: float) -> Stretch:
        """One step, however long it takes and whatever happens to it."""
        rng, kind, world = self.rng, self.kind, self.world
        sequences = self._sequences
        if self._burst > 0:
            prefill, silent = kind.max_tokens, self._burst > 1
            self._burst -= 1
        else:
            silent = False
            prefill = int(kind.max_tokens * rng.uniform(0.05, 1.0)) if rng.random() < world.prefill_share else 0
        work_s = (kind.base_s + kind.per_token_s * prefill + kind.per_sequence_s * sequences) * self.scale
        work_s *= math.exp(rng.gauss(0.0, world.step_sigma))
        if rng.random() < world.slow_step_share:
            work_s *= rng.uniform(3.0, 10.0)
        self._busy = True
        start_s = self.now_s
        pieces: list[Piece] = []
        while True:
            self._fault_begins()
            speed = self._speed()
            boundary_s = min(self._boundary_s, until_s)
            if speed > 0.0 and self.now_s + work_s / speed <= boundary_s:
                end_s = self.now_s + work_s / speed
                pieces.append(self._piece(end_s))
                self.now_s = end_s
                return Stretch(start_s, end_s, 1, end_s - start_s, sequences, prefill, True, silent, pieces)
            pieces.append(self._piece(boundary_s))
            work_s = max(0.0, work_s - speed * (boundary_s - self.now_s))
            self.now_s = boundary_s
            if self.now_s >= until_s:
                return Stretch(start_s, until_s, 0, 0.0, sequences, prefill, True, silent, pieces)
            self._happen()
