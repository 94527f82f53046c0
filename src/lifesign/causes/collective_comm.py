"""collective-comm: the ranks of one engine could not open, or keep, the channel they exchange tensors through.

NCCL, RCCL, HCCL, oneCCL and gloo rarely say what is wrong in the exception. The line after `Last error:`, or the
`NCCL WARN` line above the traceback, decides; and it often decides for another cause (memory, /dev/shm, two ranks on one
GPU). A peer that is gone (`Connection closed by peer`, `remote process exited`) is nearly always a consequence, so those
texts are symptoms here and only win when nothing else is left.
"""

from __future__ import annotations

import re

from lifesign.causes import _comm_advice as advice
from lifesign.causes import _comm_signs as signs
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Finding, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.text import T


def _nccl_family(text: str) -> str:
    """The subtype that the words of an NCCL return code stand for."""
    if "unhandled cuda error" in text or "UnhandledCudaError" in text or "UNHANDLED_CUDA" in text:
        return "nccl-unhandled-cuda"
    if "unhandled system error" in text or "ncclSystemError" in text or "SYSTEM_ERROR" in text:
        return "nccl-unhandled-system"
    if "invalid usage" in text or "ncclInvalidUsage" in text or "INVALID_USAGE" in text:
        return "nccl-invalid-usage"
    if "remote process exited" in text or "ncclRemoteError" in text:
        return "nccl-remote"
    return "nccl-init"


def _last_error(event: Event) -> str:
    """What NCCL says after `Last error:`, the first line of it."""
    _, found, rest = event.text.partition("Last error:")
    return rest.strip().split("\n", 1)[0][:300] if found else ""


def _refine(finding: Finding, life: Life) -> Finding | None:
    """Lets the line that decides decide: `Last error:`, the warning above, the phase, the platform."""
    event = finding.event
    if finding.subtype in (
        "nccl-unhandled-cuda",
        "nccl-unhandled-system",
        "nccl-init",
        "nccl-invalid-usage",
        "nccl-remote",
    ):
        return _refine_warning(finding, life) if "NCCL WARN" in event.text else _refine_nccl(finding, life)
    if finding.subtype == "hccl-init":
        return _refine_hccl(finding)
    if finding.subtype == "gloo-peer-lost" and life.before(event, "died unexpectedly") is not None:
        # The peer's death is in the log: losing the connection to it only follows.
        finding.role = "cascade"
        return finding
    if finding.subtype == "gloo-peer-lost" and event.exc is not None and event.exc.passes(*signs.DATA_PARALLEL_FRAMES):
        # A rank that left in good order closes its sockets; one that is late or stuck resets them or lets them time out.
        if event.has("Timed out waiting", "reset by peer"):
            finding.subtype = "gloo-dp-desync"
        return finding
    if finding.subtype == "nccl-segfault":
        return _refine_segfault(finding, life)
    return finding


def _refine_warning(finding: Finding, life: Life) -> Finding | None:
    after = life.after(finding.event, *reading.NCCL_ERRORS)
    if after is not None and finding.subtype == "nccl-init":
        family = _nccl_family(after.text)
        finding.subtype = family if family == "nccl-unhandled-system" else "nccl-init"
    if "unsupported toolchain" in finding.event.text:
        finding.remedies = (advice.DRIVER_FOR_PTX, advice.ALL_REDUCE_TEST, advice.NCCL_DEBUG, advice.COMPAT_LIBRARY)
        finding.why = T(
            "NCCL's kernels were built by a newer CUDA toolkit than the installed driver understands; the first all-reduce fails on it.",
            "NCCL 的内核由比驱动更新的 CUDA 工具链编译，驱动认不得，第一次 all-reduce 就失败。",
        )
    return _for_nvls(finding, finding.event.text)


def _for_nvls(finding: Finding, *texts: str) -> Finding:
    """NVLink SHARP named in NCCL's own words brings its switch and the fabric manager to the front."""
    if any(part in text for text in texts for part in ("nvls.cc", "NVLS", "ulticast")):
        finding.remedies = (
            advice.NVLS_OFF,
            advice.FABRIC_MANAGER,
            advice.ALL_REDUCE_TEST,
            advice.NCCL_DEBUG,
            advice.DRIVER_FOR_PTX,
        )
    return finding


