"""device-oom: the GPU (or the share of it that the engine may use) is too small for what was asked of it.

Three families that call for opposite advice share this cause. An allocation failed: make the peak smaller. vLLM's own
arithmetic refused to start because the budget leaves no KV cache: make the share *larger*. Somebody else holds the
memory: free it. The frames of the traceback say which stage asked; the text alone rarely does.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from lifesign.causes import _advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes._oom_subtypes import SUBTYPES
from lifesign.causes.model import SYMPTOM, Cause, Certainty, Finding, Signature
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies.library import graphs, host, loading, memory
from lifesign.remedies.model import LESS, Remedy
from lifesign.text import T

OOM_TEXTS = (
    "CUDA out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "NPU out of memory",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "Triton Error [HIP]: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "RESOURCE_EXHAUSTED: Ran out of memory",
    "MODULE:PT_DEVMEM Allocation failed",
    "Lack of device memory",
)
"""How allocators of CUDA, ROCm, XPU, Ascend, TPU, Gaudi and Rebellions say that the device is full."""

HCCL_MEMORY = r"alloc(?:ate)? (?:device )?memory failed|Failed to allocate memory|EL0004"

NOT_DEVICE_MEMORY = (
    "No valid triton configs",
    "out of resource: ",
    "OutOfResources",
    "DefaultCPUAllocator",
    "Workspace is locked",
    "CUDA out of memory occurred when warming up",
)
"""Texts with the same words about something else: on-chip shared memory, host memory; or with a signature of their own."""

DEAD_WRAPPERS = ("MQEngineDeadError", "AsyncEngineDeadError", "EngineDeadError")
CAPTURE_FRAMES = (
    "graphs.py:__enter__",
    "graphs.py:__exit__",
    ":capture_begin",
    ":capture_end",
    ":capture_model",
    ":_capture_cudagraphs",
    ":capture_graphs",
    ":profile_cudagraph_memory",
    ":_warm_up_model",
    ":init_cuda_graphs",
    ":init_device_graphs",
    "cuda_graph_runner.py:capture",
)
REPACK_FRAMES = (":process_weights_after_loading", "marlin_repack", ":repack")
LOAD_FRAMES = (
    ":load_model",
    ":load_weights",
    ":make_layers",
    ":initialize_model",
    ":create_weights",
    "weight_utils.py",
)
PROFILE_FRAMES = (
    ":profile_run",
    ":determine_available_memory",
    ":determine_num_available_blocks",
    ":_dummy_run",
    ":compile_or_warm_up_model",
)
KV_FRAMES = (
    "worker.py:initialize_from_config",
    "worker.py:initialize_cache",
    ":initialize_kv_cache",
    ":allocate_kv_cache",
    ":_allocate_kv_cache",
    "cache_engine.py",
    ":init_memory_pool",
)
WAKE_FRAMES = ("cumem.py", "xpumem.py", ":wake_up", ":resume_memory_occupation")
ENCODER_FRAMES = (
    ":_execute_mm_encoder",
    ":embed_multimodal",
    ":get_multimodal_embeddings",
    ":_process_image_input",
    ":_process_video_input",
    "vit_attn",
    "vision.py",
)
BY_PHASE = ("graph-capture", "profile-forward", "weights-load", "serving")
"""Subtypes that a text without a traceback gets from its phase alone."""
INIT_FRAMES = (
    ":init_device",
    ":init_worker_distributed_environment",
    ":init_distributed_environment",
    ":init_torch_distributed",
    ":set_device",
)


def _oom(
    subtype: str,
    frames: tuple[str, ...] = (),
    phases: tuple[Phase, ...] = (),
    no_frames: tuple[str, ...] = (),
    certainty: Certainty = "established",
) -> Signature:
    """A failed allocation, told apart by the stage that its frames (or, without frames, the phase) show."""
    return Signature(
        subtype,
        any=OOM_TEXTS,
        none=NOT_DEVICE_MEMORY,
        frames=frames,
        no_frames=no_frames,
        phases=phases,
        certainty=certainty,
        when=reading.is_loud,
    )


SIGNATURES = (
    # Errors that only repeat the dead engine's last words: never better than the engine's own line.
    Signature("serving", any=OOM_TEXTS, types=DEAD_WRAPPERS, strength=SYMPTOM, certainty="supported"),
    # vLLM's own arithmetic.
    Signature(
        "startup-free-lt-util",
        any=(
            "on startup is less than desired GPU memory utilization",
            "on startup is less than desired CPU memory utilization",
            "on startup is less than the engine's budget",
            "exceed the desired GPU memory utilization",
        ),
    ),
    Signature("profiling-assert", any=("Error in memory profiling.",)),
    Signature("kv-requested-gt-free", any=("on kv cache allocation is less than requested memory for kv",)),
    Signature(
        "kv-none",
        any=(
            "No available memory for the cache blocks",
            "Cannot auto-fit max_model_len: not enough GPU memory",
            "leaving none for the KV cache",
            "frontend multimodal GPU decoding reserves",
            "Not enough memory. Please try to increase --mem-fraction-static",
        ),
        when=reading.is_loud,
    ),
    Signature(
        "kv-too-small",
        any=(
            "To serve at least one request with the model",
            "is larger than the maximum number of tokens that can be stored in KV cache",
            "exceeds available Mamba cache blocks",
        ),
        when=reading.is_loud,
    ),
    Signature(
        "kv-pool-exhausted",
        any=(
            "Prefill out of memory. Try to lower your batch size",
            "Decode out of memory. Try to lower your batch size",
        ),
    ),
    Signature(
        "kv-pool-exhausted",
        types=("RuntimeError",),
        frames=(":alloc_paged_token_slots_extend", ":alloc_paged_token_slots_decode", ":alloc_token_slots"),
    ),
    # The communicator or the pluggable allocator passes the device's refusal on.
    Signature(
        "nccl-alloc",
        any=("NCCL error", "NCCL WARN", "RCCL", "ncclUnhandledCudaError"),
        all=("out of memory",),
        when=reading.is_loud,
    ),
    Signature(
        "nccl-alloc",
        any=(
            "Cuda failure 2 'out of memory'",
            "Cuda failure 'out of memory'",
            'Cuda failure 2 "out of memory"',
            "HIP failure 'out of memory'",
        ),
    ),
    Signature("nccl-alloc", any=("HCCL function error", "hccl api"), regex=HCCL_MEMORY, when=reading.is_loud),
    Signature(
        "sleep-wake", any=("CUDA Error: out of memory at", "HIP Error: out of memory at"), all=("cumem_allocator",)
    ),
    Signature("unified-memory", any=("NV_ERR_NO_MEMORY",), certainty="supported"),
    # Failed allocations, by stage.
    Signature("weights-load", any=("Failed to load model - not enough GPU memory",)),
    Signature("sampler-warmup", any=("CUDA out of memory occurred when warming up",)),
    _oom("sampler-warmup", (":_dummy_sampler_run", ":_dummy_pooler_run")),
    _oom("sleep-wake", WAKE_FRAMES, (Phase.SERVING, Phase.SHUTDOWN)),
    _oom("graph-capture", CAPTURE_FRAMES, no_frames=(":load_model",)),
    _oom("weights-repack", REPACK_FRAMES),
    _oom("weights-load", LOAD_FRAMES, (Phase.LOAD, Phase.PROFILE, Phase.CAPTURE)),
    _oom("profile-forward", PROFILE_FRAMES, (Phase.LOAD, Phase.PROFILE, Phase.CAPTURE)),
    _oom("kv-alloc", KV_FRAMES),
    _oom("startup-free-lt-util", INIT_FRAMES, certainty="supported"),
    _oom("serving", (":execute_model", ":sample_tokens", ":add_lora", ":run_busy_loop", ":event_loop_")),
    _oom("graph-capture", (), (Phase.CAPTURE,)),
    _oom("profile-forward", (), (Phase.PROFILE,)),
    _oom("weights-load", (), (Phase.LOAD,)),
    _oom("serving"),
    # The exception class of torch without (or with an unknown) text.
    Signature(
        "serving",
        types=("OutOfMemoryError",),
        none=(*NOT_DEVICE_MEMORY, "ray.exceptions", "running low on memory"),
        phases=(Phase.SERVING,),
    ),
)

_FREE_AT_START = re.compile(
    r"\((\d{1,5}(?:\.\d{1,4})?)/(\d{1,5}(?:\.\d{1,4})?) GiB\).{0,120}?\((\d\.\d{1,4}|1), ?(\d{1,5}(?:\.\d{1,4})?) GiB\)"
)
_PROFILED = re.compile(r"Initial free memory (\d+(?:\.\d+)?(?: GiB)?), current free memory (\d+(?:\.\d+)?(?: GiB)?)")
_MAX_LEN = re.compile(r"max seq len \((\d{1,9})\)")
_NEEDED = re.compile(
    r"\((\d{1,6}(?:\.\d{1,4})?) GiB KV cache is needed.{0,60}?KV cache memory \((\d{1,6}(?:\.\d{1,4})?) ?GiB\)"
)
_ESTIMATE = re.compile(r"(?:estimated maximum model length is|can be stored in KV cache \() ?(\d{1,9})")
_ASKED = re.compile(r"[Tt]ried to allocate (\d{1,7}(?:\.\d{1,3})? [KMGT]?i?B)")
_TOTAL = re.compile(
    r"total capacity of (\d{1,6}(?:\.\d{1,3})? [KMGT]?i?B) of which (\d{1,6}(?:\.\d{1,3})? [KMGT]?i?B) is free"
)
_TOTAL_OLD = re.compile(
    r"; (\d{1,6}(?:\.\d{1,3})? [KMGT]?i?B) total capacity;.{0,120}?; (\d{1,6}(?:\.\d{1,3})? [KMGT]?i?B) free"
)
"""The wording of torch before 2.2, still that of torch_npu."""
_OWN = re.compile(r"this process has (\d{1,6}(?:\.\d{1,3})? [KMGT]?i?B) memory in use")
_DISPLAY_GIB, _DISPLAY_SHARE, _NEIGHBOUR_SHARE, _ABSURD_GIB = 1.5, 0.08, 0.1, 150.0


def refine(finding: Finding, life: Life) -> Finding | None:
    """Reads the figures of the message, tells neighbours from own use, and orders the remedies accordingly."""
    finding = _refine(finding, life)
    return reading.for_sglang(finding, life, SUBTYPES[finding.subtype].remedies, memory.SGLANG_POOL)


def _refine(finding: Finding, life: Life) -> Finding:
    if finding.subtype == "startup-free-lt-util":
        return _free_at_start(finding, life)
    if finding.subtype == "profiling-assert":
        return _profiling(finding)
    if finding.subtype in ("kv-too-small", "kv-none"):
        return _kv_cache(finding, life)
    if finding.subtype == "nccl-alloc":
        if finding.event.phase is Phase.LOAD:
            # Before the weights vLLM holds nothing yet: only somebody else can have filled the device.
            loading = life.before(finding.event, "Starting to load model", "Loading safetensors") is not None
            finding.remedies = (memory.FREE_DEVICE, memory.LOWER_UTILISATION, memory.MORE_TENSOR_PARALLEL)[
                : 3 if loading else 1
            ]
        return reading.cite(finding, "out of memory", "EL0004", "Failed to allocate memory")
    if (
        finding.subtype == "sleep-wake"
        and finding.event.phase in (Phase.LOAD, Phase.PROFILE)
        and not _has_slept(finding.event, life)
    ):
        finding.subtype = "weights-load" if finding.event.phase is Phase.LOAD else "kv-alloc"
    if finding.subtype == "kv-alloc" and reading.seen(life, *reading.UNIFIED_DEVICES) is not None:
        # Measured room that isn't there: on these machines free memory is misread.
        finding.subtype, finding.certainty = "unified-memory", "supported"
    source = reading.told_by(finding.event, life, *OOM_TEXTS)
    if source is not finding.event and finding.subtype in BY_PHASE:
        finding.subtype = next(sign.subtype for sign in SIGNATURES if sign.matches(source, life))
    return _allocation(finding, life, source)


def _has_slept(event: Event, life: Life) -> bool:
    return (
        0 <= life.progress_index < event.index
        or life.before(event, "Sleep mode freed", "fall asleep", "wake up", "wake_up") is not None
    )


def _free_at_start(finding: Finding, life: Life) -> Finding:
    """A much below B: a neighbour or a zombie. A close to B: display and driver; then only a smaller share helps."""
    base = SUBTYPES["startup-free-lt-util"]
    match = _FREE_AT_START.search(finding.event.text)
    if match is None:
        return finding
    free, total, share = (float(match[number]) for number in (1, 2, 3))
    used = max(0.0, total - free)
    finding.values.update(
        free_gib=match[1], total_gib=match[2], share=match[3], wanted_gib=match[4], used_gib=f"{used:.2f}"
    )
    fit = memory.FIT_UTILISATION
    fitting = int((free / total - 0.01) * 100) / 100 if total else 0.0
    if 0.1 <= fitting < share:
        how = T(f"{match[1]} of {match[2]} GiB are free", f"{match[2]} GiB 中空闲 {match[1]} GiB")
        fit = reading.with_value(fit, f"{fitting:.2f}", how, finding.event.line, LESS)
    if used <= _DISPLAY_GIB or used <= _DISPLAY_SHARE * total:
        note = T(
            f"{match[1]} of {match[2]} GiB were free and {match[4]} GiB wanted: the {used:.2f} GiB in use look like a display, a desktop or the driver.",
            f"{match[2]} GiB 中空闲 {match[1]} GiB，而要占用 {match[4]} GiB：被用掉的 {used:.2f} GiB 像是显示器、桌面或驱动的占用。",
        )
        finding.remedies = (fit, memory.SHORTER_CONTEXT, replace(memory.FREE_DEVICE, slug="free-device-desktop"))
    else:
        note = T(
            f"{match[1]} of {match[2]} GiB were free and {match[4]} GiB wanted: {used:.2f} GiB are held by another process, often a left-over of the last run.",
            f"{match[2]} GiB 中空闲 {match[1]} GiB，而要占用 {match[4]} GiB：有 {used:.2f} GiB 被其他进程占着，常常是上一次的残留进程。",
        )
        finding.remedies = (memory.FREE_DEVICE, fit)
    return reading.explain(finding, base.why, note)


def _profiling(finding: Finding) -> Finding:
    """Grown memory means a neighbour; equal figures mean the comparison that vllm#33358 corrected."""
    match = _PROFILED.search(finding.event.text)
    if match is not None and match[1] == match[2]:
        finding.remedies = (advice.PROFILING_XPU, memory.RETRY_ALONE)
        note = T(
            f"Here both figures are equal ({match[1]}): a comparison that is too strict, not a neighbour.",
            f"这里两个数字相等（{match[1]}）：是比较条件过严，不是其他进程。",
        )
        return reading.explain(finding, SUBTYPES["profiling-assert"].why, note)
    if match is not None:
        note = T(f"It went from {match[1]} to {match[2]}.", f"空闲显存从 {match[1]} 变为 {match[2]}。")
        return reading.explain(finding, SUBTYPES["profiling-assert"].why, note)
    return finding


