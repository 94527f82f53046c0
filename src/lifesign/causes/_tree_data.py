"""The questions of the decision tree, in reading order. Adding a cause means adding its question here.

The words are what a person looks for in the decisive line; the first two or three go onto the cheat sheet.
"""

from __future__ import annotations

from lifesign.causes._tree_tests import (
    HANG,
    OUTSIDE,
    Test,
    all_of,
    any_of,
    in_frames,
    input_thread_is_late,
    library_cut_short,
    native_isa,
    no_error_text,
    nothing_died,
    only_core_was_signalled,
    request_drains_pool,
    said,
    stands_still,
    starts_with_reports,
    words,
)
from lifesign.causes.questions import Question
from lifesign.text import T


def q(
    id: str,
    cause: str,
    en: str,
    zh: str,
    *look_for: str,
    none: tuple[str, ...] = (),
    test: Test | None = None,
    card: str = "",
) -> Question:
    """A question that leads to `cause`; without `test` its words are the test."""
    return Question(id, T(en, zh), test or words(*look_for, none=none), cause, look_for=look_for, card=card)


# fmt: off
SILENT: tuple[Question, ...] = (
    q(
        "illegal-instruction", "unsupported-hw", "Does the shell or the kernel say 'Illegal instruction', or did a worker exit with -4?", "shell 或内核说 Illegal instruction，或者 worker 以 -4 退出吗？",
        "Illegal instruction", "exit code: -4)", test=any_of(native_isa, words("exit code: -4)", "': -4")),
    ),
    q(
        "kernel-kill", "host-oom", "Did the kernel or the runtime kill it for host memory?", "内核或运行时因主机内存把它杀了吗？",
        "Out of memory: Killed process", "Memory cgroup out of memory", "oom-kill:", "invoked oom-killer", "137 true", "OOMKilled", "exited with code 137",
        "Exit Code: 137", "memory pressure (OOM)",
        test=any_of(words("Killed process", "oom-kill:", "invoked oom-killer", "137 true", *OUTSIDE[1:5]), all_of(words("': -9"), said("offload", "swap_space", "pinned"))),
        card="cgroup-limit",
    ),
    q(
        "kernel-hardware", "hardware-fault", "Does the kernel log report the GPU or the driver?", "内核日志报告 GPU 或驱动故障吗？",
        "Xid (", "fallen off the bus", "soft lockup", "uvm_spin_loop", "blocked for more than", "Hardware Error",
        card="xid",
    ),
    q(
        "who-signalled", "process-lifecycle", "Was only the engine core told to stop, and the server not?", "是否只有 EngineCore 被要求停止，而服务没有？",
        "[shutdown] EngineCore: trigger received signal", test=only_core_was_signalled,
    ),
    q(
        "hang", "timeout-hang", "Does it wait for ever without an error?", "是否一直在等，却没有报错？", *HANG,
        test=any_of(words(*HANG), stands_still),
    ),
    q(
        "nccl-segfault", "collective-comm", "Does the native stack begin with nccl... functions?", "native 栈里是 nccl 开头的函数吗？",
        "ncclMemoryPoolAlloc", "ncclCommInitRank", test=lambda life, event: event.kind == "native" and said("ncclMemoryPool", "ncclProxy", "ncclGroupEnd")(life, event),
    ),
    q(
        "bus-error-library", "env-install", "A bus error while a library file is cut short?", "Bus error，并且某个库文件被截断？",
        "Bus error", test=library_cut_short,
    ),
    q(
        "bus-error-shm", "host-resource", "A bus error, and /dev/shm is small or full?", "Bus error，而且 /dev/shm 很小或已满？",
        "Bus error", test=lambda life, event: "Bus error" in event.text and said("/dev/shm")(life, event),
    ),
    q(
        "connector-crash", "kv-connector", "Does the native stack begin in a KV connector, or do its blocks never come?", "native 栈的开头是 KV connector，或者一直等不到它的 KV 块？",
        "nixlAgent::", "WAITING_FOR_REMOTE_KVS",
        test=any_of(
            words("WAITING_FOR_REMOTE_KVS"),
            lambda life, event: event.kind == "native" and any(part in event.text[:500].lower() for part in ("nixl", "mooncake", "lmcache")),
        ),
    ),
    q(
        "grammar-library", "request-poison", "Does the C++ exception come from the grammar library?", "C++ 异常来自语法约束库吗？",
        "xgrammar::", "llguidance", "/cpp/grammar_",
    ),
    q(
        "tail", "insufficient-log", "Does the log begin with the report of the death?", "日志一开头就是死亡的转述吗？",
        "EngineDeadError", test=starts_with_reports,
    ),
    q(
        "vanished", "silent-death", "A process is gone and left no word?", "进程没了，什么也没留下？",
        "died unexpectedly", "Segfault encountered", "exited unexpectedly", test=lambda life, event: True,
        card="worker-died-no-trace",
    ),
)

