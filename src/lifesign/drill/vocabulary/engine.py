"""Faults in the engine's own code and in the memory of the host."""

from __future__ import annotations

from lifesign.drill import texts
from lifesign.drill.model import Expect, Fault, Frame, Hog, Hook, Raise, Start
from lifesign.text import T

SCHED = "vllm/v1/core/sched/scheduler.py"

FAULTS = (
    Fault(
        "shape-invalid",
        T("a tensor has the wrong shape in the forward pass", "前向计算中张量形状不对"),
        Expect(
            "engine-bug",
            "model-forward",
            accept_subtypes=("shape-mismatch",),
            decisive=("is invalid for input of size",),
        ),
        hook=Hook("worker.forward", (Raise("RuntimeError", texts.SHAPE_INVALID),)),
    ),
    Fault(
        "scheduler-assert",
        T("an assertion of the scheduler fails in EngineCore", "EngineCore 里调度器断言失败"),
        Expect("engine-bug", "scheduler", decisive=("AssertionError", "assert num_new_tokens > 0")),
        hook=Hook(
            "core.schedule", (Raise("AssertionError"),), (Frame(SCHED, "schedule", "assert num_new_tokens > 0", 470),)
        ),
        ci=True,
    ),
    Fault(
        "scheduler-recursion",
        T("endless recursion in the scheduler", "调度器无限递归"),
        Expect("engine-bug", "scheduler", decisive=("RecursionError",)),
        hook=Hook("core.schedule", (Raise("RecursionError", "maximum recursion depth exceeded"),)),
    ),
    Fault(
        "scheduler-key-error",
        T("the scheduler gets a result for a request that it doesn't know", "调度器收到未知请求的结果（KeyError）"),
        Expect("engine-bug", "scheduler", decisive=("KeyError",)),
        hook=Hook("core.update", (Raise("KeyError", "cmpl-5b1c60ad0f6e4f0b8d7a-0"),)),
    ),
    Fault(
        "kv-manager-assert",
        T("an assertion of the KV cache manager fails", "KV cache 管理器断言失败"),
        Expect(
            "engine-bug",
            "kv-cache-manager",
            accept_subtypes=("scheduler",),
            decisive=("AssertionError", "assert block.ref_cnt"),
        ),
        hook=Hook(
            "core.schedule",
            (Raise("AssertionError"),),
            (
                Frame(
                    "vllm/v1/core/kv_cache_manager.py",
                    "allocate_slots",
                    "new_blocks = self.coordinator.allocate_new_blocks(",
                    320,
                ),
                Frame("vllm/v1/core/block_pool.py", "get_new_blocks", "assert block.ref_cnt == 0", 300),
            ),
        ),
    ),
    Fault(
        "empty-error",
        T("a worker raises an exception without any text", "worker 抛出没有任何文字的异常"),
        Expect("engine-bug", "model-forward", decisive=("AssertionError",)),
        hook=Hook(
            "worker.forward",
            (Raise("AssertionError"),),
            (
                Frame(
                    "vllm/model_executor/layers/rotary_embedding/base.py",
                    "forward_native",
                    "assert key is not None",
                    160,
                ),
            ),
        ),
    ),
    Fault(
        "kv-connector-lmcache",
        T("LMCache loses an assertion while a request is scheduled", "LMCache 在调度请求时断言失败"),
        Expect("kv-connector", "lmcache", decisive=("AssertionError", "assert len(slot_mapping)")),
        hook=Hook(
            "worker.step",
            (Raise("AssertionError"),),
            (
                Frame(
                    "vllm/distributed/kv_transfer/kv_connector/v1/lmcache_connector.py",
                    "wait_for_save",
                    "self._lmcache_engine.wait_for_save()",
                    150,
                ),
                Frame(
                    "lmcache/integration/vllm/vllm_v1_adapter.py",
                    "wait_for_save",
                    "assert len(slot_mapping) == len(token_ids)",
                    1010,
                ),
            ),
        ),
    ),
    Fault(
        "kv-connector-nixl",
        T("NIXL fails in a KV transfer", "NIXL 传输 KV 失败"),
        Expect("kv-connector", "nixl", decisive=("NIXL_ERR_BACKEND",)),
        hook=Hook(
            "worker.step",
            (Raise("nixl._bindings:nixlBackendError", texts.NIXL),),
            (
                Frame(
                    "vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py",
                    "start_load_kv",
                    "self.connector_worker.start_load_kv(self._connector_metadata)",
                    300,
                ),
                Frame("nixl/_api.py", "transfer", "status = self.agent.postXferReq(handle, notif_msg)", 415),
            ),
        ),
    ),
    Fault(
        "host-memory-error",
        T("Python can't get host memory (MemoryError)", "主机内存不足（MemoryError）"),
        Expect("host-oom", "python-memoryerror", decisive=("MemoryError",)),
        hook=Hook("worker.forward", (Raise("MemoryError"),)),
    ),
    Fault(
        "cgroup-kill",
        T("the kernel kills a worker at the container's memory limit", "容器内存到上限，内核杀掉 worker"),
        Expect(
            "host-oom",
            "cgroup-limit",
            accept=("silent-death",),  # where the kernel log may not be read
            accept_subtypes=("kernel-oom-killer", "sigkill"),
            decisive=("Memory cgroup out of memory", "oom-kill:constraint=CONSTRAINT_MEMCG", "died unexpectedly"),
        ),
        start=Start(cgroup_mib=4096),
        hook=Hook("worker.forward", (Hog(8192),)),
        engines=("vllm",),
        needs=("linux", "memory-cgroup"),
        kernel_log=True,
    ),
)
