"""Host memory ran out: the kernel, a cgroup limit, Ray's monitor or an allocator says so.

The proof nearly always stands outside vLLM's log (kernel log, `OOMKilled`, exit 137), so most rules read pasted or
attached evidence. A bare -9 proves only that somebody killed the process and is left to silent-death, unless the log
shows a reason to think of memory.
"""

from __future__ import annotations

import re

from lifesign.causes._reading import UNIFIED_DEVICES, explain
from lifesign.causes.model import SYMPTOM, TRACE, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies import library as lib
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

_VICTIM = re.compile(
    r"(?i)vllm|sglang|python|pt_main|ray|worker|engine|torch|uvicorn|api_server|cicc|nvcc|ptxas|cc1plus|ninja"
)

_OURS = re.compile(r"(?i)vllm|sglang|ray::|pt_main|enginecor|worker")
_COMPILER = re.compile(r"cicc|nvcc|ptxas|cc1plus|ninja")

LESS_AT_ONCE = Remedy(
    slug="load-less-at-once",
    kind="check",
    title=T("see what takes the host memory", "看看主机内存被谁占了"),
    why=T(
        "Candidates: weights read by all ranks at once, --cpu-offload-gb, KV offloading, pinned buffers, the multi-modal cache, and one copy per API server process.",
        "常见大户：所有 rank 同时读权重、--cpu-offload-gb、KV 卸载、锁页缓冲、多模态缓存，以及每个 API server 进程各一份的开销。",
    ),
    command="ps -eo pid,rss,cmd --sort=-rss | head -15; free -g; cat /sys/fs/cgroup/memory.stat | head -20",
)
FEWER_JOBS = Remedy(
    slug="fewer-build-jobs",
    kind="env",
    title=T("fewer compiler jobs at once", "减少并行编译任务"),
    why=T(
        "The victim is a compiler (cicc, nvcc, ninja): kernels are being built, one job per core, some GiB each.",
        "被杀的是编译器（cicc、nvcc、ninja）：正在编译算子，每核一个任务，每个要几 GiB。",
    ),
    forms=(Form("MAX_JOBS", "4"),),
    cost=T("a slower first start", "首次启动变慢"),
    source="vllm#54237",
)
MORE_SWAP_SPACE = Remedy(
    slug="more-swap-space",
    kind="check",
    title=T("a larger --swap-space, or fewer sequences per request", "加大 --swap-space，或减少每请求的并行序列"),
    why=T(
        "V0 had to move a group of sequences to the CPU and its swap space was full: raise --swap-space (GiB per GPU, to 0.17.1) or lower n / best_of.",
        "V0 要把一组序列换到 CPU，而 swap 空间满了：加大 --swap-space（每卡 GiB，到 0.17.1 为止），或减小 n / best_of。",
    ),
)
WATCH_GROWTH = Remedy(
    slug="watch-rss-growth",
    kind="collect",
    title=T("does it grow without end?", "是不是一直在涨？"),
    why=T(
        "A leak shows as resident memory that never falls between requests; then another release is the cure, more memory only delays it.",
        "如果常驻内存在请求之间从不回落，就是泄漏；加内存只是拖延，要换版本。",
    ),
    command="while sleep 60; do date; ps -eo pid,rss,comm | grep -E 'VLLM|vllm'; done | tee rss.log",
)
SMALLER_SWAP = Remedy(
    slug="smaller-swap-space",
    kind="check",
    title=T("a smaller CPU swap space", "减小 CPU swap 空间"),
    why=T(
        "--swap-space (GiB per GPU, to 0.17.1) is taken from host memory as pinned memory at the start: set 0 or a fraction of the RAM.",
        "--swap-space（每卡 GiB，到 0.17.1 为止）启动时就从主机内存里锁页分走：设为 0，或只占内存的一小部分。",
    ),
    command="free -g; ulimit -l",
)
LESS_PINNED = Remedy(
    slug="less-pinned-memory",
    kind="check",
    title=T("less pinned host memory", "少用锁页内存"),
    why=T(
        "Pinned (page-locked) host memory can't be swapped and is limited: lower --cpu-offload-gb or the KV offloading size, raise memlock.",
        "锁页内存不能换出，而且有上限：减小 --cpu-offload-gb 或 KV 卸载容量，或提高 memlock 限制。",
    ),
    command="ulimit -l; free -g; grep -E 'Unevictable|Mlocked' /proc/meminfo",
)

_KERNEL = (lib.MORE_HOST_MEMORY, LESS_AT_ONCE, lib.PARALLEL_LOADING, lib.COLLECT_KERNEL_LOG)

