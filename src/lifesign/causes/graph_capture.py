"""graph-capture: the recording of CUDA graphs (or their replay) itself went wrong.

Only what is truly about capture belongs here: an operation that a capturing stream refuses, a capture that ends broken,
a workspace that was sealed before everything had asked for its share. Running out of memory while capturing is
device-oom, a fault of a kernel while capturing is illegal-memory-access.
"""

from __future__ import annotations

import re

from lifesign.causes import _advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.remedies.library import collect, graphs, host, loading, memory
from lifesign.text import T

ILLEGAL_OP_TEXTS = (
    "operation not permitted when stream is capturing",
    "operation would make the legacy stream depend on a capturing",
    "dependency created on uncaptured work in another stream",
    "cudaErrorStreamCaptureUnsupported",
    "cudaErrorStreamCaptureImplicit",
    "cudaErrorStreamCaptureIsolation",
    "hipErrorStreamCaptureUnsupported",
    "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture",
    "The stream is in capture status, but this operation is not allowed",
)
CAPTURE_END_TEXTS = (
    "operation failed due to a previous error during capture",
    "capturing stream has unjoined work",
    "cudaErrorStreamCaptureInvalidated",
    "cudaErrorStreamCaptureUnjoined",
    "hipErrorStreamCaptureInvalidated",
    "CUDAGraph::capture_end",
)
DEVICE_TEXTS = (
    "out of memory",
    "illegal memory access",
    "misaligned address",
    "device-side assert triggered",
    "no kernel image",
)
"""Device errors that merely surface in a capture or replay call."""
CAPTURE_FRAMES = (
    "graphs.py:__exit__",
    ":capture_end",
    ":capture_begin",
    ":capture_model",
    ":_capture_cudagraphs",
    "cuda_graph_runner.py:capture",
)


def _after_other_error(event: Event, life: Life) -> bool:
    """Whether the exception that came before in the chain was no capture error: then the broken capture only follows."""
    inner = event.exc.chained_to if event.exc is not None else None
    if inner is None:
        return False
    return not any(part in inner.message for part in (*ILLEGAL_OP_TEXTS, *CAPTURE_END_TEXTS, "operation not permitted"))


