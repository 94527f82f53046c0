"""A small all-reduce between ranks and nodes, before vLLM needs one: bounded in time, and it names who fails.

Every rank is a process of the engine's own Python (torch.distributed; gloo without accelerator, nccl with). Ranks meet
in a TCPStore first: who doesn't come is missing. When the whole group fails, pairs are tried: between local ranks one
after the other, between nodes in the rounds of a tournament, so that every node knows its partner without asking.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lifesign.guard.evidence.versions import interpreter_of
from lifesign.guard.preflight.model import Finding, Plan, ok
from lifesign.text import T

PAIR_TIMEOUT_S = 20.0
IMPORT_S = 30.0
MAX_RANKS = 16
MAX_PAIRS = 28
_CODE = r"""
import datetime, json, os, socket, sys, time
c = json.loads(sys.argv[1]); r, w = c["rank"], c["world"]
out = {"rank": r, "stage": "import"}
def say(**more):
    out.update(more); print(json.dumps(out), flush=True)
try:
    import torch, torch.distributed as d
    span = datetime.timedelta(seconds=c["timeout_s"])
    say(stage="meet")
    store = d.TCPStore(c["addr"], c["port"], w, r == 0, span, wait_for_workers=False)
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try: probe.connect((c["addr"], 9)); mine = probe.getsockname()[0]
    except OSError: mine = "127.0.0.1"
    store.set(f"here/{r}", mine)
    until = time.monotonic() + c["timeout_s"]
    missing = list(range(w))
    while missing and time.monotonic() < until:
        missing = [k for k in missing if not store.check([f"here/{k}"])]
        time.sleep(0.05)
    if missing:
        say(missing=missing); os._exit(0)
    say(stage="connect", addresses=[store.get(f"here/{k}").decode() for k in range(w)])
    d.init_process_group(c["backend"], store=d.PrefixStore("group", store), rank=r, world_size=w, timeout=span)
    x = torch.full((4096,), float(r + 1))
    if c["backend"] == "nccl":
        torch.cuda.set_device(c["local"] % torch.cuda.device_count()); x = x.cuda()
    say(stage="all-reduce")
    d.all_reduce(x)
    if c["backend"] == "nccl": torch.cuda.synchronize()
    at = time.monotonic(); d.all_reduce(x.clone())
    if c["backend"] == "nccl": torch.cuda.synchronize()
    say(stage="done", right=bool(x[0].item() == w * (w + 1) / 2), ms=round((time.monotonic() - at) * 1000, 3))
    store.set(f"left/{r}", "1")
    if r == 0:  # the store lives here: leave last
        until = time.monotonic() + 5
        while time.monotonic() < until and not store.check([f"left/{k}" for k in range(w)]): time.sleep(0.02)
