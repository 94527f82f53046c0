"""Time-outs and hangs: the engine waited for a part of itself that was slow, stuck or waiting for a peer.

Nearly every text here is a symptom: it names who gave up waiting, not who kept silent. So the strength is SYMPTOM
(a worker's own error beats it), and hangs that no line names are found from how the log ends (`_hangs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from lifesign.causes import _hang_seen
from lifesign.causes._comm_advice import REACH_HEAD, SAME_ON_NODES
from lifesign.causes._hang_silent import AWAITED, never_spoke, silent_end, stalled
from lifesign.causes._reading import ascend_code, explain, is_loud
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies import library as lib
from lifesign.remedies import limits, sizing, versions
from lifesign.remedies.model import Remedy
from lifesign.text import T

_RPC = ("RPC call to ", "RayChannelTimeoutError", "Watchdog timeout (self.watchdog_timeout")
_ITERATION = (
    "Engine iteration timed out",
    "MQLLMEngine didn't reply within",
    "No heartbeat received from MQLLMEngine",
    "RPCServer didn't reply within",
)
_READY = (
    "Timed out waiting for engine core processes to start",
    "Timed out waiting for new engine core processes to start",
    "Timed out waiting for engines to send",
    "Timed out waiting for new engines to send",
)
_HANDSHAKE = ("Did not receive response from front-end process within", "Waiting for init message from front-end")
_SHIM = ("libvgpu", "HAMI-core", "HAMi", "CUDA_DEVICE_MEMORY_LIMIT", "multiprocess_memory_limit", "4pdvGPU")
_ACS = ("IO_PAGE_FAULT", "AMD-Vi", "ACSCtl", "amd_iommu", "intel_iommu", "DMAR:", "iommu=")
_CONSTRAINED = ("guided_decoding=GuidedDecodingParams(", "structured_outputs=StructuredOutputsParams(", "guided_json")
_SHIMMED = "gpu-virtualisation-shim"
_NCCL_UP = ("vLLM is using nccl==", "Init COMPLETE", "NCCL version ")


def sequences(life: Life) -> int:
    """How many sequences the failing step may have held: the scheduler's own count at death, else the last
    `Running: N reqs` that wasn't zero, else the configured or default limit.
    """
    for marker, pattern in (
        ("num_running_reqs=", r"num_running_reqs=(\d{1,6})"),
        ("Running: ", r"Running: (\d{1,6}) reqs"),
    ):
        for event in reversed(life.events):
            if marker not in event.text:
                continue
            match = re.search(pattern, event.text[:4000])
            if match and int(match[1]):
                return int(match[1])
    return sizing.current_sequences(life)


def _limit(life: Life, event: Event | None = None) -> T:
    """The limit of a step in words; a default is called one, since the environment isn't in the log.

    event: the time-out; an engine that lived for less than the default limit tells that a shorter one was set.
    """
    default_s = sizing.current_step_timeout_s(life)
    if life.env.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS") or "step_timeout_s" in life.figures:
        return T(f"{default_s:g} s", f" {default_s:g} 秒")
    if event is not None and _is_shorter_than_default(life, event):
        lived_s = _lived_s(life, event) or 0.0
        return T(
            f"a value below the default of {default_s:g} s: the engine lived for only {lived_s:.0f} s",
            f"比默认 {default_s:g} 秒短的设定值，因为引擎总共只活了 {lived_s:.0f} 秒",
        )
    return T(f"{default_s:g} s unless set otherwise", f"默认的 {default_s:g} 秒")


def _is_shorter_than_default(life: Life, event: Event) -> bool:
    """Whether the limit that ran out was shorter than the release's, because the engine didn't live as long as that."""
    if life.env.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS") or "step_timeout_s" in life.figures:
        return False
    lived_s = _lived_s(life, event)
    return lived_s is not None and lived_s < sizing.current_step_timeout_s(life) - 5


def _lived_s(life: Life, event: Event) -> float | None:
    """Seconds from the first line of the process that timed out to the time-out; None without times of its own clock."""
    if not any(e.process == event.process and "LLM engine (v" in e.text and e.kind == "milestone" for e in life.events):
        return None  # an excerpt: its first line is not the process's first
    own = [e.time_s for e in life.events if e.process == event.process and e.time_s is not None and e.head_stamp]
    if event.time_s is None or not event.head_stamp or not own:
        return None
    lived_s = event.time_s - min(own)
    return lived_s if lived_s > 0 else None


FIND_WORKER_ERROR = Remedy(
    slug="find-worker-error",
    kind="check",
    title=T("look for a worker's own error before the time-out", "先找超时之前 worker 自己的报错"),
    why=T(
        "A worker that failed or was killed is silent too; then its first ERROR line, or the kernel log, holds the cause.",
        "worker 出错或被杀之后同样没有动静，那时真正的原因在它的第一条 ERROR 里，或在内核日志里。",
    ),
    command='grep -nE "Worker.*(ERROR|Error)|Traceback" vllm.log | head; dmesg -T | grep -iE "oom|killed process|xid" | tail',
)
UPGRADE_READY = Remedy(
    slug="upgrade-for-ready-limit",
    kind="upgrade",
    title=T("upgrade to 0.14 or newer", "升级到 0.14 或更新"),
    why=T("Up to 0.13 the start limit of 600 s can't be changed.", "0.13 及以前，600 秒的启动时限改不了。"),
    unless=lambda life: versions.at_least(life.version, "0.14.0") is not False,
    source="vllm#35616",
)
SHIM_CHECK = Remedy(
    slug="gpu-shim-check",
    kind="check",
    title=T("see whether a shim is loaded", "看看有没有加载拦截库"),
    why=T("Ask for whole GPUs for this pod if it is.", "如果有，就给这个 Pod 申请整卡。"),
    command="env | grep -iE 'LD_PRELOAD|vgpu|CUDA_DEVICE_'; cat /etc/ld.so.preload",
)
NPU_UPGRADE = Remedy(
    slug="npu-upgrade",
    kind="upgrade",
    title=T(
        "matching releases of CANN, torch-npu and vllm-ascend", "升级到互相匹配的 CANN、torch-npu、vllm-ascend 版本"
    ),
    why=T(
        "An operator (AI core kernel) that never ends is cured by a newer operator library.",
        "AI Core 算子卡死，通常由新版算子库修复。",
    ),
)
NO_CUSTOM_ALL_REDUCE = replace(
    lib.DISABLE_CUSTOM_ALL_REDUCE,
    why=T(
        "vLLM's own all-reduce needs working direct access between the cards, and waits for ever where that doesn't work; NCCL does the same job.",
        "vLLM 自带的 all-reduce 要求卡间直连真的可用，不可用时会一直等下去；NCCL 能做同样的事。",
    ),
)

_RPC_REMEDIES = (
    lib.LONGER_STEP_TIMEOUT,
    lib.PATIENCE_PLUGIN,
    lib.FEWER_SEQUENCES,
    lib.FEWER_BATCHED_TOKENS,
    lib.SLOWER_CLIENTS,
    lib.PY_SPY_STACKS,
    FIND_WORKER_ERROR,
)
_RPC_MANY = (
    lib.LONGER_STEP_TIMEOUT,
    lib.FEWER_SEQUENCES,
    lib.PATIENCE_PLUGIN,
    lib.PY_SPY_STACKS,
    FIND_WORKER_ERROR,
    lib.NCCL_DEBUG_INFO,
    lib.FIND_SLOW_RANK,
)
_RPC_P2P = (
    lib.NCCL_P2P_OFF,
    NO_CUSTOM_ALL_REDUCE,
    lib.LONGER_STEP_TIMEOUT,
    lib.PY_SPY_STACKS,
    FIND_WORKER_ERROR,
    lib.NCCL_DEBUG_INFO,
    lib.IOMMU_ACS_OFF,
)
_P2P = (lib.NCCL_P2P_OFF, lib.IOMMU_ACS_OFF, lib.ALL_REDUCE_TEST, lib.PY_SPY_STACKS)

SUBTYPES = {
    "execute-model-rpc": Subtype(
        T("A step took longer than the engine waits for its worker", "一步算得太久，引擎等不到 worker 的回应"),
        T(
            "EngineCore asked its workers for {method} and got no answer within the limit of a step, so it gave up and ended everything. The text is the same for a slow worker, a stopped one and a hang: it is a symptom.",
            "EngineCore 让 worker 执行 {method}，在单步时限内没有等到回应，于是放弃并结束整个引擎。worker 太慢、被暂停、卡死，报的都是这一句：它只是症状。",
        ),
        _RPC_REMEDIES,
        ("vllm#18558", "vllm#19544"),
    ),
    "engine-iteration": Subtype(
        T("One engine iteration outlived its limit (V0)", "V0 引擎的一次迭代超时"),
        T(
            "The V0 engine waits for one iteration (60 s unless set otherwise), then cancels it. A CancelledError after this line is that cancellation, no client that left.",
            "V0 引擎给每次迭代的时限默认是 60 秒，到时就取消。之后的 CancelledError 就是这次取消，不是客户端断开。",
        ),
        (FIND_WORKER_ERROR, lib.ENGINE_ITERATION_TIMEOUT, lib.PY_SPY_STACKS, lib.NCCL_DEBUG_INFO, lib.ALL_REDUCE_TEST),
        ("vllm#5443",),
    ),
    "engine-ready-timeout": Subtype(
        T("The engine was still starting when the start limit expired", "启动时限到了，引擎还没就绪"),
        T(
            "The front end waits {limit} for the engine core, and loading or compiling took longer. The last progress line tells whether it was slow or stuck.",
            "前端最多等引擎 {limit_zh}，而加载或编译花的时间更长。是慢还是卡死，看最后一条进度。",
        ),
        (lib.LONGER_READY_TIMEOUT, UPGRADE_READY, lib.FASTER_STORAGE, lib.PY_SPY_STACKS),
        ("vllm#35616",),
    ),
    "startup-handshake": Subtype(
        T("The core process never reported to the front end", "core 进程一直没有向前端报到"),
        T(
            "The last thing said is that a process is being waited for. The process that doesn't answer left no text.",
            "最后一句话是在等某个进程；不作声的那个进程没有留下任何文字。",
        ),
        (_hang_seen.LOOK_AT_CHILD, lib.COLLECT_CHILD_STDERR, lib.COLLECT_DEBUG),
    ),
    "p2p-iommu-acs": Subtype(
        T("The GPUs wait for each other right after NCCL came up", "NCCL 刚初始化完，几张卡就互相等待、不再前进"),
        T(
            "The log ends after NCCL's banner without any error. On PCIe machines the usual reason is peer-to-peer traffic that IOMMU or ACS redirects.",
            "打印 NCCL 版本之后日志就停了，没有报错。PCIe 机器上最常见的原因是 IOMMU/ACS 把卡间 P2P 流量改道。",
        ),
        _P2P,
        ("vllm#33041", "vllm#9920", "vllm#51513"),
    ),
    "p2p-hang": Subtype(
        T("The GPUs wait for each other in the first collectives", "几张卡在头几次集合通信里互相等待"),
        T(
            "Several ranks stopped without an error in warm-up or graph capture: the first place where their all-reduce runs for real.",
            "多个 rank 在预热或 CUDA graph 捕获时停住、没有报错：这是 all-reduce 第一次真正运行的地方。",
        ),
        (NO_CUSTOM_ALL_REDUCE, lib.NCCL_P2P_OFF, lib.IOMMU_ACS_OFF, lib.PY_SPY_STACKS),
        ("vllm#14449", "vllm#8058"),
    ),
    "gpu-virtualisation-shim": Subtype(
        T("A GPU-sharing library blocks the collectives", "GPU 虚拟化的拦截库卡住了集合通信"),
        T(
            "The log shows a preloaded library that intercepts CUDA (HAMi, vGPU) and then the silence of a hang.",
            "日志里有 LD_PRELOAD 的 CUDA 拦截库（HAMi、vGPU），随后就没有动静了。",
        ),
        (lib.GPU_SHIM_OFF, SHIM_CHECK, NO_CUSTOM_ALL_REDUCE),
    ),
    "shm-broadcast-stall": Subtype(
        T("The workers stopped taking work and nothing says why", "worker 不再取任务，日志里没有别的线索"),
        T(
            "The core says again and again (by default once a minute) that its message ring is full. That is a notice, not an error, and has nothing to do with the size of /dev/shm: the reader is busy, stuck or gone.",
            "core 反复提示（默认每分钟一次）消息环已满。这只是提示，和 /dev/shm 大小无关：读的一方在忙、卡住，或已经退出。",
        ),
        (lib.PY_SPY_STACKS, FIND_WORKER_ERROR, lib.NCCL_DEBUG_INFO),
    ),
    "no-progress": Subtype(
        T("Requests are in the engine, but no token comes out", "引擎里有请求，却一个 token 都没产出"),
        T(
            "The statistics show requests and 0.0 tokens/s for {span} s up to the end of the log, while the API server still answers. /health says 200 as long as the process exists.",
            "统计行显示有请求，但直到日志结束的 {span} 秒里产出一直是 0.0 tokens/s，而 API server 仍在应答。只要进程还在，/health 就返回 200。",
        ),
        (lib.PY_SPY_STACKS, FIND_WORKER_ERROR, lib.NCCL_DEBUG_INFO, lib.COLLECT_DEBUG),
        ("vllm#39863", "vllm#36451"),
    ),
    "npu-aicore-timeout": Subtype(
        T("An operator on the NPU did not end", "NPU 上有个算子一直没有结束"),
        T(
            "Error 507014 or 507034: the AI core or vector core stopped a kernel that ran too long. The watchdog and communication messages around it only follow.",
            "错误 507014 或 507034：AI Core（或 Vector Core）中止了运行过久的算子。旁边那些看门狗和通信报错都是后果。",
        ),
        (lib.COLLECT_ASCEND_PLOG, NPU_UPGRADE),
    ),
    "structured-output": Subtype(
        T("Compiling a grammar blocked the engine", "编译语法约束把引擎堵住了"),
        T(
            "The step waited for a grammar (JSON schema, regex) to compile.",
            "这一步在等语法约束（JSON schema、正则）编译完。",
        ),
        (lib.OTHER_GRAMMAR_BACKEND, lib.LONGER_STEP_TIMEOUT, lib.PY_SPY_STACKS),
    ),
    **_hang_seen.SEEN,
}


def _fill(finding: Finding, life: Life) -> Finding:
    """Names the call, the limit and the batch; a CPU engine with a batch was most likely computing."""
    if finding.subtype in _hang_seen.SEEN:
        return _hang_seen.name_who(finding)
    if finding.subtype == "startup-handshake" and life.config.get("data_parallel_address") is not None:
        return replace(finding, remedies=(REACH_HEAD, SAME_ON_NODES, *SUBTYPES["startup-handshake"].remedies))
    text = finding.event.text[:4000]
    method = re.search(r"RPC call to ([\w.]{1,60})", text)
    finding.values.setdefault("method", method[1] if method else "execute_model")
    if finding.subtype == "engine-ready-timeout":
        waited = re.search(r"Waited (\d{1,6})", text)
        known = waited[1] if waited else life.env.get("VLLM_ENGINE_READY_TIMEOUT_S")
        finding.values["limit"] = f"{known} s" if known else "600 s (the default)"
        finding.values["limit_zh"] = f"{known} 秒" if known else "600 秒（默认值）"
        return finding
    if finding.subtype in ("execute-model-rpc", "engine-iteration") and _compiling_grammar(finding.event, life):
        return replace(finding, subtype="structured-output", certainty="possible")
    if finding.subtype == "engine-iteration" and life.platform == "cpu":
        # Without an accelerator a step of a minute is work, not a hang.
        patient = (lib.ENGINE_ITERATION_TIMEOUT, lib.FEWER_SEQUENCES, FIND_WORKER_ERROR, lib.PY_SPY_STACKS)
        return replace(finding, remedies=patient)
    if finding.subtype != "execute-model-rpc":
        return finding
    if life.world_size > 1 and life.mentions(*_SHIM) is not None:
        return replace(finding, subtype=_SHIMMED, certainty="possible")
    count, limit = sequences(life), _limit(life, finding.event)
    finding.values["sequences"] = str(count)
    finding.values["limit"] = limit.en
    remedies = _RPC_REMEDIES
    if life.world_size > 1 and life.platform != "cpu":
        # Several devices that never finished a step since the start look like a peer-to-peer hang of the machine.
        remedies = _RPC_P2P if life.platform == "cuda" and life.progress_index < 0 else _RPC_MANY
    # Half the allowed number helps only if the step held more than that.
    idle = {lib.FEWER_SEQUENCES.slug} if 2 * count <= sizing.current_sequences(life) else set()
    finding.remedies = tuple(
        _sized(remedy, life, count, limit, finding.event) for remedy in remedies if remedy.slug not in idle
    )
    if life.platform == "cpu" and finding.event.phase is Phase.SERVING:
        explain(
            finding,
            SUBTYPES["execute-model-rpc"].why.fill(**finding.values),
            T(
                f"Most likely the worker was computing, not dead: the limit of a step ({limit.en}) is too short for {count} sequences on a CPU.",
                f"worker 很可能在计算，并没有死：对 CPU 上的 {count} 个序列来说，单步时限（{limit.zh}）太短。",
            ),
        )
    return finding


def _sized(remedy: Remedy, life: Life, count: int, limit: T, event: Event) -> Remedy:
    """The longer limit computed for the sequences that were really in the step, from the limit that the log shows; other
    remedies as they are."""
    if remedy is not lib.LONGER_STEP_TIMEOUT:
        return remedy
    ran_out_s = _lived_s(life, event) if _is_shorter_than_default(life, event) else None
    computed = limits.longer_step_limit(life, count, T(f"now {limit.en}", f"现为{limit.zh}"), ran_out_s)
    return replace(remedy, value=lambda _life: computed, unless=None)


def _compiling_grammar(event: Event, life: Life) -> bool:
    """Whether a constrained request was in hand while the engine computed nothing: then a grammar was being compiled."""
    recent = life.events[max(0, event.index - 60) : event.index]
    stats = next((other for other in reversed(recent) if "throughput:" in other.text), None)
    if stats is None or "Running: 0 reqs" not in stats.text:
        return False
    return any(part in other.text[:4000] for other in recent for part in _CONSTRAINED)


def _told(life: Life) -> list[Event]:
    """What the log says before somebody stopped the engine (Ctrl-C, SIGTERM), users' text and advice left out."""
    told: list[Event] = []
    for event in life.events:
        if event.kind == "signal" and event.weight not in ("quoted", "foreign"):
            break
        if event.weight not in ("quoted", "foreign", "advice"):
            told.append(event)
    return told


