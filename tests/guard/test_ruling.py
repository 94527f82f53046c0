"""The ruling: what only guard has seen beats a log that only saw the traces, and never beats a log that knows."""

from __future__ import annotations

from typing import Any

import pytest

from lifesign.causes import registry
from lifesign.guard.ruling import End, Facts, rule

OOM = {
    "cause": "device-oom",
    "subtype": "serving",
    "phase": "serving",
    "certainty": "established",
    "title": "t",
    "why": "w",
}
SILENT = {"cause": "silent-death", "subtype": "worker-died-no-trace", "phase": "serving", "certainty": "established"}
CLEAN = {"cause": "not-a-crash", "subtype": "", "phase": "shutdown", "certainty": "established"}
NOTHING = {"cause": "insufficient-log", "subtype": "", "phase": "", "certainty": "possible"}
RPC = {"cause": "timeout-hang", "subtype": "execute-model-rpc", "phase": "serving", "certainty": "established"}
IMA = {"cause": "illegal-memory-access", "subtype": "", "phase": "serving", "certainty": "supported"}

KILLED_WORKER = End("worker", "Worker_TP0", 12, None, "SIGKILL")
CORE_LEFT = End("core", "EngineCore", 11, 1, None)
API_LEFT = End("api", "APIServer", 10, 0, None)
CORE_TIDIED = End("core", "EngineCore", 11, None, "SIGKILL")


def facts(*ends: End, **values: Any) -> Facts:
    return Facts(ends=ends, became_ready=values.pop("became_ready", True), **values)


@pytest.mark.parametrize(
    ("verdict", "seen", "cause"),
    [
        (OOM, facts(CORE_LEFT, API_LEFT, top_code=0), "device-oom/serving"),
        (SILENT, facts(KILLED_WORKER, CORE_LEFT, API_LEFT), "silent-death/worker-died-no-trace"),
        (SILENT, facts(KILLED_WORKER, CORE_LEFT, oom_kill_delta=1), "host-oom/cgroup-limit"),
        (SILENT, facts(KILLED_WORKER, kernel_oom_pids=(12,)), "host-oom/kernel-oom-killer"),
        (SILENT, facts(KILLED_WORKER, kernel_oom_pids=(99,)), "silent-death/worker-died-no-trace"),
        (SILENT, facts(CORE_LEFT, oom_kill_delta=1), "silent-death/worker-died-no-trace"),
        (OOM, facts(KILLED_WORKER, oom_kill_delta=1), "device-oom/serving"),
        (OOM, facts(KILLED_WORKER, xids=(79,)), "hardware-fault/xid"),
        (RPC, facts(KILLED_WORKER, xids=(94,)), "hardware-fault/ecc"),
        (OOM, facts(KILLED_WORKER, xids=(31,)), "device-oom/serving"),
        (OOM, facts(KILLED_WORKER, xids=(63,)), "device-oom/serving"),
        (SILENT, facts(KILLED_WORKER, xids=(63, 92)), "silent-death/worker-died-no-trace"),
        (OOM, facts(KILLED_WORKER, xids_unsure=(79,)), "device-oom/serving"),
        (SILENT, facts(KILLED_WORKER, xids_unsure=(79,)), "hardware-fault/xid"),
        (IMA, facts(KILLED_WORKER, xids_unsure=(95,)), "hardware-fault/ecc"),
        (NOTHING, facts(End("api", "APIServer", 10, None, "SIGKILL")), "silent-death/signal"),
        (NOTHING, facts(End("core", "EngineCore", 11, None, "SIGSEGV")), "silent-death/segfault-native"),
        (NOTHING, facts(End("worker", "Worker", 12, None, "SIGTERM")), "process-lifecycle/external-sigterm"),
        (NOTHING, facts(End("worker", "Worker", 12, 9, None), CORE_LEFT), "silent-death/worker-died-no-trace"),
        (CLEAN, facts(CORE_TIDIED, API_LEFT, top_code=0), "process-lifecycle/external-sigterm"),
        (NOTHING, facts(hang="stopped too long", who=("core",), stopped=True), "timeout-hang/stopped"),
        (NOTHING, facts(hang="stuck too long", who=("worker 0: spinning",)), "timeout-hang/stuck"),
        (NOTHING, facts(hang="start-up stuck", became_ready=False), "timeout-hang/start-stuck"),
        (OOM, facts(hang="stuck too long"), "device-oom/serving"),
        (NOTHING, facts(orphaned=True), "process-lifecycle/guard-killed"),
        (NOTHING, facts(API_LEFT, became_ready=False, top_code=2), "user-config/usage"),
        (NOTHING, facts(API_LEFT, became_ready=False, top_code=127), "user-config/usage"),
        (NOTHING, facts(API_LEFT, became_ready=False, top_code=1), "insufficient-log/"),
    ],
)
def test_table(verdict: dict[str, Any], seen: Facts, cause: str) -> None:
    ruling = rule(verdict, seen)
    assert f"{ruling.cause}/{ruling.subtype}" == cause
    if ruling.source == "guard":
        page = registry.by_slug(ruling.cause)
        assert page is not None
        assert ruling.subtype in ("", *page.subtypes), "`lifesign explain` must know what guard reports"
        assert ruling.proof
        assert ruling.title.en != ruling.title.zh
        assert "{" not in ruling.title.en + ruling.why.en + ruling.title.zh + ruling.why.zh


def test_only_an_own_device_in_the_last_minutes_makes_it_established() -> None:
    assert rule(SILENT, facts(KILLED_WORKER, xids=(79,))).certainty == "established"
    unsure = rule(SILENT, facts(KILLED_WORKER, xids_unsure=(79,)))
    assert unsure.certainty == "supported"
    assert "not proven" in unsure.why.en
    both = rule(SILENT, facts(KILLED_WORKER, xids=(94,), xids_unsure=(79,)))
    assert (both.subtype, both.certainty) == ("ecc", "established")


def test_what_guard_itself_ended_is_no_cause() -> None:
    ours = End("worker", "Worker_TP0", 12, None, "SIGKILL", ours=True)
    assert rule(NOTHING, facts(ours)).cause == "insufficient-log"
    assert rule(SILENT, facts(ours, oom_kill_delta=1)).cause == "silent-death"


def test_facts_survive_as_json() -> None:
    seen = facts(KILLED_WORKER, API_LEFT, xids=(79,), who=("a", "b"), hang="x", top_code=0)
    assert Facts.load(seen.as_json()) == seen
