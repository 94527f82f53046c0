"""Where in the engine an exception was raised, and which exceptions are somebody else's: tables of engine-bug and its neighbours.

Paths are matched as parts of `file:func`, so that they survive releases; sources are vLLM 0.4 to 0.33 and SGLang.
"""

from __future__ import annotations

from lifesign.facts.model import Event, Life
from lifesign.logs.model import Frame

PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("omni-stage", ("vllm_omni",)),
    (
        "kv-cache-groups",
        (
            "kv_cache_utils.py:get_kv_cache",
            "kv_cache_utils.py:_get_kv_cache",
            "kv_cache_utils.py:unify",
            "kv_cache_utils.py:generate",
            "kv_cache_utils.py:create_kv_cache_group",
            "kv_cache_utils.py:resolve",
            "kv_cache_utils.py:is_kv_cache",
            "kv_cache_planning.py",
            "kv_cache_coordinator.py:__init__",
            "kv_cache_coordinator.py:verify",
            "kv_cache_coordinator.py:get_kv_cache_coordinator",
            "kv_cache_interface.py",
            "single_type_kv_cache_manager.py:__init__",
            ":initialize_kv_cache",
            ":initialize_attn_backend",
            ":_reshape_kv_cache",
            ":may_reinitialize_input_batch",
        ),
    ),
    (
        "kv-cache-manager",
        (
            "kv_cache_manager",
            "block_pool",
            "kv_cache_coordinator",
            "kv_cache_utils",
            "block_manager",
            "/core/block/",
            "evictor",
            "/mem_cache/",
            "runtime_checker",
        ),
    ),
    (
        "spec-decode",
        (
            "spec_decode",
            "speculative",
            "eagle",
            "medusa",
            "rejection_sampler",
            "ngram_proposer",
            "_mtp.py",
            "draft_model",
        ),
    ),
    ("scheduler", ("/core/sched/", "core/scheduler.py", "managers/schedul", "request_queue")),
    (
        "attention-metadata",
        (
            "attention/backends",
            "attn_utils",
            "/attention/",
            "mla/",
            "build_attn_metadata",
            ":_build_attention_metadata",
            "mamba_utils",
            "gdn_attn",
        ),
    ),
    ("pooling", ("pooler", "pooling", "/pool/")),
    ("encoder-decoder", ("enc_dec", "encoder_decoder", "cross_attention", "whisper", "cross_encoder")),
    ("expert-parallel", ("/eplb/", "all2all", "fused_moe/prepare")),
    ("lora", ("/lora/", "lora_model_runner")),
    ("output-processor", ("output_processor", "detokenizer", "async_llm.py:output_handler", "logprobs.py")),
    ("sampler", ("/v1/sample/", "layers/sampler", "topk_topp")),
    ("model-runner", ("model_runner", "input_batch", "gpu/states", "gpu/block_table", "worker/block_table")),
    ("model-forward", ("model_executor/", "/models/", "compilation/")),
    ("worker", ("/worker/", "multiproc_executor", "uniproc_executor", "worker_base")),
    (
        "engine-core",
        ("v1/engine/", "engine/llm_engine", "engine/async_llm_engine", "engine/multiprocessing", "executor/"),
    ),
)
"""Where in the engine a frame lies: the first entry that matches `file:func` names the subtype."""

CODE_HINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("scheduler", ("self.scheduler.",)),
    ("kv-cache-manager", ("kv_cache_manager.", "block_pool.")),
    ("spec-decode", (".drafter.", "propose(", "propose_draft")),
    ("attention-metadata", ("attn_metadata", ".build(")),
    ("model-forward", ("self.model(", "model_executable(")),
)
"""What a calling line says when the frame that raised is not the engine's (a wrapper or a plug-in)."""

GRAMMAR_FRAMES = (
    "structured_output",
    "guided_decoding",
    "xgrammar",
    "outlines",
    "llguidance",
    "lmformatenforcer",
    "grammar_manager",
    "/constrained/",
)
MULTIMODAL_FRAMES = (
    "merge_multimodal_embeddings",
    ":_gather_mm_embeddings",
    ":_execute_mm_encoder",
    ":_batch_mm",
    ":_extract_mm_kwargs",
    "_gen_mm_extra_hash_keys",
)
EMBEDS_FRAMES = ("prompt_embeds", "inputs_embeds", "embeds_utils")
"""Frames that only a request's own content reaches: its grammar, its media, its embeddings."""

ENGINE_LOOP = (
    ":run_engine_core",
    ":run_busy_loop",
    ":worker_busy_loop",
    ":_execute_worker_rpc",
    ":_process_engine_step",
    ":engine_step",
    ":run_engine_loop",
    ":_run_worker_process",
    ":execute_model",
    ":sample_tokens",
    ":run_scheduler_process",
    ":event_loop_overlap",
    ":event_loop_normal",
    "llm_engine.py:step",
)
"""Frames of the loops in which an exception ends the engine, V0 to V1 and SGLang."""