def _hangs(life: Life) -> Iterable[Finding]:
    """Hangs that no line names: the log ends in ring notices, after NCCL's banner, or while a process is awaited."""
    if life.died and not life.orderly:
        yield from never_spoke(life)
        return
    told = _told(life)
    many = life.world_size > 1
    shim = many and life.mentions(*_SHIM) is not None
    stop = next((e for e in life.events if e.kind == "signal" and e.weight not in ("quoted", "foreign")), None)
    event = silent_end(told, stop if life.orderly else None)
    if event is not None:
        subtype = "shm-broadcast-stall"
        if many and not life.served:
            init = event.phase is Phase.LOAD and life.mentions(*_NCCL_UP) is not None
            subtype = "p2p-iommu-acs" if init or life.mentions(*_ACS) else "p2p-hang"
        yield Finding("timeout-hang", _SHIMMED if shim else subtype, event, certainty="possible", strength=SYMPTOM)
        return
    stall = stalled(told) if life.platform != "cpu" else None
    if stall is not None:
        found = Finding("timeout-hang", "no-progress", stall[0], certainty="possible", strength=SYMPTOM)
        found.values["span"] = f"{stall[1]:.0f}"
        yield found
        return
    spoken = [e for e in told if e.kind not in ("plain", "kernel")]
    if not spoken:
        return
    last = spoken[-1]
    awaited = AWAITED in last.text
    banner = next((e for e in reversed(told) if e.has(*_NCCL_UP)), None)
    started = banner is not None and any(e.kind == "milestone" for e in told if e.index > banner.index)
    if many and banner is not None and not started:
        yield Finding(
            "timeout-hang", _SHIMMED if shim else "p2p-iommu-acs", banner, certainty="possible", strength=SYMPTOM
        )
    elif awaited:
        first = next(e for e in told if AWAITED in e.text)
        yield Finding(
            "timeout-hang", _SHIMMED if shim else "startup-handshake", first, certainty="possible", strength=SYMPTOM
        )
    elif many and banner is not None and "Processed prompts:   0%|" in last.text:
        yield Finding(
            "timeout-hang", _SHIMMED if shim else "p2p-iommu-acs", last, certainty="possible", strength=SYMPTOM
        )


