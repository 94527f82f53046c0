"""cuda-lib: cuBLAS, cuDNN or one of their relatives failed first.

These libraries are often the first to *meet* a fault that something else made: an out-of-memory, an illegal access, a
broken driver. Statuses that only report such a state (internal error, execution failed, not initialised, allocation
failed) therefore count as symptoms; statuses that judge the call itself (invalid value, not supported) are decisive.
"""

from __future__ import annotations

from lifesign.causes import _advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Evidence, Finding, Signature, Subtype
from lifesign.facts.model import Life
from lifesign.remedies.library import collect, graphs, host, memory
from lifesign.text import T

STATE = (
    "ALLOC_FAILED",
    "NOT_INITIALIZED",
    "INTERNAL_ERROR",
    "EXECUTION_FAILED",
    "MAPPING_ERROR",
    "internal_error",
    "not_initialized",
    "memory_error",
)
"""Statuses that report the state of the device or of the process."""
FAULTS = (
    "illegal memory access",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert triggered",
    "out of memory",
    "Memory access fault by GPU",
)
BLAS = (
    "CUBLAS_STATUS_",
    "HIPBLAS_STATUS_",
    "rocblas_status",
    "hipblasStatus",
    "cublasLt ran into an error",
    "hipblaslt error",
)
DNN = ("CUDNN_STATUS_", "cuDNN error", "MIOPEN_STATUS", "miopenStatus", "CUDNN_BACKEND")
OTHERS = ("CUSOLVER_STATUS_", "cusolver error", "CUSPARSE_STATUS_", "CUFFT_", "cuFFT error", "CURAND_STATUS_")

SIGNATURES = (
    Signature("cublas", any=BLAS, regex="|".join(STATE), when=reading.is_loud, strength=SYMPTOM, certainty="supported"),
    Signature("cublas", any=BLAS, when=reading.is_loud),
    # A crash inside the library, by its native stack: a division by zero in the choice of an algorithm, for one.
    Signature(
        "cublas",
        any=("Caught signal 8", "SIGFPE", "Fatal Python error: Floating point exception"),
        regex=r"(?i)cublas",
        kinds=("native",),
        certainty="supported",
    ),
    Signature("cudnn", any=DNN, regex="|".join(STATE), when=reading.is_loud, strength=SYMPTOM, certainty="supported"),
    Signature("cudnn", any=DNN, when=reading.is_loud),
    Signature("other-library", any=OTHERS, when=reading.is_loud, strength=SYMPTOM, certainty="supported"),
)

LIBRARY_PATH = (host.UNSET_LD_LIBRARY_PATH, advice.MATCHING_TORCH, collect.UPGRADE_VLLM, graphs.LAUNCH_BLOCKING)
_BASE = T(
    "The matrix library refused the call or failed in it. When no other fault stands above it, the usual reason is a library that doesn't fit torch: foreign CUDA libraries on LD_LIBRARY_PATH, or a torch build with a faulty cuBLAS.",
    "矩阵库拒绝了调用或在其中失败。如果上面没有别的故障，通常是库与 torch 不匹配：LD_LIBRARY_PATH 上有外来的 CUDA 库，或该 torch 构建带的 cuBLAS 有问题。",
)

SUBTYPES = {
    "cublas": Subtype(
        T("A matrix library call failed (cuBLAS)", "矩阵库调用失败（cuBLAS）"),
        _BASE,
        LIBRARY_PATH,
        ("pytorch#174949", "vllm#35608"),
    ),
    "cudnn": Subtype(
        T("A convolution library call failed (cuDNN)", "卷积库调用失败（cuDNN）"),
        T(
            "cuDNN failed first: its version doesn't fit torch or the driver, or it found no memory.",
            "cuDNN 最先失败：版本与 torch 或驱动不匹配，或没有显存可用。",
        ),
        LIBRARY_PATH,
    ),
    "other-library": Subtype(
        T("A CUDA library call failed", "CUDA 库调用失败"),
        T(
            "A library of the CUDA toolkit failed first; a mismatch of versions or a lack of memory is the usual reason.",
            "CUDA 工具包中的某个库最先失败；通常是版本不匹配或显存不足。",
        ),
        LIBRARY_PATH,
    ),
}


def refine(finding: Finding, life: Life) -> Finding | None:
    """After a device fault the library only follows; without one, the status tells memory from mismatch."""
    event, text = finding.event, finding.event.text
    fault = reading.first_before(event, life, *FAULTS)
    if fault is not None:
        finding.role, finding.certainty, finding.strength = "cascade", "supported", SYMPTOM
        finding.evidence.append(Evidence(fault, "root", T("The device had failed before.", "设备在此之前已经出错。")))
        note = T(
            "Here it follows a fault of the device that was reported before.", "这里它只是跟在之前的设备故障之后。"
        )
        return reading.explain(finding, SUBTYPES[finding.subtype].why, note)
    if any(part in text for part in ("ALLOC_FAILED", "memory_error")):
        finding.remedies = (memory.LOWER_UTILISATION, memory.FREE_DEVICE, *LIBRARY_PATH)
        note = T(
            "ALLOC_FAILED: the library found no memory for its own workspace, so the card was probably nearly full.",
            "ALLOC_FAILED：库没有显存放自己的工作区，多半是显存几乎已满。",
        )
        return reading.explain(finding, SUBTYPES[finding.subtype].why, note)
    if "NOT_INITIALIZED" in text or "cublasCreate" in text or "cudnnCreate" in text:
        finding.remedies = (
            advice.RULE_OUT_XID,
            memory.FREE_DEVICE,
            host.DRIVER_COMPAT,
            host.UNSET_LD_LIBRARY_PATH,
            advice.MATCHING_TORCH,
        )
        note = T(
            "It failed while it was created: a full card or a broken driver state is likelier than a wrong call.",
            "它在创建时就失败：显存已满或驱动状态异常，比调用有误更可能。",
        )
        return reading.explain(finding, SUBTYPES[finding.subtype].why, note)
    if any(part in text for part in STATE):
        finding.remedies = (graphs.LAUNCH_BLOCKING, graphs.EAGER, *LIBRARY_PATH[:3], advice.RULE_OUT_XID)
        note = T(
            "This status is also what a sticky fault of an earlier kernel looks like; run once with CUDA_LAUNCH_BLOCKING=1.",
            "更早的内核故障也会表现为这个状态；请用 CUDA_LAUNCH_BLOCKING=1 跑一次。",
        )
        return reading.explain(finding, SUBTYPES[finding.subtype].why, note)
    return finding


CAUSE = Cause(
    slug="cuda-lib",
    code="A9",
    title=T("A CUDA library failed", "CUDA 库出错"),
    summary=T(
        "cuBLAS, cuDNN or a relative failed before anything else did: mostly a version that doesn't fit, sometimes a full or faulty card.",
        "cuBLAS、cuDNN 等库最先失败：多半是版本不匹配，有时是显存已满或显卡故障。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=9,
)
