"""The restart policy: pure, so every rule and budget is checked with a clock that the test turns."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifesign.guard.restart import (
    DELAY_CAP_S,
    HARDWARE_XIDS,
    RULES,
    Change,
    Decision,
    Died,
    Memory,
    Progressed,
    RestartPolicy,
    Started,
    apply_changes,
    rule_for,
)

HALF = 0.5
"""A draw in the middle: the jitter factor is exactly 1."""


def die(policy: RestartPolicy, death: Died, now_s: float) -> Decision:
    decision = policy.handle(death, now_s)
    assert decision is not None
    return decision


def live_and_die(policy: RestartPolicy, death: Died, now_s: float, *, progress: bool = False) -> Decision:
    assert policy.handle(Started(), now_s) is None
    if progress:
        assert policy.handle(Progressed(), now_s + 1) is None
    return die(policy, death, now_s + 2)


@pytest.mark.parametrize(
    ("death", "action"),
    [
        (Died("user-config", "max-model-len"), "stop"),
        (Died("model-load", "config-or-code"), "stop"),
        (Died("model-load", "hf-download"), "restart"),
        (Died("unsupported-hw", "no-kernel-image"), "stop"),
        (Died("env-install", "driver-too-old", became_ready=True), "stop"),
        (Died("device-oom", "profile-forward"), "stop"),
        (Died("device-oom", "serving", became_ready=True), "restart"),
        (Died("host-resource", "port-in-use"), "stop"),
        (Died("host-oom", "cgroup-limit", became_ready=True), "restart"),
        (Died("collective-comm", "nccl-timeout", became_ready=True), "restart"),
        (Died("timeout-hang", "stopped", became_ready=True, hung=True), "restart"),
        (Died("silent-death", "worker-died-no-trace", became_ready=True), "restart"),
        (Died("process-lifecycle", "fork-cuda-init"), "stop"),
        (Died("process-lifecycle", "external-sigterm", became_ready=True), "restart"),
        (Died("hardware-fault", "ecc", became_ready=True), "hold"),
        (Died("illegal-memory-access", "ima-serving", became_ready=True, xids=(13,)), "restart"),
        (Died("illegal-memory-access", "ima-serving", became_ready=True, xids=(13, 79)), "hold"),
        (Died("something-new", "x"), "restart"),
    ],
)
def test_the_cause_decides_first(death: Died, action: str) -> None:
    decision = live_and_die(RestartPolicy(lambda: HALF), death, 1000.0)
    assert decision.action == action
    assert decision.why.en
    assert decision.why.zh


def test_every_rule_can_be_reached() -> None:
    for rule in RULES:
        death = Died(
            "anything" if rule.cause == "*" else rule.cause,
            "any" if rule.subtype == "*" else rule.subtype,
            became_ready=rule.phase == "serving",
        )
        assert rule_for(death) is rule, rule.name


def test_delays_double_from_five_seconds_up_to_the_cap() -> None:
    policy = RestartPolicy(lambda: HALF)
    crash = Died("silent-death", became_ready=True)
    delays = []
    for index in range(2):
        delays.append(live_and_die(policy, crash, 10_000.0 * index).delay_s)
    assert delays == [5.0, 10.0]
    policy.memory.fruitless = 9
    policy.memory.progressed = False
    assert policy._delay_s(crash) == DELAY_CAP_S


def test_jitter_is_half_either_way() -> None:
    crash = Died("silent-death", became_ready=True)
    low = live_and_die(RestartPolicy(lambda: 0.0), crash, 0.0).delay_s
    high = live_and_die(RestartPolicy(lambda: 0.999999), crash, 0.0).delay_s
    assert low == 2.5
    assert 7.4 < high < 7.5


def test_a_long_healthy_life_is_followed_at_once() -> None:
    crash = Died("silent-death", became_ready=True, served_s=3600.0)
    assert live_and_die(RestartPolicy(lambda: HALF), crash, 0.0, progress=True).delay_s == 0.0
    short = Died("silent-death", became_ready=True, served_s=30.0)
    assert live_and_die(RestartPolicy(lambda: HALF), short, 0.0, progress=True).delay_s > 0.0


def test_three_starts_without_progress_are_held_even_when_they_are_slow() -> None:
    """A start of four minutes and a death at the first request resets Kubernetes' back-off for ever; not this one."""
    policy = RestartPolicy(lambda: HALF)
    crash = Died("request-poison", became_ready=True, served_s=700.0)
    actions = [live_and_die(policy, crash, 1200.0 * index).action for index in range(3)]
    assert actions == ["restart", "restart", "hold"]