def _refine_nccl(finding: Finding, life: Life) -> Finding | None:
    event = finding.event
    if event.exc is not None and event.exc.passes(*signs.TEARDOWN_FRAMES):
        finding.role = "teardown"
        finding.strength = SYMPTOM
        return finding
    detail = _last_error(event)
    warning = life.before(event, "NCCL WARN", within=60)
    warned = warning.text if warning is not None and not warning.has(*signs.WARN_HARMLESS) else ""
    if any(part in text for text in (detail, warned, event.text) for part in signs.DEVICE_MEMORY):
        return None
    if any(part in text for text in (detail, warned, event.text) for part in signs.DEVICE_FAULT):
        finding.role = "cascade"
        finding.strength = SYMPTOM
        return finding
    capturing = event.phase is Phase.CAPTURE and "operation not permitted" in detail
    if capturing or any(part in text for text in (detail, warned) for part in signs.NOT_OURS_NEAR):
        finding.role = "cascade"
        finding.strength = SYMPTOM
        return finding
    finding.subtype = _nccl_family(event.text)
    finding.certainty = "established" if detail or warned else "supported"
    if event.phase is Phase.SERVING and not detail and not warned:
        finding.strength = SYMPTOM
    if finding.subtype == "nccl-remote":
        finding.strength = SYMPTOM
        finding.certainty = "possible"
    _for_nvls(finding, detail, warned)
    if detail:
        finding.values["detail"] = detail
        return reading.cite(finding, detail[:120])
    return finding


def _refine_hccl(finding: Finding) -> Finding:
    """Ascend: the same codes mean three moments; the phase and the call tell them apart."""
    event = finding.event
    text = event.text
    if "CommInit" in text and "times out" not in text and event.phase is Phase.SERVING:
        return finding
    if event.phase is Phase.SERVING or ("notify" in text.lower() and "times out" in text):
        finding.subtype = "hccl-timeout"
        finding.certainty = "supported"
        return finding
    if event.exc is not None and event.exc.passes(":all_reduce", ":_all_reduce", "_all_reduce_"):
        finding.subtype = "hccl-allreduce"
        return reading.cite(finding, "EI0006", "EI0009", "HCCL function error")
    if event.phase is Phase.PROFILE and "HCCL function error" in text:
        finding.subtype = "hccl-allreduce"
    return finding


def _refine_segfault(finding: Finding, life: Life) -> Finding:
    """Frames of the topology search mean start-up; frames of pool or proxy mean a running communicator."""
    event = finding.event
    nearby = "\n".join(other.text for other in life.events[event.index : event.index + 25])
    if re.search(r"ncclTopo|ncclCommInit|ncclCuMem|initTransports|ncclInit|bootstrap", nearby):
        finding.subtype = "nccl-init"
        finding.remedies = advice.INIT_SEGFAULT
        finding.why = T(
            "The process got a segmentation fault inside NCCL while it set up the communicator.",
            "进程在 NCCL 建立通信器时发生段错误。",
        )
    return finding


