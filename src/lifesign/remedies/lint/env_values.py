"""What vLLM's envs.py does with the value of a variable, and what is wrong with one.

Taken from envs.py of 0.19.1, 0.27.1, 0.30.0 and 0.32.0, read as syntax trees: a variable stands here when these releases
agree on it. Of a later release it is said as what the last one does; for earlier ones the type of the default is all
there is to go by.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import msgspec

from lifesign.remedies import versions
from lifesign.remedies.lint.values import NUMBER, WHOLE
from lifesign.text import T

FIRST, LAST = "0.19.1", "0.32.0"
SOURCE = "envs.py of 0.19.1, 0.27.1, 0.30.0 and 0.32.0"
Kind = str
"""int: `int(value)`. float: `float(value)`. int-bool: `bool(int(value))`. truth: `1` and `true` switch it on. one: `1`
alone does. true: `true` alone does. The first three raise ValueError on anything else; the last three are off then."""

_INT = """
    ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN AUDIO_FETCH_TIMEOUT CPU_KVCACHE_SPACE CPU_NUM_OF_RESERVED_CPU DBO_COMM_SMS
    DEEPEP_BUFFER_SIZE_MB DP_MASTER_PORT DP_RANK DP_RANK_LOCAL DP_SIZE EC_SIDE_CHANNEL_PORT ENGINE_ITERATION_TIMEOUT_S
    ENGINE_READY_TIMEOUT_S EXECUTE_MODEL_TIMEOUT_SECONDS FASTSAFETENSORS_QUEUE_SIZE FLASHINFER_WORKSPACE_BUFFER_SIZE
    HTTP_TIMEOUT_KEEP_ALIVE IMAGE_FETCH_TIMEOUT KV_OFFLOAD_MAX_BATCH_DESCRIPTORS MAX_AUDIO_CLIP_FILESIZE_MB MAX_AUDIO_DECODE_BYTES
    MAX_AUDIO_DECODE_DURATION_S MAX_AUDIO_PREPROCESS_WORKERS MAX_BAD_WORDS_TOTAL_TOKENS MAX_COMPLETION_PROMPTS
    MAX_EMBED_DECODE_BYTES MAX_IMAGE_PIXELS MAX_MEDIA_DOWNLOAD_SIZE_MB MAX_NUM_BAD_WORDS MAX_N_SEQUENCES MAX_STOP_STRINGS
    MAX_TOKENS_PER_EXPERT_FP4_MOE MEDIA_CACHE_MAX_SIZE_MB MEDIA_FETCH_MAX_RETRIES MEDIA_LOADING_THREAD_COUNT MOE_DP_CHUNK_SIZE
    MOONCAKE_ABORT_REQUEST_TIMEOUT MOONCAKE_BOOTSTRAP_PORT MOONCAKE_LOAD_RECV_THREADS MORIIO_NUM_WORKERS MORIIO_POST_BATCH_SIZE
    MORIIO_QP_PER_TRANSFER MQ_MAX_CHUNK_BYTES_MB MSGPACK_ZERO_COPY_THRESHOLD MULTI_STREAM_GEMM_TOKEN_THRESHOLD
    NIXL_ABORT_REQUEST_TIMEOUT NIXL_EP_MAX_NUM_RANKS NIXL_SIDE_CHANNEL_PORT P2P_HANDSHAKE_TIMEOUT_S P2P_IDLE_TIMEOUT_S
    P2P_MAX_PEERS P2P_SIDE_CHANNEL_PORT PORT PREFIX_CACHE_RETENTION_INTERVAL REGEX_COMPILATION_TIMEOUT_S
    RINGBUFFER_WARNING_INTERVAL ROCM_AITER_MOE_DISPATCH_POLICY ROCM_SLEEP_MEM_CHUNK_SIZE RPC_TIMEOUT
    SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD SPARSE_INDEXER_MAX_LOGITS_MB TOOL_PARSE_REGEX_TIMEOUT_SECONDS TPU_BUCKET_PADDING_GAP
    TRACE_FUNCTION TRITON_JIT_WARMUP_NUM_THREADS V1_OUTPUT_PROC_CHUNK_SIZE VIDEO_FETCH_TIMEOUT WORKER_SHUTDOWN_TIMEOUT_SECONDS
    XGRAMMAR_CACHE_MB
