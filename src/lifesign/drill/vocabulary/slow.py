"""Slow, stopped, livelocked: where "no answer in time" may mean a dead engine or a busy one.

The RPC limit is 10 s instead of vLLM's 300 s so that nobody has to wait; nothing else depends on the figure.
"""

from __future__ import annotations

from lifesign.drill.model import Change, Expect, Fault, Hook, Signal, Stall
from lifesign.text import T

RPC_TIMEOUT = Expect(
    "timeout-hang",
    "execute-model-rpc",
    accept_subtypes=("stuck", "stopped"),  # what the plugin says of it, where it was asked (drill run --patience)
    decisive=("TimeoutError: RPC call to", "lifesign: DEAD: "),
)
SPARED = Expect(
    "not-a-crash",
    "slow-step",
    "shutdown",
    # The stall leaves a line only after a minute; a shorter one is told by nothing, and what is left is the drill's own stop.
    accept_subtypes=("healthy", "clean-shutdown", "orderly-shutdown"),
)
STILL_UP = Expect(
    "not-a-crash",
    "slow-step",
    "serving",
    accept_subtypes=("healthy",),  # as above
)
LIMIT_S = 10.0

FAULTS = (
    Fault(
        "slow-step",
        T("an honest step takes longer than the fixed limit (busy)", "一步正常计算超过固定时限（CPU 在忙）"),
        RPC_TIMEOUT,
        hook=Hook("worker.step", (Stall("busy", 25.0),)),
        rpc_limit_s=LIMIT_S,
        ci=True,
    ),
    Fault(
        "slow-step-native",
        T("the same inside a torch kernel", "同上，但时间花在 torch 内核里"),
        RPC_TIMEOUT,
        hook=Hook("worker.forward", (Stall("native", 25.0),)),
        rpc_limit_s=LIMIT_S,
    ),
    Fault(
        "slow-step-asleep",
        T("a step sleeps past the limit, using no CPU", "一步睡过了时限，不占 CPU"),
        RPC_TIMEOUT,
        hook=Hook("worker.step", (Stall("sleep", 25.0),)),
        rpc_limit_s=LIMIT_S,
    ),
    Fault(
        "livelock",
        T("a worker computes for ever and gets nowhere", "worker 一直在算却没有任何进展（活锁）"),
        RPC_TIMEOUT,
        hook=Hook("worker.step", (Stall("forever"),)),
        rpc_limit_s=LIMIT_S,
    ),
    Fault(
        "gradual-slow-down",
        T("each step is slower than the one before, until one exceeds the limit", "每一步都比前一步慢，直到超过时限"),
        RPC_TIMEOUT,
        hook=Hook("worker.step", (Stall("busy", 2.5, growing=True),), once=False),
        rpc_limit_s=LIMIT_S,
        bound_s=90,
    ),
    Fault(
        "worker-sigstop",
        T("a worker is stopped (SIGSTOP)", "worker 被暂停（SIGSTOP）"),
        RPC_TIMEOUT,
        signal=Signal("worker", "SIGSTOP"),
        rpc_limit_s=LIMIT_S,
    ),
    Fault(
        "core-sigstop",
        T(
            "EngineCore is stopped (SIGSTOP): requests hang, no limit applies",
            "EngineCore 被暂停（SIGSTOP）：请求挂起，没有任何时限",
        ),
        STILL_UP,
        signal=Signal("core", "SIGSTOP"),
        rpc_limit_s=LIMIT_S,
        fate="lives",
        bound_s=20,
    ),
    Fault(
        "core-busy",
        T("EngineCore itself is busy for longer than the limit", "EngineCore 自己忙得超过了时限"),
        STILL_UP,
        hook=Hook("core.schedule", (Stall("busy", 15.0),)),
        rpc_limit_s=LIMIT_S,
        fate="lives",
        bound_s=40,
    ),
    Fault(
        "schedules-nothing",
        T(
            "EngineCore runs its loop and schedules nothing: requests wait for ever, no limit applies",
            "EngineCore 的循环一直在转，却什么都不调度：请求永远等下去，没有任何时限",
        ),
        STILL_UP,
        hook=Hook("core.schedule", (Change("max_num_scheduled_tokens", 0),)),
        fate="lives",
        engines=("vllm",),
        bound_s=30,
    ),
    Fault(
        "slow-step-within-limit",
        T("a slow step that ends before the limit", "一步很慢，但没有超过时限"),
        SPARED,
        hook=Hook("worker.step", (Stall("busy", 7.0),)),
        rpc_limit_s=LIMIT_S,
        fate="lives",
        bound_s=40,
    ),
    Fault(
        "worker-stop-and-go",
        T("a worker stands still for 15 s and goes on", "worker 停了 15 秒又继续"),
        SPARED,
        signal=Signal("worker", "SIGSTOP", resume_after_s=15.0),
        fate="lives",
        bound_s=60,
    ),
    Fault(
        "slow-step-patient",
        T(
            "the slow step again, with LIFESIGN_PATIENCE=1: it must survive",
            "同样的慢步骤，开启 LIFESIGN_PATIENCE=1：必须活下来",
        ),
        SPARED,
        hook=Hook("worker.step", (Stall("busy", 25.0),)),
        rpc_limit_s=LIMIT_S,
        patience=True,
        fate="lives",
        bound_s=90,
        ci=True,
    ),
    Fault(
        "worker-sigstop-patient",
        T(
            "a stopped worker with LIFESIGN_PATIENCE=1: it must still be declared dead",
            "暂停的 worker 加 LIFESIGN_PATIENCE=1：仍必须判死",
        ),
        # The fake engine has no plugin that says so: there the limit's own message is all.
        Expect("timeout-hang", "stopped", accept_subtypes=("execute-model-rpc",), decisive=("lifesign: DEAD: ",)),
        signal=Signal("worker", "SIGSTOP"),
        rpc_limit_s=LIMIT_S,
        patience=True,
        bound_s=120,
    ),
)
