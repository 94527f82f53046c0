"""illegal-memory-access: a kernel touched memory that isn't its own, or the device gave up for another reason of that kind.

GPU faults are asynchronous: the host notices at some later call, so the Python frame is a hint and never the proof. The
fault is sticky: every later call fails too, in cuBLAS, in NCCL's watchdog, in other threads. What counts is the first
line of the first rank, and whether a kernel is named in it.
"""

from __future__ import annotations

from lifesign.causes import _advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes._xid import BOARD_XIDS, ECC_XIDS, SOFT_XIDS, xid_of
from lifesign.causes.model import SYMPTOM, Cause, Evidence, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies.library import collect, comm, graphs, host, loading, memory
from lifesign.remedies.model import Remedy
from lifesign.text import T

IMA_TEXTS = (
    "an illegal memory access",
    "illegal memory access was encountered",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "cudaErrorIllegalAddress",
    "hipErrorIllegalAddress",
)
LAUNCH_TEXTS = (
    "unspecified launch failure",
    "CUDA_ERROR_LAUNCH_FAILED",
    "cudaErrorLaunchFailure",
    "hipErrorLaunchFailure",
    "invalid program counter",
    "CUDA error: hardware stack error",
    "the launch timed out and was terminated",
)
WATCHDOG = (
    "watchdog thread terminated",
    "Process group watchdog",
    "watchdog got stuck",
    "HeartbeatMonitor",
    "ProcessGroupNCCL preparing to dump",
)
ATTENTION_KERNELS = (
    "flash_fwd",
    "flash_bwd",
    "fmha",
    "FlashAttn",
    "flash-attention",
    "BatchPrefill",
    "BatchDecode",
    "BatchMLA",
    "flashmla",
    "xqa",
    "trtllm_gen",
)
KERNEL_NAMED = (
    "deepgemm::",
    "deep_gemm::",
    "jit_kernels",
    "FromProbs",
    "failed with error code an illegal memory",
    "failed with error an illegal memory",
    "cutlass",
    "marlin",
    "_launch_template.h",
)
DEAD_WRAPPERS = ("MQEngineDeadError", "AsyncEngineDeadError", "EngineDeadError")
ROCM_TEXTS = (
    "HW Exception by GPU node",
    "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    "HSA_STATUS_ERROR_MEMORY_FAULT",
    "HSA_STATUS_ERROR_EXCEPTION",
    "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",
)
AUTOTUNE_FRAMES = (
    "autotuner.py",
    ":autotune",
    ":flashinfer_autotune",
    "triton_heuristics.py:bench",
    ":do_bench",
    ":_bench",
    "autotune_process.py",
)
BEFORE_SERVING = (Phase.LOAD, Phase.PROFILE, Phase.CAPTURE)


def _in_compiled_code(event: Event, life: Life) -> bool:
    """Whether the last frame is code that inductor generated, and not a call of a custom operator from it."""
    if event.exc is None or not event.exc.frames or not reading.is_loud(event, life):
        return False
    last = event.exc.frames[-1]
    generated = ("inductor_cache", "torchinductor_", "torch_compile_cache")
    return any(part in last.file for part in generated) and "torch.ops." not in last.code


def _around_sleep(event: Event, life: Life) -> bool:
    """Whether the engine had just been put to sleep or woken up."""
    if event.exc is not None and event.exc.passes("cumem.py", ":wake_up", ":sleep"):
        return True
    return (
        life.before(event, "/wake_up", "/sleep", "fall asleep", "to wake up", "Sleep mode freed", within=40) is not None
    )