SIGNATURES = (
    Signature("workspace-locked", any=("Workspace is locked but",), when=reading.is_loud),
    # NCCL passes a refusal on; what failed is the capture, and its own error follows.
    Signature(
        "illegal-op-in-capture",
        any=("NCCL", "Nccl", "nccl"),
        regex=r"operation not permitted|[Cc]uda failure 900",
        strength=SYMPTOM,
    ),
    Signature("illegal-op-in-capture", any=ILLEGAL_OP_TEXTS, when=reading.is_loud),
    Signature(
        "capture-end",
        any=CAPTURE_END_TEXTS,
        none=DEVICE_TEXTS,
        when=_after_other_error,
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature("capture-end", any=CAPTURE_END_TEXTS, none=DEVICE_TEXTS, when=reading.is_loud),
    Signature(
        "replay-failure",
        any=(
            "Input addresses for cudagraphs are different during replay",
            "Cannot prepare for replay during capturing stage",
            "Offset increment outside graph capture",
        ),
    ),
    Signature(
        "replay-failure",
        frames=("graphs.py:replay",),
        none=DEVICE_TEXTS,
        types=("RuntimeError", "AcceleratorError"),
        certainty="supported",
    ),
    Signature(
        "replay-failure",
        any=("cudaGraphLaunch", "cudaGraphInstantiate", "hipGraphLaunch", "aclmdlRIExecuteAsync"),
        none=DEVICE_TEXTS,
        when=reading.is_loud,
        certainty="supported",
    ),
    Signature("late-capture", any=("CUDA graph capturing detected at an inappropriate time",)),
    Signature(
        "unsupported-mode",
        any=(
            "Full CUDAGraph not supported for",
            "Mamba with cuda graph is not supported",
            "unavailable, model is not torch-compiled and breakable CUDA graph is off",
        ),
    ),
    Signature("unsupported-mode", all=("CUDAGraphMode.", "is not supported with"), types=("ValueError",)),
    Signature("regression", types=("CUDAGraphError", "CudaGraphError")),
    Signature(
        "regression",
        frames=CAPTURE_FRAMES,
        types=("RuntimeError", "AcceleratorError"),
        any=("CUDA error: invalid argument", "HIP error: invalid argument", "CUDA error: unknown error"),
        certainty="supported",
    ),
)

SUBTYPES = {
    "workspace-locked": Subtype(
        T(
            "A kernel asked for scratch memory after vLLM had sealed the workspace",
            "工作区锁定之后，内核又申请更大的临时空间",
        ),
        T(
            "vLLM sizes one shared workspace during warm-up and then locks it, because captured graphs hold its address. This path was not exercised by the warm-up, so its first real use asks for more. No memory is short.",
            "vLLM 在预热时确定共享工作区的大小，然后锁定，因为捕获的图记住了它的地址。这条路径预热时没有走到，第一次真正使用就要更大的空间。并不是显存不足。",
        ),
        (advice.WORKSPACE_UPGRADE, memory.FEWER_BATCHED_TOKENS, graphs.EAGER, collect.REPORT_BUG),
        ("vllm#48179", "vllm#42978", "vllm#43357"),
    ),
    "illegal-op-in-capture": Subtype(
        T("An operation that CUDA graph capture forbids ran while capturing", "捕获 CUDA graph 时执行了不允许的操作"),
        T(
            "While a graph is recorded, the stream refuses everything that needs the host: synchronising, allocating, copying to the CPU, some collectives. The frame shows who did it; the kernel or back end isn't made for capture.",
            "录制图时，流会拒绝一切需要主机参与的操作：同步、分配、拷回 CPU、部分集合通信。栈里能看出是谁；该内核或后端不支持捕获。",
        ),
        (
            graphs.EAGER,
            graphs.CUDAGRAPH_NONE,
            graphs.CUDAGRAPH_PIECEWISE,
            graphs.OTHER_ATTENTION_BACKEND,
            collect.UPGRADE_VLLM,
        ),
        ("vllm#9094", "SystemPanic/vllm-windows#5"),
    ),
    "capture-end": Subtype(
        T("A CUDA graph capture ended broken", "CUDA graph 捕获以失败告终"),
        T(
            "Something failed while the graph was being recorded, and ending the capture reports it. The first error above it says what; if there is none, driver and CUDA version are the suspects.",
            "录制过程中有操作失败，结束捕获时才报告。它上面的第一个错误说明是什么；如果没有，先怀疑驱动和 CUDA 版本。",
        ),
        (graphs.EAGER, graphs.CUDAGRAPH_NONE, advice.NEWER_DRIVER, collect.UPGRADE_VLLM),
        ("vllm#4432",),
    ),
    "replay-failure": Subtype(
        T("A recorded CUDA graph could not be replayed", "录制好的 CUDA graph 重放失败"),
        T(
            "The graph was captured, but running it failed: an input moved to another address, or the driver refused the launch.",
            "图已经捕获，但执行失败：输入换了地址，或驱动拒绝启动。",
        ),
        (
            graphs.EAGER,
            graphs.CUDAGRAPH_PIECEWISE,
            graphs.FEWER_CAPTURE_SIZES,
            collect.UPGRADE_VLLM,
            advice.NEWER_DRIVER,
        ),
    ),
    "late-capture": Subtype(
        T("A CUDA graph would have been captured in the middle of serving", "服务过程中又要捕获 CUDA graph"),
        T(
            "vLLM captures graphs only at start-up. A batch of a shape that was not captured then arrived, and capturing it now is forbidden: a gap between the dispatcher and the captured sizes.",
            "vLLM 只在启动时捕获图。服务中来了启动时没捕获过的形状，而此时禁止再捕获：调度的形状与已捕获的尺寸对不上。",
        ),
        (graphs.CUDAGRAPH_PIECEWISE, graphs.EAGER, collect.UPGRADE_VLLM, collect.REPORT_BUG),
        ("vllm-ascend#7150",),
    ),
    "unsupported-mode": Subtype(
        T(
            "The chosen CUDA graph mode doesn't fit the attention backend or model",
            "所选的 CUDA graph 模式与注意力后端或模型不兼容",
        ),
        T(
            "vLLM refused the combination before capturing; the message names what is supported.",
            "vLLM 在捕获之前就拒绝了这种组合；错误里写明支持什么。",
        ),
        (graphs.CUDAGRAPH_PIECEWISE, graphs.CUDAGRAPH_NONE, graphs.OTHER_ATTENTION_BACKEND, graphs.EAGER),
    ),
    "regression": Subtype(
        T("Capturing CUDA graphs failed", "捕获 CUDA graph 失败"),
        T(
            "The error came from the capture call itself; if an earlier release captured this model, this is a regression.",
            "错误来自捕获调用本身；如果旧版本能捕获这个模型，就是回归。",
        ),
        (graphs.EAGER, collect.STABLE_VLLM, collect.UPGRADE_VLLM, graphs.CUDAGRAPH_NONE),
        ("club-3090#106",),
    ),
}

_WORKSPACE = re.compile(
    r"allocation from '([^']{1,120})' requires (\d{1,7}(?:\.\d{1,3})?) MB, current size is (\d{1,7}(?:\.\d{1,3})?) MB"
)


def refine(finding: Finding, life: Life) -> Finding | None:
    """Names the caller of a locked workspace, and the known scenario of TurboQuant with a drafter."""
    event = reading.told_by(finding.event, life, *ILLEGAL_OP_TEXTS, *CAPTURE_END_TEXTS)
    if finding.subtype == "workspace-locked":
        return _workspace(finding, life)
    reading.cite(finding, *ILLEGAL_OP_TEXTS, *CAPTURE_END_TEXTS, "operation not permitted", "Cuda failure 900")
    remedies = list(SUBTYPES[finding.subtype].remedies)
    notes: list[T] = []
    if event.exc is not None and event.exc.passes(":all_reduce", ":all_gather", ":reduce_scatter", ":broadcast"):
        notes.append(
            T(
                "A collective was being captured; the communication itself is not at fault.",
                "当时正在捕获集合通信；通信本身没有问题。",
            )
        )
        if any("\\" in frame.file for frame in event.exc.frames) or reading.seen(life, "backend=gloo"):
            remedies += [memory.SINGLE_DEVICE, host.USE_LINUX]
            notes.append(
                T(
                    "On Windows (gloo backend) collectives can't be captured.",
                    "Windows 上（gloo 后端）集合通信不能被捕获。",
                )
            )
    if reading.is_eager(life):
        notes.append(
            T(
                "The log says that eager mode is on, so a library captures on its own.",
                "日志显示已开启 eager 模式，说明是某个库自己在捕获。",
            )
        )
    if notes:
        finding.remedies = tuple(remedies)
        return reading.explain(finding, SUBTYPES[finding.subtype].why, *notes)
    return finding


def _workspace(finding: Finding, life: Life) -> Finding:
    base = SUBTYPES["workspace-locked"]
    match = _WORKSPACE.search(finding.event.text)
    notes: list[T] = []
    remedies = list(base.remedies)
    if match is not None:
        finding.values.update(caller=match[1], needed_mb=match[2], current_mb=match[3])
        notes.append(
            T(
                f"{match[1]} wanted {match[2]} MB, the workspace has {match[3]} MB.",
                f"{match[1]} 需要 {match[2]} MB，而工作区只有 {match[3]} MB。",
            )
        )
    if "turboquant" in finding.event.text.lower() or "turboquant" in str(life.config.get("kv_cache_dtype", "")).lower():
        method = reading.speculates(life)
        remedies.insert(1, advice.PLAIN_KV_DTYPE)
        if method:
            remedies.insert(2, loading.DROP_SPECULATIVE)
        finding.values["scenario"] = "turboquant-mtp" if method else "turboquant"
        notes.append(
            T(
                "Known scenario: TurboQuant KV cache, above all together with MTP or another drafter, from 0.20/0.21 on (vllm#42808, vllm#42544, vllm#43357).",
                "已知场景：TurboQuant KV cache，尤其与 MTP 等投机解码同用，0.20/0.21 起出现（vllm#42808、vllm#42544、vllm#43357）。",
            )
        )
    finding.remedies = tuple(remedies)
    return reading.explain(finding, base.why, *notes) if notes else finding


CAUSE = Cause(
    slug="graph-capture",
    code="A4",
    title=T("CUDA graph capture failed", "CUDA graph 捕获失败"),
    summary=T(
        "Recording a CUDA graph, or replaying it, went wrong: an operation that capture forbids, or scratch memory that was sealed too small.",
        "录制或重放 CUDA graph 出错：执行了捕获禁止的操作，或临时空间锁定得太小。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=4,
    classical=4,
)
