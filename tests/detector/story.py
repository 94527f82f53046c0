"""Random stories for the detector's properties: an engine works for a while, then perhaps dies, under any evidence.

A story is made from its seed alone. What is kept out of it is what the property excludes: a story for safety contains
no gap longer than the detector's promise for the evidence that it gets; a story for liveness contains no progress after
the fault.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from lifesign.guard.detector.core import STUCK_KILL_S, UNKNOWN_KILL_S, WORKING_KILL_S, Detector, Settings
from lifesign.guard.detector.events import Begin, Command, Event, Kill, Note, Poll
from lifesign.guard.detector.evidence import GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import Prior, StepSize

WINDOW_S = 4.0
SCORE_TURNS_S = 12.0
"""The longest time that full agreement on the opposite takes to turn the score."""


def working(rng: random.Random, wait_share: float = 0.0) -> ProcessSignals:
    threads = rng.choice([1, 2, 16])
    want_s = WINDOW_S * threads * rng.uniform(0.7, 1.0)
    run_s = want_s * (1.0 - wait_share)
    return ProcessSignals(
        11, "worker", 0, "R", WINDOW_S, run_s, want_s - run_s, run_s, int(5000 * run_s) + 100, int(3 * run_s), threads
    )


def stuck(rng: random.Random) -> ProcessSignals:
    kind = rng.choice(["spin", "poll", "blocked"])
    if kind == "spin":
        return ProcessSignals(11, "worker", 0, "R", WINDOW_S, 3.6, 0.2, 3.6, 0, 0, 1)
    if kind == "poll":
        return ProcessSignals(11, "worker", 0, "S", WINDOW_S, 0.08, 0.01, 0.08, 0, 4000, 1)
    return ProcessSignals(11, "worker", 0, "S", WINDOW_S)


def unseen() -> ProcessSignals:
    return ProcessSignals(11, "worker", 0, "S")


@dataclass
class Story:
    """A seed's random choices, and the events told so far."""

    seed: int

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(f"story/{self.seed}")
        self.backend = rng.choice(["cpu", "gpu"])
        self.tier = rng.choice(["beacon", "outside"])
        self.restart_s = rng.choice([10.0, 40.0, 60.0, 120.0, 300.0])
        self.base_s = 10 ** rng.uniform(-2.5, 0.3)
        self.prior = Prior(self.base_s * rng.uniform(0.3, 4), self.base_s / 100, self.base_s / 50)
        self.detector = Detector(Settings(patience=rng.choice([0.1, 0.3, 1.0])))
        self.events: list[tuple[float, Event]] = []
        self.commands: list[Command] = []
        self.now_s = rng.uniform(0.0, 1e6)
        self.size = StepSize(rng.choice([1, 8, 64, 256]), rng.choice([256, 2048, 8448]))
        self.tell(
            Begin(self.backend, self.tier, True, self.restart_s, StepSize(256, 8448), self.prior)  # type: ignore[arg-type]
        )

    def tell(self, event: Event) -> None:
        self.events.append((self.now_s, event))
        self.commands += self.detector.handle(event, self.now_s)

    @property
    def killed(self) -> bool:
        return any(isinstance(one, Kill) for one in self.commands)

    def look(self, steps: int | None, process: ProcessSignals | None, gpu: GpuSignals | None = None) -> None:
        self.now_s += self.rng.choice([1.0, 1.0, 1.0, self.rng.uniform(0.4, 1.4)])
        if self.rng.random() < 0.01:
            self.now_s += self.rng.uniform(1.6, 400.0)  # the observer slept
        done = self.size if steps else None
        step_s = self.base_s * self.rng.uniform(0.8, 1.4) if steps else 0.0
        running = self.size if self.tier == "beacon" else None
        self.tell(Poll(steps, True, step_s, done, running, (process,) if process else (), (gpu,) if gpu else ()))

    def work(self, looks: int) -> None:
        """Steps come in at every look; the channels learn what that looks like."""
        for _ in range(looks):
            self.look(self.rng.randint(1, 20), working(self.rng), GpuSignals(0, 300.0, 50.0))

    def gap(self, looks: float, evidence: str, blind: bool = False) -> None:
        """No progress for that many looks (each counts as 1.4 s at most), under the given evidence."""
        gpu = self.backend == "gpu"
        starve = self.rng.uniform(0.0, 0.98) if self.rng.random() < 0.3 else 0.0
        for _ in range(int(looks)):
            if self.killed:
                return
            steps = None if blind else 0
            if evidence == "working":
                self.look(steps, working(self.rng, starve), GpuSignals(0, 290.0, 45.0) if gpu else None)
            elif evidence == "stuck":
                self.look(steps, stuck(self.rng), GpuSignals(0, 60.0, 0.0) if gpu else None)
            elif evidence == "none":
                self.look(steps, self.rng.choice([None, unseen()]))
            else:
                process = self.rng.choice([stuck(self.rng), working(self.rng), unseen(), None])
                self.look(steps, process, self.rng.choice([None, GpuSignals(0, 60.0, 0.0), GpuSignals(0, 300.0, 50.0)]))


