"""Texts of GPU causes as vLLM 0.4 to 0.33, torch, NCCL, Triton and other platforms print them, each through the whole pipeline.

Every row is run twice: raised in EngineCore itself (one process) and in a worker whose error EngineCore repeats.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths

ASYNC = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "",
)
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
LOAD = ((RUNNER, "load_model"), ("vllm/model_executor/model_loader/base_loader.py", "load_model"))
PROFILE = ((WORKER, "determine_available_memory"), (RUNNER, "profile_run"), (RUNNER, "_dummy_run"))
PROFILE_V0 = (
    ("vllm/worker/worker.py", "determine_num_available_blocks"),
    ("vllm/worker/model_runner.py", "profile_run"),
    ("vllm/worker/model_runner.py", "_dummy_run"),
)
CAPTURE = ((WORKER, "compile_or_warm_up_model"), (RUNNER, "capture_model"))
WARM = ((WORKER, "compile_or_warm_up_model"),)
SERVE = ((WORKER, "execute_model"), (RUNNER, "execute_model"))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB. GPU 1 has a total capacity of 31.36 GiB of which 200.00 MiB is free."

# stage, further frames, exception line, further lines of the message, expected
ROWS: list[tuple[str, tuple[tuple[str, str], ...], str, tuple[str, ...], str]] = [
    ("load", LOAD, OOM, (), "device-oom/weights-load"),
    (
        "load",
        (
            ("vllm/v1/worker/gpu_model_runner.py", "load_model"),
            ("vllm/v1/spec_decode/eagle.py", "load_model"),
            ("vllm/model_executor/model_loader/base_loader.py", "load_model"),
        ),
        OOM,
        (),
        "device-oom/weights-load",
    ),
    (
        "load",
        (*LOAD, ("vllm/model_executor/layers/quantization/fp8.py", "process_weights_after_loading")),
        OOM,
        (),
        "device-oom/weights-repack",
    ),
    (
        "load",
        (("vllm/v1/worker/gpu_worker.py", "init_device"),),
        "RuntimeError: CUDA error: out of memory",
        ASYNC,
        "device-oom/startup-free-lt-util",
    ),
    (
        "profile",
        PROFILE_V0,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU ",
        (),
        "device-oom/profile-forward",
    ),
    (
        "profile",
        PROFILE,
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 192.00 GiB. GPU 0 has a total capacity of 31.98 GiB of which 12.10 GiB is free.",
        (),
        "device-oom/absurd-allocation",
    ),
    (
        "profile",
        PROFILE,
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory 14.2 GiB is allocated by PyTorch",
        (),
        "device-oom/profile-forward",
    ),
    (
        "profile",
        PROFILE,
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity; 57.1 GiB already allocated; 57.1 GiB current active; 1.2 GiB free; 58.2 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        (),
        "device-oom/profile-forward",
    ),
    (
        "profile",
        (("vllm/v1/worker/gpu_worker.py", "determine_available_memory"),),
        "AssertionError: Error in memory profiling. Initial free memory 12.1 GiB, current free memory 20.2 GiB. This happens when other processes sharing the same container release GPU memory while vLLM is profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate vLLM in its own container.",
        (),
        "device-oom/profiling-assert",
    ),
    (
        "profile",
        (("vllm/worker/worker.py", "determine_num_available_blocks"),),
        "AssertionError: Error in memory profiling. This happens when the GPU memory was not properly cleaned up before initializing the vLLM instance.",
        (),
        "device-oom/profiling-assert",
    ),
    (
        "profile",
        (("vllm/worker/worker.py", "determine_num_available_blocks"),),
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (12288). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        (),
        "device-oom/kv-too-small",
    ),
    (
        "profile",
        (("vllm/worker/worker.py", "determine_num_available_blocks"),),
        "ValueError: No available memory for the cache blocks. Try increasing `VLLM_CPU_KVCACHE_SPACE` when initializing the engine.",
        (),
        "device-oom/kv-none",
    ),
    (
        "profile",
        (),
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (120). Each decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 120 or increase gpu_memory_utilization.",
        (),
        "device-oom/kv-too-small",
    ),
    ("capture", (*CAPTURE, ("vllm/compilation/cuda_graph.py", "__call__")), OOM, (), "device-oom/graph-capture"),
    (
        "warm",
        (
            ("vllm/v1/worker/gpu_worker.py", "compile_or_warm_up_model"),
            ("vllm/model_executor/warmup/deep_gemm_warmup.py", "deep_gemm_warmup"),
        ),
        OOM,
        (),
        "device-oom/profile-forward",
    ),
    (
        "warm",
        (
            ("vllm/v1/worker/gpu_worker.py", "compile_or_warm_up_model"),
            ("vllm/v1/worker/gpu_model_runner.py", "_dummy_pooler_run"),
        ),
        "RuntimeError: CUDA out of memory occurred when warming up pooler (task=embed) with 256 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        (),
        "device-oom/sampler-warmup",
    ),
    (
        "warm",
        (
            ("vllm/v1/worker/gpu_worker.py", "initialize_from_config"),
            ("vllm/v1/worker/gpu_model_runner.py", "_allocate_kv_cache_tensors"),
        ),
        OOM,
        (),
        "device-oom/kv-alloc",
    ),
    (
        "serve",
        (*SERVE, ("vllm/model_executor/layers/fused_moe/fused_moe.py", "fused_experts")),
        OOM,
        (),
        "device-oom/serving",
    ),
    (
        "serve",
        (
            ("vllm/v1/worker/gpu_worker.py", "wake_up"),
            ("vllm/device_allocator/cumem.py", "wake_up"),
        ),
        "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        (),
        "device-oom/sleep-wake",
    ),
    ("serve", (("vllm/lora/worker_manager.py", "add_lora"),), OOM, (), "device-oom/serving"),
    (
        "serve",
        SERVE,
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.27.5",
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Last error:",
            "Cuda failure 700 'an illegal memory access was encountered'",
        ),
        "illegal-memory-access/ima-serving",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: TopPSamplingFromProbs failed with error code an illegal memory access was encountered",
        (),
        "illegal-memory-access/ima-kernel",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: BatchPrefillWithPagedKVCache failed with error an illegal memory access was encountered",
        (),
        "illegal-memory-access/ima-attention",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        (),
        "illegal-memory-access/ima-serving",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: CUDA error: unspecified launch failure",
        ASYNC,
        "illegal-memory-access/launch-failure",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: HIP error: an illegal memory access was encountered",
        (
            "HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
            "For debugging consider passing AMD_SERIALIZE_KERNEL=3",
        ),
        "illegal-memory-access/rocm-fault",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: The Inner error is reported as above. The process exits for this inner error, and the current working operator name is aclnnMoe.",
        (
            "[ERROR] 2026-01-20-13:24:52 (PID:611, Device:0, RankID:-1) ERR00100 PTA call acl api failed.",
            "EZ9999: [PID: 611] The error from device(chipId:0, dieId:0), serial number is 3, there is an exception of aivec error",
            "[Error]: 507015",
        ),
        "illegal-memory-access/npu-aicore",
    ),
    (
        "capture",
        (*CAPTURE, ("flashinfer/autotuner.py", "_profile_single_kernel")),
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        ASYNC,
        "illegal-memory-access/autotune",
    ),
    (
        "load",
        LOAD,
        "RuntimeError: CUDA error: an illegal instruction was encountered",
        ASYNC,
        "illegal-memory-access/illegal-instruction",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        (),
        "cuda-lib/cublas",
    ),
    (
        "profile",
        PROFILE,
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic`",
        (),
        "cuda-lib/cublas",
    ),
    (
        "capture",
        CAPTURE,
        "RuntimeError: CUDA error: operation would make the legacy stream depend on a capturing blocking stream",
        ASYNC,
        "graph-capture/illegal-op-in-capture",
    ),
    (
        "capture",
        CAPTURE,
        "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing",
        (
            "Search for `cudaErrorStreamCaptureUnsupported' in https://docs.nvidia.com for more information.",
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            "",
        ),
        "graph-capture/illegal-op-in-capture",
    ),
    (
        "serve",
        (*SERVE, ("vllm/compilation/cuda_graph.py", "__call__"), ("torch/cuda/graphs.py", "replay")),
        "RuntimeError: CUDA error: invalid argument",
        ASYNC,
        "graph-capture/replay-failure",
    ),
    (
        "serve",
        SERVE,
        "AssertionError: Workspace is locked but 'dcp_lse' was not allocated during warmup for the current ubatch and lane.",
        (),
        "graph-capture/workspace-locked",
    ),
    (
        "serve",
        SERVE,
        "AssertionError: Input addresses for cudagraphs are different during replay. Expected [1], got [2]",
        (),
        "graph-capture/replay-failure",
    ),
    (
        "profile",
        PROFILE,
        "RuntimeError: vLLM failed to compile the model. The most likely reason for this is that a previous compilation failed, leading to a corrupted compilation artifact. We recommend trying to remove /root/.cache/vllm/torch_compile_cache and try again to see the real issue. ",
        (),
        "compile-jit/compile-cache",
    ),
    (
        "profile",
        (*PROFILE, ("triton/runtime/build.py", "_build")),
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        (),
        "compile-jit/host-compiler-headers",
    ),
    (
        "profile",
        (*PROFILE, ("triton/backends/nvidia/driver.py", "libcuda_dirs")),
        "AssertionError: libcuda.so cannot found!",
        (
            "Possible files are located at ['/usr/lib/x86_64-linux-gnu/libcuda.so.1'].Please create a symlink of libcuda.so to any of the files.",
        ),
        "compile-jit/host-linker-libcuda",
    ),
    (
        "profile",
        PROFILE,
        "torch._inductor.exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: 'ptxas'",
        (),
        "compile-jit/inductor-triton",
    ),
    (
        "warm",
        SERVE,
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        (),
        "compile-jit/flashinfer-build",
    ),
    (
        "profile",
        PROFILE,
        "RuntimeError: Ninja build failed. Ninja output:",
        (
            "[1/9] /usr/local/cuda-12.4/bin/nvcc -gencode=arch=compute_120a,code=sm_120a -c /x/flashinfer/data/csrc/renorm.cu",
            "FAILED: renorm.cuda.o",
            "nvcc fatal   : Unsupported gpu architecture 'compute_120a'",
            "ninja: build stopped: subcommand failed.",
        ),
        "compile-jit/flashinfer-build",
    ),
    ("profile", PROFILE, "RuntimeError: PassManager::run failed", (), "compile-jit/triton-compile"),
    (
        "profile",
        PROFILE,
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        (),
        "unsupported-hw/no-kernel-image",
    ),
    (
        "serve",
        SERVE,
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        (),
        "unsupported-hw/triton-smem",
    ),
    (
        "load",
        LOAD,
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla V100-SXM2-16GB GPU has compute capability 7.0. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
        (),
        "unsupported-hw/gpu-not-supported",
    ),
    ("load", LOAD, "RuntimeError: UVA is not available", (), "unsupported-hw/uva"),
    (
        "load",
        LOAD,
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        (),
        "unsupported-hw/kernel-missing",
    ),
    (
        "profile",
        PROFILE,
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        ASYNC,
        "env-install/driver-too-old",
    ),
    (
        "serve",
        SERVE,
        "RuntimeError: CUDA error: device-side assert triggered",
        ASYNC,
        "device-assert/index-out-of-bounds",
    ),
]


def _log(stage: str, frames: tuple[tuple[str, str], ...], exc: str, more: tuple[str, ...], in_worker: bool) -> str:
    core, worker = "(EngineCore_DP0 pid=131) ", "(Worker_TP0 pid=210) "
    lines = [
        "(APIServer pid=7) INFO 10-14 09:12:00 [utils.py:278] non-default args: {'model_tag': '/models/m', 'model': '/models/m'}",
        f"{core}INFO 10-14 09:12:14 [core.py:105] Initializing a V1 LLM engine (v0.16.0) with config: model='/models/m', speculative_config=None",
        f"{core}INFO 10-14 09:12:19 [gpu_model_runner.py:4033] Starting to load model /models/m...",
    ]
    if stage != "load":
        lines.append(
            f"{core}INFO 10-14 09:12:39 [gpu_model_runner.py:4130] Model loading took 18.12 GiB memory and 21.4 seconds"
        )
    if stage in ("warm", "capture", "serve"):
        lines.append(f"{core}INFO 10-14 09:12:42 [kv_cache_utils.py:1307] GPU KV cache size: 285,616 tokens")
    if stage == "capture":
        lines.append("Capturing CUDA graphs (decode, FULL):  86%|████████▋ | 44/51 [00:04<00:00,  9.04it/s]")
    if stage == "serve":
        lines.append("(APIServer pid=7) INFO:     Application startup complete.")
        lines.append('(APIServer pid=7) INFO:     192.0.2.14:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK')
    who, origin = (worker, "multiproc_executor.py:863") if in_worker else (core, "core.py:1006")
    head = (
        "WorkerProc hit an exception."
        if in_worker
        else "EngineCore encountered a fatal error."
        if stage == "serve"
        else "EngineCore failed to start."
    )
    prefix = f"{who}ERROR 10-14 09:13:01 [{origin}] "
    lines += [prefix + head, prefix + "Traceback (most recent call last):"]
    for file, func in frames:
        lines.append(f'{prefix}  File "/usr/lib/python3/dist-packages/{file}", line 100, in {func}')
        lines.append(f"{prefix}    call(")
    lines += [prefix + exc, *(prefix + text for text in more)]
    if in_worker:
        again = f"{core}ERROR 10-14 09:13:01 [core.py:1006] "
        text = exc.partition(": ")[2].replace("'", "")
        lines += [
            again + "EngineCore encountered a fatal error.",
            again + "Traceback (most recent call last):",
            again
            + '  File "/usr/lib/python3/dist-packages/vllm/v1/executor/multiproc_executor.py", line 380, in get_response',
            f"{again}RuntimeError: Worker failed with error '{text}', please check the stack trace above for the root cause",
        ]
    if stage == "serve":
        lines.append("(APIServer pid=7) ERROR 10-14 09:13:01 [async_llm.py:704] AsyncLLM output_handler failed.")
    else:
        lines.append(
            "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("in_worker", [False, True], ids=["core", "worker"])
@pytest.mark.parametrize(("stage", "frames", "exc", "more", "expected"), ROWS)
def test_text_is_recognised(
    tmp_path: Path,
    stage: str,
    frames: tuple[tuple[str, str], ...],
    exc: str,
    more: tuple[str, ...],
    expected: str,
    in_worker: bool,
) -> None:
    """The verdict names cause and subtype and cites a line of the exception, not of what repeats it."""
    log = _log(stage, frames, exc, more, in_worker)
    path = tmp_path / "vllm.log"
    path.write_text(log, encoding="utf-8")
    verdict = diagnose_paths([str(path)]).verdict
    assert f"{verdict.cause}/{verdict.subtype}" == expected
    cited = log.split("\n")[verdict.evidence[0].line - 1]
    assert any(text and text in cited for text in (exc, *more))


FORBIDDEN = (
    "expandable_segments",
    "pkill",
    "--cudagraph_mode",
    "--use-deepgemm",
    "engine_rpc_timeout",
    "nccl_socket_timeout",
    "vllm_watchdog_timeout",
)
NO_SHARE = ("compile-jit", "device-assert", "graph-capture", "unsupported-hw", "illegal-memory-access")


@pytest.mark.parametrize(
    "slug",
    [
        "device-oom",
        "illegal-memory-access",
        "device-assert",
        "cuda-lib",
        "graph-capture",
        "compile-jit",
        "unsupported-hw",
    ],
)
def test_remedies_say_nothing_harmful(slug: str) -> None:
    """No invented names, no hint that breaks custom all-reduce, and no advice about memory where none is short."""
    from lifesign.causes.registry import by_slug

    cause = by_slug(slug)
    assert cause is not None
    for name, subtype in cause.subtypes.items():
        for remedy in subtype.remedies:
            forms = " ".join(f"{form.knob} {form.value}" for form in remedy.forms)
            text = " ".join([*remedy.title, *remedy.why, *(remedy.cost or ()), remedy.command or "", forms]).lower()
            assert not [word for word in FORBIDDEN if word in text], (name, remedy.slug)
            if slug in NO_SHARE:
                assert "gpu-memory-utilization" not in text, (name, remedy.slug)


@pytest.mark.parametrize(
    "slug",
    [
        "device-oom",
        "illegal-memory-access",
        "device-assert",
        "cuda-lib",
        "graph-capture",
        "compile-jit",
        "unsupported-hw",
    ],
)
def test_every_signature_names_a_subtype(slug: str) -> None:
    """And every subtype can be reached: by a signature, or (one case) by the figures of an allocation."""
    from lifesign.causes.registry import by_slug

    cause = by_slug(slug)
    assert cause is not None
    named = {signature.subtype for signature in cause.signatures}
    assert named <= set(cause.subtypes)
    assert set(cause.subtypes) - named <= {"absurd-allocation"}