def _kv_cache(finding: Finding, life: Life) -> Finding:
    """Takes vLLM's own estimate of the longest context, and sees whether the cache was made small by hand."""
    text = finding.event.text
    if finding.subtype == "kv-none":
        if life.platform == "cpu" or "VLLM_CPU_KVCACHE_SPACE" in text:
            finding.remedies = (
                replace(host.CPU_KV_SPACE, title=T("give the KV cache more host memory", "给 KV cache 更多主机内存")),
                memory.RAISE_UTILISATION,
            )
        return finding
    base = SUBTYPES["kv-too-small"]
    if "Mamba cache blocks" in text:
        finding.remedies = (memory.FEWER_SEQUENCES, memory.RAISE_UTILISATION)
        note = T(
            "Each sequence needs a Mamba block of its own, and there are fewer blocks than --max-num-seqs.",
            "每个序列都要占一个 Mamba 块，而块数少于 --max-num-seqs。",
        )
        return reading.explain(finding, base.why, note)
    remedies = list(base.remedies)
    notes: list[T] = []
    length, needed, estimate = _MAX_LEN.search(text), _NEEDED.search(text), _ESTIMATE.search(text)
    if needed is not None and length is not None:
        finding.values.update(max_model_len=length[1], needed_gib=needed[1], available_gib=needed[2])
        notes.append(
            T(
                f"One request of {length[1]} tokens needs {needed[1]} GiB; {needed[2]} GiB are there.",
                f"一个 {length[1]} token 的请求需要 {needed[1]} GiB，现有 {needed[2]} GiB。",
            )
        )
    if estimate is not None and int(estimate[1]) > 0:
        finding.values["estimated_max_model_len"] = estimate[1]
        how = T("vLLM's own estimate of what fits", "vLLM 自己估算的可用长度")
        remedies[0] = reading.with_value(memory.SHORTER_CONTEXT, estimate[1], how, finding.event.line, LESS)
    if life.config.get("num_gpu_blocks_override"):
        remedies.insert(0, advice.NO_BLOCK_OVERRIDE)
    finding.remedies = tuple(remedies)
    return reading.explain(finding, base.why, *notes) if notes else finding


