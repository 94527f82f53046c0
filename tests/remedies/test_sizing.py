"""Values are computed from the log's figures, and are never equal to or worse than what the reader has."""

from __future__ import annotations

import random

import pytest

from lifesign.facts.model import Life
from lifesign.remedies import limits, sizing
from lifesign.text import T

NAMES = (
    "free_gib", "tried_gib", "total_gib", "weights_gib", "kv_needed_gib", "kv_available_gib", "est_max_len", "dummy_requests",
    "vocab_size", "max_len", "gpus_seen", "step_s",
)  # fmt: skip


def life(version: str = "0.11.2", platform: str = "cuda", env: dict[str, str] | None = None, **figures: float) -> Life:
    made = Life(version=version, platform=platform, env=env or {})
    made.figures = {name: (float(value), number) for number, (name, value) in enumerate(figures.items(), 1)}
    return made


def test_sampler_warm_up_from_the_vocabulary() -> None:
    at = life(dummy_requests=256, free_gib=0.6, vocab_size=152064)
    computed = sizing.fewer_sequences(at)
    assert computed is not None
    # Half of 0.6 GiB holds 7 copies of 64 x 152,064 x 4 bytes, but not of 128 x 152,064 x 4.
    assert computed.value == "64"
    assert 7 * 64 * 152064 * 4 <= 0.3 * sizing.GIB < 7 * 128 * 152064 * 4
    assert "152,064 x 4 bytes" in computed.how.en
    assert computed.lines == (2, 3, 1)


def test_sampler_warm_up_without_a_vocabulary() -> None:
    computed = sizing.fewer_sequences(life(dummy_requests=1024, free_gib=1.25, tried_gib=1.47))
    assert computed is not None
    assert computed.value == "256"


def test_first_aid_on_cpu_is_sixteen() -> None:
    computed = sizing.fewer_sequences(life(platform="cpu"))
    assert computed is not None
    assert computed.value == "16"


@pytest.mark.parametrize(("running", "value"), [(118, "64"), (300, "128"), (200, "128"), (40, "16"), (3, "128")])
def test_a_limit_stays_below_what_was_running(running: int, value: str) -> None:
    """256 by default: half of it would change nothing for 118 requests; with three running their number isn't the matter."""
    computed = sizing.fewer_sequences(life(running_reqs=running))
    assert computed is not None
    assert computed.value == value


def test_vllms_own_estimate_wins() -> None:
    at = life(est_max_len=184352, kv_needed_gib=10.12, kv_available_gib=8.44, max_len=221000)
    computed = sizing.shorter_context(at)
    assert computed is not None
    assert computed.value == "184352"
    assert computed.lines == (1,)