SUBTYPES = {
    "custom-allreduce": Subtype(
        T("vLLM's custom all-reduce kernel aborted the worker", "vLLM 自带的 all-reduce 内核中止了 worker"),
        T(
            "The kernel's C code failed to register or open another GPU's buffer and called exit: no traceback, only this line. Memory from PyTorch's expandable segments can't be shared that way; some PCIe systems can't map peers at all.",
            "内核的 C 代码在登记或打开另一块 GPU 的缓冲区时失败，直接 exit，没有 traceback。PyTorch 的 expandable segments 显存无法这样共享；有些 PCIe 机器根本不能互相映射。",
        ),
        (advice.NO_EXPANDABLE_SEGMENTS, advice.NO_CUSTOM_ALL_REDUCE, advice.ALL_REDUCE_TEST),
        ("vllm#42609", "vllm#49101", "vllm#56180", "vllm#56193"),
    ),
    "nccl-unhandled-cuda": Subtype(
        T("NCCL failed because a CUDA call failed inside it", "NCCL 内部的一次 CUDA 调用失败"),
        T(
            "NCCL only passes on that CUDA refused something. The `NCCL WARN` line above, or the text after `Last error:`, says what: often driver and CUDA versions that don't fit, or peer access that the machine does not offer.",
            "NCCL 只是转述 CUDA 拒绝了某个操作。原因写在上方的 `NCCL WARN` 行或 `Last error:` 之后：多半是驱动与 CUDA 版本不匹配，或者机器不支持 GPU 间直接访问。",
        ),
        (advice.ALL_REDUCE_TEST, advice.NCCL_DEBUG, advice.DRIVER_FOR_PTX, advice.P2P_OFF, advice.CUMEM_OFF),
    ),
    "nccl-unhandled-system": Subtype(
        T("NCCL failed because the system refused it a socket or memory", "系统拒绝了 NCCL 需要的套接字或内存"),
        T(
            "`unhandled system error` is a call of the operating system that failed inside NCCL: no route to the other rank, the wrong interface, a firewall, locked memory, or shared memory.",
            "`unhandled system error` 表示 NCCL 内部的系统调用失败：到不了另一个 rank、选错网卡、防火墙、锁页内存或共享内存不够。",
        ),
        (
            advice.ALL_REDUCE_TEST,
            advice.NCCL_DEBUG,
            advice.SOCKET_IFNAME,
            advice.SHM_CHECK,
            advice.FIREWALL,
            advice.IB_HCA,
            advice.IB_OFF,
        ),
        ("vllm#4383", "vllm#18831"),
    ),
    "nccl-init": Subtype(
        T("The ranks could not open their communication channel", "各 rank 之间的通信通道没建起来"),
        T(
            "A communicator is opened while the workers start. One rank could not reach another: wrong network interface or address, a firewall, a hostname that resolves elsewhere, or an unusable network card.",
            "worker 启动时要建立通信器，有 rank 连不上别的 rank：选错网卡或地址、防火墙、主机名解析错，或网卡不可用。",
        ),
        (
            advice.ALL_REDUCE_TEST,
            advice.SOCKET_IFNAME,
            advice.IB_HCA,
            advice.IB_OFF,
            advice.HOST_IP,
            advice.FIREWALL,
            advice.NCCL_DEBUG,
        ),
    ),
    "nccl-invalid-usage": Subtype(
        T("NCCL rejected the communicator: invalid usage", "NCCL 拒绝建立通信器：invalid usage"),
        T(
            "This is seldom a wrong call. Two ranks were placed on one GPU, or two different NCCL libraries are loaded in the process.",
            "很少是调用写错：要么两个 rank 落在同一块 GPU 上，要么进程里加载了两个不同版本的 NCCL。",
        ),
        (advice.ONE_GPU_PER_RANK, advice.NCCL_DEBUG, advice.NCCL_VERSIONS),
    ),
    "nccl-remote": Subtype(
        T("Another rank left the collective", "另一个 rank 退出了集合通信"),
        T(
            "NCCL lost its peer. The peer's own log, earlier in time, holds the cause.",
            "NCCL 失去了对端。原因在那个 rank 更早的日志里。",
        ),
        (advice.OTHER_RANKS, advice.NCCL_DEBUG, advice.ALL_REDUCE_TEST),
    ),
    "nccl-timeout": Subtype(
        T("A collective operation never finished", "一次集合通信一直没有完成"),
        T(
            "One rank did not take part in the operation in time, so the watchdog ended the others. No rank printed an error before: it hung, or was still busy. With PCIe GPUs the usual reason is ACS or an IOMMU that breaks peer-to-peer copies.",
            "某个 rank 没有按时参加这次操作，watchdog 结束了其他 rank。之前没有任何报错，说明它卡住了或还在忙。PCIe 机器上常见的原因是 ACS 或 IOMMU 破坏了 P2P 拷贝。",
        ),
        (
            advice.ALL_REDUCE_TEST,
            advice.RANK_BEHIND,
            advice.FLIGHT_RECORDER,
            advice.P2P_OFF,
            advice.ACS,
            advice.NCCL_DEBUG,
            advice.LONGER_COLLECTIVE,
        ),
    ),
    "nccl-segfault": Subtype(
        T("A segmentation fault inside NCCL", "NCCL 内部发生段错误"),
        T(
            "The process crashed in NCCL's own code (memory pool or proxy thread); its peers then report `Connection closed by peer`.",
            "进程在 NCCL 自己的代码（内存池或代理线程）里崩溃；其他 rank 随后报 `Connection closed by peer`。",
        ),
        (advice.NEWER_NCCL, advice.ALL_REDUCE_TEST, advice.CUMEM_OFF, advice.PRELOAD, advice.CORE_DUMP),
    ),
    "gloo-peer-lost": Subtype(
        T("A rank lost its peer (gloo)", "某个 rank 的对端断开（gloo）"),
        T(
            "gloo carries control messages between ranks. The connection broke, nearly always because the process at the other end had ended: look there for the cause.",
            "gloo 传递各 rank 之间的控制消息。连接断开几乎总是因为对端进程先结束了，原因要到那边去找。",
        ),
        (advice.OTHER_RANKS, advice.KERNEL_LOG, advice.GLOO_IFNAME),
    ),
    "gloo-dp-desync": Subtype(
        T("The data-parallel ranks fell out of step", "数据并行的各 rank 步调不一致"),
        T(
            "Two ranks entered different collectives: one sent a message of another size than its peer expected. The configurations or versions of the ranks differ, or one skipped a step.",
            "两个 rank 进入了不同的集合操作，收发的消息大小不一样：各 rank 的配置或版本不同，或者有一个跳过了一步。",
        ),
        (advice.SAME_CONFIG, advice.OTHER_RANKS, advice.GLOO_IFNAME),
    ),
    "gloo-init": Subtype(
        T("Gloo could not connect the ranks", "gloo 没能把各 rank 连起来"),
        T(
            "gloo listens on the address that the host name resolves to. That address is not reachable, or the interface doesn't exist.",
            "gloo 监听主机名解析出来的地址；这个地址不可达，或者网卡不存在。",
        ),
        (advice.GLOO_IFNAME, advice.HOST_IP, advice.HOSTNAME, advice.ALL_REDUCE_TEST, advice.FIREWALL),
    ),
    "hccl-init": Subtype(
        T("HCCL could not open the communicator between the NPUs", "HCCL 没能在 NPU 之间建立通信"),
        T(
            "A rank waited for a socket from another one and gave up (HCCL_CONNECT_TIMEOUT, 120 s by default): a rank that starts late or died, a busy port, the wrong network interface, or a device IP that isn't configured.",
            "某个 rank 等另一个 rank 的 socket 等到超时（HCCL_CONNECT_TIMEOUT，默认 120 秒）：有 rank 启动太晚或已退出、端口被占、网卡选错，或设备 IP 没配好。",
        ),
        (advice.HCCN_CHECK, advice.HCCL_IFNAME, advice.HCCL_CONNECT_TIMEOUT, advice.OTHER_RANKS, advice.HCCL_310P),
        ("gpustack#2021",),
    ),
    "hccl-timeout": Subtype(
        T("An NPU rank stopped answering the others (HCCL)", "有 NPU rank 不再应答（HCCL）"),
        T(
            "The ranks that report are the survivors; the remote rank named in the link error is the silent one. HCCL's own limit (1836 s by default) is longer than that of vLLM for a step (300 s by default), so vLLM may give up first.",
            "报错的是还活着的 rank；link 错误里写的 remote rank 才是没有应答的那个。HCCL 自己的时限（默认 1836 秒）比 vLLM 的单步时限（默认 300 秒）长，所以 vLLM 可能先放弃。",
        ),
        (
            advice.OTHER_RANKS,
            advice.HCCN_CHECK,
            advice.HCCL_EXEC_TIMEOUT,
            advice.HCCL_CONNECT_TIMEOUT,
            advice.STEP_TIMEOUT_NPU,
        ),
        ("vllm-ascend#13233",),
    ),
    "hccl-allreduce": Subtype(
        T("The first all-reduce between the NPUs failed", "NPU 之间的第一次 all-reduce 失败"),
        T(
            "HCCL opens its connections at the first collective, so the failure shows in a model's all-reduce; the reason is the network between the ranks.",
            "HCCL 在第一次集合通信时才真正建连，所以错误出现在模型的 all-reduce 里；真正的原因是各 rank 之间的网络。",
        ),
        (advice.HCCN_CHECK, advice.HCCL_IFNAME, advice.HCCL_CONNECT_TIMEOUT, advice.OTHER_RANKS),
    ),
    "oneccl": Subtype(
        T("The XPU ranks failed in their communication (oneCCL)", "XPU 各 rank 的通信失败（oneCCL）"),
        T(
            "With one card the same model runs; with several, oneCCL or the driver loses the device. The text alone can't tell this from a broken device.",
            "单卡能跑同一个模型，多卡时 oneCCL 或驱动丢失设备。仅凭这行字分不清是通信还是设备本身的问题。",
        ),
        (advice.XPU_ONE_CARD, advice.XPU_IMAGE, advice.CCL_VARIABLES),
    ),
    "mnnvl-workspace": Subtype(
        T(
            "FlashInfer's multi-node NVLink all-reduce could not get its workspace",
            "FlashInfer 的多节点 NVLink all-reduce 拿不到工作区",
        ),
        T(
            "The fused all-reduce needs memory that all GPUs map through NVLink/NVSwitch (fabric handles, IMEX); here it could not be allocated or shared.",
            "融合 all-reduce 需要一块经 NVLink/NVSwitch 互相映射的显存（fabric handle、IMEX）；这里分配或共享失败。",
        ),
        (advice.NO_FLASHINFER_AR, advice.NO_AR_FUSION, advice.IMEX),
    ),
    "symm-mem": Subtype(
        T("PyTorch's symmetric-memory all-reduce failed", "PyTorch 对称内存 all-reduce 失败"),
        T(
            "Symmetric memory needs GPUs that map each other's memory (NVLink multicast). This machine or container doesn't allow it.",
            "对称内存要求 GPU 之间能互相映射显存（NVLink multicast），这台机器或容器不允许。",
        ),
        (advice.NO_SYMM_MEM, advice.NO_CUSTOM_ALL_REDUCE, advice.ALL_REDUCE_TEST),
    ),
    "deepep-nvshmem": Subtype(
        T("The expert-parallel all-to-all (DeepEP/NVSHMEM) failed", "专家并行的 all-to-all（DeepEP/NVSHMEM）失败"),
        T(
            "DeepEP talks over NVSHMEM, which needs RDMA cards with GPU-initiated transfers (IBGDA) between nodes. A rank timed out or NVSHMEM could not start.",
            "DeepEP 通过 NVSHMEM 通信，跨节点要求支持 IBGDA 的 RDMA 网卡。某个 rank 超时，或 NVSHMEM 启动失败。",
        ),
        (advice.OTHER_ALL2ALL, advice.IB_HCA, advice.IB_OFF, advice.RANK_BEHIND),
    ),
}

CAUSE = Cause(
    slug="collective-comm",
    code="B1",
    title=T("Communication between the ranks failed (NCCL and its kin)", "各 rank 之间的通信失败（NCCL 等）"),
    summary=T(
        "The workers of one engine exchange tensors through NCCL, HCCL, oneCCL, gloo or vLLM's own all-reduce kernel, and that channel failed.",
        "同一个引擎的各个 worker 通过 NCCL、HCCL、oneCCL、gloo 或 vLLM 自带的 all-reduce 内核交换张量，这条通道出了问题。",
    ),
    subtypes=SUBTYPES,
    signatures=signs.SIGNATURES,
    refine=_refine,
    order=3,
    classical=3,
)
