"""What vLLM's sources can't say about knobs: foreign variables, knobs without effect, wrong names, changed meanings.

Hand-written and small; every entry carries its source. `vLLM x` means: read in the sources of release x, or seen when its
real parser was run. Releases are inclusive.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lifesign.text import T


class External(msgspec.Struct, frozen=True):
    """A variable of another project that vLLM users set. since: first vLLM release with which it acts (by its pinned
    torch), None for all."""

    owner: str
    source: str
    since: str | None = None


_NCCL = External("NCCL", "NCCL source 2.21 to 2.28, environment variables")
_TORCH = External("PyTorch", "strings of torch 2.6, 2.8, 2.9, 2.11, 2.13")
_HUB = External("huggingface_hub", "huggingface_hub constants.py and documentation")
_CUDA = External("CUDA", "CUDA programming guide, environment variables")
_TRITON = External("Triton", "Triton knobs.py and documentation")
_CANN = External("CANN", "CANN documentation, environment variables of HCCL and the runtime")
_OS = External("operating system", "POSIX, Linux")
_ROCM = External("ROCm", "ROCm documentation, environment variables")
_UCX = External("UCX", "UCX documentation")
_CCL = External("oneCCL", "oneCCL documentation, environment variables")
_OWN = External("lifesign", "lifesign reference of variables")

EXTERNAL: dict[str, External] = {
    **dict.fromkeys(
        (
            "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_TIMEOUT",
            "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE",
            "NCCL_CUMEM_HOST_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_TOPO_FILE", "NCCL_ALGO", "NCCL_PROTO",
            "NCCL_COMM_ID", "NCCL_SOCKET_FAMILY", "NCCL_BUFFSIZE", "NCCL_MNNVL_ENABLE", "NCCL_LAUNCH_MODE",
        ),
        _NCCL,
    ),
    "NCCL_SOCKET_RETRY_CNT": External("NCCL", "NCCL source, from 2.26", "0.9.0"),
    **dict.fromkeys(
        (
            "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_ENABLE_MONITORING",
            "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DESYNC_DEBUG", "TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL",
            "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_USE_CUDA_DSA", "TORCH_CUDA_ARCH_LIST", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
            "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_LOGS", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
            "TORCH_SHOW_CPP_STACKTRACES", "PYTORCH_NVML_BASED_CUDA_CHECK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "TORCH_EXTENSIONS_DIR",
        ),
        _TORCH,
    ),
    "PYTORCH_ALLOC_CONF": External("PyTorch", "torch 2.9 and later, which vLLM pins from 0.11.1", "0.11.1"),
    "TORCH_FR_BUFFER_SIZE": External("PyTorch", "torch 2.8 and later, which vLLM pins from 0.10.2", "0.10.2"),
    **dict.fromkeys(
        (
            "HF_ENDPOINT", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_DOWNLOAD_TIMEOUT",
            "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DISABLE_XET", "HF_XET_HIGH_PERFORMANCE", "HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE",
            "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_MODULES_CACHE",
        ),
        _HUB,
    ),
    **dict.fromkeys(
        (
            "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_MAX_CONNECTIONS",
            "CUDA_MODULE_LOADING", "CUDA_CACHE_PATH", "CUDA_CACHE_DISABLE", "CUDA_COREDUMP_FILE", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "CUDA_COREDUMP_SHOW_PROGRESS", "CUDA_COREDUMP_GENERATION_FLAGS", "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_DRIVER_CAPABILITIES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "NVCC_THREADS",
        ),
        _CUDA,
    ),
    "CUDA_DISABLE_CONTROL": External("HAMi", "HAMi-core documentation"),
    **dict.fromkeys(
        ("TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "TRITON_INTERPRET", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_HOME"), _TRITON
    ),
    **dict.fromkeys(
        (
            "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "HCCL_BUFFSIZE", "HCCL_OP_EXPANSION_MODE",
            "ASCEND_LAUNCH_BLOCKING", "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_SLOG_PRINT_TO_STDOUT", "PYTORCH_NPU_ALLOC_CONF",
            "TASK_QUEUE_ENABLE", "ACL_OP_INIT_MODE", "HCCL_WHITELIST_DISABLE", "HCCL_INTRA_ROCE_ENABLE", "ASCEND_PROCESS_LOG_PATH",
        ),
        _CANN,
    ),
    **dict.fromkeys(
        (
            "AMD_SERIALIZE_KERNEL", "HIP_LAUNCH_BLOCKING", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "AMD_LOG_LEVEL",
            "HSA_NO_SCRATCH_RECLAIM", "RCCL_MSCCL_ENABLE", "PYTORCH_HIP_ALLOC_CONF", "HSA_ENABLE_SDMA", "PYTORCH_TUNABLEOP_ENABLED", "MIOPEN_FIND_MODE",
        ),
        _ROCM,
    ),
    **dict.fromkeys(("UCX_TLS", "UCX_NET_DEVICES", "UCX_LOG_LEVEL", "UCX_RNDV_THRESH", "UCX_MEMTYPE_CACHE", "NIXL_LOG_LEVEL"), _UCX),
    **dict.fromkeys(
        ("CCL_ZE_IPC_EXCHANGE", "CCL_ATL_TRANSPORT", "CCL_WORKER_COUNT", "CCL_LOG_LEVEL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "CCL_TOPO_P2P_ACCESS"),
        _CCL,
    ),
    **dict.fromkeys(
        (
            "HOME", "USER", "LOGNAME", "TMPDIR", "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME", "CC", "CXX", "CPATH", "LC_ALL", "LANG",
            "PYTHONFAULTHANDLER", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONPATH", "MALLOC_ARENA_MAX", "MAX_JOBS", "OMP_PROC_BIND",
            "KMP_AFFINITY", "CCACHE_DISABLE", "NO_COLOR",
        ),
        _OS,
    ),
    **dict.fromkeys(
        ("FLASHINFER_CUDA_ARCH_LIST", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_WORKSPACE_BASE", "FLASHINFER_NVCC_THREADS", "FLASHINFER_DISABLE_VERSION_CHECK"),
        External("FlashInfer", "FlashInfer jit/env.py and documentation"),
    ),
    **dict.fromkeys(
        ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR"), External("openai-harmony", "vLLM recipes: gpt-oss; vllm#22525")
    ),
    **dict.fromkeys(("LIFESIGN_PATIENCE", "LIFESIGN_FAULT"), _OWN),
    **dict.fromkeys(
        ("RAY_ADDRESS", "RAY_memory_monitor_refresh_ms", "RAY_CGRAPH_get_timeout", "RAY_DEDUP_LOGS", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"),
        External("Ray", "Ray documentation"),
    ),
    **dict.fromkeys(
        ("LMCACHE_CONFIG_FILE", "LMCACHE_USE_EXPERIMENTAL", "LMCACHE_CHUNK_SIZE", "LMCACHE_LOCAL_CPU", "LMCACHE_MAX_LOCAL_CPU_SIZE", "LMCACHE_LOG_LEVEL"),
        External("LMCache", "LMCache documentation"),
    ),
}  # fmt: skip
"""Variables that aren't vLLM's and exist. Prefixes of these owners with other names may exist, too: `lint` only doubts
a foreign name that `WRONG` lists or that is one slip away from one of these."""


class Right(msgspec.Struct, frozen=True):
    """The right way to do what a wrong or dead name was meant for. knob and value as in a remedy's form."""

    knob: str
    value: str | None = None
    since: str | None = None
    until: str | None = None
    note: T | None = None