"""
_FLOAT = """
    CHAT_TEMPLATE_RENDER_TIMEOUT LOG_BATCHSIZE_INTERVAL LOG_STATS_INTERVAL MEDIA_CACHE_TTL_HOURS MOONCAKE_CONNECTOR_TIMEOUT
    MOONCAKE_DISK_STAGING_USABLE_RATIO RAY_PER_WORKER_GPUS
"""
_INT_BOOL = """
    ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE ALLOW_INSECURE_SERIALIZATION ALLREDUCE_USE_FLASHINFER
    ALLREDUCE_USE_FLASHINFER_PCIE_IPC ALLREDUCE_USE_SYMM_MEM ASSETS_CACHE_MODEL_CLEAN B12X_MOE_FP4_FORCE_A16 BATCH_INVARIANT
    BLOCKSCALE_FP8_GEMM_FLASHINFER COMPUTE_NANS_IN_LOGITS CONFIGURE_LOGGING CPU_ATTN_SPLIT_KV CPU_CI_ENV CPU_INT4_W4A8
    CPU_SGL_KERNEL CUSTOM_SCOPES_FOR_PROFILING DCP_Q_REPLICATE DEBUG_MFU_METRICS DEBUG_WORKSPACE DEEPEPLL_NVFP4_DISPATCH
    DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE DEEPEP_LOW_LATENCY_USE_MNNVL DEEPEP_V2_ALLOW_HYBRID_MODE
    DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION DEEPEP_V2_PREFER_OVERLAP DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION DISABLE_LOG_LOGO
    DISABLE_REQUEST_ID_RANDOMIZATION DISABLE_SHARED_EXPERTS_STREAM DISTRIBUTED_USE_SPLIT_GROUP ELASTIC_EP_DRAIN_REQUESTS
    ELASTIC_EP_SCALE_UP_LAUNCH ENABLE_COHERE_API ENABLE_CUDAGRAPH_GC ENABLE_FLA_PACKED_RECURRENT_DECODE ENABLE_GEMM_RS
    ENABLE_HPC_OPS ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING ENABLE_INDUCTOR_MAX_AUTOTUNE ENABLE_MOE_DP_CHUNK
    ENABLE_RESPONSES_API_STORE ENABLE_STARTUP_PLAN ENABLE_V1_MULTIPROCESSING FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE
    GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS HAS_FLASHINFER_CUBIN HUMMING_USE_F16_ACCUM KEEP_ALIVE_ON_ENGINE_DEATH
    KIMI_K3_AUX_ATTN_RES_STREAM KIMI_K3_GEMM_AR KIMI_K3_GEMM_RS KIMI_K3_SHARD_SP_SHARED_EXPERT KV_EVENTS_USE_INT_BLOCK_HASHES
    LOG_MODEL_INSPECTION LORA_DISABLE_PDL LORA_ENABLE_DUAL_STREAM MEDIA_URL_ALLOW_REDIRECTS MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS
    MLA_DISABLE MOE_SKIP_PADDING MOE_USE_DEEP_GEMM MXFP4_USE_MARLIN NVTX_SCOPES_FOR_PROFILING PLE_CPU_OFFLOAD RAISE_ON_LOGIT_NANS
    ROCM_FP8_MFMA_PAGE_ATTN ROCM_FP8_PADDING ROCM_MOE_PADDING ROCM_USE_AITER_MOE_A4W4_DSV4 SERVER_DEV_MODE
    SKIP_PRECOMPILED_VERSION_SUFFIX SKIP_VERSION_SUFFIX TOOL_JSON_ERROR_AUTOMATIC_RETRY USE_BYTECODE_HOOK USE_DEEP_GEMM
    USE_DEEP_GEMM_E8M0 USE_DEEP_GEMM_TMA_ALIGNED_SCALES USE_DIRECT_DCP_A2A USE_DIRECT_DCP_KV_GATHER USE_DIRECT_DCP_Q_GATHER
    USE_EXPERIMENTAL_PARSER_CONTEXT USE_FASTOKENS USE_FBGEMM USE_FLASHINFER_MOE_FP16 USE_FLASHINFER_MOE_FP4 USE_FLASHINFER_MOE_FP8
    USE_FLASHINFER_MOE_INT4 USE_FLASHINFER_MOE_MXFP4_BF16 USE_FLASHINFER_MOE_MXFP4_MXFP8 USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS
    USE_FLASHINFER_SAMPLER USE_FUSED_MOE_GROUPED_TOPK USE_LAYERNAME USE_NCCL_SYMM_MEM USE_NVFP4_CT_EMULATIONS
    USE_RAY_COMPILED_DAG_OVERLAP_COMM USE_RAY_V2_EXECUTOR_BACKEND USE_RAY_WRAPPED_PP_COMM USE_RUST_BENCH USE_RUST_FRONTEND
    USE_SIMPLE_KV_OFFLOAD USE_SPINLOOP_EXT USE_TRITON_AWQ USE_V2_MODEL_RUNNER WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY
    WEIGHT_OFFLOADING_DISABLE_UVA WSL2_ENABLE_PIN_MEMORY XLA_CHECK_RECOMPILATION XLA_USE_SPMD XPU_ENABLE_XPU_GRAPH
    XPU_FORCE_N_CONTIG_WEIGHT XPU_PP_MICROBATCH XPU_USE_SAMPLER_KERNEL ZENTORCH_WEIGHT_PREPACK