def test_progress_forgives_what_was_before() -> None:
    policy = RestartPolicy(lambda: HALF)
    crash = Died("silent-death", became_ready=True)
    for index in range(2):
        live_and_die(policy, crash, 4000.0 * index)
    assert live_and_die(policy, crash, 8000.0, progress=True).action == "restart"
    assert [live_and_die(policy, crash, 12_000.0 + 4000.0 * index).action for index in range(3)] == [
        "restart",
        "restart",
        "hold",
    ]


def test_six_restarts_an_hour_are_the_limit_despite_progress() -> None:
    policy = RestartPolicy(lambda: HALF)
    crash = Died("silent-death", became_ready=True)
    decisions = [live_and_die(policy, crash, 60.0 * index, progress=True) for index in range(7)]
    assert [decision.action for decision in decisions] == ["restart"] * 6 + ["hold"]
    assert decisions[-1].rule == "hourly"
    policy = RestartPolicy(lambda: HALF)
    spread = [live_and_die(policy, crash, 900.0 * index, progress=True).action for index in range(20)]
    assert set(spread) == {"restart"}


def test_max_restarts_counts_this_guard() -> None:
    policy = RestartPolicy(lambda: HALF, max_restarts=1)
    crash = Died("silent-death", became_ready=True)
    assert live_and_die(policy, crash, 0.0, progress=True).action == "restart"
    decision = live_and_die(policy, crash, 5000.0, progress=True)
    assert (decision.action, decision.rule) == ("hold", "max-restarts")


def test_a_request_in_two_deaths_is_poison() -> None:
    policy = RestartPolicy(lambda: HALF)
    first = live_and_die(policy, Died("engine-bug", requests=("id:a", "id:b")), 0.0)
    second = live_and_die(policy, Died("engine-bug", requests=("id:b", "id:c")), 100.0)
    assert first.poison == ()
    assert second.poison == ("id:b",)


SMALLER = Change("flag", "--max-num-seqs", "64")
EAGER = Change("flag", "--enforce-eager", None)


def test_remedies_are_tried_one_at_a_time_and_undone() -> None:
    policy = RestartPolicy(lambda: HALF, apply_remedies=True)
    oom = Died("device-oom", "profile-forward", changes=(SMALLER, EAGER))
    first = live_and_die(policy, oom, 0.0)
    assert (first.action, first.apply, first.undo) == ("restart", SMALLER, None)
    second = live_and_die(policy, oom, 100.0)
    assert (second.action, second.apply, second.undo) == ("restart", EAGER, SMALLER)
    third = live_and_die(policy, oom, 200.0)
    assert (third.action, third.apply, third.undo) == ("hold", None, EAGER)


def test_a_remedy_that_helps_is_kept() -> None:
    policy = RestartPolicy(lambda: HALF, apply_remedies=True)
    oom = Died("device-oom", "profile-forward", changes=(SMALLER,))
    assert live_and_die(policy, oom, 0.0).apply == SMALLER
    crash = Died("silent-death", became_ready=True, changes=())
    decision = live_and_die(policy, crash, 1000.0, progress=True)
    assert decision.undo is None
    assert policy.memory.active == [SMALLER]


def test_remedies_wait_for_the_second_death_when_a_plain_restart_may_do() -> None:
    policy = RestartPolicy(lambda: HALF, apply_remedies=True)
    oom = Died("device-oom", "serving", became_ready=True, changes=(SMALLER,))
    assert live_and_die(policy, oom, 0.0, progress=True).apply is None
    assert live_and_die(policy, oom, 1000.0, progress=True).apply == SMALLER


def test_without_consent_nothing_is_changed() -> None:
    policy = RestartPolicy(lambda: HALF)
    decision = live_and_die(policy, Died("device-oom", "profile-forward", changes=(SMALLER,)), 0.0)
    assert (decision.action, decision.apply) == ("stop", None)


