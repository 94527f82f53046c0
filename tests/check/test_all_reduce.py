"""The all-reduce between ranks and nodes, with a real torch: it works, it ends in time, and it names who fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

import pytest

from lifesign.guard.preflight import collectives
from lifesign.guard.preflight.model import Finding, Plan

from .. import engine_support

pytestmark = pytest.mark.engine
BROKEN = {"GLOO_SOCKET_IFNAME": "no-such-card"}


@pytest.fixture(scope="module")
def command() -> tuple[str, ...]:
    return (str(engine_support.engine_path("path").parent / "vllm"), "serve", "m")


def check(plan: Plan, broken: Mapping[int, Mapping[str, str]] | None = None) -> Finding:
    (finding,) = collectives.check_all_reduce(plan, broken)
    return finding


def plan_of(command: tuple[str, ...], timeout_s: float = 20.0, **values: object) -> Plan:
    return Plan(command=command, environment=dict(os.environ), timeout_s=timeout_s, **values)  # type: ignore[arg-type]


def test_ranks_that_can_talk(command: tuple[str, ...]) -> None:
    finding = check(plan_of(command, ranks=3))
    assert finding.level == "ok", finding
    assert "3 ranks" in finding.what.en


def test_the_rank_that_cannot_is_named(command: tuple[str, ...]) -> None:
    finding = check(plan_of(command, 8.0, ranks=3), {2: BROKEN})
    assert finding.level == "stop"
    assert "0-2, 1-2" in finding.what.en
    assert "rank 2 is in all of them" in finding.what.en
    assert "NCCL_SOCKET_IFNAME" in finding.fix.en


def two_nodes(command: tuple[str, ...], broken: Mapping[int, Mapping[str, str]], nodes: int = 2) -> list[Finding]:
    port = engine_support.free_port()
    found: list[Finding | None] = [None] * nodes

    def node(number: int) -> None:
        plan = plan_of(command, 8.0 if broken else 20.0, ranks=nodes, nnodes=nodes, node_rank=number, master_port=port)
        found[number] = check(plan, broken)

    threads = [threading.Thread(target=node, args=(number,)) for number in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    return [one for one in found if one is not None]


def test_nodes_that_can_talk(command: tuple[str, ...]) -> None:
    assert [one.level for one in two_nodes(command, {})] == ["ok", "ok"]


def test_the_node_that_cannot_is_named_on_every_node(command: tuple[str, ...]) -> None:
    findings = two_nodes(command, {1: BROKEN})
    assert [one.level for one in findings] == ["stop", "stop"]
    for one in findings:
        assert "node pairs that fail: 0-1" in one.what.en


def test_a_node_that_never_comes_is_missed_in_time(command: tuple[str, ...]) -> None:
    plan = plan_of(command, ranks=2, nnodes=2, node_rank=0, master_port=engine_support.free_port())
    plan.timeout_s = 3.0
    started = time.monotonic()
    finding = check(plan)
    assert finding.level == "stop"
    assert "never came: 1 (node 1)" in finding.what.en
    assert time.monotonic() - started < collectives.IMPORT_S + 10


def test_a_master_that_is_not_there(command: tuple[str, ...]) -> None:
    plan = plan_of(command, ranks=2, nnodes=2, node_rank=1, master_port=engine_support.free_port())
    plan.timeout_s = 3.0
    finding = check(plan)
    assert finding.level == "stop"
    assert "can't reach 127.0.0.1" in finding.what.en