def _allocation(finding: Finding, life: Life, source: Event) -> Finding:
    """A failed allocation: its size against the card, who holds the rest, and which part of the step asked for it."""
    text = finding.event.text
    asked, total, own = _ASKED.search(text), _TOTAL.search(text) or _TOTAL_OLD.search(text), _OWN.search(text)
    notes: list[T] = []
    remedies = list(SUBTYPES[finding.subtype].remedies)
    asked_gib = reading.gib(asked[1]) if asked else None
    total_gib = reading.gib(total[1]) if total else None
    if asked:
        finding.values["asked"] = asked[1]
    if asked and total:
        finding.values.update(total=total[1], free=total[2])
        notes.append(
            T(
                f"It asked for {asked[1]}; {total[2]} of {total[1]} were free.",
                f"申请 {asked[1]}，而 {total[1]} 中只剩 {total[2]}。",
            )
        )
    if (
        asked_gib
        and asked_gib >= (total_gib * 0.98 if total_gib else _ABSURD_GIB)
        and finding.subtype in ("serving", "profile-forward", "graph-capture", "sampler-warmup")
    ):
        finding.subtype = "absurd-allocation"
        finding.certainty = "established" if total_gib else "supported"
        if source.exc is not None and source.exc.passes(*ENCODER_FRAMES):
            notes.append(T("It was the vision encoder.", "出问题的是视觉编码器。"))
            finding.remedies = (
                advice.ABSURD_BACKEND,
                memory.SMALLER_IMAGES,
                memory.LIMIT_MM_INPUTS,
                memory.TEXT_ONLY,
            )
        return reading.explain(finding, SUBTYPES["absurd-allocation"].why, *notes)
    own_gib, free_gib = reading.gib(own[1]) if own else None, reading.gib(total[2]) if total else None
    if (
        total_gib
        and own_gib
        and free_gib is not None
        and (others := total_gib - free_gib - own_gib) > _NEIGHBOUR_SHARE * total_gib
    ):
        notes.append(T(f"About {others:.1f} GiB are held by other processes.", f"约 {others:.1f} GiB 被其他进程占用。"))
        remedies = [memory.FREE_DEVICE, *(remedy for remedy in remedies if remedy.slug != memory.FREE_DEVICE.slug)]
    remedies, more = _by_component(finding, life, remedies, source)
    notes.extend(more)
    if source.exc is not None and any(
        "pin_memory" in frame.code or frame.func == "pin_memory" for frame in source.exc.frames
    ):
        finding.certainty = "possible"
        notes.append(
            T(
                "The failing call pins host memory, so it may be the host's limit instead.",
                "出错的调用是锁页主机内存，也可能是主机侧的限制。",
            )
        )
    finding.remedies = tuple(remedies)
    return reading.explain(finding, SUBTYPES[finding.subtype].why, *notes) if notes else finding