"""
_TRUTH = """
    ALLOW_LONG_MAX_MODEL_LEN ALLOW_RUNTIME_LORA_UPDATING DISABLE_PYNCCL DOCKER_BUILD_CONTEXT ENABLE_CUDA_COMPATIBILITY
    ENFORCE_STRICT_TOOL_CALLING MOONCAKE_STORE_TIER_LOG MORIIO_CONNECTOR_READ_MODE MXFP4_EMULATION_DEQUANT_AT_LOAD
    MXFP8_EMULATION_DEQUANT_AT_LOAD REPLICATE_EMBED ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS ROCM_MONO_DECODE
    ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 ROCM_SHUFFLE_KV_CACHE_LAYOUT ROCM_USE_AITER ROCM_USE_AITER_CUSTOM_AR ROCM_USE_AITER_FP4BMM
    ROCM_USE_AITER_FP4_ASM_GEMM ROCM_USE_AITER_FP8BMM ROCM_USE_AITER_FUSION_SHARED_EXPERTS ROCM_USE_AITER_LINEAR
    ROCM_USE_AITER_LINEAR_HIPBMM ROCM_USE_AITER_MHA ROCM_USE_AITER_MLA ROCM_USE_AITER_MOE ROCM_USE_AITER_MOE_SITUV2_A8W4
    ROCM_USE_AITER_PAGED_ATTN ROCM_USE_AITER_RMSNORM ROCM_USE_AITER_TRITON_GEMM ROCM_USE_AITER_TRITON_ROPE
    ROCM_USE_AITER_TRITON_SPARSE_MLA ROCM_USE_AITER_UNIFIED_ATTENTION ROCM_USE_SKINNY_GEMM SKIP_MODEL_NAME_VALIDATION
    TEST_FORCE_FP8_MARLIN TRITON_FORCE_FIRST_CONFIG USE_HW_AGNOSTIC USE_OINK_OPS USE_PRECOMPILED_RUST
"""
_ONE = """
    CI_USE_S3 DO_NOT_TRACK ENABLE_PREGRAD_PASSES FORCE_AOT_LOAD MARLIN_USE_ATOMIC_ADD NO_USAGE_STATS RANDOMIZE_DP_DUMMY_INPUTS
    SKIP_P2P_CHECK USE_BREAKABLE_CUDAGRAPH USE_STANDALONE_COMPILE V1_USE_OUTLINES_CACHE
