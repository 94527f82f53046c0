"""unsupported-hw: this build has no kernel (or instruction) for this hardware.

The program is healthy and so is the card; they were not made for each other. The messages are short (`Error Internal`,
`Illegal instruction`) or sound like memory (`out of resource: shared memory`), so the frame or the figures decide.
"""

from __future__ import annotations

import re

from lifesign.causes import _advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Life, Phase
from lifesign.remedies import versions
from lifesign.remedies.library import collect, graphs, host, loading
from lifesign.remedies.model import Remedy
from lifesign.text import T

IMAGE_TEXTS = (
    "no kernel image is available for execution on the device",
    "device kernel image is invalid",
    "CUDA error: invalid device function",
    "HIP error: invalid device function",
    "cudaErrorNoKernelImageForDevice",
    "cudaErrorInvalidDeviceFunction",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "hipErrorNoBinaryForGpu",
    "hipErrorInvalidDeviceFunction",
    "Unable to find code object for all current devices",
)
KERNEL_FRAMES = ("cutlass", "_custom_ops.py", "scaled_mm", "flashinfer", "flash_attn", "marlin", "machete", "trtllm")
KERNEL_TEXTS = (
    "FlashAttention only supports",
    "Not implemented or built, mostly likely because the current current device does not support this kernel",
    "Failed to initialize cutlass TMA WS",
    "cutlass cannot implement",
    "Failed to run cutlass",
    "too many resources requested for launch",
    "Unsupported compute capability",
    "Unsupported SM version",
    "unsupported SM",
    "no available kernel",
    "No kernel found for",
    "This kernel only supports sm",
    "likely was not compiled due to insufficient nvcc version or a supported arch",
    "FlashMLA is only supported on",
)
_TURING_BYTES = "65536"
"""The most shared memory that one block gets on compute capability 7.5 (CUDA C++ Programming Guide, table of limits)."""
_CAPABILITY = r"(?:requires?|[Rr]equired|only supported on|only supports?|not supported (?:on|for|by)).{0,60}(?:compute capability|[Ss][Mm]_?\d{2,3}|Hopper|Blackwell|Ampere|Ada\b)"