def test_changes_replace_both_forms_of_a_flag() -> None:
    command = ["vllm", "serve", "m", "--max-num-seqs", "256", "--enforce-eager", "--max-num-seqs=128", "--port", "1"]
    changed, environment = apply_changes(command, {"A": "1"}, [SMALLER, EAGER, Change("env", "NCCL_P2P_DISABLE", "1")])
    assert changed == ["vllm", "serve", "m", "--port", "1", "--max-num-seqs", "64", "--enforce-eager"]
    assert environment == {"A": "1", "NCCL_P2P_DISABLE": "1"}


def test_a_life_dies_once_whoever_reports_it() -> None:
    policy = RestartPolicy(lambda: HALF)
    first = Died("silent-death", "core-died-no-trace", life="1-a", requests=("id:7",))
    decision = live_and_die(policy, first, 0.0)
    counted = policy.memory.export()
    assert die(policy, first, 5.0) is decision
    again = RestartPolicy(lambda: 0.9, memory=Memory.load(json.loads(json.dumps(counted))))
    assert die(again, Died("process-lifecycle", "guard-killed", life="1-a", requests=("id:7",)), 9.0) == decision
    assert again.memory.export() == counted
    assert again.decided("1-b") is None
    other = live_and_die(again, Died("silent-death", life="1-b", requests=("id:7",)), 20.0)
    assert other.poison == ("id:7",), "the next life is another death"
    assert again.memory.fruitless == 2


def test_deaths_of_lives_without_a_name_all_count() -> None:
    policy = RestartPolicy(lambda: HALF)
    for number in (1, 2):
        live_and_die(policy, Died("silent-death"), 100.0 * number)
        assert policy.memory.fruitless == number
    assert policy.decided("") is None


def test_a_decision_survives_as_json_with_its_change() -> None:
    policy = RestartPolicy(lambda: HALF, apply_remedies=True)
    change = Change("flag", "--max-num-seqs", "64")
    live_and_die(policy, Died("device-oom", "serving", became_ready=True, changes=(change,)), 0.0)
    decision = live_and_die(
        policy, Died("device-oom", "serving", became_ready=True, changes=(change,), life="2-a"), 100.0
    )
    assert decision.apply == change
    loaded = Memory.load(json.loads(json.dumps(policy.memory.export())))
    assert loaded.decided == ("2-a", decision)
    older = {name: value for name, value in policy.memory.export().items() if name != "decided"}
    assert Memory.load(older).decided is None, "a memory of an earlier release"


def test_memory_survives_as_json() -> None:
    policy = RestartPolicy(lambda: HALF, apply_remedies=True)
    live_and_die(policy, Died("device-oom", "profile-forward", requests=("id:a",), changes=(SMALLER, EAGER)), 0.0)
    live_and_die(policy, Died("device-oom", "profile-forward", requests=("id:b",), changes=(SMALLER, EAGER)), 10.0)
    again = Memory.load(json.loads(json.dumps(policy.memory.export())))
    assert again == policy.memory
    with pytest.raises((KeyError, TypeError, ValueError)):
        Memory.load({"starts": "x"})


CAUSES = [*sorted({rule.cause for rule in RULES} - {"*"}), "new"]


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    deaths=st.lists(
        st.tuples(st.sampled_from(CAUSES), st.booleans(), st.floats(0.0, 5000.0), st.booleans()), max_size=40
    ),
)
def test_no_history_ever_restarts_without_bound(seed: int, deaths: list[tuple[str, bool, float, bool]]) -> None:
    policy = RestartPolicy(random.Random(seed).random)
    now_s, restarts, fruitless = 0.0, [], 0
    for cause, ready, gap_s, progress in deaths:
        now_s += gap_s
        decision = live_and_die(policy, Died(cause, became_ready=ready), now_s, progress=progress)
        fruitless = 0 if progress else fruitless + 1
        if decision.action != "restart":
            break
        assert fruitless < 3
        assert 0.0 <= decision.delay_s <= DELAY_CAP_S
        restarts.append(now_s)
        assert sum(1 for at in restarts if now_s - at < 3600.0) <= 6


def test_hardware_xids_are_not_the_software_ones() -> None:
    assert HARDWARE_XIDS.isdisjoint({13, 31, 43, 45})


def test_news_of_a_device_is_no_reason_to_hold() -> None:
    """NVIDIA's catalog: 63 (a row was remapped) and 92 (corrected errors) are to be ignored; 64 and 95 need a reset."""
    assert HARDWARE_XIDS.isdisjoint({63, 92, 154})
    assert HARDWARE_XIDS.issuperset({48, 64, 79, 95, 119, 120, 140})