LOADING_FRAMES = (
    "model_loader",
    ":load_model",
    ":load_weights",
    ":weight_loader",
    "/quantization/",
    "/config/",
    "config.py:",
    "arg_utils",
    "registry.py",
    "transformers_utils",
    "parallel_state",
    "pynccl",
    "device_communicators",
    ":init_device",
    ":init_worker_distributed",
    "platforms/",
    "envs.py",
    "/tokenizer",
    "tokenization",
    "torch/distributed",
    "_inductor",
    "triton/",
    "flashinfer/jit",
    "importlib",
    "kv_connector",
    "kv_transfer",
    "lmcache",
    "nixl",
    "mooncake",
    "kv_offload",
    "ray/_private",
    "multiprocessing/spawn",
)
OTHER_TYPES = frozenset(
    [
        "EngineDeadError",
        "EngineGenerateError",
        "MQEngineDeadError",
        "AsyncEngineDeadError",
        "CancelledError",
        "TimeoutError",
        "KeyboardInterrupt",
        "SystemExit",
        "MemoryError",
        "OutOfMemoryError",
        "AcceleratorError",
        "DistBackendError",
        "DistNetworkError",
        "ImportError",
        "ModuleNotFoundError",
        "PermissionError",
        "FileNotFoundError",
        "ConnectionError",
        "ConnectionResetError",
        "BrokenPipeError",
        "ConnectionRefusedError",
        "ActorDiedError",
        "RayActorError",
        "RayTaskError",
        "OutOfResources",
        "CompilationError",
        "InductorError",
        "CalledProcessError",
        "HTTPError",
        "GatedRepoError",
        "RepositoryNotFoundError",
        "SafetensorError",
        "ValidationError",
        "OSError",
        "ZMQError",
        "UnicodeDecodeError",
        "JSONDecodeError",
        "HarmonyError",
        "VLLMValidationError",
        "BackendCompilerFailed",
        "TorchRuntimeError",
        "InternalTorchDynamoError",
        "Unsupported",
        "LoweringException",
        "LocalEntryNotFoundError",
    ]
)
OTHER_TEXTS = (
    "out of memory",
    "CUDA error",
    "CUDA driver",
    "HIP error",
    "NCCL error",
    "NCCL",
    "HCCL",
    "hccl",
    "oneCCL",
    "UR_RESULT",
    "level_zero",
    "NPU function error",
    "aclnn",
    "ACL",
    "CUBLAS",
    "cublas",
    "cuDNN",
    "illegal memory access",
    "device-side assert",
    "misaligned address",
    "no kernel image",
    "Triton",
    "triton",
    "nvcc",
    "ninja",
    "Workspace is locked",
    "Free memory on device",
    "No available memory for the cache blocks",
    "To serve at least one request",
    "larger than the maximum number of tokens",
    "Error in memory profiling",
    "Worker failed with error",
    "RPC call to",
    "initialization failed",
    "EngineCore encountered an issue",
    "Engine loop",
    "Background loop",
    "Executor failed",
    "cancelled",
    "Connection closed by peer",
    "Connection reset by peer",
    "Address already in use",
    "Cannot re-initialize",
    "forked subprocess",
    "when capturing",
    "stream is capturing",
    "during capture",
    "Failed to load NCCL",
    "cannot allocate memory",
    "Cannot allocate memory",
    "DefaultCPUAllocator",
    "undefined symbol",
    "compute capability",
    "not supported",
    "min_thread",
    "quantiz",
    "died",
    "failed to compile the model",
    "hash of the compiled graph",
    "making fake tensor call",
    "Loading lora",
    "Available memory on node",
)

SLIPS = frozenset(
    [
        "AssertionError",
        "AttributeError",
        "IndexError",
        "KeyError",
        "NameError",
        "RecursionError",
        "StopIteration",
        "TypeError",
        "UnboundLocalError",
        "ZeroDivisionError",
    ]
)


def is_engine_frame(frame: Frame) -> bool:
    """Whether a frame lies in vLLM, one of its platform plug-ins, or SGLang."""
    path = frame.file.replace("\\", "/")
    return "/vllm/" in path or path.startswith("vllm/") or "/vllm_" in path or "sglang/srt" in path


def place_of(event: Event) -> str:
    """The part of the engine in which the exception was raised, from the innermost frame that says so."""
    frames = event.exc.frames if event.exc else []
    for frame in reversed(frames):
        if not is_engine_frame(frame):
            continue
        place = f"{frame.file}:{frame.func}".replace("\\", "/")
        named = next((slug for slug, parts in PLACES if any(part in place for part in parts)), "engine-core")
        if named in ("engine-core", "worker", "model-runner") and frame is not frames[-1]:
            hinted = next((slug for slug, parts in CODE_HINTS if any(part in frame.code for part in parts)), "")
            return hinted or named
        if named == "model-forward" and event.exc is not None and event.exc.passes("spec_decode", "eagle", "_mtp.py"):
            return "spec-decode"
        return named
    return "engine-core"


def asks_grammar(event: Event) -> bool:
    """Whether the line that raised asks a request's grammar (`...grammar.accept_tokens(`)."""
    frames = event.exc.frames[-1:] if event.exc else []
    return any("grammar.accept" in frame.code or "structured_output_request" in frame.code for frame in frames)


def counts_external_tokens(event: Event, life: Life) -> bool:
    """Whether the scheduler failed at arithmetic that a connector feeds: tokens that it promised to bring (LMCache#2158)."""
    exc = event.exc
    if exc is None or not exc.frames or exc.short_type not in ("AssertionError", "ValueError"):
        return False
    last = exc.frames[-1]
    place = last.file.replace("\\", "/")
    if "core/sched/" not in place and "kv_cache_manager" not in place and "block_pool" not in place:
        return False
    if not any(part in f"{last.code} {exc.message}" for part in ("num_new_tokens", "external", "computed_tokens")):
        return False
    return (
        bool(life.config.get("kv_transfer_config"))
        or life.mentions("LMCache INFO", "Creating v1 connector") is not None
    )
