"""The exact texts with which real programs report the faults that a drill injects.

They are program output, quoted so that a diagnosis meets in a drill what it meets in the field: torch 2.8 to 2.13, NCCL
2.27, vLLM 0.8 to 0.32. Sizes are those of one imagined card (24 GiB), so that figures in a text agree with one another.
Where a text is a template of vLLM, the release that introduced the present form stands beside it.
"""

from __future__ import annotations


def cuda_error(what: str, symbol: str) -> str:
    """A CUDA runtime error as torch >= 2.8 words it, with the boiler-plate that says nothing about the cause."""
    return (
        f"CUDA error: {what}\n"
        f"Search for `{symbol}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


def out_of_memory(asked: str, free: str, used: str, torch_used: str, reserved: str, private: str = "") -> str:
    """The allocator's report. The five figures are text with units, for example `2.00 GiB`."""
    pools = f", with {private} allocated in private pools (e.g., CUDA Graphs)" if private else ""
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 23.65 GiB of which {free} is free. "
        f"Including non-PyTorch memory, this process has {used} memory in use. Of the allocated memory {torch_used} is "
        f"allocated by PyTorch{pools}, and {reserved} is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
        "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


OOM_SERVING = out_of_memory("1.48 GiB", "312.56 MiB", "23.33 GiB", "22.41 GiB", "214.88 MiB", "96.00 MiB")
OOM_WEIGHTS = out_of_memory("224.00 MiB", "101.06 MiB", "23.54 GiB", "23.11 GiB", "18.02 MiB")
OOM_PROFILE = out_of_memory("3.71 GiB", "2.02 GiB", "21.62 GiB", "20.87 GiB", "161.40 MiB")
OOM_SAMPLER = out_of_memory("298.00 MiB", "187.44 MiB", "23.46 GiB", "22.95 GiB", "77.13 MiB")
OOM_CAPTURE = out_of_memory("28.00 MiB", "1.31 MiB", "23.64 GiB", "22.70 GiB", "88.20 MiB", "1.12 GiB")
SAMPLER_ADVICE = (
    "CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering `max_num_seqs` or "
    "`gpu_memory_utilization` when initializing the engine."
)
OOM_REPACK = "CUDA driver error: out of memory"
# vLLM 0.14 (v1/worker/utils.py, request_memory)
FREE_LT_WANTED = (
    "Free memory on device cuda:0 (3.18/23.65 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB). "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
# vLLM 0.9.1 (v1/worker/gpu_worker.py)
PROFILING_ASSERT = (
    "Error in memory profiling. Initial free memory 14.02 GiB, current free memory 19.77 GiB. This happens when other "
    "processes sharing the same container release GPU memory while vLLM is profiling during initialization. To fix this, "
    "ensure consistent GPU memory allocation or isolate vLLM in its own container."
)
# vLLM 0.13 to 0.21 (0.22 adds a remark about the CPU backend)
KV_NONE = (
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine. See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
CUMEM_LINE = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:119\n"

ILLEGAL_ACCESS = cuda_error("an illegal memory access was encountered", "cudaErrorIllegalAddress")
MISALIGNED = cuda_error("misaligned address", "cudaErrorMisalignedAddress")
ILLEGAL_INSTRUCTION = cuda_error("an illegal instruction was encountered", "cudaErrorIllegalInstruction")
DEVICE_ASSERT = cuda_error("device-side assert triggered", "cudaErrorAssert")
NO_KERNEL_IMAGE = cuda_error(
    "no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice"
)
IN_CAPTURE = cuda_error("operation not permitted when stream is capturing", "cudaErrorStreamCaptureUnsupported")
CAPTURE_INVALID = cuda_error(
    "operation failed due to a previous error during capture", "cudaErrorStreamCaptureInvalidated"
)
ECC = cuda_error("uncorrectable ECC error encountered", "cudaErrorECCUncorrectable")
ASSERT_LINES = "".join(
    "/pytorch/aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [12,0,0], thread: "
    f'[{thread},0,0] Assertion `ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.\n'
    for thread in range(64, 72)
)
ROCM_FAULT = (
    "Memory access fault by GPU node-1 (Agent handle: 0x3d1a77c0) on address 0x7f02e81c2000. Reason: Unknown.\n"
    "GPU coredump: handler exited with error (status: 1)\n"
)
XPU_LOST = "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"
DEEPGEMM_IMA = (
    "Failed: CUDA driver error csrc/apis/../jit_kernels/impls/../../jit/handle.hpp:120: CUDA_ERROR_ILLEGAL_ADDRESS in "
    "deepgemm::fp8_gemm_nt (M=2048, N=7168, K=2048)"
)
WATCHDOG_IMA = (
    "[rank0]:[E1130 10:14:03.118204417 ProcessGroupNCCL.cpp:2068] [PG ID 2 PG GUID 3 Rank 0] Process group watchdog thread "
    "terminated with exception: CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
CUBLAS = (
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k, alpha_ptr, a, "
    "CUDA_R_16BF, lda, b, CUDA_R_16BF, ldb, beta_ptr, c, CUDA_R_16BF, ldc, compute_type, CUBLAS_GEMM_DEFAULT_TENSOR_OP)`"
)

NCCL_PLACE = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, "
NCCL_INIT = (
    NCCL_PLACE
    + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. "
    "socket, malloc) or external library call failed or device error. \nLast error:\nsocketStartConnect: Connect to "
    "192.0.2.31<54027> failed : No route to host"
)
NCCL_UNHANDLED_CUDA = (
    NCCL_PLACE
    + "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA "
    "function failed.\nLast error:\nCuda failure 999 'unknown error'"
)
NCCL_OOM = (
    NCCL_PLACE
    + "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA "
    "function failed.\nLast error:\nCuda failure 2 'out of memory'"
)
NCCL_INVALID_USAGE = (
    NCCL_PLACE
    + "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\nncclInvalidUsage: This usually reflects "
    "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000"
)
NCCL_TIMEOUT = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1187, OpType=ALLREDUCE, NumelIn=4194304, "
    "NumelOut=4194304, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
)
CUSTOM_ALLREDUCE = "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'\n"

# vLLM 0.13 (v1/worker/workspace.py)
WORKSPACE_LOCKED = (
    "Workspace is locked but allocation from 'turboquant_attn.py:747:_continuation_prefill' requires 8.12 MB, current size is "
    "0.76 MB. Workspace growth is not allowed after locking."
)
SHAPE_INVALID = "shape '[0, -1, 128]' is invalid for input of size 64"
NO_NVCC = "Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"
NINJA = (
    "Ninja build failed. Ninja output:\nninja: Entering directory `/home/user/.cache/flashinfer/0.6.4/90a/cached_ops'\n[1/2] "
    "/usr/local/cuda/bin/nvcc --generate-dependencies-with-compile -c sampling.cu -o sampling.cuda.o\nFAILED: "
    "sampling.cuda.o\n/opt/venv/lib/python3.12/site-packages/flashinfer/data/include/flashinfer/sampling.cuh:20:10: fatal "
    "error: curand_kernel.h: No such file or directory\n   20 | #include <curand_kernel.h>\n      |          "
    "^~~~~~~~~~~~~~~~~\ncompilation terminated.\nninja: build stopped: subcommand failed.\n"
)
COMPILE_CACHE = "failed to get the hash of the compiled graph"
PTXAS = (
    "Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_121a' is not defined for option "
    "'gpu-name'\n\nRepro command: /opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas -lineinfo -v "
    "--gpu-name=sm_121a /tmp/tmpq81v0n3u.ptx -o /tmp/tmpq81v0n3u.ptx.o\n"
)
TRITON_SMEM = "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
CUTLASS_CAPABILITY = "No compiled cutlass_scaled_mm for a compute capability less than CUDA device capability: 75"
CUTLASS_INTERNAL = "Error Internal"
NOT_ALIGNED = (
    "Weight input_size_per_partition = 13824 is not divisible by min_thread_k = 128. Consider reducing tensor_parallel_size "
    "or running with --quantization gptq."
)
SCALE_KEY = "layers.0.mlp.down_proj.weight_scale"
UNDEFINED_SYMBOL = "/opt/venv/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
MM_PLACEHOLDERS = "Attempted to assign 5 x 256 = 1280 multimodal tokens to 1024 placeholders"
BAD_SCHEMA = (
    "[10:14:03] /project/cpp/json_schema_converter.cc:1093: Check failed: (it != defs.end()) is false: Cannot find field "
    "$defs/Node in #/$defs/Node\n"
)
NIXL = "NIXL_ERR_BACKEND"

# vLLM 0.17 (v1/engine/core_client.py)
READY_TIMEOUT = (
    "Timed out waiting for engine core processes to start. This is often caused by slow weight loading for large models. "
    "Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S). To increase the timeout, set the environment variable: "
    "VLLM_ENGINE_READY_TIMEOUT_S=<seconds>"
)
