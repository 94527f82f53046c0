"""Runs the bench: clean engine-hours for false kills, injected faults for detection times, the same for everybody.

The work is cut into batches of engines and spread over processes; since every engine has its own random numbers, the
result doesn't depend on how many processes there are.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from lifesign.drill.sim.eyes import Eyes
from lifesign.drill.sim.rivals import rivals
from lifesign.drill.sim.traces import Engine
from lifesign.drill.sim.world import DEADLY_FAULTS, FAULTS, World

ENGINE_HOURS = 6.0
"""Length of one clean trace: every trace contains a first hour, in which compiles are frequent and little is learned."""
WARM_S = 5400.0
WARM_SPREAD_S = 900.0
HORIZON_S = 3600.0
BATCH = 10
OUTSIDE_EVERY = 3
OURS = "lifesign"
FAULT_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: `hours` of clean engine time and `faults_each` engines per fault."""

    hours: float
    seed: int
    faults_each: int
    world: World
    patience: float = 0.3
    with_rivals: bool = True

    @property
    def engines(self) -> int:
        """Number of clean traces."""
        return max(1, math.ceil(self.hours / ENGINE_HOURS))


@dataclass(slots=True)
class Tally:
    """What one detector did. Times are seconds from the start of a fault; `inf`: not within an hour."""

    seconds: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    suspicions: Counter[str] = field(default_factory=Counter)
    kill_s: dict[str, list[float]] = field(default_factory=dict)
    suspect_s: dict[str, list[float]] = field(default_factory=dict)
    degraded_s: list[float] = field(default_factory=list)
    gradual: int = 0

    def add(self, other: Tally) -> None:
        """Take another batch in."""
        self.seconds.update(other.seconds)
        self.kills.update(other.kills)
        self.causes.update(other.causes)
        self.suspicions.update(other.suspicions)
        for fault, values in other.kill_s.items():
            self.kill_s.setdefault(fault, []).extend(values)
        for fault, values in other.suspect_s.items():
            self.suspect_s.setdefault(fault, []).extend(values)
        self.degraded_s.extend(other.degraded_s)
        self.gradual += other.gradual


@dataclass(slots=True)
class Result:
    """Tallies by detector, and the plan."""

    plan: Plan
    tallies: dict[str, Tally]


def our_detectors(engine: Engine, plan: Plan, index: int) -> dict[str, Eyes]:
    """Ours, as it sees with a beacon; and, on every third engine, from outside with and without device counters."""
    both = {OURS: Eyes(engine, "beacon", True, plan.patience)}
    if plan.with_rivals and index % OUTSIDE_EVERY == 0:
        both[f"{OURS} without beacon"] = Eyes(engine, "outside", True, plan.patience)
        both[f"{OURS} without beacon or GPU counters"] = Eyes(engine, "outside", False, plan.patience)
    return both


def run_clean(plan: Plan, indexes: Iterable[int]) -> dict[str, Tally]:
    """Engines without faults: every kill is a false one."""
    tallies: dict[str, Tally] = {}
    for index in indexes:
        engine = Engine(plan.seed, index, plan.world)
        name = engine.kind.name
        ours = our_detectors(engine, plan, index)
        others = rivals(engine) if plan.with_rivals else {}
        seconds = min(ENGINE_HOURS, plan.hours) * 3600.0
        for stretch in engine.trace(seconds):
            for eyes in ours.values():
                eyes.see(stretch)
            for detector, rival in others.items():
                for kill_s in rival.see(stretch):
                    tally = tallies.setdefault(detector, Tally())
                    tally.kills[name] += 1
                    tally.causes[next(p.cause for p in stretch.pieces if p.end_s >= kill_s)] += 1
        for detector in others:
            tallies.setdefault(detector, Tally()).seconds[name] += int(seconds)
        for detector, eyes in ours.items():
            tally = tallies.setdefault(detector, Tally())
            tally.seconds[name] += int(seconds)
            tally.kills[name] += len(eyes.seen.kills)
            tally.causes.update(cause for _, cause in eyes.seen.kills)
            tally.suspicions.update(cause for _, cause in eyes.seen.suspicions)
    return tallies


def run_fault(plan: Plan, fault: str, indexes: Iterable[int]) -> dict[str, Tally]:
    """Engines that get `fault` after an hour and a half: how long until each detector suspects, and kills."""
    tallies: dict[str, Tally] = {}
    for index in indexes:
        at_s = WARM_S + WARM_SPREAD_S * ((index * 0.61803398875) % 1.0)
        engine = Engine(plan.seed + FAULT_SEED, index, plan.world, fault, at_s)
        ours = our_detectors(engine, plan, index)
        others = rivals(engine) if plan.with_rivals else {}
        killed: dict[str, float] = {}
        for stretch in engine.trace(WARM_S + WARM_SPREAD_S + HORIZON_S + 600.0):
            for eyes in ours.values():
                eyes.see(stretch)
            for detector, rival in others.items():
                late = [kill_s for kill_s in rival.see(stretch) if kill_s >= engine.fault_s]
                if late and detector not in killed:
                    killed[detector] = late[0] - engine.fault_s
        if engine.fault_s == math.inf:
            continue
        for detector in others:
            _enter(tallies.setdefault(detector, Tally()), fault, killed.get(detector, math.inf), None)
        for detector, eyes in ours.items():
            seen = eyes.seen
            kill_s = _first(engine.fault_s, seen.kills)
            tally = tallies.setdefault(detector, Tally())
            _enter(tally, fault, kill_s, min(kill_s, _first(engine.fault_s, seen.suspicions)))
            if fault == "gradual":
                flags = [(at_s, "") for at_s in seen.degraded_s]
                tally.degraded_s.append(_first(engine.fault_s, flags))
    return tallies


