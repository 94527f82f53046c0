"""What a refused setting looks like in a log: the signatures of user-config.

vLLM has several hundred sentences that refuse a setting, and each release adds some. So beside the texts with advice of
their own there is a rule for the place: an exception whose last frame inside vLLM is configuration code, before anything
was served, is a refused setting, unless its text belongs to another cause.
"""

from __future__ import annotations

from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Signature
from lifesign.facts.model import Event, Life, Phase

CONFIG_FRAMES = (
    "vllm/config",
    "engine/arg_utils.py",
    "vllm/platforms/",
    "vllm\\platforms\\",
    "vllm\\config",
    "vllm/envs.py",
    "cli_args.py",
    "argparse_utils",
    ":create_engine_config",
    ":validate_parsed_serve_args",
    ":check_and_update_config",
    ":verify_",
)
OTHER_CAUSES = (
    "Model architectures [",
    "Model architecture ",
    "Free memory on device",
    "No available memory for the cache blocks",
    "Failed to infer device type",
    "Device string must not be empty",
    "Invalid repository ID",
    "Repo id must",
    "config.json",
    "not a valid JSON file",
    "gated repo",
    "LocalEntryNotFoundError",
    "couldn't connect",
    "trust_remote_code",
    "Failed to load the model config",
    "Unrecognized model in",
    "No module named",
    "cannot import name",
    "Please install",
    "placement group",
    "NVML",
    "CUDA error",
    "No CUDA GPUs",
    "KV cache is needed",
    "Address already in use",
    "Permission denied",
)
"""Texts that pass through the configuration code but belong to other causes."""


def _at_start(event: Event, life: Life) -> bool:
    return event.phase in (Phase.LOAD, Phase.PROFILE, Phase.CAPTURE) and event.weight != "request" and not life.served


def _from_environment(event: Event, life: Life) -> bool:
    """Whether the exception was raised by the lambda that reads an environment variable in vllm/envs.py."""
    return (
        event.exc is not None
        and bool(event.exc.frames)
        and event.exc.frames[-1].file.replace("\\", "/").endswith("vllm/envs.py")
    )


def _ends_in_config(event: Event, life: Life) -> bool:
    """Whether the last frame of vLLM's own code is configuration code."""
    if not _at_start(event, life) or event.exc is None:
        return False
    own = [
        f"{frame.file}:{frame.func}".replace("\\", "/")
        for frame in event.exc.frames
        if "vllm/" in frame.file.replace("\\", "/")
    ]
    return bool(own) and any(part in own[-1] for part in CONFIG_FRAMES)


def _adapter_is_fatal(event: Event, life: Life) -> bool:
    """A refused adapter ends one request in the API server; in the core, a worker, or before serving it ends the engine."""
    if event.weight == "request" or event.kind == "log":
        return False
    if event.process.role != "api" or event.phase is not Phase.SERVING or event.weight == "fatal":
        return True
    return life.before(event, "Application startup complete", within=4000) is None