class Wrong(msgspec.Struct, frozen=True):
    """A name that circulates in advice and never existed, or exists without the effect that it is recommended for.

    kind: where it would stand (`option`, `env`, `argument`, or `json`). never: true when no release ever had it.
    since, until: the releases in which the verdict holds (None = open). rights: what does it, by release.
    """

    name: str
    kind: Literal["option", "env", "argument"]
    why: T
    source: str
    rights: tuple[Right, ...] = ()
    never: bool = True
    since: str | None = None
    until: str | None = None


_STEP_LIMIT = (
    Right("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "600", since="0.9.2"),
    Right(
        "",
        None,
        until="0.9.1",
        note=T(
            "no knob before 0.9.2 (40 s in 0.8.5, 300 s from 0.9.0): upgrade",
            "0.9.2 之前没有这个开关（0.8.5 为 40 秒，0.9.0 起 300 秒）：请升级",
        ),
    ),
)
_READY_LIMIT = Right(
    "VLLM_ENGINE_READY_TIMEOUT_S", "1800", since="0.14.0", note=T("for the start of the engine", "用于引擎启动")
)
_COLLECTIVE_LIMIT = (
    Right("--distributed-timeout-seconds", "1800", since="0.18.0"),
    Right("NCCL_IB_TIMEOUT", "22", note=T("for InfiniBand links", "用于 InfiniBand 链路")),
    Right(
        "",
        None,
        until="0.17.1",
        note=T(
            "the process group's limit has no knob before 0.18.0 (PyTorch's 600 s)",
            "0.18.0 之前没有进程组超时的开关（PyTorch 默认 600 秒）",
        ),
    ),
)
_GRAPHS_OFF = (
    Right("--compilation-config", '{"cudagraph_mode": "NONE"}', since="0.10.1"),
    Right("--enforce-eager", until="0.10.0"),
)
_DEEP_GEMM_OFF = (Right("VLLM_USE_DEEP_GEMM", "0"),)
_ATTENTION = (
    Right("--attention-backend", "{value}", since="0.13.0"),
    Right("VLLM_ATTENTION_BACKEND", "{value}", until="0.12.0"),
)
_PROBED = "the real parsers of 45 releases, 0.8.5 to 0.33.0"

WRONG: tuple[Wrong, ...] = (
    Wrong("--cudagraph-mode", "option", T("no release has this option; cudagraph_mode is a key of --compilation-config", "没有哪个版本有这个选项；cudagraph_mode 是 --compilation-config 的键"), _PROBED, _GRAPHS_OFF),
    Wrong("--use-deepgemm", "option", T("no release has this option; DeepGEMM is switched by a variable", "没有哪个版本有这个选项；DeepGEMM 由环境变量控制"), _PROBED, _DEEP_GEMM_OFF),
    Wrong("--use-deep-gemm", "option", T("no release has this option; DeepGEMM is switched by a variable", "没有哪个版本有这个选项；DeepGEMM 由环境变量控制"), _PROBED, _DEEP_GEMM_OFF),
    *(
        Wrong(
            name if kind == "argument" else "--" + name.replace("_", "-"),
            kind,
            T("no release has this; the limit of one step is a variable", "没有哪个版本有它；单步超时由环境变量设置"),
            "vLLM 0.32.0: TypeError, unexpected keyword argument; " + _PROBED,
            _STEP_LIMIT,
        )
        for name in ("engine_rpc_timeout", "request_timeout", "client_timeout", "rpc_timeout", "engine_timeout")
        for kind in ("argument", "option")
    ),
    *(
        Wrong(name, "env", T("neither NCCL nor PyTorch nor vLLM reads this", "NCCL、PyTorch 和 vLLM 都不读它"), "NCCL source tags 2.21 to 2.28 and strings of five torch wheels", _COLLECTIVE_LIMIT)
        for name in ("NCCL_SOCKET_TIMEOUT", "NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT", "TORCH_NCCL_WATCHDOG_TIMEOUT", "NCCL_COMM_TIMEOUT")
    ),
    Wrong("VLLM_WATCHDOG_TIMEOUT", "env", T("no release knows this variable", "没有哪个版本有这个变量"), "envs.py of 45 releases", (*_STEP_LIMIT, _READY_LIMIT)),
    Wrong("VLLM_TIMEOUT", "env", T("no release knows this variable", "没有哪个版本有这个变量"), "envs.py of 45 releases", (*_STEP_LIMIT, _READY_LIMIT)),
    Wrong("VLLM_RPC_TIMEOUT", "env", T("it acts on the V0 engine only, in milliseconds; the V1 engine never reads it", "它只作用于 V0 引擎（毫秒）；V1 引擎从不读它"), "envs.py and its readers: read by V0's client to 0.10.2, by nothing 0.11.0 to 0.22.1, unknown from 0.23.0", _STEP_LIMIT, never=False),
    Wrong("VLLM_ENGINE_ITERATION_TIMEOUT_S", "env", T("it acts on the V0 engine only, which left vLLM with 0.11.0", "它只作用于 V0 引擎，而 V0 在 0.11.0 已移除"), "its readers: V0 AsyncLLMEngine to 0.10.2; one speech model 0.16 to 0.24", _STEP_LIMIT, never=False, since="0.11.0"),
    Wrong("NCCL_ASYNC_ERROR_HANDLING", "env", T("the old name of a PyTorch variable", "这是 PyTorch 变量的旧名字"), "torch 2.6 to 2.13", (Right("TORCH_NCCL_ASYNC_ERROR_HANDLING", "{value}"),), never=False),
    Wrong("NCCL_BLOCKING_WAIT", "env", T("the old name of a PyTorch variable, no longer read", "PyTorch 变量的旧名字，已不再读取"), "torch 2.6 to 2.13", (Right("TORCH_NCCL_BLOCKING_WAIT", "{value}"),), never=False),
    Wrong("TORCH_USE_CUDA_DSA", "env", T("a compile-time option of PyTorch: it does nothing at run time", "这是 PyTorch 的编译选项，运行时设置没有作用"), "PyTorch build scripts; run-time name in the torch wheels", (Right("PYTORCH_USE_CUDA_DSA", "1"),), never=False),
    Wrong("TORCH_CUDA_ARCH_LIST", "env", T("it acts when something is compiled, not on the kernels of a vLLM wheel", "只在编译时起作用，不影响 vLLM wheel 里的内核"), "vLLM reads it in collect_env only", (), never=False),
    Wrong("VLLM_ATTENTION_BACKEND", "env", T("it is no longer read from 0.13.0 on (a warning to 0.14.1, ignored later)", "0.13.0 起不再起作用（0.14.1 及之前会警告，之后被忽略）"), "envs.py and its readers", _ATTENTION, never=False, since="0.13.0"),
    Wrong("VLLM_FLASH_ATTN_VERSION", "env", T("it is no longer read from 0.13.0 on", "0.13.0 起不再读取"), "envs.py and its readers", (Right("--attention-config", '{"flash_attn_version": {value}}', since="0.13.0"),), never=False, since="0.13.0"),
    Wrong("VLLM_USE_V1", "env", T("the V0 engine is gone: 0 raises in 0.11.0 and is unknown later", "V0 引擎已移除：0.11.0 中设为 0 会报错，之后的版本不认识它"), "envs.py", (), never=False, since="0.11.0"),
    Wrong("PYTORCH_ALLOC_CONF", "env", T("PyTorch reads this name from 2.9 on, which vLLM pins from 0.11.1", "PyTorch 2.9 起才读这个名字，对应 vLLM 0.11.1 起"), "strings of the torch wheels", (Right("PYTORCH_CUDA_ALLOC_CONF", "{value}"),), never=False, until="0.11.0"),
)  # fmt: skip
"""Names to flag. Wrong names belong here and never into a remedy."""


class Renamed(msgspec.Struct, frozen=True):
    """An option that a release took away, and what replaced it."""

    name: str
    rights: tuple[Right, ...]
    why: T
    source: str = _PROBED


RENAMED: tuple[Renamed, ...] = (
    Renamed("--task", (Right("--runner", "pooling", since="0.10.1"), Right("--convert", "embed", since="0.10.1")), T("split into --runner and --convert", "拆成了 --runner 和 --convert")),
    Renamed("--device", (), T("the device follows from the build: install the CPU build for CPU", "设备由安装的构建决定：要用 CPU 就装 CPU 版")),
    Renamed("--swap-space", (Right("--kv-offloading-size", "{value}", since="0.18.0"),), T("V1 has no swap", "V1 没有交换空间")),
    Renamed("--guided-decoding-backend", (Right("--structured-outputs-config", '{"backend": "{value}"}', since="0.12.0"),), T("replaced by --structured-outputs-config", "由 --structured-outputs-config 取代")),
    Renamed("--cuda-graph-sizes", (Right("--cudagraph-capture-sizes", "{value}", since="0.11.1"),), T("renamed", "已改名")),
    Renamed("--max-seq-len-to-capture", (Right("--max-cudagraph-capture-size", "512", since="0.11.1"),), T("V1 captures by batch size, not by sequence length", "V1 按批大小捕获，不按序列长度")),
    Renamed("--num-scheduler-steps", (), T("multi-step scheduling was V0's; nothing replaces it", "多步调度是 V0 的功能，没有替代")),
    Renamed("--use-v2-block-manager", (), T("had no effect and was removed; leave it out", "早已没有作用，已移除；去掉即可")),
    Renamed("--disable-frontend-multiprocessing", (), T("leave it out", "去掉即可")),
    Renamed("--disable-log-requests", (Right("--no-enable-log-requests", since="0.17.0", until="0.32.0"),), T("requests aren't logged by default: leave it out", "默认就不打印请求：去掉即可")),
    Renamed("--override-pooler-config", (Right("--pooler-config", "{value}", since="0.11.1"),), T("renamed", "已改名")),
    Renamed("--disable-mm-preprocessor-cache", (Right("--mm-processor-cache-gb", "0", since="0.10.1"),), T("replaced by a size", "改为设置缓存大小")),
    Renamed("--rope-scaling", (Right("--hf-overrides", '{"rope_scaling": {value}}'),), T("part of --hf-overrides now", "现在写在 --hf-overrides 里")),
    Renamed("--rope-theta", (Right("--hf-overrides", '{"rope_theta": {value}}'),), T("part of --hf-overrides now", "现在写在 --hf-overrides 里")),
    Renamed("--enable-reasoning", (Right("--reasoning-parser", "{value}"),), T("naming the parser is enough", "只要指定 --reasoning-parser 即可")),
    Renamed("--speculative-model", (Right("--speculative-config", '{"model": "{value}", "num_speculative_tokens": 3}'),), T("part of --speculative-config", "写在 --speculative-config 里")),
    Renamed("--num-speculative-tokens", (Right("--speculative-config", '{"num_speculative_tokens": {value}}'),), T("part of --speculative-config", "写在 --speculative-config 里")),
    Renamed("--model-loader-extra-config", (), T("see `vllm serve --help`", "见 `vllm serve --help`")),
)  # fmt: skip


EARLIER: dict[str, tuple[Right, ...]] = {
    "--attention-backend": (Right("VLLM_ATTENTION_BACKEND", "{value}", until="0.12.0"),),
    "--cudagraph-capture-sizes": (Right("--cuda-graph-sizes", "{value}", since="0.9.0", until="0.11.0"),),
    "--runner": (Right("--task", "{value}", until="0.10.0"),),
    "--structured-outputs-config": (Right("--guided-decoding-backend", until="0.10.2"),),
    "--optimization-level": (Right("-O", "{value}", until="0.11.2"),),
}
"""Options of later releases -> what did the same before. Which release has which: the real parsers."""


def earlier(name: str) -> tuple[Right, ...]:
    """What did in earlier releases what the option `name` does in later ones."""
    return EARLIER.get(name, ())


ONE_AT_A_TIME = frozenset({"--middleware", "--allowed-origins", "--allowed-methods", "--allowed-headers"})
"""List options that take one word each time (real parsers of 0.19.1 and 0.32.0: append, or one JSON list)."""

WHOLE_LISTS = frozenset({"--cudagraph-capture-sizes", "--cuda-graph-sizes"})
"""List options whose members are whole numbers (real parsers of 0.19.1 and 0.32.0; vLLM 0.9.0 to 0.12.0)."""


class Bounds(msgspec.Struct, frozen=True):
    """The numbers that an option can have, inclusive."""

    low: int
    high: float
    source: str


_AT_LEAST_1 = Bounds(1, float("inf"), "vLLM 0.19.1 and 0.32.0: ge=1 in the config, or a division by it")
BOUNDS: dict[str, Bounds] = {
    "--max-num-seqs": _AT_LEAST_1,
    "--max-num-batched-tokens": _AT_LEAST_1,
    "--tensor-parallel-size": _AT_LEAST_1,
    "--pipeline-parallel-size": _AT_LEAST_1,
    "--port": Bounds(0, 65535, "TCP"),
}


class KeyChoices(msgspec.Struct, frozen=True):
    """What a JSON key can have. names: in any case of letters; others: as they stand. releases: first and last."""

    names: tuple[str, ...]
    others: tuple[str, ...]
    releases: tuple[str, str]
    source: str


KEY_CHOICES: dict[tuple[str, str], KeyChoices] = {
    ("CompilationConfig", "cudagraph_mode"): KeyChoices(
        ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"), (), ("0.19.1", "0.32.0"),
        "CUDAGraphMode of 0.19.1, 0.27.1, 0.30.0 and 0.32.0",
    ),
    ("CompilationConfig", "mode"): KeyChoices(
        ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"), ("0", "1", "2", "3"), ("0.19.1", "0.32.0"),
        "CompilationMode of 0.19.1, 0.27.1, 0.30.0 and 0.32.0",
    ),
}  # fmt: skip
"""By config class and key; the releases are those whose sources were read."""

OTHER_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("CompilationConfig", "level"): ("mode",),
    ("CompilationConfig", "mode"): ("level",),
    ("CompilationConfig", "use_cudagraph"): ("cudagraph_mode",),
    ("CompilationConfig", "full_cuda_graph"): ("cudagraph_mode",),
    ("CompilationConfig", "cudagraph_mode"): ("--enforce-eager",),
    ("CompilationConfig", "max_capture_size"): ("max_cudagraph_capture_size",),
    ("CompilationConfig", "compile_ranges_split_points"): ("compile_ranges_endpoints",),
}
"""JSON keys that other releases call otherwise; a name with dashes is an option."""