def safe_story(seed: int) -> Story:
    """An engine that always comes back within what its evidence is promised."""
    story = Story(seed)
    rng = story.rng
    story.work(rng.randint(3, 30))
    for _ in range(rng.randint(1, 5)):
        evidence = rng.choice(["working", "working", "stuck", "none", "any"])
        # What is promised whatever the state of learning: 15 s if it looks stuck, 60 s unknown, 600 s at work.
        promised_s = {
            "stuck": STUCK_KILL_S,
            "any": STUCK_KILL_S,
            "none": UNKNOWN_KILL_S[0],
            "working": WORKING_KILL_S[0],
        }
        longest = promised_s[evidence] / 1.4
        share = rng.random() ** 4 if evidence == "working" else rng.random()
        if rng.random() < 0.1:
            story.tell(Note("compile", 60.0))
        story.gap(longest * share, evidence, blind=rng.random() < 0.1)
        story.work(rng.randint(1, 8))
    return story


def deadly_story(seed: int) -> tuple[Story, float, float]:
    """An engine that never comes back; gives the story, how long it took to be called dead, and the bound for that.

    Seconds are those that the detector counts: the observer's own sleep isn't held against the engine.
    """
    story = Story(seed)
    rng = story.rng
    story.work(rng.randint(3, 40))
    evidence = rng.choice(["stuck"] * 14 + ["none"] * 2 + ["working"] * (1 if seed % 40 == 0 else 0))
    blind = rng.random() < 0.1
    if story.backend == "gpu" and evidence == "stuck" and rng.random() < 0.1:
        evidence = "none"
    before = len(story.events)
    limit_s = story.detector.cost.suspect_limit_s(story.size if story.tier == "beacon" else StepSize(256, 8448))
    limit_s = max(limit_s, story.detector.cost.suspect_limit_s(story.size))
    if evidence == "stuck":
        bound_s = max(STUCK_KILL_S, story.detector.settings.patience * story.restart_s) + SCORE_TURNS_S
        if blind:
            bound_s = max(bound_s, 120.0)
    elif evidence == "none":
        factor = 3.0 if story.tier == "beacon" else 1.5
        bound_s = min(
            UNKNOWN_KILL_S[1], max(UNKNOWN_KILL_S[0], factor * limit_s, story.restart_s, 120.0 if blind else 0.0)
        )
    else:
        # Work that starves counts a tenth at least.
        bound_s = 10.0 * WORKING_KILL_S[1]
    story.gap(4.0 * bound_s + 40.0, evidence, blind)
    taken_s = 0.0
    times = [at for at, _ in story.events[before - 1 :]]
    for earlier, later in itertools.pairwise(times):
        taken_s += 1.0 if later - earlier > 1.5 else later - earlier
    return story, taken_s, bound_s + 3.0