except Exception as error:
    say(error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
os._exit(0)
"""


_OTHER_COMMAND = T(
    "start check with the command of the environment that has torch", "改用装有 torch 的环境里的启动命令"
)


@dataclass
class Rank:
    """What became of one rank. `stage` is how far it came: import, meet, connect, all-reduce, done."""

    number: int
    stage: str = "start"
    error: str = ""
    missing: list[int] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    right: bool = False
    ms: float = 0.0

    @property
    def fine(self) -> bool:
        """Whether its sum was right."""
        return self.stage == "done" and self.right


@dataclass(frozen=True)
class Group:
    """A group to try: which of its ranks run here. `environments` adds variables for single ranks."""

    python: str
    backend: str
    world: int
    local_ranks: tuple[int, ...]
    addr: str
    port: int
    timeout_s: float
    environment: Mapping[str, str]
    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


def run_group(plan: Plan, group: Group) -> list[Rank]:
    """Run the local ranks of a group to their end, or to the time-out; gives them in order. Never raises."""
    ranks = [Rank(number) for number in group.local_ranks]
    processes: list[subprocess.Popen[bytes]] = []
    for local, rank in enumerate(ranks):
        config = {
            "rank": rank.number, "world": group.world, "local": local, "backend": group.backend,
            "addr": group.addr, "port": group.port, "timeout_s": group.timeout_s,
        }  # fmt: skip
        environment = {**group.environment, "OMP_NUM_THREADS": "1", **group.environments.get(rank.number, {})}
        try:
            processes.append(
                plan.helpers.start(
                    [group.python, "-c", _CODE, json.dumps(config)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, start_new_session=True, env=environment,
                )
            )  # fmt: skip
        except OSError as error:
            rank.error = error.strerror or str(error)
    until_s = time.monotonic() + IMPORT_S + 2 * group.timeout_s
    for rank, process in zip([rank for rank in ranks if not rank.error], processes, strict=True):
        _collect(plan, rank, process, until_s)
    return ranks


def _collect(plan: Plan, rank: Rank, process: subprocess.Popen[bytes], until_s: float) -> None:
    try:
        output, _ = process.communicate(timeout=max(0.1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        rank.error = "no answer in time"
    plan.helpers.forget(process.pid)
    for line in output.decode("utf-8", "replace").splitlines():
        with suppress(ValueError, AttributeError):
            value: dict[str, Any] = json.loads(line)
            rank.stage = str(value.get("stage", rank.stage))
            rank.error = str(value.get("error", rank.error))
            rank.missing = list(value.get("missing", rank.missing))
            rank.addresses = list(value.get("addresses", rank.addresses))
            rank.right = bool(value.get("right", rank.right))
            rank.ms = float(value.get("ms", rank.ms))
    if not rank.fine and not rank.error and not rank.missing and process.returncode:
        rank.error = f"ended with {process.returncode}"


def check_all_reduce(plan: Plan, environments: Mapping[int, Mapping[str, str]] | None = None) -> Iterator[Finding]:
    """An all-reduce between the ranks of the plan; on several nodes every node runs the same command."""
    wanted = plan.all_reduce if plan.all_reduce is not None else plan.ranks > 1 or plan.nnodes > 1
    if not wanted:
        return
    python = _python_with_torch(plan)
    if python is None:
        yield Finding(
            "note", "all-reduce", T("not tried: no Python with torch is known", "没有测试：找不到装有 torch 的 Python"),
            _OTHER_COMMAND if plan.command else T("give the engine's command after --", "在 -- 后面写上引擎的启动命令"),
        )  # fmt: skip
        return
    here = min(MAX_RANKS, max(plan.ranks, 2) if plan.nnodes == 1 else max(1, plan.ranks // plan.nnodes))
    world = here * plan.nnodes
    first = plan.node_rank * here
    group = Group(
        python, "gloo" if plan.is_cpu else "nccl", world, tuple(range(first, first + here)), plan.master_addr,
        plan.master_port if plan.nnodes > 1 else free_port(), plan.timeout_s, plan.environment, environments or {},
    )  # fmt: skip
    ranks = run_group(plan, group)
    if all(rank.fine for rank in ranks):
        slowest = max(rank.ms for rank in ranks)
        yield ok(
            "all-reduce",
            f"{world} ranks, {group.backend}: {slowest:.1f} ms",
            f"{world} 个 rank（{group.backend}）：{slowest:.1f} 毫秒",
        )
        return
    yield from _failed(plan, group, ranks, here)


def _failed(plan: Plan, group: Group, ranks: list[Rank], here: int) -> Iterator[Finding]:
    """Name the culprit: who didn't come, who could not be reached, which pairs fail."""
    missing = sorted({number for rank in ranks for number in rank.missing})
    if missing:
        who = ", ".join(f"{number} (node {number // here})" for number in missing)
        yield Finding(
            "stop", "all-reduce", T(f"ranks that never came: {who}", f"一直没有到的 rank：{who}"),
            T("start the same command on every node within the time-out, with its own --node-rank; check firewalls", "在限时内到每个节点上用各自的 --node-rank 执行同一条命令；检查防火墙"),
        )  # fmt: skip
        return
    if plan.nnodes > 1 and any(rank.stage == "meet" for rank in ranks):
        yield Finding(
            "stop", "all-reduce", T(f"node {plan.node_rank} can't reach {plan.master_addr}:{plan.master_port}", f"节点 {plan.node_rank} 连不上 {plan.master_addr}:{plan.master_port}"),
            T("check --master-addr, routes and firewalls; node 0 must run the same command now", "检查 --master-addr、路由和防火墙；节点 0 要同时执行同一条命令"),
        )  # fmt: skip
        return
    reason = next((rank.error for rank in ranks if rank.error), "wrong sum")
    pairs = _node_pairs(plan, group, ranks) if plan.nnodes > 1 else _local_pairs(plan, group)
    what = "node" if plan.nnodes > 1 else "rank"
    bad = [pair for pair, fine in pairs if not fine]
    fix = T(
        "NCCL_DEBUG=INFO shows the way it takes; then NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME) for the right network card, NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1 to find the broken path",
        "用 NCCL_DEBUG=INFO 看走的哪条路；再用 NCCL_SOCKET_IFNAME（GLOO_SOCKET_IFNAME）选对网卡，用 NCCL_IB_DISABLE=1 或 NCCL_P2P_DISABLE=1 找出坏的通路",
    )
    if not bad:
        yield Finding(
            "stop",
            "all-reduce",
            T(
                f"fails with {group.world} ranks, though every pair works: {reason}",
                f"{group.world} 个 rank 一起失败，两两之间却都正常：{reason}",
            ),
            fix,
        )
        return
    shown = ", ".join(f"{left}-{right}" for left, right in bad[:10])
    common = culprit(bad, [pair for pair, fine in pairs if fine])
    tail = f"; {what} {common} is in all of them" if common is not None else ""
    tail_zh = f"；都有 {what} {common}" if common is not None else ""
    yield Finding(
        "stop",
        "all-reduce",
        T(f"{what} pairs that fail: {shown}{tail} ({reason})", f"失败的 {what} 组合：{shown}{tail_zh}（{reason}）"),
        fix,
    )


def culprit(bad: Sequence[tuple[int, int]], good: Sequence[tuple[int, int]]) -> int | None:
    """The one member of every failing pair that is in no working one; None when it can't be told."""
    working = {member for pair in good for member in pair}
    suspects = [
        member for member in sorted(set(bad[0])) if all(member in pair for pair in bad) and member not in working
    ]
    return suspects[0] if len(suspects) == 1 else None


def _local_pairs(plan: Plan, group: Group) -> list[tuple[tuple[int, int], bool]]:
    results = []
    numbers = group.local_ranks
    pairs = [(left, right) for at, left in enumerate(numbers) for right in numbers[at + 1 :]][:MAX_PAIRS]
    for left, right in pairs:
        environments = {0: group.environments.get(left, {}), 1: group.environments.get(right, {})}
        if group.backend == "nccl":
            environments = {
                index: {**one, "CUDA_VISIBLE_DEVICES": _device(group, number)}
                for (index, one), number in zip(environments.items(), (left, right), strict=True)
            }
        pair = Group(
            group.python, group.backend, 2, (0, 1), "127.0.0.1", free_port(), min(PAIR_TIMEOUT_S, group.timeout_s),
            group.environment, environments,
        )  # fmt: skip
        results.append(((left, right), all(rank.fine for rank in run_group(plan, pair))))
    return results


def _device(group: Group, number: int) -> str:
    visible = [part.strip() for part in group.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return visible[number] if number < len(visible) else str(number)


def tournament(nodes: int) -> list[list[tuple[int, int]]]:
    """Rounds in which every node meets every other once (circle method); in each round a node has one partner at most."""
    seats = list(range(nodes)) + ([-1] if nodes % 2 else [])
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = [(seats[at], seats[-1 - at]) for at in range(half)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _node_pairs(plan: Plan, group: Group, ranks: list[Rank]) -> list[tuple[tuple[int, int], bool]]:
    """This node's games of the tournament; the other nodes play theirs at the same time."""
    addresses = next((rank.addresses for rank in ranks if rank.addresses), [])
    here = len(group.local_ranks)
    results = []
    for number, pairs in enumerate(tournament(plan.nnodes)):
        mine = next((pair for pair in pairs if plan.node_rank in pair), None)
        if mine is None or not addresses:
            continue
        host = addresses[mine[0] * here] if mine[0] * here < len(addresses) else plan.master_addr
        pair = Group(
            group.python, group.backend, 2, (mine.index(plan.node_rank),), host, plan.master_port + 1 + number,
            PAIR_TIMEOUT_S + 10.0, group.environment,
            {mine.index(plan.node_rank): group.environments.get(plan.node_rank * here, {})},
        )  # fmt: skip
        results.append((mine, all(rank.fine for rank in run_group(plan, pair))))
    return results


def free_port() -> int:
    """A port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _python_with_torch(plan: Plan) -> str | None:
    import sys

    for python in (interpreter_of(plan.command) if plan.command else None, sys.executable):
        if python is None:
            continue
        code = "import importlib.util as u; print(u.find_spec('torch') is not None)"
        if plan.helpers.run([python, "-c", code], 10.0).output.strip().endswith("True"):
            return python
    return None