SUBTYPES = {
    "kernel-oom-killer": Subtype(
        T("The machine ran out of memory and a process was killed for it", "主机内存耗尽，有进程因此被杀"),
        T(
            "The log of the system names the victim: {victim}. vLLM itself only saw it disappear.",
            "系统日志点名了被杀的进程：{victim_zh}。vLLM 自己只看到它突然没了。",
        ),
        _KERNEL,
    ),
    "cgroup-limit": Subtype(
        T("The container hit its memory limit and the kernel killed a process", "容器撞到内存上限，内核杀掉了进程"),
        T(
            "The memory limit of the cgroup (container, pod, service) was reached, and the kernel killed {victim}. The machine may have plenty of RAM.",
            "cgroup（容器、Pod、服务）的内存上限到了，内核杀掉了 {victim_zh}。整台机器的内存可能还很充裕。",
        ),
        (lib.MORE_HOST_MEMORY, LESS_AT_ONCE, lib.PARALLEL_LOADING),
    ),
    "unified-memory": Subtype(
        T("CPU and GPU share one memory, and it ran out", "CPU 与 GPU 共用的统一内存耗尽"),
        T(
            "On this machine device memory is host memory (unified): weights and KV cache took what the system needed, and the kernel killed {victim}.",
            "这台机器的显存就是主机内存（统一内存）：权重和 KV cache 占掉了系统要用的部分，内核杀掉了{victim_zh}。",
        ),
        (lib.UNIFIED_MEMORY, lib.MORE_HOST_MEMORY, LESS_AT_ONCE, lib.COLLECT_KERNEL_LOG),
        ("vllm#45179",),
    ),
    "sigkill": Subtype(
        T("A process was killed (SIGKILL), most likely for host memory", "进程被 SIGKILL，很可能因为主机内存"),
        T(
            "The process ended with SIGKILL and memory was being filled at that time. The log can't prove who did it: ask the kernel log.",
            "进程以 SIGKILL 结束，而且当时正在大量占用内存。单凭这份日志不能断定是谁杀的，要看内核日志。",
        ),
        (lib.COLLECT_KERNEL_LOG, lib.COLLECT_EXIT_CODE, lib.MORE_HOST_MEMORY, LESS_AT_ONCE),
        ("vllm#54204",),
    ),
    "python-memoryerror": Subtype(
        T("Python could not get host memory", "Python 申请不到主机内存"),
        T(
            "A MemoryError is about host memory (RAM or a limit on it), not the GPU. The wrapper prints it as an empty error.",
            "MemoryError 说的是主机内存（或对它的限制），与显存无关。包装层会把它打印成空错误。",
        ),
        (lib.MORE_HOST_MEMORY, lib.ULIMIT_VIRTUAL, LESS_AT_ONCE),
    ),
    "cpu-allocator-enomem": Subtype(
        T("The host allocator was refused memory", "主机内存分配被拒绝"),
        T(
            "The operating system refused an allocation of host memory ({size}): a limit on the process (ulimit -v, cgroup), no RAM left, or a CPU KV cache that is too large.",
            "操作系统拒绝了一次主机内存分配（{size_zh}）：进程有上限（ulimit -v、cgroup）、内存用光，或 CPU KV cache 设得太大。",
        ),
        (lib.ULIMIT_VIRTUAL, lib.CPU_KV_SPACE, lib.MORE_HOST_MEMORY, LESS_AT_ONCE),
    ),
    "pinned-memory": Subtype(
        T("Pinned host memory ran out", "锁页内存用光了"),
        T(
            "The frames show an allocation of pinned host memory; the words 'out of memory' are about the host, not the GPU.",
            "栈里是在分配锁页主机内存；这里的 out of memory 指主机，不是显存。",
        ),
        (LESS_PINNED, lib.ULIMIT_MEMLOCK, lib.MORE_HOST_MEMORY),
    ),
    "pinned-swap": Subtype(
        T("The CPU swap space does not fit into host memory", "CPU swap 空间放不进主机内存"),
        T(
            "vLLM reserves swap space in pinned host memory at the start, and it asked for more than there is.",
            "vLLM 启动时要在锁页主机内存里预留 swap 空间，而它要的比实际有的多。",
        ),
        (SMALLER_SWAP, lib.MORE_HOST_MEMORY),
    ),
    "swap-space-short": Subtype(
        T("The CPU swap space was too small for one group of sequences", "CPU swap 空间装不下一组序列"),
        T(
            "The V0 engine aborted because a preempted group of sequences did not fit into the swap space.",
            "V0 引擎中止：被抢占的一组序列放不进 swap 空间。",
        ),
        (MORE_SWAP_SPACE, lib.FEWER_SEQUENCES),
    ),
}


_LONG_SERVICE_S = 3600.0
_BY_RAY = T(
    "Ray's memory monitor killed workers because the memory of the node was nearly full; that is before the kernel would act.",
    "节点内存快满时，Ray 的内存监视器先杀掉了 worker；此时内核的 OOM killer 还没有介入。",
)