"""
_TRUE = "DEBUG_LOG_API_SERVER_RESPONSE"
KINDS: dict[str, Kind] = {
    "VLLM_" + name: kind
    for kind, names in (
        ("int", _INT),
        ("float", _FLOAT),
        ("int-bool", _INT_BOOL),
        ("truth", _TRUTH),
        ("one", _ONE),
        ("true", _TRUE),
    )
    for name in names.split()
}
"""By variable."""


class Choices(msgspec.Struct, frozen=True):
    """The values that a variable can have; anything else raises ValueError. exact: whether the case of letters counts."""

    names: tuple[str, ...]
    exact: bool = True
    since: str = FIRST
    until: str = LAST


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "WARN", "FATAL", "NOTSET")
CHOICES: dict[str, tuple[Choices, ...]] = {
    "VLLM_LOGGING_LEVEL": (Choices(_LEVELS, exact=False),),
    "VLLM_KV_CACHE_LAYOUT": (
        Choices(("NHD", "HND"), until="0.27.1"),
        Choices(("LBNHC", "LBHNC", "LHBNC", "NHD", "HND", "BLHNC", "BLNHC", "BHLNC"), since="0.30.0"),
    ),
    "VLLM_ROCM_USE_AITER_MOE_SITUV2": (Choices(("auto", "a4w4", "a8w4", "a16w4", "0", "1"), exact=False),),
    "VLLM_ROCM_AITER_MLA_DCP_VERIFY": (Choices(("auto", "asm", "segmented"), exact=False),),
    "VLLM_ROCM_AITER_MLA_ASM_PADDING": (Choices(("auto", "gluon", "asm"), exact=False),),
    "VLLM_MM_HASHER_ALGORITHM": (Choices(("blake3", "sha256", "sha512"), exact=False),),
    "VLLM_GDN_DECODE_KERNEL": (Choices(("cuda", "triton"), exact=False),),
    "VLLM_FLOAT32_MATMUL_PRECISION": (Choices(("highest", "high", "medium"), exact=False),),
    "VLLM_SSM_CONV_STATE_LAYOUT": (Choices(("SD", "DS")),),
    "VLLM_XPU_INC_WNA16_BACKEND": (Choices(("auto", "ark", "w4a16", "w4a8")),),
    "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": (Choices(("auto", "nccl", "shm")),),
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND": (Choices(("auto", "trtllm", "mnnvl")),),
    "VLLM_COMPILE_CACHE_SAVE_FORMAT": (Choices(("binary", "unpacked")),),
    "VLLM_NVFP4_GEMM_BACKEND": (
        Choices(("flashinfer-cudnn", "flashinfer-trtllm", "flashinfer-cutlass", "cutlass", "marlin")),
    ),
    "VLLM_MARLIN_INPUT_DTYPE": (Choices(("int8", "fp8")),),
    "VLLM_DEEP_GEMM_WARMUP": (Choices(("skip", "full", "relax")),),
    "VLLM_WORKER_MULTIPROC_METHOD": (Choices(("spawn", "fork")),),
    "VLLM_FLASHINFER_MOE_BACKEND": (Choices(("throughput", "latency", "masked_gemm")),),
    "VLLM_GPU_SYNC_CHECK": (Choices(("warn", "error")),),
}
"""By variable. The level of the log goes to Python's logging, which raises on a name that it doesn't know."""


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a value. fails: whether vLLM raises on it (else it acts otherwise than it looks)."""

    message: T
    fails: bool
    right: str = ""


def is_read(release: str) -> bool:
    """Whether a release lies between the first and the last whose source was read."""
    return versions.within(release, FIRST, LAST) is True


def known(name: str, release: str) -> bool:
    """Whether `faults` can speak about this variable in this release."""
    if not versions.at_least(release, FIRST):
        return False
    return name in KINDS or any(_holds(item, release) for item in CHOICES.get(name, ()))