def _first(since_s: float, marks: list[tuple[float, str]]) -> float:
    return next((at_s - since_s for at_s, _ in marks if at_s >= since_s), math.inf)


def _enter(tally: Tally, fault: str, kill_s: float, suspect_s: float | None) -> None:
    tally.kill_s.setdefault(fault, []).append(kill_s if kill_s <= HORIZON_S else math.inf)
    if suspect_s is not None:
        tally.suspect_s.setdefault(fault, []).append(suspect_s if suspect_s <= HORIZON_S else math.inf)


def _batch(job: tuple[Plan, str, range]) -> dict[str, Tally]:
    plan, fault, indexes = job
    if fault:
        return run_fault(plan, fault, indexes)
    return run_clean(plan, indexes)


def run(plan: Plan, jobs: int = 0) -> Result:
    """The whole bench. jobs: processes to use (0: one per processor, at most 8)."""
    work: list[tuple[Plan, str, range]] = []
    if plan.hours > 0:
        work += [(plan, "", range(at, min(at + BATCH, plan.engines))) for at in range(0, plan.engines, BATCH)]
    for fault in FAULTS:
        work += [
            (plan, fault, range(at, min(at + BATCH, plan.faults_each))) for at in range(0, plan.faults_each, BATCH)
        ]
    processes = jobs or min(8, os.cpu_count() or 1)
    if processes == 1:
        return Result(plan, _gather(map(_batch, work)))
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return Result(plan, _gather(pool.map(_batch, work)))


def _gather(parts: Iterable[dict[str, Tally]]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for part in parts:
        for detector, tally in part.items():
            tallies.setdefault(detector, Tally()).add(tally)
    return tallies


def quantile_s(values: list[float], share: float) -> float | None:
    """The quantile, rounded up to a value that occurred; None if it lies beyond the horizon or there are none."""
    if not values:
        return None
    ordered = sorted(values)
    value = ordered[min(len(ordered) - 1, math.ceil(share * (len(ordered) - 1)))]
    return None if value == math.inf else round(value, 2)


def poisson_upper(count: int) -> float:
    """Upper end of the two-sided 95 % interval of a Poisson mean of which `count` events were seen (exact)."""
    low, high = float(count), 3.0 * count + 10.0
    for _ in range(100):
        middle = (low + high) / 2.0
        term = total = math.exp(-middle)
        for k in range(1, count + 1):
            term *= middle / k
            total += term
        low, high = (middle, high) if total > 0.025 else (low, middle)
    return high


def rows(result: Result) -> list[dict[str, object]]:
    """The result as the contract's rows; our own first."""
    names = sorted(result.tallies, key=lambda name: (not name.startswith(OURS), list(result.tallies).index(name)))
    out: list[dict[str, object]] = []
    for name in names:
        tally = result.tallies[name]
        kills = sum(tally.kills.values())
        hours = sum(tally.seconds.values()) / 3600.0
        row: dict[str, object] = {"detector": name}
        if hours:
            row["false_kills_per_1000h"] = round(1000.0 * kills / hours, 3)
            row["false_kills"] = kills
            row["hours"] = round(hours, 1)
            row["upper95_per_1000h"] = (
                round(1000.0 * poisson_upper(min(kills, 500)) / hours, 3) if kills <= 500 else None
            )
            row["by_class_per_1000h"] = {
                one: round(3.6e6 * tally.kills[one] / seconds, 2) for one, seconds in sorted(tally.seconds.items())
            }
            row["by_cause"] = dict(sorted(tally.causes.items()))
        row["faults"] = {fault: _times(tally, fault) for fault in DEADLY_FAULTS if fault in tally.kill_s}
        if tally.kill_s.get("gradual"):
            row["gradual_killed_share"] = round(_share(tally.kill_s["gradual"]), 3)
        if tally.degraded_s:
            row["gradual_flagged_share"] = round(_share(tally.degraded_s), 3)
            row["gradual_flagged_p50_s"] = quantile_s(tally.degraded_s, 0.5)
        if hours and tally.suspect_s:
            row["suspicions_per_1000h"] = round(1000.0 * sum(tally.suspicions.values()) / hours, 1)
            row["suspicions_without_stall_per_1000h"] = round(1000.0 * tally.suspicions["step"] / hours, 1)
        out.append(row)
    return out


def _share(values: list[float]) -> float:
    return sum(1 for value in values if value != math.inf) / len(values)


def _times(tally: Tally, fault: str) -> dict[str, float | None]:
    kills = tally.kill_s[fault]
    out = {"p50_s": quantile_s(kills, 0.5), "p99_s": quantile_s(kills, 0.99)}
    suspects = tally.suspect_s.get(fault)
    if suspects:
        out["suspect_p50_s"] = quantile_s(suspects, 0.5)
        out["suspect_p99_s"] = quantile_s(suspects, 0.99)
    return out