def _victim(text: str) -> str:
    """`process 18910 (VLLM::Worker)` or `task VLLM::Worker` from a kernel line, else empty."""
    cut = text[:4000]
    match = re.search(r"Killed process (\d{1,9}) \(([^)]{1,40})\)?", cut)
    if match:
        return f"process {match[1]} ({match[2]})"
    match = re.search(r"task=([^,]{1,40}),pid=(\d{1,9})", cut)
    return f"process {match[2]} ({match[1]})" if match else ""


def _victim_nearby(event: Event, life: Life) -> str:
    """The victim that a kernel line names somewhere near `event` (`docker inspect` says only `137 true`)."""
    near = life.events[max(0, event.index - 60) : event.index + 60]
    return next((name for other in near if (name := _victim(other.text))), "")


def _served_long(life: Life) -> bool:
    """Whether the engine had served for an hour before: memory that only grows is then a suspect."""
    start = next((other for other in life.events if other.phase is Phase.SERVING and other.time_s is not None), None)
    last = next((e for e in reversed(life.events) if e.time_s is not None and e.kind != "kernel"), None)
    if start is None or last is None or start.time_s is None or last.time_s is None:
        return False
    return last.time_s - start.time_s >= _LONG_SERVICE_S


def _unified(life: Life) -> bool:
    """Whether the machine's GPU has no memory of its own."""
    return life.mentions(*UNIFIED_DEVICES) is not None


def _fill(finding: Finding, life: Life) -> Finding | None:
    """Names the victim and the size; another program's death is context only; unified memory gets its own advice."""
    text = finding.event.text[:4000]
    victim = _victim(text)
    if finding.subtype == "sigkill" and life.before(finding.event, "# CPU blocks:", within=3) is not None:
        # V0's next step is to pin that many blocks of host memory.
        finding.subtype = "pinned-swap"
    if victim and _COMPILER.search(victim):
        finding.remedies = (FEWER_JOBS, lib.MORE_HOST_MEMORY, LESS_AT_ONCE)
    if "memory pressure (OOM)" in text or "running low on memory" in text:
        explain(finding, _BY_RAY)
    named = victim or _victim_nearby(finding.event, life)
    finding.values["victim"] = named or "a process of the engine"
    finding.values["victim_zh"] = named.replace("process ", "进程 ") or "引擎的某个进程"
    size = re.search(r"allocate (\d{1,18} bytes|[\d.]{1,12} ?[KMGT]i?B)", text)
    finding.values["size"] = size[1] if size else "size not printed"
    finding.values["size_zh"] = size[1] if size else "日志没写大小"
    if finding.subtype not in ("kernel-oom-killer", "cgroup-limit"):
        return finding
    if victim and not _VICTIM.search(victim):
        finding.role, finding.certainty, finding.strength = "context", "possible", TRACE
        return finding
    if victim and not _OURS.search(victim):
        # A `python` may be anybody's.
        finding.certainty = "supported"
    if finding.subtype == "kernel-oom-killer" and ("CONSTRAINT_MEMCG" in text or "emory cgroup" in text):
        finding.subtype = "cgroup-limit"
    # docker and Kubernetes say OOMKilled for both kinds; the kernel's own words tell them apart.
    by_runtime = finding.subtype == "cgroup-limit" and "emory cgroup" not in text and "MEMCG" not in text
    if by_runtime and life.mentions("global_oom", "CONSTRAINT_NONE", "Out of memory: Kill") is not None:
        finding.subtype = "kernel-oom-killer"
    if finding.subtype == "kernel-oom-killer" and _unified(life):
        finding.subtype = "unified-memory"
    if finding.remedies is None and _served_long(life):
        finding.remedies = (*SUBTYPES[finding.subtype].remedies, WATCH_GROWTH)
    return finding


def _for_the_cpu(event: Event, _life: Life) -> bool:
    """Whether the cache that is allocated is the CPU's (V0's swap space in pinned memory)."""
    return event.exc is not None and any("cpu_cache" in f.code or "pin_memory" in f.code for f in event.exc.frames)


def _memory_hint(event: Event, life: Life) -> bool:
    """Whether a SIGKILL may be laid to memory: the log holds a hint besides the number.

    A hint is offloading or caching in host memory, unified memory, an earlier warning about host memory, or exit status 137 of a
    container while the weights were being loaded.
    """
    if life.config.get("cpu_offload_gb") or life.config.get("kv_offloading_size") or _unified(life):
        return True
    if (
        life.before(event, "low on memory", "memory pressure", "Possibly too large swap space", "available RAM")
        is not None
    ):
        return True
    if event.phase is not Phase.SERVING and life.before(event, "Creating LMCacheEngine", within=60) is not None:
        # It pins max_local_cpu_size of host memory in every rank at that moment.
        return True
    if life.before(event, "Got fatal signal from worker processes", within=4) is not None:
        # The front end of 0.8 ends its own process tree with SIGKILL after that line.
        return False
    told_by_shell = "137" in event.text or event.kind == "plain"
    return told_by_shell and event.phase in (Phase.LOAD, Phase.PROFILE)