def _by_component(finding: Finding, life: Life, remedies: list[Remedy], source: Event) -> tuple[list[Remedy], list[T]]:
    """Which part asked: prompt log probabilities, the vision encoder, adapters, DeepGEMM's warm-up, a draft model."""
    exc = source.exc
    if exc is None:
        return remedies, []
    if exc.passes("_get_prompt_logprobs"):
        return [loading.FEWER_LOGPROBS, *remedies], [
            T("The traceback computes prompt_logprobs.", "出错的栈在计算 prompt_logprobs。")
        ]
    if exc.passes(*ENCODER_FRAMES):
        first = [memory.LIMIT_MM_INPUTS, memory.SMALLER_IMAGES]
        rest = [remedy for remedy in remedies if remedy.slug != memory.LIMIT_MM_INPUTS.slug]
        return [*first, *rest], [T("The vision (or audio) encoder asked for it.", "是视觉（或音频）编码器在申请。")]
    if exc.passes("deep_gemm_warmup"):
        note = T(
            "DeepGEMM's warm-up ran after the KV cache had taken its share (vllm#29360).",
            "DeepGEMM 预热是在 KV cache 占满份额之后进行的（vllm#29360）。",
        )
        return [memory.LOWER_UTILISATION, graphs.NO_DEEP_GEMM, memory.FEWER_BATCHED_TOKENS, *remedies[1:]], [note]
    if finding.subtype == "sampler-warmup" and reading.runs_model(
        life, finding.event, "deepseek-v3", "deepseek_v3", "deepseek-r1", "deepseek_v2.py"
    ):
        note = T(
            "Known scenario: DeepSeek-V3 with DeepGEMM at warm-up (vllm#30637).",
            "已知场景：DeepSeek-V3 + DeepGEMM 在预热阶段（vllm#30637）。",
        )
        return [*remedies[:2], graphs.NO_DEEP_GEMM, *remedies[2:]], [note]
    if finding.subtype == "weights-load" and exc.passes("spec_decode", "eagle", "drafter", "mtp.py", "speculator"):
        return [loading.DROP_SPECULATIVE, *remedies], [
            T("It was the draft model of speculative decoding that no longer fitted.", "放不下的是投机解码的草稿模型。")
        ]
    if finding.subtype == "profile-forward" and exc.passes(":compile_or_warm_up_model"):
        return [memory.LOWER_UTILISATION, *remedies], [
            T("The KV cache had been allocated before this warm-up.", "这次预热之前 KV cache 已经分配好了。")
        ]
    if finding.subtype == "serving" and exc.passes("/lora/", "\\lora\\", ":add_lora"):
        return [*remedies[:1], memory.FEWER_LORAS, *remedies[1:]], [
            T("Adapter layers were computing.", "当时在计算 LoRA 层。")
        ]
    if finding.subtype == "serving" and exc.passes("topk_topp_sampler", "v1/sample/sampler.py"):
        return [
            memory.FEWER_SEQUENCES,
            *(remedy for remedy in remedies if remedy.slug != memory.FEWER_SEQUENCES.slug),
        ], [T("The sampler asked for it.", "是采样器在申请。")]
    return remedies, []


CAUSE = Cause(
    slug="device-oom",
    code="A1",
    title=T("GPU memory ran out", "显存耗尽"),
    summary=T(
        "The device, or the share of it that vLLM may use, is too small for the weights, the peak of a step or the KV cache.",
        "显卡（或 vLLM 可用的份额）放不下权重、单步峰值或 KV cache。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=1,
    classical=1,
)
