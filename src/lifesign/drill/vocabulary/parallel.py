"""Two tensor-parallel ranks on CPU (gloo): what one rank's trouble looks like from the other. Real vLLM only."""

from __future__ import annotations

from lifesign.drill import texts
from lifesign.drill.model import Cut, Expect, Fault, Hook, Raise, Signal, Start
from lifesign.text import T

TWO = Start(ranks=2)

FAULTS = (
    Fault(
        "rank-killed",
        T("one of two ranks is killed", "两个 rank 之一被 SIGKILL"),
        Expect(
            "silent-death",
            "worker-died-no-trace",
            decisive=("died unexpectedly",),
        ),
        signal=Signal("worker", "SIGKILL", rank=1),
        start=TWO,
        engines=("vllm",),
        needs=("linux", "two-cpus"),
    ),
    Fault(
        "rank-stopped",
        T("one of two ranks is stopped", "两个 rank 之一被暂停（SIGSTOP）"),
        Expect("timeout-hang", "execute-model-rpc", decisive=("TimeoutError: RPC call to",)),
        signal=Signal("worker", "SIGSTOP", rank=1),
        start=TWO,
        engines=("vllm",),
        needs=("linux", "two-cpus"),
        rpc_limit_s=10.0,
    ),
    Fault(
        "rank-partitioned",
        T("one of two ranks loses its connections", "两个 rank 之一断网"),
        Expect(
            "collective-comm",
            "gloo-peer-lost",
            accept_subtypes=("execute-model-rpc", "worker-died-no-trace"),
            decisive=("Connection closed by peer", "Connection reset by peer", "TimeoutError: RPC call to"),
        ),
        hook=Hook("worker.step", (Cut(),), rank=1),
        start=TWO,
        engines=("vllm",),
        needs=("linux", "two-cpus"),
        rpc_limit_s=10.0,
    ),
    Fault(
        "rank-oom",
        T("one of two ranks runs out of memory", "两个 rank 之一显存耗尽"),
        Expect("device-oom", "serving", decisive=("OutOfMemoryError: CUDA out of memory",)),
        hook=Hook("worker.forward", (Raise("torch:OutOfMemoryError", texts.OOM_SERVING),), rank=1),
        start=TWO,
        engines=("vllm",),
        needs=("linux", "two-cpus"),
        rpc_limit_s=30.0,
        bound_s=90,
    ),
)