def _about_vllm(event: Event, _life: Life) -> bool:
    """Kubernetes and docker print 137 for a container: the words OOMKilled must stand for `true`, not for `false`."""
    return not re.search(r"OOMKilled\W{1,4}false", event.text[:4000])


CAUSE = Cause(
    slug="host-oom",
    code="C5",
    title=T("Killed for host memory", "主机内存耗尽"),
    summary=T(
        "RAM or a limit on it ran out; the kernel, Ray or an allocator says so.",
        "主机内存（或对它的限制）用尽：内核、Ray 或分配器留下了记录。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "cgroup-limit",
            any=(
                "Memory cgroup out of memory: Kill",
                "memory cgroup out of memory: Kill",
                "constraint=CONSTRAINT_MEMCG",
            ),
            kinds=("kernel", "plain", "log"),
        ),
        Signature(
            "kernel-oom-killer",
            any=("Out of memory: Kill", "oom-kill:constraint", "oom_reaper: reaped process", "Kill process"),
            none=("Memory cgroup", "memory cgroup"),
            regex=r"(?i)out of memory: kill|oom-kill:constraint|reaped process",
            kinds=("kernel", "plain", "log"),
        ),
        Signature(
            "kernel-oom-killer",
            any=("killed due to memory pressure (OOM)", "due to the node running low on memory"),
            regex=r"[1-9]\d{0,4} Workers \(tasks|running low on memory",
            kinds=("kernel", "plain", "log", "exception", "wrapper"),
        ),
        Signature(
            "cgroup-limit",
            any=(
                "OOMKilled",
                "this unit has been killed by the OOM killer",
                "result 'oom-kill'",
                "systemd-oomd killed",
            ),
            none=("common causes include", "potential root causes"),
            kinds=("kernel", "plain", "log"),
            when=_about_vllm,
        ),
        Signature(
            "cgroup-limit",
            any=("137 true", "137 oom=true"),
            regex=r"^137 (?:oom=)?true\s*$",
            kinds=("plain", "log"),
        ),
        Signature("unified-memory", any=("NV_ERR_NO_MEMORY",), strength=SYMPTOM, certainty="supported"),
        Signature(
            "kernel-oom-killer",
            any=("invoked oom-killer",),
            kinds=("kernel", "plain", "log"),
            role="confirmation",
            certainty="supported",
        ),
        Signature(
            "python-memoryerror",
            types=("MemoryError", "_ArrayMemoryError", "ArrayMemoryError"),
            none=("free_buf()",),  # a full ring of the multi-modal cache
            kinds=("exception", "wrapper"),
        ),
        Signature(
            "cpu-allocator-enomem",
            any=(
                "DefaultCPUAllocator: can't allocate memory",
                "DefaultCPUAllocator: not enough memory",
                "[Errno 12] Cannot allocate memory",
                "std::bad_alloc",
                "Error code 12 (Cannot allocate memory)",
            ),
        ),
        Signature("pinned-swap", any=("Too large swap space",)),
        Signature("swap-space-short", any=("lack of CPU swap space",)),
        Signature(
            "pinned-swap",
            any=("CUDA error", "cudaErrorMemoryAllocation", "out of memory", "OS call failed", "alloc_cpu"),
            frames=("cache_engine.py:_allocate_kv_cache",),
            when=_for_the_cpu,
            certainty="supported",
        ),
        Signature(
            "pinned-memory",
            any=("out of memory", "cudaHostAlloc", "cudaErrorMemoryAllocation"),
            none=("Tried to allocate",),
            frames=("pin_memory", "pinned", "uva_", "host_alloc", "cpu_offload"),
            kinds=("exception", "wrapper"),
            certainty="supported",
        ),
        Signature("pinned-memory", any=("cudaHostRegister failed", "cudaHostAlloc failed", "Failed to pin memory")),
        Signature(
            "sigkill",
            any=(
                "': -9",
                "exit code: -9",
                "exit code -9",
                "code 137",
                "exited with 137",
                "Exit Code:    137",
                "Killed",
            ),
            regex=r"': -9\b|exit code:? -9|\b137\b|^(?:\S{1,40}: line \d{1,4}: +\d{1,9} )?Killed\b",
            kinds=("death", "exception", "log", "plain"),
            when=_memory_hint,
            strength=TRACE,
            certainty="possible",
        ),
    ),
    refine=_fill,
    order=17,
)