def test_context_in_proportion_without_an_estimate() -> None:
    computed = sizing.shorter_context(life(kv_needed_gib=10.0, kv_available_gib=5.0, max_len=100_000))
    assert computed is not None
    assert computed.value == str(50_000 // 256 * 256)


@pytest.mark.parametrize(("version", "value"), [("0.19.1", "0.85"), ("0.20.0", "0.87"), ("", "0.85")])
def test_utilisation_starts_from_the_default_of_the_release(version: str, value: str) -> None:
    computed = sizing.lower_utilisation(life(version))
    assert computed is not None
    assert computed.value == value


def test_utilisation_is_not_touched_when_the_cache_has_a_fixed_size() -> None:
    at = life()
    at.config["kv_cache_memory_bytes"] = 10**9
    assert sizing.lower_utilisation(at) is None


def test_fit_utilisation() -> None:
    computed = sizing.fit_utilisation(life(free_gib=63.2, total_gib=79.1))
    assert computed is not None
    assert computed.value == "0.79"
    assert float(computed.value) * 79.1 <= 63.2
    assert sizing.fit_utilisation(life(free_gib=5, total_gib=79.1)) is None
    assert sizing.fit_utilisation(life(free_gib=78.9, total_gib=79.1)) is None
    assert sizing.fit_utilisation(life(free_gib=30, total_gib=79.1, weights_gib=40)) is None


def test_raise_utilisation_only_where_it_is_enough() -> None:
    enough = sizing.raise_utilisation(life(kv_needed_gib=5, kv_available_gib=4, total_gib=80))
    assert enough is not None
    assert 0.9 < float(enough.value) <= 0.97
    assert sizing.raise_utilisation(life(kv_needed_gib=50, kv_available_gib=4, total_gib=80)) is None


def test_policy_of_time_outs() -> None:
    assert limits.policy_timeout_s("cuda", 256) == pytest.approx(81.2)
    assert limits.policy_timeout_s("cpu", 64) == 364
    assert limits.policy_timeout_s("cpu", 10_000) == 1800
    for sequences in (1, 16, 64, 256, 1024):
        assert limits.policy_timeout_s("cpu", sequences) > limits.policy_timeout_s("cuda", sequences)


def test_step_time_out_grows_and_is_capped() -> None:
    default = limits.step_timeout(life())
    assert default is not None
    assert default.value == "600"
    longer = limits.step_timeout(life(env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1000"}))
    assert longer is not None
    assert longer.value == "1800"
    assert limits.step_timeout(life(env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800"})) is None


def limit(at: Life, sequences: int, ran_out_s: float | None = None) -> tuple[str, str]:
    computed = limits.longer_step_limit(at, sequences, T("now", "现"), ran_out_s)
    assert computed is not None
    return computed.value, computed.how.en


def test_a_longer_limit_names_the_term_that_won() -> None:
    assert limit(life(platform="cpu"), 2) == ("600", "now; 600 s: twice the limit that ran out")
    assert limit(life(platform="cpu"), 900) == ("1200", "now; 1200 s: the policy for 900 sequences on cpu (1200 s)")
    assert limit(life(step_s=300), 4) == ("900", "now; 900 s: three times the longest step seen (300 s)")
    assert limit(life(step_s=700), 4) == ("1800", "now; 1800 s: three times the longest step seen (700 s), capped")


def test_a_default_that_the_log_disproves_is_not_doubled() -> None:
    """The engine lived for 28 s: what ran out was at most that, and twice 300 s has no ground."""
    assert limit(life(platform="cpu"), 2, 28.0) == (
        "310",
        "now; 310 s: the policy for 2 sequences on cpu (302 s), rounded up",
    )
    assert limit(life(), 2, 28.0) == ("300", "now; 300 s: vLLM's default, which a setting had shortened")
    assert limit(life(), 2, 200.0) == ("400", "now; 400 s: twice the limit that ran out")


@pytest.mark.parametrize(
    ("platform", "version", "ranks", "sequences"),
    [
        ("cuda", "0.32.0", 4, 256), ("cpu", "0.9.1", 1, 256), ("cpu", "0.9.2", 2, 32), ("cpu", "0.10.0", 1, 128), ("cpu", "0.32.0", 2, 256),
        ("cpu", "", 1, 128),
    ],
)  # fmt: skip
def test_the_default_batch_of_a_release(platform: str, version: str, ranks: int, sequences: int) -> None:
    assert sizing.default_sequences(platform, version, ranks) == sequences


def test_the_warm_up_s_figures_belong_to_the_warm_up_s_batch() -> None:
    """The reader's command asks for 256, the log's array was one of 4 sequences."""
    at = life(dummy_requests=4, free_gib=1.21, tried_gib=2.0)
    at.config["max_num_seqs"] = 256
    computed = sizing.fewer_sequences(at)
    assert computed is not None
    assert computed.value == "1"
    assert computed.how.en.startswith("2.00 GiB for 4 sequences, 1.21 GiB free: so few that")


@pytest.mark.parametrize("seed", range(5))
def test_never_equal_to_or_worse_than_now(seed: int) -> None:
    """Random figures: what is recommended as less is less, what is recommended as more is more."""
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(400):
        at = life(
            version=draw.choice(["", "0.8.5", "0.11.2", "0.32.0"]),
            platform=draw.choice(["cuda", "cpu"]),
            **{name: draw.choice([0.01, 0.5, 1, 7, 24, 80, 200, 4096, 1e6]) for name in draw.sample(NAMES, 6)},
        )
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size"):
            if draw.random() < 0.6:
                at.config[name] = draw.choice([1, 2, 16, 256, 1024, 8192, 131072])
        if draw.random() < 0.5:
            at.config["gpu_memory_utilization"] = draw.choice([0.3, 0.5, 0.9, 0.97])
        less = [
            (sizing.fewer_sequences, sizing.current_sequences(at)),
            (sizing.fewer_batched_tokens, sizing.current_batched_tokens(at)),
            (sizing.lower_utilisation, sizing.current_utilisation(at)),
            (sizing.fit_utilisation, sizing.current_utilisation(at)),
            (sizing.less_tensor_parallel, sizing.current_tensor_parallel(at)),
        ]
        more = [
            (sizing.raise_utilisation, sizing.current_utilisation(at)),
            (sizing.more_tensor_parallel, sizing.current_tensor_parallel(at)),
            (limits.step_timeout, sizing.current_step_timeout_s(at)),
        ]
        for function, now in less:
            computed = function(at)
            assert computed is None or 0 < float(computed.value) < now, (function.__name__, computed, now, at)
        for function, now in more:
            computed = function(at)
            assert computed is None or float(computed.value) > now, (function.__name__, computed, now, at)
        length = sizing.setting(at, "max_model_len")
        shorter = sizing.shorter_context(at)
        assert shorter is None or length is None or float(shorter.value) < length


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_figures_that_make_no_sense_do_no_harm(value: float) -> None:
    at = life(
        free_gib=value,
        tried_gib=value,
        total_gib=value,
        kv_needed_gib=value,
        kv_available_gib=value,
        dummy_requests=value,
    )
    for name in ("fewer_sequences", "fewer_batched_tokens", "shorter_context", "lower_utilisation", "fit_utilisation", "raise_utilisation", "cpu_offload", "more_tensor_parallel", "cpu_kv_space"):  # fmt: skip
        computed = getattr(sizing, name)(at)
        assert computed is None or float(computed.value) > 0
