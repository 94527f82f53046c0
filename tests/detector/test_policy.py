"""The simple policy's guards, and the learned step cost."""

from __future__ import annotations

import math
import random

import pytest

from lifesign.guard.detector.policy import (
    LIMIT_CAP_S,
    LIMIT_FLOOR_S,
    Prior,
    StepCost,
    StepSize,
    prior_for,
    simple_limit_s,
    simple_verdict,
)


def test_simple_limits() -> None:
    assert simple_limit_s("gpu", 0) == 30.0
    assert simple_limit_s("gpu", 64) == pytest.approx(42.8)
    assert simple_limit_s("cpu", 0) == 300.0
    assert simple_limit_s("cpu", 64) == pytest.approx(364.0)
    assert simple_limit_s("cpu", -3) == 300.0


@pytest.mark.parametrize("sequences", [0, 1, 16, 64, 256, 5000, 100_000])
def test_cpu_waits_longer_than_gpu_grows_and_is_capped(sequences: int) -> None:
    gpu, cpu = simple_limit_s("gpu", sequences), simple_limit_s("cpu", sequences)
    assert cpu > gpu or cpu == gpu == LIMIT_CAP_S
    assert simple_limit_s("cpu", sequences + 1) > cpu or cpu == LIMIT_CAP_S
    assert max(gpu, cpu) <= LIMIT_CAP_S


def test_simple_verdict_alive_retries_gone_is_dead() -> None:
    assert simple_verdict(alive=True, working=True) == "retry"
    assert simple_verdict(alive=True, working=False) == "dead"
    assert simple_verdict(alive=False, working=True) == "dead"


def steps(rng: random.Random, costs: Prior, count: int, noise: float = 0.12) -> list[tuple[StepSize, float]]:
    out = []
    sequences = 1
    for _ in range(count):
        if rng.random() < 0.01:
            sequences = rng.choice([1, 4, 16, 64, 256])
        prefill = int(8192 * rng.random()) if rng.random() < 0.08 else 0
        seconds = costs.base_s + costs.per_token_s * prefill + costs.per_sequence_s * sequences
        out.append((StepSize(sequences, sequences + prefill), seconds * math.exp(rng.gauss(0, noise))))
    return out


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("backend", "costs"),
    [
        ("gpu", Prior(0.03, 1e-4, 1.5e-4)),
        ("gpu", Prior(0.008, 2e-5, 3e-5)),
        ("cpu", Prior(0.05, 2e-3, 1e-2)),
        ("cpu", Prior(0.5, 1.5e-2, 0.15)),
    ],
)
def test_learns_the_costs_whatever_the_prior(seed: int, backend: str, costs: Prior) -> None:
    rng = random.Random(seed)
    wrong = math.exp(rng.gauss(0, 1.2))
    prior = Prior(costs.base_s * wrong, costs.per_token_s * wrong, costs.per_sequence_s * wrong)
    model = StepCost(backend, prior)  # type: ignore[arg-type]
    errors, late = [], 0
    for at, (size, seconds) in enumerate(steps(rng, costs, 4000)):
        if at > 1500:
            errors.append(abs(model.predicted_s(size) / seconds - 1))
            late += seconds > model.suspect_limit_s(size)
        model.observe(size, seconds)
    errors.sort()
    print("seed", seed, "median error", errors[len(errors) // 2], "late", late)
    assert errors[len(errors) // 2] < 0.15
    assert late <= 3
    assert 1.5 <= model.ratio <= 12.0


def test_one_slow_step_teaches_nothing_many_do() -> None:
    model = StepCost("cpu", Prior(1.0, 0.0, 0.0))
    size = StepSize(1, 1)
    for _ in range(100):
        model.observe(size, 1.0)
    before = model.predicted_s(size)
    model.observe(size, 60.0)
    assert model.predicted_s(size) == before
    for _ in range(300):
        model.observe(size, 60.0)
    assert model.predicted_s(size) > 50.0


def test_limits_stay_within_floor_and_cap() -> None:
    fast, slow = StepCost("gpu", Prior(1e-3, 1e-7, 1e-6)), StepCost("cpu", Prior(500.0, 10.0, 10.0))
    assert fast.suspect_limit_s(StepSize(1, 1)) == LIMIT_FLOOR_S
    assert slow.suspect_limit_s(StepSize(256, 8448)) == LIMIT_CAP_S


def test_rubbish_is_no_duration() -> None:
    model = StepCost("gpu")
    before = model.costs()
    for seconds in (-1.0, float("nan"), float("inf"), 1e9):
        model.observe(StepSize(1, 1), seconds)
    assert model.costs() == before
    assert model.steps == 0
    for size in (StepSize(0, 0), StepSize(5, 0), StepSize(0, 10)):
        model.observe(size, 0.0)
        assert math.isfinite(model.predicted_s(size))


def test_prior_from_the_size_of_the_model() -> None:
    assert prior_for("cpu") == prior_for("cpu", 0, 1e9)
    roofline = prior_for("cpu", 10_000_000_000, 50e9)
    assert roofline.base_s == pytest.approx(0.4)
    assert prior_for("cpu").base_s > prior_for("gpu").base_s


def test_costs_can_be_handed_on() -> None:
    first = StepCost("cpu", Prior(1.0, 0.01, 0.1))
    for size, seconds in steps(random.Random(5), Prior(0.3, 0.002, 0.02), 500):
        first.observe(size, seconds)
    second = StepCost("cpu", first.costs())
    assert second.predicted_s(StepSize(16, 16)) == first.predicted_s(StepSize(16, 16))
    assert first.learned
    assert not second.learned