QUESTIONS: tuple[Question, ...] = (
    q(
        "alive", "not-a-crash", "Did it go on working, or was it asked to stop before the first error?", "出错之后还在正常工作，或者报错之前就有人要它停吗？",
        "Application shutdown complete", "200 OK", test=nothing_died,
    ),
    Question(
        "no-error-text",
        T("Is there no error text of EngineCore or a worker before the reports of the death?", "死亡的转述之前，EngineCore 和 worker 都没有报错文字吗？"),
        no_error_text,
        then=SILENT,
        look_for=("died unexpectedly", "-9"),
    ),
    q(
        "workspace", "graph-capture", "Does it speak of graph capture or the locked workspace?", "报错提到图捕获或被锁的 workspace 吗？",
        "Workspace is locked", "stream is capturing", "previous error during capture", "StreamCapture", "CUDAGraphMode.", "cudaGraphLaunch", "graph replay", "graph capturing detected",
        card="capture-end",
    ),
    q(
        "driver", "env-install", "Is a driver, library, build or import the complaint?", "报错说的是驱动、库、编译版本或导入吗？",
        "Failed to infer device type", "Device string must not be empty", "undefined symbol", "No module named", "cannot open shared object", "Error 803", "Error 804", "Error 802",
        "cudaGetDeviceCount", "Failed to load NCCL library", "ncclGetVersion", "file too short", "No package metadata", "is not implemented.", "Mismatched NCCL version", "CUDA initialization:",
        "does not match flashinfer version",
        "PackageNotFoundError", "cannot import name", "UnspecifiedPlatform",
        test=all_of(
            any_of(
                words(
                    "Failed to infer device type", "Device string must not be empty", "undefined symbol", "No module named", "cannot open shared object", "Error 803", "Error 804",
                    "Error 802", "cudaGetDeviceCount", "Failed to load NCCL library", "ncclGetVersion", "file too short", "No package metadata", "Mismatched NCCL version",
                    "CUDA initialization:", "cannot import name", "UnspecifiedPlatform", "'initialize_nixl' is not implemented",
                    "does not match flashinfer version",
                ),
                all_of(words("CUBLAS_STATUS_INVALID_VALUE"), said("LD_LIBRARY_PATH", "libcublas.so.12 => /usr/local")),
            ),
            words("", none=("Ninja build failed",)),
        ),
        card="device-type",
    ),
    q(
        "one-gpu-twice", "distributed-orchestration", "Are ranks, nodes and GPUs put together wrongly?", "rank、节点和 GPU 的搭配出错了吗？",
        "Duplicate GPU detected", "placement group", "data parallel rank", "Error setting CUDA_VISIBLE_DEVICES", "DP Coordinator",
        test=any_of(
            words("Duplicate GPU detected", "placement group", "data parallel rank", "Error setting CUDA_VISIBLE_DEVICES", "DP Coordinator"),
            all_of(words("is invalid for input of size"), in_frames(":initialize_model_parallel")),
        ),
        card="dp-device-assignment",
    ),
    q(
        "memory", "device-oom", "Does it say that device memory is short?", "它说显存不够吗？",
        "CUDA out of memory", "out of memory. Tried to allocate", "CUDA error: out of memory", "CUDA driver error: out of memory", "CUDA Error: out of memory", "Free memory on device",
        "No available memory for the cache blocks", "KV cache is needed", "Error in memory profiling", "'out of memory'", "stored in KV cache", "for KV cache on node",
        "Prefill out of memory", "NPU out of memory", "Cuda failure 2",
        test=all_of(
            words(
                "CUDA out of memory", "out of memory. Tried to allocate", "CUDA error: out of memory", "CUDA driver error: out of memory", "CUDA Error: out of memory",
                "Free memory on device", "No available memory for the cache blocks", "KV cache is needed", "Error in memory profiling", "'out of memory'", "stored in KV cache",
                "KV cache memory", "out of memory. Try", "Cuda failure 2", "for KV cache", "requested memory for kv", "Not enough memory", "out of memory.", "alloc_paged_token_slots", "Lack of device memory", "EL0004",
                none=("No valid triton configs", "nvfp4 KV cache", "shared memory, Required", "DefaultCPUAllocator", "killed due to"),
            ),
            lambda life, event: not request_drains_pool(life, event),
        ),
        card="sampler-warmup",
    ),
    q(
        "illegal-access", "illegal-memory-access", "Did a GPU kernel fault?", "GPU 内核出错了吗？",
        "an illegal memory access was encountered", "misaligned address", "illegal instruction was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS", "Memory access fault by GPU",
        "DEVICE_LOST", "unspecified launch failure", "aicore exception", "507015", "sdma copy error", "hipErrorIllegalAddress",
        card="ima-serving",
    ),
    q(
        "assertion-on-gpu", "device-assert", "Did a check inside a GPU kernel fail?", "GPU 内核里的断言失败了吗？",
        "device-side assert triggered", "Assertion `", "[ASSERT]",
        test=words("device-side assert triggered", "Assertion `", "[ASSERT]", "index out of bounds", none=("exceeds bounds",)),
        card="index-out-of-bounds",
    ),
    q(
        "ecc", "hardware-fault", "Does the GPU report an uncorrectable error?", "GPU 报告不可纠正的错误吗？",
        "uncorrectable ECC", "ECC error", "fallen off the bus",
    ),
    q(
        "timeout", "timeout-hang", "Did somebody wait too long for an answer?", "是否有人等回应等得太久？",
        "RPC call to", "Engine iteration timed out", "Timed out waiting for engine", "507014", "didn't reply within", "lifesign: DEAD",
        test=any_of(
            words("lifesign: DEAD", "RPC call to", "Engine iteration timed out", "Timed out waiting for", "507014", "aicore execution times out", "didn't reply within", "Did not receive response from front-end"),
            input_thread_is_late,
        ),
        card="execute-model-rpc",
    ),
    q(
        "host-memory", "host-oom", "Is host memory refused?", "被拒绝的是主机内存吗？",
        "DefaultCPUAllocator", "MemoryError", "Too large swap space", "killed due to memory pressure", "Cannot allocate memory",
        test=any_of(
            words("DefaultCPUAllocator", "Too large swap space", "killed due to memory pressure", "Unable to allocate"),
            lambda life, event: event.exc is not None and event.exc.short_type == "MemoryError",
        ),
    ),
    q(
        "port", "host-resource", "Is a port, /dev/shm, a folder or a limit of the host in the way?", "是端口、/dev/shm、目录权限或主机限制挡住了吗？",
        "Address already in use", "/dev/shm", "No space left on device", "Permission denied", "Too many open files", "getpwuid", "OS call failed", "EADDRINUSE",
        "object store is using /tmp", "pthread_create", "Device acquire failed",
        card="port-in-use",
    ),
    q(
        "ranks", "collective-comm", "Did the ranks fail to talk to each other?", "rank 之间通信失败了吗？",
        "NCCL", "custom_all_reduce.cuh", "Watchdog caught collective operation timeout", "HCCL", "EI0006", "gloo", "oneCCL", "ncclComm",
        test=words("NCCL", "custom_all_reduce.cuh", "Watchdog caught", "HCCL", "Hccl", "EI0006", "EI0009", "gloo", "Gloo", "oneCCL", "Connection closed by peer", "TCPStore", "all_reduce"),
        card="nccl-init",
    ),
    q(
        "processes", "process-lifecycle", "Is it about starting or forking processes?", "和创建进程有关吗？",
        "Cannot re-initialize CUDA in forked subprocess", "bootstrapping phase", "daemonic processes are not allowed", "signal only works in main thread", "send sigterm to process EngineCore",
        card="fork-cuda-init",
    ),
    q(
        "kernel-missing", "unsupported-hw", "Is there no kernel for this hardware?", "这种硬件没有可用的内核吗？",
        "no kernel image is available", "out of resource: shared memory", "Error Internal", "Cannot find bin of op", "EZ9999", "is not supported on this", "compute capability",
        none=("cutlass_scaled_mm for a compute capability",),
        card="no-kernel-image",
    ),
    q(
        "compile", "compile-jit", "Did building a kernel at run time fail?", "运行时编译内核失败了吗？",
        "Ninja build failed", "Could not find nvcc", "PTXASError", "No valid triton configs", "hash of the compiled graph", "fatal error: ", "cannot find -l", "C compiler",
        test=any_of(
            words(
                "Ninja build failed", "find nvcc", "PTXASError", "No valid triton configs", "hash of the compiled graph", "No such file or directory\ncompilation terminated", "cannot find -l",
                "fatal error: ", "C compiler", "ptxas", "corrupted compilation artifact", "BackendCompilerFailed",
            ),
            in_frames("torch/_inductor", "compilation/compiler_interface.py", "aot_compile", ":_load_aot", "torch/_dynamo/aot_compile.py", "compilation/caching.py"),
        ),
        card="nvcc-missing",
    ),
    q(
        "connector", "kv-connector", "Do the frames pass through a KV connector (LMCache, NIXL, offloading)?", "调用栈经过 KV connector（LMCache、NIXL、卸载）吗？",
        "NIXL_ERR_", "kv_connector", "lmcache",
        test=any_of(
            words("NIXL", "nixl", "LMCache", "lmcache", "Unsupported connector type", "remote block size"),
            in_frames("kv_connector", "kv_transfer", "lmcache", "nixl", "mooncake", "kv_offload", "offloading_connector"),
        ),
        card="nixl",
    ),
    q(
        "cublas", "cuda-lib", "Is a CUDA library the first to fail?", "最先失败的是 CUDA 库吗？",
        "CUBLAS_STATUS_", "CUDNN_STATUS_", "CUSOLVER", "cusparse", "cublasLt",
        card="cublas",
    ),
    q(
        "quantised", "model-quant-incompat", "Does the quantisation of the checkpoint not fit?", "检查点的量化方式不匹配吗？",
        "min_thread_k", "weight_scale", "cutlass_scaled_mm", "g_idx", "does not match the quantization method", "aligned with the quantized weight shape",
        test=any_of(
            words(
                "min_thread_k", "min_thread_n", "weight_scale", "cutlass_scaled_mm", "g_idx", "qweight", "does not match the quantization method", "quantized weight shape", "quantization method",
            ),
            all_of(words("is invalid for input of size"), said("gptq", "GPTQ", "Int4")),
        ),
        card="tp-divisibility",
    ),
    q(
        "model-files", "model-load", "Are the model's files missing, cut, gated or unknown?", "模型文件缺失、损坏、需要授权或不认识吗？",
        "401 Client Error", "couldn't connect to", "Repo id must be", "Can't load", "are not supported for now", "Cannot find any model weights", "SafetensorError", "has no attribute",
        "lora failed", "adapter_config.json",
        test=any_of(
            words(
                "401 Client Error", "gated repo", "couldn't connect", "Repo id must be", "Can't load", "are not supported for now", "Cannot find any model weights", "SafetensorError",
                "all_special_tokens_extended", "Loading lora", "adapter_config.json", "LocalEntryNotFoundError", "vocab file", "backend tokenizer", "does not appear to have", "must match the size of tensor",
                "JSONDecodeError", "trust_remote_code", "does not recognize this architecture",
            ),
            in_frames(":load_weights", "huggingface_hub/"),
        ),
        card="hf-download",
    ),
    q(
        "refused-setting", "user-config", "Did vLLM refuse a setting?", "vLLM 拒绝了某个设置吗？",
        "unrecognized arguments", "max_model_len", "World size", "must be divisible by", "invalid device ordinal", "invalid literal for", "max_lora_rank", "not supported with", "Fault tolerance requires",
        "num_max_dispatch_tokens",
        test=words(
            ": error: ", "max_model_len", "World size", "must be divisible by", "invalid device ordinal", "invalid literal for", "max_lora_rank", "is not supported with", "Fault tolerance requires",
            "could not convert string", "num_max_dispatch_tokens", none=("multimodal",),
        ),
        card="unknown-flag",
    ),
    q(
        "one-request", "request-poison", "Does one request bring it down (grammar, images, token ids)?", "是某个请求（语法、图片、token id）把它拖垮的吗？",
        "multimodal tokens to", "contains inconsistent shapes", "json_schema_converter", "is out of bounds for dimension", "could not broadcast input array",
        test=any_of(
            words("multimodal tokens to", "image tokens to", "contains inconsistent shapes", "Expected a cached item for", "exceeds bounds", "json_schema", "grammar", "is out of bounds for dimension", "could not broadcast input array", "Duplicate request"),
            in_frames("structured_output/", "guided_decoding", "outlines", "xgrammar"),
            lambda life, event: request_drains_pool(life, event),
        ),
        card="mm-placeholders",
    ),
    q(
        "own-code", "engine-bug", "Is it an assertion or exception in the engine's own code?", "是引擎自身代码里的断言或异常吗？",
        "AssertionError", "v1/core/", "memory leak detected",
        test=any_of(
            in_frames("vllm/v1/", "vllm/model_executor", "vllm/worker", "vllm/engine", "vllm/core", "sglang/srt", "vllm/spec_decode", "vllm/attention"),
            words("memory leak detected"),
        ),
        card="scheduler",
    ),
)
"""In reading order: what misleads most and what is seen most comes first."""
# fmt: on
