"""Safety and liveness over ten thousand seeds.

A failing seed is printed; `LIFESIGN_SEED=n pytest tests/detector/test_properties.py` tells its story alone, and
`LIFESIGN_SEEDS=n` changes how many are told.
"""

from __future__ import annotations

import os

import pytest
from story import Story, deadly_story, safe_story

from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Kill

SEEDS = int(os.environ.get("LIFESIGN_SEEDS", "10000"))
BLOCKS = 10


def seeds(block: int) -> range:
    if "LIFESIGN_SEED" in os.environ:
        one = int(os.environ["LIFESIGN_SEED"])
        return range(one, one + 1) if block == 0 else range(0)
    size = max(1, SEEDS // BLOCKS)
    return range(block * size, (block + 1) * size)


def last_events(story: Story) -> str:
    return "\n".join(f"{at:.2f} {event}" for at, event in story.events[-6:])


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_progresses_is_never_killed(block: int) -> None:
    for seed in seeds(block):
        story = safe_story(seed)
        assert not story.killed, f"safety: seed {seed} was killed ({story.detector.finding})\n{last_events(story)}"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_is_dead_is_called_dead(block: int) -> None:
    for seed in seeds(block):
        story, taken_s, bound_s = deadly_story(seed)
        assert story.killed, f"liveness: seed {seed} lives on ({story.detector.finding})\n{last_events(story)}"
        assert taken_s <= bound_s, f"liveness: seed {seed} took {taken_s:.1f} s, bound {bound_s:.1f} s"


def test_a_seed_tells_the_same_story_again() -> None:
    for seed in range(20):
        first, again = safe_story(seed), safe_story(seed)
        assert first.events == again.events
        assert first.commands == again.commands
        fresh = Detector(Settings(patience=first.detector.settings.patience))
        told = [command for at, event in first.events for command in fresh.handle(event, at)]
        assert told == first.commands


def test_the_properties_can_fail() -> None:
    # The same stories under a detector without patience break the promise of safety: the test has teeth.
    killed = 0
    for seed in range(200):
        story = safe_story(seed)
        hasty = Detector(Settings(patience=story.detector.settings.patience))
        for at, event in story.events:
            hasty.clock.wall_s += 0.6  # a clock that runs fast
            hasty.clock.own_s += 0.6
            killed += any(isinstance(one, Kill) for one in hasty.handle(event, at))
    assert killed > 0