SIGNATURES = (
    Signature(
        "kernel-missing",
        any=("No valid attention backend found", "No valid MLA attention backend"),
        all=("[compute capability not supported]",),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "flashinfer-arch", any=("FlashInfer requires GPUs with sm75",), regex=r"(?:Error: |^)FlashInfer requires"
    ),
    Signature("memory-query", any=("doesn't support querying the available free memory",)),
    Signature("no-kernel-image", any=IMAGE_TEXTS, when=reading.is_loud),
    # The quantisation family reads this text more closely; without it, it still means a missing kernel.
    Signature(
        "kernel-missing",
        any=("No compiled cutlass_scaled_mm for a compute capability",),
        when=reading.is_loud,
        strength=SYMPTOM,
    ),
    Signature(
        "kernel-missing",
        any=("No compiled ",),
        regex=r"No compiled \w{3,60} for",
        types=("NotImplementedError", "RuntimeError"),
    ),
    Signature("kernel-missing", any=("Error Internal",), frames=KERNEL_FRAMES),
    # The launch check of compiled kernels (flash-attention, CUTLASS, xformers): it prints file and line and leaves from C.
    Signature(
        "kernel-missing",
        any=("CUDA error (",),
        regex=r"CUDA error \([^()\n]{1,300}:\d{1,5}\): (?:invalid argument|invalid device function|no kernel image|invalid configuration argument|too many resources|feature requires|named symbol not found)",
        kinds=("plain", "native", "log", "exception"),
        when=reading.is_loud,
    ),
    Signature(
        "kernel-missing", any=("Error Internal",), regex=r"[Cc]utlass|CUTLASS|TensorRT-LLM|gemm", when=reading.is_loud
    ),
    Signature("kernel-missing", any=KERNEL_TEXTS, when=reading.is_loud),
    Signature(
        "kernel-missing",
        types=("NotImplementedError", "RuntimeError"),
        any=(
            "Could not run '_C::",
            "Could not run 'vllm::",
            "Could not run '_moe_C::",
            "Could not run '_C_cache_ops::",
        ),
        certainty="supported",
    ),
    Signature(
        "triton-smem",
        any=(
            "OutOfResources",
            "out of resource: shared memory",
            "out of resource: tensor memory",
            "out of resource: threads",
            "out of resource: registers",
        ),
        none=("No valid triton configs",),
        when=reading.is_loud,
    ),
    Signature(
        "npu-op-missing",
        any=(
            "Cannot find bin of op",
            "Cannot find binary for op",
            "No supported Ops kernel and engine are found",
            "does not has any binary",
        ),
    ),
    Signature("npu-op-missing", any=("561103",), regex=reading.ascend_code("561103"), when=reading.is_loud),
    Signature(
        "npu-op-missing",
        any=("The Inner error is reported as above",),
        all=("current working operator name",),
        none=("507014", "507015"),
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature(
        "gpu-not-supported",
        any=(
            "Bfloat16 is only supported on GPUs with compute capability of at least",
            "Triton only supports devices of CUDA Capability",
            "is too old to be supported by the triton",
            "GPUTooOldForTriton",
            "not supported in this architecture. The supported fp8 dtypes are",
            "fp8e4nv not supported in this architecture",
            "is not supported with Compute Capability",
            "fp8e4nv data type is not supported on CUDA arch",
        ),
        when=reading.is_loud,
    ),
    Signature(
        "uva",
        any=("UVA is not available", "Unified Virtual Addressing", "requires uva", "requires UVA"),
        when=reading.is_loud,
    ),
    Signature(
        "cpu-isa",
        any=("Illegal instruction", "SIGILL"),
        none=("an illegal instruction was encountered", "cudaErrorIllegalInstruction", "HSA_STATUS"),
        kinds=("plain", "native", "kernel", "death", "log", "exception"),
        when=reading.is_loud,
    ),
    Signature("cpu-isa", any=("trap invalid opcode",), kinds=("kernel", "plain")),
    Signature("cpu-isa", regex=r"(?:exit code: |': )-4\b", kinds=("death",), strength=SYMPTOM, certainty="supported"),
    Signature(
        "kernel-missing",
        types=("RuntimeError", "NotImplementedError", "ValueError", "AssertionError"),
        regex=_CAPABILITY,
        none=("quantization method", "Quantization scheme", "Minimum capability"),
        certainty="supported",
    ),
)

SUBTYPES = {
    "no-kernel-image": Subtype(
        T("This build has no kernels for this GPU", "这个构建没有该 GPU 的内核"),
        T(
            "The driver found no machine code for the card's architecture in torch, the engine or a kernel library.",
            "驱动在 torch、推理引擎或某个内核库里找不到该显卡架构的机器码。",
        ),
        (host.SUPPORTED_GPU, collect.UPGRADE_VLLM, advice.BUILD_FOR_ARCH),
    ),
    "kernel-missing": Subtype(
        T("A kernel is missing for this GPU", "缺少适用于该 GPU 的内核"),
        T(
            "The chosen kernel isn't built or can't run on this architecture; another backend of the same layer usually can.",
            "所选内核没有为该架构构建，或无法在其上运行；同一层的其他后端通常可以。",
        ),
        (advice.OTHER_LINEAR_BACKEND, graphs.OTHER_MOE_BACKEND, collect.UPGRADE_VLLM, loading.NEWER_GPU_OR_QUANT),
        ("vllm#39367",),
    ),
    "triton-smem": Subtype(
        T("A Triton kernel needs more on-chip memory than this GPU has", "Triton 内核需要的片上共享内存超过该 GPU"),
        T(
            "Shared memory here is the small memory inside each multiprocessor, neither the GPU's memory nor /dev/shm: the kernel's tile sizes were tuned for a larger chip.",
            "这里的 shared memory 是每个 SM 内部的小内存，既不是显存也不是 /dev/shm：内核的分块是按更大的芯片调的。",
        ),
        (advice.NOT_TRITON_ATTENTION, collect.UPGRADE_VLLM, loading.OTHER_QUANTISATION),
    ),
    "npu-op-missing": Subtype(
        T("An operator has no binary for this NPU", "该 NPU 缺少某个算子的二进制"),
        T(
            "CANN found no compiled kernel for the operator on this chip; error numbers around it (ERR00100, EZ9999) are generic, and the Python frame is asynchronous.",
            "CANN 找不到该算子在这个芯片上的二进制；外层的 ERR00100、EZ9999 是通用错误码，Python 栈也是异步的。",
        ),
        (advice.CANN_OPERATORS, advice.ASCEND_BLOCKING, collect.UPGRADE_VLLM),
        ("vllm-ascend#6082",),
    ),
    "gpu-not-supported": Subtype(
        T("The GPU is too old for what was asked", "GPU 太旧，不支持所需功能"),
        T(
            "A data type or compiler needs a newer compute capability than this card has.",
            "所需的数据类型或编译器要求更高的计算能力。",
        ),
        (advice.HALF_PRECISION, loading.NEWER_GPU_OR_QUANT, host.SUPPORTED_GPU),
    ),
    "flashinfer-arch": Subtype(
        T(
            "FlashInfer finds no architecture that card and CUDA toolkit both know",
            "FlashInfer 找不到显卡和 CUDA 工具包都认识的架构",
        ),
        T(
            "FlashInfer compiles for the cards that it finds and the installed nvcc can build for; none is left. On a new card the toolkit is too old (RTX 50xx needs CUDA 12.8 or 12.9), on one older than Turing nothing helps.",
            "FlashInfer 只为检测到的、且本机 nvcc 能编译的架构编译，结果一个都不剩。新卡多半是工具包太旧（RTX 50xx 需要 CUDA 12.8 或 12.9）；比 Turing 更早的卡则无解。",
        ),
        (graphs.INSTALL_NVCC, graphs.NO_FLASHINFER_SAMPLER, collect.UPGRADE_VLLM),
    ),
    "memory-query": Subtype(
        T("The device can't tell how much of its memory is free", "设备无法报告剩余显存"),
        T(
            "vLLM sizes the KV cache from the free memory, and this driver (mostly of an integrated GPU, which shares the host's memory) doesn't answer that question.",
            "vLLM 按剩余显存确定 KV cache 大小，而这个驱动（多为与主机共享内存的集成显卡）不支持查询。",
        ),
        (advice.DISCRETE_DEVICE,),
    ),
    "uva": Subtype(
        T("The GPU can't address host memory here", "此环境下 GPU 不能直接寻址主机内存"),
        T(
            "Unified virtual addressing is missing (WSL, some virtual GPUs), and offloading to host memory depends on it.",
            "缺少统一虚拟寻址（WSL、部分虚拟 GPU），而卸载到主机内存依赖它。",
        ),
        (advice.NO_OFFLOAD, host.USE_LINUX),
    ),
    "cpu-isa": Subtype(
        T("The CPU refused an instruction that this build uses", "CPU 拒绝执行该构建使用的指令"),
        T(
            "The process was stopped by SIGILL (exit status 132, or -4): compiled code used an instruction that this CPU, or its virtual model, doesn't have, or that the process may not use.",
            "进程因 SIGILL 终止（退出码 132 或 -4）：编译代码用到了这颗 CPU（或虚拟机 CPU 型号）没有的、或该进程无权使用的指令。",
        ),
        (host.CPU_ISA,),
        ("intel/ipex-llm#12922",),
    ),
}

_SMEM = re.compile(r"Required: ?(\d{1,9}),? Hardware limit: ?(\d{1,9})")
_OPERATOR = re.compile(r"(?:bin of op|binary for op|operator name is) (\w{1,80})")


def _amx_unasked(finding: Finding, life: Life) -> bool:
    """Whether attention may have used AMX tiles that nobody had asked the kernel for: the CPU back end, bfloat16, at work."""
    dtype = str(life.config.get("dtype", "bfloat16"))
    early = versions.at_least(life.version, "0.30.0") is False
    return life.platform == "cpu" and finding.event.phase is Phase.SERVING and "bfloat16" in dtype and not early


def _without_that_kernel(finding: Finding, life: Life) -> list[Remedy]:
    """What goes around a Triton kernel that doesn't fit: another attention that this GPU has, or nothing but a release."""
    told = (event.exc for event in life.events if event.exc is not None and event.has("out of resource"))
    exc = finding.event.exc or next(told, None)  # the line that is cited may repeat it without its frames
    rest = [collect.UPGRADE_VLLM]
    if exc is None or not exc.passes("attention", "attn", "prefix_prefill"):
        return [*rest, loading.OTHER_QUANTISATION]
    if life.platform == "rocm":
        return [advice.NO_CACHED_PREFIX, *rest] if exc.passes("prefix_prefill") else rest
    if finding.values.get("limit") == _TURING_BYTES:
        return [advice.FLASHINFER_ATTENTION, *rest, host.SUPPORTED_GPU]
    return [advice.NOT_TRITON_ATTENTION, *rest]


def refine(finding: Finding, life: Life) -> Finding | None:
    """Reads the figures or the operator's name, and settles what an `Illegal instruction` line is worth."""
    text = finding.event.text
    notes: list[T] = []
    remedies = list(SUBTYPES[finding.subtype].remedies)
    if (
        finding.subtype == "cpu-isa"
        and finding.event.kind == "plain"
        and "Illegal instruction" in text
        and len(text) > 2000
    ):
        return None
    if match := _SMEM.search(text):
        finding.values.update(required=match[1], limit=match[2])
        notes.append(
            T(f"It needs {match[1]} bytes, the limit is {match[2]}.", f"需要 {match[1]} 字节，上限是 {match[2]}。")
        )
    if finding.subtype == "npu-op-missing":
        reading.cite(finding, "Cannot find bin", "The Inner error")
        if match := _OPERATOR.search(text):
            finding.values["operator"] = match[1]
            notes.append(T(f"The operator is {match[1]}.", f"算子是 {match[1]}。"))
    if finding.subtype == "no-kernel-image" and life.platform == "rocm":
        remedies = [advice.ROCM_ARCH, collect.UPGRADE_VLLM]
    if finding.subtype == "no-kernel-image" and life.engine == "sglang":
        remedies = [host.SUPPORTED_GPU, collect.UPGRADE_VLLM]
    if "[compute capability not supported]" in text:
        remedies = [advice.GPU_FOR_ATTENTION, collect.UPGRADE_VLLM]
        notes.append(
            T(
                "It is the attention: the back ends that have what this model needs are refused for the GPU's compute capability alone (Ampere is 8.0 and 8.6, Ada 8.9, Hopper 9.0, Blackwell 10.0 and 12.0).",
                "出问题的是注意力：具备该模型所需功能的后端，仅仅因为 GPU 的计算能力而被排除（Ampere 为 8.0/8.6，Ada 8.9，Hopper 9.0，Blackwell 10.0/12.0）。",
            )
        )
    if finding.subtype == "kernel-missing" and finding.event.exc is not None:
        if finding.event.exc.passes("fp8_utils", "w8a8", "scaled_mm") or "scaled_mm" in text:
            notes.append(
                T(
                    "It is the FP8 / INT8 matrix kernel (cutlass_scaled_mm).",
                    "出问题的是 FP8/INT8 矩阵内核（cutlass_scaled_mm）。",
                )
            )
        if finding.event.exc.passes("attention", "flash_attn", "attn"):
            remedies.insert(0, graphs.OTHER_ATTENTION_BACKEND)
    if finding.subtype == "triton-smem":
        remedies = _without_that_kernel(finding, life)
    if finding.subtype == "cpu-isa" and _amx_unasked(finding, life):
        remedies = [host.FLOAT32_ON_CPU, host.LONGER_FIRST_REQUEST, *remedies]
        notes.append(
            T(
                "The engine had started: on a CPU with AMX, vLLM 0.30.0 and 0.32.0 were seen to die this way when their first request had fewer than five tokens.",
                "引擎已经启动完成：实测在带 AMX 的 CPU 上，vLLM 0.30.0 和 0.32.0 的第一个请求少于 5 个 token 时会这样死掉。",
            )
        )
    finding.remedies = tuple(remedies)
    return reading.explain(finding, SUBTYPES[finding.subtype].why, *notes) if notes else finding


CAUSE = Cause(
    slug="unsupported-hw",
    code="A11",
    title=T("This hardware isn't supported by this build", "该构建不支持这种硬件"),
    summary=T(
        "A kernel or an instruction for this GPU, NPU or CPU is missing from the build; the hardware is not broken.",
        "该构建缺少适用于这种 GPU、NPU 或 CPU 的内核或指令；硬件没有坏。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=11,
)