SIGNATURES = (
    Signature("ima-serving", any=IMA_TEXTS, types=DEAD_WRAPPERS, strength=SYMPTOM, certainty="supported"),
    # Seen only through the watchdog of NCCL: the fault is real, the place is unknown.
    Signature(
        "ima-watchdog",
        any=WATCHDOG,
        regex=r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction",
        strength=SYMPTOM,
    ),
    # The C++ runtime's last words: an earlier line of the same fault says more.
    Signature(
        "ima-serving", any=("what():",), all=("illegal memory access",), phases=(Phase.SERVING,), strength=SYMPTOM
    ),
    Signature("ima-startup", any=("what():",), all=("illegal memory access",), strength=SYMPTOM),
    # Other platforms.
    Signature("rocm-fault", any=("Memory access fault by GPU", *ROCM_TEXTS)),
    Signature(
        "rocm-fault",
        any=(
            "HIP error: an illegal memory access",
            "HIP error: unspecified launch failure",
            "hipErrorIllegalAddress",
            "hipErrorLaunchFailure",
        ),
    ),
    Signature(
        "xpu-device-lost", any=("UR_RESULT_ERROR_DEVICE_LOST", "PI_ERROR_DEVICE_LOST", "ZE_RESULT_ERROR_DEVICE_LOST")
    ),
    Signature(
        "xpu-gpu-reset",
        any=("Engine reset", "GPU HANG", "device coredump"),
        regex=r"(?:\bxe\b|\bi915\b).{0,120}(?:[Ee]ngine reset|GPU HANG|GT\d: reset|device coredump)",
        kinds=("kernel", "plain"),
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature(
        "npu-aicore",
        any=(
            "aicore exception",
            "vector core exception",
            "The DDR address of the MTE instruction is out of range",
            "The aicore execution is abnormal",
            "The vector core execution is abnormal",
            "exception of fftsplus",
            "exception of aicore",
            "exception of aivec",
        ),
        none=("507014",),
        when=reading.is_loud,
    ),
    Signature(
        "npu-aicore",
        any=("507015", "507018", "507035"),
        none=("507014",),
        regex=reading.ascend_code("507015", "507018", "507035"),
        when=reading.is_loud,
    ),
    Signature(
        "npu-copy",
        any=("sdma copy error", "Memory async copy failed", "there is a sdma error"),
        none=("507014", "aicore exception"),
        when=reading.is_loud,
        certainty="supported",
    ),
    # CUDA, by what the text names.
    Signature(
        "misaligned",
        any=("misaligned address", "cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        when=reading.is_loud,
    ),
    Signature(
        "illegal-instruction",
        any=("an illegal instruction was encountered", "cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
        when=reading.is_loud,
    ),
    Signature("ima-attention", any=IMA_TEXTS, regex="|".join(ATTENTION_KERNELS), kinds=("plain", "log")),
    Signature(
        "ima-attention",
        any=("failed with error code an illegal", "failed with error an illegal", "failed with error: an illegal"),
        regex="BatchPrefill|BatchDecode|BatchMLA|SinglePrefill|fmha|attention",
    ),
    Signature("ima-kernel", any=IMA_TEXTS, regex="|".join(KERNEL_NAMED), when=reading.is_loud),
    # CUDA, by where it was noticed.
    Signature(
        "sleep-mode-race",
        any=IMA_TEXTS,
        when=lambda event, life: reading.is_loud(event, life) and _around_sleep(event, life),
    ),
    Signature("autotune", any=IMA_TEXTS, frames=AUTOTUNE_FRAMES, when=reading.is_loud),
    Signature("compiled-kernel", any=IMA_TEXTS, when=_in_compiled_code),
    Signature("ima-startup", any=IMA_TEXTS, phases=BEFORE_SERVING, when=reading.is_loud),
    Signature("ima-serving", any=IMA_TEXTS, when=reading.is_loud),
    Signature("launch-failure", any=LAUNCH_TEXTS, when=reading.is_loud),
)

HUNT = (graphs.EAGER, graphs.LAUNCH_BLOCKING, graphs.OTHER_ATTENTION_BACKEND, collect.UPGRADE_VLLM, advice.RULE_OUT_XID)
KERNEL = (
    graphs.OTHER_MOE_BACKEND,
    collect.UPGRADE_VLLM,
    graphs.LAUNCH_BLOCKING,
    graphs.EAGER,
    collect.COMPUTE_SANITIZER,
)
_LATE = T(
    "A kernel accessed memory outside its own buffers. The error is reported late, so the line of Python in the traceback is only where it was noticed.",
    "某个内核访问了不属于它的显存。这类错误异步上报，栈里的 Python 行只是发现它的地方，不是出错的地方。",
)

SUBTYPES = {
    "ima-serving": Subtype(
        T("A GPU kernel accessed invalid memory while serving", "服务中有 GPU 内核非法访问显存"),
        _LATE,
        HUNT,
        ("vllm#34948", "vllm#25907"),
    ),
    "ima-startup": Subtype(
        T("A GPU kernel accessed invalid memory before serving began", "开始服务前有 GPU 内核非法访问显存"),
        T(
            _LATE.en
            + " It happened before any request was served (mostly in a trial batch of the largest size), so no user's request is to blame.",
            _LATE.zh + "它发生在开始服务之前（多半是最大批的试运行），与用户请求无关。",
        ),
        (memory.FEWER_BATCHED_TOKENS, *HUNT),
        ("vllm#27067",),
    ),
    "ima-kernel": Subtype(
        T("A named GPU kernel accessed invalid memory", "日志点名的 GPU 内核非法访问显存"),
        T(
            "The line names the kernel that faulted; whatever fails after it (cuBLAS, NCCL) only meets the same dead device.",
            "这一行直接点名了出错的内核；之后的失败（cuBLAS、NCCL）只是碰到同一个已失效的设备。",
        ),
        KERNEL,
    ),
    "ima-attention": Subtype(
        T("An attention kernel accessed invalid memory", "注意力内核非法访问显存"),
        T(
            "The line comes from an attention kernel itself, so the backend is known.",
            "这一行来自注意力内核本身，后端可以确定。",
        ),
        (graphs.OTHER_ATTENTION_BACKEND, graphs.EAGER, collect.UPGRADE_VLLM, graphs.LAUNCH_BLOCKING),
        ("flash-attention#1991",),
    ),
    "ima-watchdog": Subtype(
        T(
            "A GPU kernel accessed invalid memory; NCCL's watchdog noticed it",
            "GPU 内核非法访问显存，由 NCCL 看门狗发现",
        ),
        T(
            "The watchdog thread only polls the device: it met a fault of some kernel. It is no communication time-out.",
            "看门狗线程只是轮询设备，碰到了别的内核留下的故障；这不是通信超时。",
        ),
        HUNT,
        ("vllm#17098",),
    ),
    "compiled-kernel": Subtype(
        T(
            "A GPU kernel accessed invalid memory; torch.compile's code noticed it",
            "GPU 内核非法访问显存，在 torch.compile 生成的代码里发现",
        ),
        T(
            _LATE.en + " Here generated code was running: compilation and large batches are the first suspects.",
            _LATE.zh + "当时运行的是编译生成的代码：先怀疑编译和过大的批。",
        ),
        (graphs.EAGER, memory.FEWER_BATCHED_TOKENS, graphs.LAUNCH_BLOCKING, collect.UPGRADE_VLLM),
        ("vllm#19631",),
    ),
    "autotune": Subtype(
        T("A GPU kernel accessed invalid memory while kernels were being tuned", "内核自动调优时发生显存非法访问"),
        T(
            "The tuner tries kernel variants; one of them is broken for this shape or GPU.",
            "调优器逐个尝试内核变体，其中一个在这个形状或 GPU 上有问题。",
        ),
        (advice.NO_AUTOTUNE, graphs.EAGER, graphs.OTHER_MOE_BACKEND, collect.UPGRADE_VLLM, graphs.LAUNCH_BLOCKING),
        ("vllm#26381", "vllm#45285"),
    ),
    "misaligned": Subtype(
        T("A GPU kernel read from a misaligned address", "GPU 内核访问了未对齐的地址"),
        T(
            "A kernel needs addresses that are multiples of 8 or 16 bytes and got another one (an unusual head size, a slice). It is neither a compile nor a capture failure, whatever wraps it.",
            "内核要求地址按 8 或 16 字节对齐，却拿到了别的（特殊的 head size、切片）。不管外面包着什么异常，它都不是编译或图捕获失败。",
        ),
        (graphs.OTHER_ATTENTION_BACKEND, graphs.EAGER, graphs.LAUNCH_BLOCKING, collect.UPGRADE_VLLM),
        ("vllm#41257",),
    ),
    "illegal-instruction": Subtype(
        T("The GPU met an instruction that it can't execute", "GPU 遇到无法执行的指令"),
        T(
            "A kernel built for another GPU, or one whose code was overwritten.",
            "内核是为别的 GPU 编译的，或代码被写坏。",
        ),
        (
            collect.UPGRADE_VLLM,
            graphs.OTHER_MOE_BACKEND,
            graphs.OTHER_ATTENTION_BACKEND,
            graphs.LAUNCH_BLOCKING,
            advice.RULE_OUT_XID,
        ),
    ),
    "launch-failure": Subtype(
        T("A GPU kernel failed while running", "GPU 内核执行失败"),
        T(
            "The driver only says that a kernel failed: a wrong access, a stack overflow or a fault of the card.",
            "驱动只说内核执行失败：可能是非法访问、栈溢出或硬件故障。",
        ),
        (advice.RULE_OUT_XID, graphs.EAGER, graphs.LAUNCH_BLOCKING, collect.UPGRADE_VLLM),
    ),
    "sleep-mode-race": Subtype(
        T("A kernel used memory that sleep mode had taken away", "内核使用了被 sleep 模式回收的显存"),
        T(
            "The fault follows a sleep or wake-up: a kernel still held addresses that were unmapped.",
            "故障紧跟在 sleep 或 wake_up 之后：有内核还拿着已解除映射的地址。",
        ),
        (advice.DRAIN_BEFORE_SLEEP, collect.UPGRADE_VLLM, graphs.EAGER, graphs.LAUNCH_BLOCKING),
        ("vllm#28714", "vllm#44395", "vllm#45552"),
    ),
    "rocm-fault": Subtype(
        T("A GPU kernel accessed invalid memory (ROCm)", "GPU 内核非法访问显存（ROCm）"),
        T(
            "The ROCm runtime stops the process at once: one line without prefix, no Python traceback. It is no capture error even in the middle of capturing.",
            "ROCm 运行时会立即终止进程：只有一行无前缀的文字，没有 Python 栈。即使正在捕获图，它也不是捕获错误。",
        ),
        (graphs.EAGER, graphs.NO_AITER, graphs.CUDAGRAPH_PIECEWISE, graphs.HIP_LAUNCH_BLOCKING, collect.UPGRADE_VLLM),
        ("vllm#35169",),
    ),
    "xpu-device-lost": Subtype(
        T("The GPU was lost (Intel XPU)", "GPU 设备丢失（Intel XPU）"),
        T(
            "The driver gave the device up, usually after it reset a hung engine; every rank then reports it at its next synchronisation.",
            "驱动放弃了设备，通常是重置了卡死的引擎；随后每个 rank 都会在下一次同步时报告。",
        ),
        (host.UPDATE_XPU_DRIVER, collect.UPGRADE_VLLM, graphs.EAGER),
        ("vllm#50850", "intel/llm-scaler#424"),
    ),
    "xpu-gpu-reset": Subtype(
        T("The kernel driver reset the GPU (Intel XPU)", "内核驱动重置了 GPU（Intel XPU）"),
        T(
            "The kernel log shows an engine reset: a kernel hung or faulted on the device.",
            "内核日志里有引擎重置：设备上的内核卡死或出错。",
        ),
        (host.UPDATE_XPU_DRIVER, collect.UPGRADE_VLLM),
        ("vllm#50850",),
    ),
    "npu-aicore": Subtype(
        T("An AI core of the NPU faulted", "NPU 的 AI Core 执行异常"),
        T(
            "A kernel on the NPU accessed a wrong address; the plog names the operator. ERR99999 and ERR00100 around it are generic.",
            "NPU 上的算子访问了错误地址；plog 里有算子名。外面的 ERR99999、ERR00100 只是通用码。",
        ),
        (advice.ASCEND_BLOCKING, collect.COLLECT_ASCEND_PLOG, graphs.EAGER, collect.UPGRADE_VLLM),
    ),
    "npu-copy": Subtype(
        T("A memory copy on the NPU failed", "NPU 上的内存拷贝失败"),
        T(
            "The copy engine (SDMA) of the NPU stopped: a wrong address, an overflow in a kernel before it, or another rank's process that was gone already. The plog of each rank tells which; EH9999 around it is generic.",
            "NPU 的拷贝引擎（SDMA）出错：拷贝地址不对、之前的算子溢出，或者另一个 rank 的进程已经不在了。看各 rank 的 plog 才能区分；外面的 EH9999 只是通用码。",
        ),
        (advice.ASCEND_BLOCKING, collect.COLLECT_ASCEND_PLOG, graphs.EAGER, collect.UPGRADE_VLLM),
        ("vllm-ascend#3017",),
    ),
}


def refine(finding: Finding, life: Life) -> Finding | None:
    """Adds what the log knows about the suspect: kernel log, known scenarios, named kernels."""
    event = finding.event
    if event.exc is not None and event.exc.message.count("\n") > 2:
        finding = reading.cite(finding, *IMA_TEXTS, *LAUNCH_TEXTS, "misaligned address", "DEVICE_LOST")
    remedies = list(SUBTYPES[finding.subtype].remedies)
    notes: list[T] = []
    if finding.subtype.startswith("xpu"):
        if life.world_size > 1:
            remedies += [comm.OLDER_ONECCL, memory.SINGLE_DEVICE]
            notes.append(
                T(
                    "With several cards, oneCCL is a suspect too: try a single card.",
                    "多卡时 oneCCL 也有嫌疑：请用单卡验证。",
                )
            )
    elif finding.subtype not in ("rocm-fault", "npu-aicore", "npu-copy"):
        _kernel_log(finding, life)
        note = _scenario(finding, life, remedies)
        if note is not None:
            notes.append(note)
    finding.remedies = tuple(remedies)
    reading.for_sglang(finding, life, finding.remedies, advice.SGLANG_NO_GRAPH)
    return reading.explain(finding, SUBTYPES[finding.subtype].why, *notes) if notes else finding


def _kernel_log(finding: Finding, life: Life) -> None:
    """Xid 13 and 31 confirm a software fault; memory, bus and power Xids mean that the card itself may be at fault."""
    for event in reading.edges(life):
        number = xid_of(event.text) if event.kind == "kernel" else None
        if number in SOFT_XIDS:
            why = T("The driver logged the same fault (Xid).", "驱动记录了同一故障（Xid）。")
            finding.evidence.append(Evidence(event, "confirmation", why))
            return
        if number in ECC_XIDS or number in BOARD_XIDS:
            finding.certainty = "possible"
            why = T("The kernel log shows a hardware error of this GPU.", "内核日志里有这块 GPU 的硬件错误。")
            reading.add_context(finding, event, why)
            return


def _put_first(remedies: list[Remedy], *first: Remedy) -> None:
    slugs = {remedy.slug for remedy in first}
    remedies[:] = [*first, *(remedy for remedy in remedies if remedy.slug not in slugs)]


def _scenario(finding: Finding, life: Life, remedies: list[Remedy]) -> T | None:
    """Known scenarios, when model, frames and phase of this log fit them; they reorder the remedies."""
    event = reading.told_by(finding.event, life, *IMA_TEXTS)
    exc = event.exc
    if "deepgemm" in event.text.lower() or "deep_gemm" in event.text.lower() or "jit_kernels" in event.text:
        _put_first(remedies, graphs.NO_DEEP_GEMM)
        return T("The kernel is DeepGEMM's.", "出错的是 DeepGEMM 的内核。")
    if "FromProbs" in event.text or "sampling" in event.text:
        _put_first(remedies, graphs.NO_FLASHINFER_SAMPLER)
        return T("The kernel is FlashInfer's sampler.", "出错的是 FlashInfer 的采样内核。")
    gdn = exc is not None and exc.passes(
        "gdn_attn", "gdn_linear_attn", "gated_delta", "/fla/ops/", "\\fla\\ops\\", "qwen3_next.py", "qwen3_5.py"
    )
    if gdn or reading.runs_model(life, event, "qwen3.5", "qwen3_5", "qwen3-next", "qwen3_next"):
        _put_first(remedies, graphs.EAGER, graphs.CUDAGRAPH_FULL_DECODE)
        if reading.speculates(life):
            remedies.insert(2, loading.DROP_SPECULATIVE)
        finding.values["scenario"] = "gdn-piecewise"
        return T(
            "Known scenario: Qwen3.5 / Qwen3-Next, whose GDN (linear) attention can read buffers that PIECEWISE CUDA graphs have given back (vllm#34948, vllm#25907).",
            "已知场景：Qwen3.5 / Qwen3-Next 的 GDN（线性）注意力，会读到 PIECEWISE CUDA graph 已归还的缓冲区（vllm#34948、vllm#25907）。",
        )
    mrope = exc is not None and exc.passes("mrope")
    if mrope or reading.runs_model(life, event, "qwen3-omni", "qwen3_omni", "qwen2.5-omni", "qwen2_5_omni"):
        _put_first(remedies, advice.BOUND_MEDIA)
        finding.values["scenario"] = "mrope-out-of-bounds"
        return T(
            "Known scenario: Qwen Omni and VL models compute MRoPE positions from the length of audio and video; positions beyond the table read outside it (vllm#47407).",
            "已知场景：Qwen Omni/VL 按音视频时长计算 MRoPE 位置，超出位置表就会越界读取（vllm#47407）。",
        )
    deepseek = reading.runs_model(life, event, "deepseek-v3", "deepseek_v3", "deepseek-r1", "deepseek_v2.py")
    if deepseek and event.phase in BEFORE_SERVING:
        _put_first(remedies, graphs.NO_DEEP_GEMM)
        finding.values["scenario"] = "deepseek-deepgemm-warmup"
        return T(
            "Known scenario: DeepSeek-V3 with DeepGEMM at warm-up; it is noticed later, often in the sampler's logits.sort(). Switching DeepGEMM off proves it.",
            "已知场景：DeepSeek-V3 在预热时使用 DeepGEMM，错误往往到后面、常在采样器的 logits.sort() 处才被发现。关掉 DeepGEMM 即可验证。",
        )
    if exc is not None and exc.passes("fused_moe", "modular_kernel"):
        remedies.insert(1, graphs.OTHER_MOE_BACKEND)
        return T("It was noticed near the fused MoE kernel.", "错误在 MoE 融合内核附近被发现。")
    return None


CAUSE = Cause(
    slug="illegal-memory-access",
    code="A2",
    title=T("A GPU kernel faulted", "GPU 内核故障"),
    summary=T(
        "A kernel touched memory that isn't its own, or the device was lost; everything that fails afterwards only repeats it.",
        "内核访问了不属于它的显存，或设备丢失；之后的所有失败都只是重复它。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=2,
    classical=2,
)