def _holds(choices: Choices, release: str) -> bool:
    """Whether choices are those of a release; the last ones also stand for what comes after."""
    until = None if choices.until == LAST else choices.until
    return versions.within(release, choices.since, until) is True


def faults(name: str, value: str, release: str, unit: str = "") -> Iterator[Fault]:
    """What is wrong with the value of a variable that is `known`."""
    value = value.strip()
    who = T("vLLM", "vLLM ")
    if not is_read(release):
        who = T(f"vLLM {LAST}, the last release that was read,", f"vLLM {LAST}（核对过的最后一版）")
    for choices in CHOICES.get(name, ()):
        if _holds(choices, release):
            yield from _choice(value, choices, who)
    kind = KINDS.get(name)
    if kind in ("int", "float"):
        yield from _number(value, kind == "int", unit, who)
    elif kind == "int-bool" and WHOLE.fullmatch(value) is None:
        right = "1" if value.lower() in _YES else "0" if value.lower() in _NO else ""
        message = T(
            f"takes 0 or 1, not `{value[:60]}`: {who.en} fails on it",
            f"要填 0 或 1，而不是 `{value[:60]}`：{who.zh}会报错",
        )
        yield Fault(message, True, right)
    elif kind is not None and kind in _ON:
        yield from _switch(value, _ON[kind], who)


_YES = frozenset({"1", "true", "yes", "on", "y", "t"})
_NO = frozenset({"0", "false", "no", "off", "n", "f"})
_ON: dict[str, tuple[str, ...]] = {"truth": ("1", "true"), "one": ("1",), "true": ("true",)}


def _number(value: str, whole: bool, unit: str, who: T) -> Iterator[Fault]:
    if (WHOLE if whole else NUMBER).fullmatch(value) is not None:
        return
    wanted = T("a whole number", "整数") if whole else T("a number", "数字")
    of = T(f" ({unit})", f"（{unit}）") if unit else T("", "")
    message = T(
        f"takes {wanted.en}{of.en}, not `{value[:60]}`: {who.en} fails on it",
        f"要填{wanted.zh}{of.zh}，而不是 `{value[:60]}`：{who.zh}会报错",
    )
    digits = value[: len(value) - len(value.lstrip("0123456789"))]
    same = bool(digits) and unit != "" and value[len(digits) :].strip().lower() in _SAME_UNIT.get(unit, ())
    yield Fault(message, True, digits if same else "")


_SAME_UNIT: dict[str, tuple[str, ...]] = {
    "GiB": ("g", "gb", "gi", "gib"),
    "s": ("s", "sec", "secs", "seconds"),
    "ms": ("ms",),
}


def _choice(value: str, choices: Choices, who: T) -> Iterator[Fault]:
    if value in choices.names or (not choices.exact and value.upper() in [name.upper() for name in choices.names]):
        return
    listed = ", ".join(choices.names)
    message = T(
        f"takes {listed}, not `{value[:60]}`: {who.en} fails on it",
        f"可取 {listed}，而不是 `{value[:60]}`：{who.zh}会报错",
    )
    same = [name for name in choices.names if name.lower() == value.lower()]
    close = same or difflib.get_close_matches(value, choices.names, n=1, cutoff=0.75)
    yield Fault(message, True, close[0] if close else "")


def _switch(value: str, on: tuple[str, ...], who: T) -> Iterator[Fault]:
    """A value that looks like on and counts as off, or is neither."""
    low = value.lower()
    if (low in on and (len(on) > 1 or value == on[0] or on == ("true",))) or low in _NO or not low:
        return
    names = T(" or ".join(f"`{name}`" for name in on), " 或 ".join(f"`{name}`" for name in on))
    message = T(
        f"only {names.en} switches it on: {who.en} takes `{value[:60]}` for off",
        f"只有 {names.zh} 才会打开它：{who.zh}把 `{value[:60]}` 当作关闭",
    )
    yield Fault(message, False, on[0] if low in _YES else "")