SIGNATURES = (
    Signature(
        "deepep-dispatch-limit",
        any=("num_max_dispatch_tokens_per_rank",),
        regex=r"[Aa]ssert",
        kinds=("exception", "wrapper", "plain", "native"),
        when=reading.is_loud,
    ),
    Signature("max-model-len", any=("is greater than the derived max_model_len",)),
    Signature(
        "max-model-len",
        any=("VLLM_ALLOW_LONG_MAX_MODEL_LEN",),
        kinds=("plain", "log"),
        all=("max_model_len",),
        when=reading.is_loud,
    ),
    Signature(
        "max-model-len",
        any=("max_model_len must be a positive integer", "speculative_max_model_len="),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "batched-tokens",
        any=("max_num_batched_tokens (", "does not have enough slots to s", "max_num_scheduled_tokens is set to"),
        kinds=("exception", "wrapper"),
        when=_at_start,
    ),
    Signature(
        "lora-rank", any=("is greater than max_lora_rank",), kinds=("exception", "wrapper"), when=_adapter_is_fatal
    ),
    Signature("mamba-block-size", any=("--mamba-block-size can only be set with",)),
    Signature("fault-tolerance-flags", any=("Fault tolerance requires",)),
    Signature(
        "tp-gt-gpus",
        any=(
            "is larger than the number of available GPUs",
            "cannot be larger than the number of available GPUs",
            "less than than max local gpu count",
            "to less than max local gpu count",
        ),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "tp-divisibility",
        any=(
            "must be divisible by tensor parallel size",
            "must be divisible by tp_size",
            "number of attention heads must be divisible",
        ),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "tp-divisibility",
        any=("is not divisible by",),
        frames=(":ensure_divisibility", "distributed/utils.py:divide"),
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "device-visibility",
        any=(
            "invalid device ordinal",
            "device >= 0 && device < num_gpus",
            "hipErrorInvalidDevice",
            "cudaErrorInvalidDevice",
            "is out of range for assigned_physical_gpu_ids",
            "visible device ordinal",
            "--device-ids",
        ),
        certainty="supported",
        none=("Error computing device indices", "DP rank", "InvalidDeviceFunction"),
        kinds=("exception", "wrapper", "native", "plain"),
    ),
    Signature(
        "device-visibility",
        any=("is not visible in", "Inconsistent GPU visibility env vars"),
        kinds=("exception", "wrapper"),
        none=("No module",),
    ),
    Signature(
        "unknown-flag",
        any=("error: unrecognized arguments", "error: ambiguous option", "No such option", "unrecognized arguments:"),
        kinds=("plain", "log", "exception"),
    ),
    Signature(
        "unknown-flag",
        any=(
            "EngineArgs.__init__() got an unexpected keyword argument",
            "LLM.__init__() got an unexpected keyword argument",
        ),
        kinds=("exception",),
    ),
    Signature(
        "unknown-flag",
        any=("__init__() got an unexpected keyword argument",),
        frames=("vllm/entrypoints/llm.py", "arg_utils.py"),
        types=("TypeError",),
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "bad-value",
        any=(
            "error: argument ",
            "error: the following arguments are required",
            "error: expected one argument",
            "ArgumentTypeError",
            "cannot be converted to",
            "invalid choice:",
        ),
        none=("unrecognized arguments",),
        regex=r"error: (?:argument|the following|expected)|ArgumentTypeError|cannot be converted to",
        kinds=("plain", "log", "exception"),
    ),
    Signature(
        "bad-env-value",
        types=("ValueError", "KeyError", "TypeError", "JSONDecodeError", "FileNotFoundError"),
        frames=("vllm/envs.py", "vllm\\envs.py"),
        when=_from_environment,
        kinds=("exception",),
    ),
    Signature(
        "bad-env-value",
        any=(
            "appears to be a URI",
            "must be a valid integer",
            "Invalid environment variable VLLM_",
            "Unknown vLLM environment variable detected",
        ),
        kinds=("exception", "wrapper"),
    ),
    Signature("bad-env-value", all=("Invalid value '", "Valid options:", "VLLM_"), kinds=("exception", "wrapper")),
    Signature(
        "dp-vs-gpus",
        any=(
            "Invalid data-parallel launch options",
            "data_parallel_size_local",
            "data_parallel_external_lb can only",
            "data_parallel_rank (",
            "data parallel load balancing mode",
            "data_parallel_hybrid_lb",
            "--data-parallel-multi-port",
            "Invalid data parallel configuration",
            "do not support external data parallel mode",
            "Offline data parallel mode is not supported",
            "in headless mode",
            "--data-parallel-size must be",
            "--data-parallel-size-local",
        ),
        kinds=("exception", "wrapper"),
        when=_at_start,
    ),
    Signature(
        "speculative",
        any=(
            "num_speculative_tokens",
            "prompt_lookup_m",
            "speculative_config",
            "speculative decoding",
            "speculative_draft_tensor_parallel_size",
            "async scheduling is only supported with",
            "suffix_decoding",
            "rejection_sample_method",
        ),
        frames=CONFIG_FRAMES,
        none=("draft model is not supported yet", "same vocabulary size"),
        kinds=("exception",),
        when=_at_start,
        certainty="supported",
    ),
    Signature(
        "speculative",
        any=("num_speculative_tokens must be", "num_speculative_tokens was provided", "num_speculative_tokens:"),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "attention-backend",
        any=(
            "No valid attention backend found",
            "is not valid for this configuration",
            "No valid MLA prefill backend",
            "No valid CPU MLA prefill",
            "Invalid attention backend for",
            "No valid MLA attention backend",
            "Note that V0 attention backends",
            "No suitable attention backend",
            "Cannot use FlashAttention",
            "Cannot use FlashInfer",
            "Cannot use FlashMLA",
            "attention backend on this host",
            "Sparse Attention is not supported",
            "The selected backend, ",
            "attention backends have been removed",
            "share no supported KV cache block size",
            "is not supported by attention backend",
        ),
        none=("[compute capability not supported]",),  # the GPU alone rules a back end out: unsupported-hw
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "bad-value",
        any=(
            "invalid tool call parser",
            "requires --tool-call-parser",
            "invalid reasoning parser",
            "appears path-like, but doesn't exist",
            "Invalid JSON",
            "is not a valid compilation",
            "invalid reasoning_parser",
            "reasoning parser",
        ),
        kinds=("exception", "wrapper"),
        when=_at_start,
        types=("KeyError", "TypeError", "ValueError", "ValidationError"),
    ),
    Signature(
        "refused-setting",
        any=("validation error for", "validation errors for"),
        types=("ValidationError",),
        none=OTHER_CAUSES,
        when=_at_start,
        kinds=("exception",),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "refused-setting",
        types=(
            "ValueError",
            "NotImplementedError",
            "AssertionError",
            "TypeError",
            "RuntimeError",
            "ImportError",
            "FileNotFoundError",
            "IndexError",
        ),
        none=OTHER_CAUSES,
        when=_ends_in_config,
        kinds=("exception",),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "refused-setting",
        any=(
            "GPU memory utilization must be less than",
            "Too large swap space",
            "Sleep mode is not supported",
            "cumem allocator is not supported",
            "max_num_seqs (",
            "is incompatible with PYTORCH_CUDA_ALLOC_CONF",
            "CUDAGraphMode.",
            "cudagraph sizes after rounding",
            "does not support LoRA",
            "Unknown distributed executor backend",
            "Unknown all2all backend",
            "does not match num_hidden_layers",
            "does not match pp_size",
            "VLLM_ROCM_QUICK_REDUCE",
            "but of unexpected size",
            "only support arch gfx",
            "Invalid value for VLLM_",
            "Model Runner V2 does not yet support",
        ),
        kinds=("exception", "wrapper"),
        when=_at_start,
    ),
)