def _input_thread_not_ready(event: Event, life: Life) -> bool:
    """Whether the assertion is the one behind `ready_event.wait(timeout=10)` in EngineCoreProc.__init__ (core.py)."""
    last = event.exc.frames[-1] if event.exc is not None and event.exc.frames else None
    return last is not None and "addresses.coordinator_input is not None" in last.code


CAUSE = Cause(
    slug="timeout-hang",
    code="C4",
    title=T("Time-out or hang", "超时或卡死"),
    summary=T(
        "Somebody waited for a part of the engine that was slow, stopped or stuck.",
        "引擎的某一部分太慢、被暂停或卡死，等它的一方放弃了。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "npu-aicore-timeout",
            any=(
                "aicore execution times out",
                "AI Core execution times out",
                "[aicore timeout]",
                "Vector core execution timed out",
                "reason=vector core timeout",
            ),
            when=is_loud,
        ),
        Signature(
            "npu-aicore-timeout",
            any=("507014", "507034"),
            regex=ascend_code("507014", "507034"),
            when=is_loud,
        ),
        _hang_seen.SIGNATURE,
        Signature("engine-iteration", any=_ITERATION, strength=SYMPTOM, certainty="supported"),
        Signature(
            "engine-iteration",
            types=("TimeoutError", "CancelledError"),
            frames=("async_llm_engine.py:run_engine_loop", "async_llm_engine.py:engine_step"),
            strength=SYMPTOM,
            certainty="supported",
        ),
        Signature("engine-ready-timeout", any=_READY, strength=SYMPTOM, certainty="supported"),
        Signature(
            "startup-handshake",
            any=_HANDSHAKE[:1],
            strength=SYMPTOM,
            certainty="possible",
            when=lambda event, life: life.after(event, "Initializing a V1 LLM engine") is None,
        ),
        Signature(
            "startup-handshake",
            any=_HANDSHAKE[1:],
            strength=SYMPTOM,
            certainty="possible",
            when=lambda event, life: life.after(event, "Initializing a V1 LLM engine", *_HANDSHAKE[:1]) is None,
        ),
        Signature(
            "startup-handshake",
            types=("AssertionError",),
            when=_input_thread_not_ready,
            certainty="supported",
            why=T(
                "after 10 s the core gives up waiting for its input thread to connect; this assertion is how it says so",
                "core 等自己的输入线程连上最多 10 秒，超时就以这条断言退出",
            ),
        ),
        Signature(
            "structured-output",
            types=("TimeoutError",),
            frames=("structured_output", "xgrammar", "guided_decoding", "outlines"),
            strength=SYMPTOM,
            certainty="possible",
        ),
        Signature(
            "execute-model-rpc",
            any=_RPC,
            regex=r"RPC call to [\w.]{1,60} timed out|RayChannelTimeoutError|Watchdog timeout",
            strength=SYMPTOM,
            certainty="supported",
        ),
    ),
    refine=_fill,
    find=_hangs,
    order=7,
    classical=7,
)