def other_keys(group: str, key: str) -> tuple[str, ...]:
    """Names under which other releases have a JSON key of a config class."""
    return OTHER_KEYS.get((group, key), ())


class Lenient(msgspec.Struct, frozen=True):
    """A JSON option that silently ignores unknown keys in some releases (trap 3)."""

    option: str
    ranges: str
    source: str


LENIENT_JSON: tuple[Lenient, ...] = (
    Lenient("--compilation-config", "-0.8.5.post1,0.9.1-0.12.0", "real parsers, unknown key given"),
    Lenient("--override-pooler-config", "0.9.0-0.11.2", "real parsers, unknown key given"),
    Lenient("--speculative-config", "", "the parser takes any key; SpeculativeConfig refuses unknown ones"),
    Lenient("", "-0.8.5.post1,0.9.1-0.15.1", "real parsers, unknown key given to ten options of nineteen releases"),
)
"""By option; the entry without a name holds for the others. Empty ranges: never ignored."""

FREE_JSON = frozenset({"--model-loader-extra-config"})
"""JSON options whose keys belong to something else (the loader), so that none of them is unknown."""

FLIPPED: dict[str, tuple[str, T]] = {
    "VLLM_SKIP_P2P_CHECK": ("0.10.1", T("the default became 1 in 0.10.1: setting 1 changes nothing, 0 is the remedy", "0.10.1 起默认就是 1：再设 1 没有变化，有用的是设 0")),
    "VLLM_USE_DEEP_GEMM": ("0.11.0", T("the default became 1 in 0.11.0: setting 1 changes nothing, 0 switches it off", "0.11.0 起默认就是 1：再设 1 没有变化，设 0 才是关闭")),
    "VLLM_ALLREDUCE_USE_SYMM_MEM": ("0.11.0", T("the default became 1 in 0.11.0: setting 1 changes nothing, 0 switches it off", "0.11.0 起默认就是 1：再设 1 没有变化，设 0 才是关闭")),
}  # fmt: skip
"""Variables whose default flipped: name -> (first release with the new default, what follows)."""

UNITS: dict[str, str] = {
    "VLLM_RPC_TIMEOUT": "ms",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "s",
    "VLLM_ENGINE_READY_TIMEOUT_S": "s",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "s",
    "VLLM_CPU_KVCACHE_SPACE": "GiB",
    "VLLM_RINGBUFFER_WARNING_INTERVAL": "s",
    "--cpu-offload-gb": "GiB",
    "--swap-space": "GiB",
    "--distributed-timeout-seconds": "s",
    "--shutdown-timeout": "s",
    "--kv-cache-memory-bytes": "bytes",
}
"""Units of values, where a mistake is likely."""


def wrong(name: str, kind: str) -> tuple[Wrong, ...]:
    """The entries of `WRONG` for this name where it stands (`option`, `env`, `argument`)."""
    return tuple(entry for entry in WRONG if entry.name == name and entry.kind == kind)


def lenient(option: str) -> str:
    """The releases (coded) in which a JSON option ignores unknown keys without a word."""
    return next(entry.ranges for entry in LENIENT_JSON if entry.option in (option, ""))


def renamed(name: str) -> Renamed | None:
    """The entry of `RENAMED` for an option, or None."""
    return next((entry for entry in RENAMED if entry.name == name), None)
