"""Accelerator, collective and compiler faults. This machine needs no GPU for them: the exception (or the line of C code, or
the abort) is the real one, raised in the process and below the frames where it would come from; vLLM does the rest.
"""

from __future__ import annotations

from lifesign.drill import texts
from lifesign.drill.model import Expect, Fault, Frame, Hook, Leave, Raise, Say
from lifesign.drill.points import RUNNER, WORKER
from lifesign.text import T

OOM = "torch:OutOfMemoryError"
CUDA = "torch:AcceleratorError"
DIST = "torch.distributed:DistBackendError"
MODULE = "torch/nn/modules/module.py"
CAPTURE = Frame(RUNNER, "capture_model", "self._capture_cudagraphs(", 6553)
CAPTURE_ONE = Frame(RUNNER, "_capture_cudagraphs", "self._warmup_and_capture(", 6680)
GRAPH_ENTER = Frame("torch/cuda/graphs.py", "__exit__", "self.cuda_graph.capture_end()", 268)
PROFILE = Frame(RUNNER, "profile_run", "= self._dummy_run(", 6190)
DUMMY = Frame(RUNNER, "_dummy_run", "outputs = self.model(", 5870)
SAMPLER_RUN = Frame(RUNNER, "profile_run", "output = self._dummy_sampler_run(", 6200)
SAMPLER = Frame(RUNNER, "_dummy_sampler_run", "sampler_output = self.sampler(", 5968)
SORT = Frame(
    "vllm/v1/sample/ops/topk_topp_sampler.py",
    "apply_top_k_top_p",
    "logits_sort, logits_idx = logits.sort(dim=-1, descending=False)",
    350,
)
REPACK = Frame(
    "vllm/model_executor/layers/quantization/gptq_marlin.py",
    "process_weights_after_loading",
    "marlin_qweight = ops.gptq_marlin_repack(",
    412,
)
AFTER_LOADING = Frame(
    "vllm/model_executor/model_loader/utils.py",
    "process_weights_after_loading",
    "quant_method.process_weights_after_loading(module)",
    105,
)
NCCL_BARRIER = Frame(
    "torch/distributed/distributed_c10d.py", "all_reduce", "work = group.allreduce([tensor], opts)", 3012
)
NEW_GROUP = Frame(
    "torch/distributed/distributed_c10d.py",
    "_new_process_group_helper",
    "backend_class.eager_connect_single_device(device_id)",
    2135,
)
REQUEST_MEMORY = Frame("vllm/v1/worker/utils.py", "request_memory", "raise ValueError(", 438)
INDUCTOR = Frame(
    "torch/_inductor/runtime/triton_heuristics.py",
    "_make_launchers",
    'raise RuntimeError(f"No valid triton configs. {type(exc).__name__}: {exc}")',
    520,
)
FLASHINFER = Frame("flashinfer/jit/cpp_ext.py", "run_ninja", "raise RuntimeError(msg) from e", 340)
HASH = Frame("vllm/compilation/compiler_interface.py", "compile", "assert hash_str is not None, (", 468)


def _expect(
    cause: str, subtype: str, phase: str, *decisive: str, accept: tuple[str, ...] = (), also: tuple[str, ...] = ()
) -> Expect:
    return Expect(cause, subtype, phase, accept=accept, accept_subtypes=also, decisive=decisive)


MEMORY = (
    Fault(
        "oom-serving",
        T("GPU memory runs out in the forward pass", "前向计算时显存耗尽"),
        _expect("device-oom", "serving", "serving", "OutOfMemoryError: CUDA out of memory"),
        hook=Hook("worker.forward", (Raise(OOM, texts.OOM_SERVING),)),
        ci=True,
    ),
    Fault(
        "oom-weights",
        T("GPU memory runs out while weights load", "加载权重时显存耗尽"),
        _expect("device-oom", "weights-load", "startup-load", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.load", (Raise(OOM, texts.OOM_WEIGHTS),)),
    ),
    Fault(
        "oom-repack",
        T("GPU memory runs out while quantised weights are repacked", "重排量化权重时显存耗尽"),
        _expect(
            "device-oom", "weights-repack", "startup-load", "CUDA driver error: out of memory", also=("weights-load",)
        ),
        when="start-up",
        hook=Hook("worker.load", (Raise("RuntimeError", texts.OOM_REPACK),), (AFTER_LOADING, REPACK)),
    ),
    Fault(
        "oom-profile",
        T("GPU memory runs out in the profiling forward pass", "显存探测的前向计算耗尽显存"),
        _expect("device-oom", "profile-forward", "profile-warmup", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(OOM, texts.OOM_PROFILE),), (PROFILE, DUMMY)),
    ),
    Fault(
        "oom-sampler",
        T("GPU memory runs out while the sampler warms up", "采样器预热时显存耗尽"),
        _expect("device-oom", "sampler-warmup", "profile-warmup", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(OOM, texts.OOM_SAMPLER),), (SAMPLER_RUN, SAMPLER, SORT)),
    ),
    Fault(
        "oom-sampler-advice",
        T("the same, with vLLM's own wording", "同上，但由 vLLM 自己的文字报告"),
        _expect("device-oom", "sampler-warmup", "profile-warmup", "out of memory occurred when warming up sampler"),
        when="start-up",
        hook=Hook(
            "worker.profile",
            (Raise("RuntimeError", texts.SAMPLER_ADVICE),),
            (SAMPLER_RUN, Frame(RUNNER, "_dummy_sampler_run", "raise RuntimeError(", 5990)),
        ),
    ),
    Fault(
        "oom-capture",
        T("GPU memory runs out while CUDA graphs are captured", "捕获 CUDA graph 时显存耗尽"),
        _expect("device-oom", "graph-capture", "graph-capture", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.capture", (Raise(OOM, texts.OOM_CAPTURE),), (CAPTURE, CAPTURE_ONE, DUMMY)),
    ),
    Fault(
        "oom-free-below-wanted",
        T("another process holds most of the GPU memory at the start", "启动时显存大多被别的进程占用"),
        _expect("device-oom", "startup-free-lt-util", "startup-load", "Free memory on device"),
        when="start-up",
        hook=Hook(
            "worker.device",
            (Raise("ValueError", texts.FREE_LT_WANTED),),
            (Frame(WORKER, "init_device", "self.requested_memory = request_memory(", 300), REQUEST_MEMORY),
        ),
    ),
    Fault(
        "oom-profiling-assert",
        T(
            "free memory grew during profiling: somebody else let go of it",
            "探测期间可用显存反而变多：别的进程释放了显存",
        ),
        _expect("device-oom", "profiling-assert", "profile-warmup", "Error in memory profiling"),
        when="start-up",
        hook=Hook(
            "worker.profile",
            (Raise("AssertionError", texts.PROFILING_ASSERT),),
            (
                Frame(
                    WORKER,
                    "determine_available_memory",
                    "assert self.init_snapshot.free_memory >= free_gpu_memory, (",
                    480,
                ),
            ),
        ),
    ),
    Fault(
        "oom-kv-none",
        T("nothing is left for the KV cache", "没有显存留给 KV cache"),
        _expect("device-oom", "kv-none", "profile-warmup", "No available memory for the cache blocks"),
        when="start-up",
        hook=Hook(
            "core.kv",
            (Raise("ValueError", texts.KV_NONE),),
            (Frame("vllm/v1/core/kv_cache_utils.py", "_check_enough_kv_cache_memory", "raise ValueError(", 700),),
        ),
    ),
    Fault(
        "oom-in-nccl",
        T("NCCL fails, but only because memory is out", "NCCL 报错，其实是显存不足"),
        _expect("device-oom", "nccl-alloc", "startup-load", "Cuda failure 2 'out of memory'", "unhandled cuda error"),
        when="start-up",
        hook=Hook("worker.device", (Raise(DIST, texts.NCCL_OOM),), (NEW_GROUP,)),
    ),
    Fault(
        "oom-wake-up",
        T(
            "memory can't be mapped again after sleep mode (a line of C++, then a crash)",
            "休眠唤醒时显存映射失败（一行 C++ 输出后崩溃）",
        ),
        _expect("device-oom", "sleep-wake", "serving", "CUDA Error: out of memory at"),
        hook=Hook("worker.step", (Say(texts.CUMEM_LINE), Leave("null")), ()),
    ),
)

ASYNCHRONOUS = (
    Fault(
        "illegal-access",
        T("illegal memory access while serving", "服务中非法显存访问"),
        _expect("illegal-memory-access", "ima-serving", "serving", "an illegal memory access was encountered"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.ILLEGAL_ACCESS),)),
        ci=True,
    ),
    Fault(
        "illegal-access-warm-up",
        T("illegal memory access in the profiling run", "探测阶段非法显存访问"),
        _expect("illegal-memory-access", "ima-startup", "profile-warmup", "an illegal memory access was encountered"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(CUDA, texts.ILLEGAL_ACCESS),), (PROFILE, DUMMY)),
    ),
    Fault(
        "illegal-access-kernel",
        T("illegal memory access that names its kernel (DeepGEMM)", "非法显存访问，并点名了内核（DeepGEMM）"),
        _expect("illegal-memory-access", "ima-kernel", "serving", "CUDA_ERROR_ILLEGAL_ADDRESS", also=("ima-serving",)),
        hook=Hook(
            "worker.forward",
            (Raise("RuntimeError", texts.DEEPGEMM_IMA),),
            (
                Frame(
                    "vllm/utils/deep_gemm.py",
                    "fp8_gemm_nt",
                    "return _fp8_gemm_nt_impl(*args, disable_ue8m0_cast=not use_ue8m0, **kwargs)",
                    162,
                ),
            ),
        ),
    ),
    Fault(
        "illegal-access-watchdog",
        T(
            "illegal memory access seen only by NCCL's watchdog, then abort",
            "非法显存访问只在 NCCL watchdog 里出现，随后 abort",
        ),
        _expect(
            "illegal-memory-access",
            "ima-watchdog",
            "serving",
            "watchdog thread terminated with exception",
            also=("ima-serving",),
        ),
        hook=Hook("worker.step", (Say(texts.WATCHDOG_IMA), Leave("signal", 6))),
    ),
    Fault(
        "misaligned-address",
        T("misaligned address in a kernel", "内核中地址未对齐"),
        _expect("illegal-memory-access", "misaligned", "serving", "misaligned address"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.MISALIGNED),)),
    ),
    Fault(
        "illegal-instruction-gpu",
        T("illegal instruction on the GPU", "GPU 非法指令"),
        _expect("illegal-memory-access", "illegal-instruction", "serving", "an illegal instruction was encountered"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.ILLEGAL_INSTRUCTION),)),
    ),
    Fault(
        "rocm-fault",
        T("ROCm memory access fault (a line of C, then abort)", "ROCm 内存访问错误（一行 C 输出后 abort）"),
        _expect("illegal-memory-access", "rocm-fault", "serving", "Memory access fault by GPU node"),
        hook=Hook("worker.step", (Say(texts.ROCM_FAULT), Leave("signal", 6))),
    ),
    Fault(
        "xpu-device-lost",
        T("an XPU is lost", "XPU 设备丢失"),
        _expect("illegal-memory-access", "xpu-device-lost", "serving", "UR_RESULT_ERROR_DEVICE_LOST"),
        hook=Hook("worker.forward", (Raise("RuntimeError", texts.XPU_LOST),)),
    ),
    Fault(
        "device-assert",
        T("a device-side assertion: index out of bounds", "设备端断言：下标越界"),
        _expect(
            "device-assert", "index-out-of-bounds", "serving", "index out of bounds", "device-side assert triggered"
        ),
        hook=Hook("worker.forward", (Say(texts.ASSERT_LINES), Raise(CUDA, texts.DEVICE_ASSERT))),
        ci=True,
    ),
    Fault(
        "cublas-first",
        T("cuBLAS fails first", "cuBLAS 首先报错"),
        _expect("cuda-lib", "cublas", "serving", "CUBLAS_STATUS_EXECUTION_FAILED"),
        hook=Hook(
            "worker.forward",
            (Raise("RuntimeError", texts.CUBLAS),),
            (
                Frame(
                    "vllm/model_executor/layers/utils.py",
                    "default_unquantized_gemm",
                    "return torch.nn.functional.linear(x, weight, bias)",
                    106,
                ),
            ),
        ),
    ),
    Fault(
        "ecc-error",
        T("uncorrectable ECC error", "不可纠正的 ECC 错误"),
        _expect("hardware-fault", "ecc", "serving", "uncorrectable ECC error"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.ECC),)),
    ),
)

COLLECTIVES = (
    Fault(
        "nccl-init",
        T("NCCL can't connect the ranks at the start", "启动时 NCCL 无法连通各 rank"),
        _expect(
            "collective-comm",
            "nccl-init",
            "startup-load",
            "unhandled system error",
            "socketStartConnect",
            also=("nccl-unhandled-system",),
        ),
        when="start-up",
        hook=Hook("worker.device", (Raise(DIST, texts.NCCL_INIT),), (NEW_GROUP,)),
        ci=True,
    ),
    Fault(
        "nccl-unhandled-cuda",
        T("NCCL: unhandled CUDA error in an all-reduce", "NCCL：all-reduce 中 unhandled cuda error"),
        _expect("collective-comm", "nccl-unhandled-cuda", "serving", "unhandled cuda error", "Cuda failure 999"),
        hook=Hook("worker.forward", (Raise(DIST, texts.NCCL_UNHANDLED_CUDA),), (NCCL_BARRIER,)),
    ),
    Fault(
        "nccl-timeout",
        T("a collective operation times out", "集合通信超时"),
        _expect("collective-comm", "nccl-timeout", "serving", "Watchdog caught collective operation timeout"),
        hook=Hook("worker.forward", (Raise(DIST, texts.NCCL_TIMEOUT),), (NCCL_BARRIER,)),
    ),
    Fault(
        "nccl-duplicate-gpu",
        T("two ranks on one GPU", "两个 rank 落在同一张 GPU 上"),
        _expect(
            "distributed-orchestration",
            "dp-device-assignment",
            "startup-load",
            "Duplicate GPU detected",
            "invalid usage",
            accept=("collective-comm",),
            also=("nccl-invalid-usage",),
        ),
        when="start-up",
        hook=Hook("worker.device", (Raise(DIST, texts.NCCL_INVALID_USAGE),), (NEW_GROUP,)),
    ),
    Fault(
        "custom-all-reduce",
        T("vLLM's custom all-reduce ends the process from C++", "自定义 all-reduce 在 C++ 里直接退出进程"),
        _expect("collective-comm", "custom-allreduce", "graph-capture", "custom_all_reduce.cuh"),
        when="start-up",
        hook=Hook("worker.capture", (Say(texts.CUSTOM_ALLREDUCE), Leave("exit", 1))),
    ),
)

COMPILERS = (
    Fault(
        "capture-illegal-op",
        T("an operation that can't be captured into a CUDA graph", "出现无法捕获进 CUDA graph 的操作"),
        _expect(
            "graph-capture",
            "illegal-op-in-capture",
            "graph-capture",
            "operation not permitted when stream is capturing",
        ),
        when="start-up",
        hook=Hook("worker.capture", (Raise(CUDA, texts.IN_CAPTURE),), (CAPTURE, CAPTURE_ONE, DUMMY)),
    ),
    Fault(
        "capture-invalidated",
        T("a CUDA graph capture is invalidated by an earlier error", "CUDA graph 捕获因先前错误而失效"),
        _expect(
            "graph-capture", "capture-end", "graph-capture", "operation failed due to a previous error during capture"
        ),
        when="start-up",
        hook=Hook("worker.capture", (Raise(CUDA, texts.CAPTURE_INVALID),), (CAPTURE, CAPTURE_ONE, DUMMY, GRAPH_ENTER)),
    ),
    Fault(
        "workspace-locked",
        T("a locked workspace would have to grow", "已锁定的 workspace 需要扩大"),
        _expect("graph-capture", "workspace-locked", "serving", "Workspace is locked", accept=("engine-bug",)),
        hook=Hook(
            "worker.forward",
            (Raise("AssertionError", texts.WORKSPACE_LOCKED),),
            (Frame("vllm/v1/worker/workspace.py", "_ensure_workspace_size", "raise AssertionError(", 190),),
        ),
    ),
    Fault(
        "compile-cache",
        T("torch.compile: the cached artefact doesn't fit", "torch.compile：缓存产物不匹配"),
        _expect("compile-jit", "compile-cache", "profile-warmup", "failed to get the hash of the compiled graph"),
        when="start-up",
        hook=Hook("worker.profile", (Raise("AssertionError", texts.COMPILE_CACHE),), (PROFILE, DUMMY, HASH)),
    ),
    Fault(
        "flashinfer-build",
        T("FlashInfer can't be compiled", "FlashInfer 编译失败"),
        _expect("compile-jit", "flashinfer-build", "profile-warmup", "Ninja build failed", "curand_kernel.h"),
        when="start-up",
        hook=Hook("worker.profile", (Raise("RuntimeError", texts.NINJA),), (SAMPLER_RUN, SAMPLER, FLASHINFER)),
    ),
    Fault(
        "nvcc-missing",
        T("nvcc isn't installed and something must be compiled", "需要编译，但没有 nvcc"),
        _expect("compile-jit", "nvcc-missing", "profile-warmup", "Could not find nvcc"),
        when="start-up",
        hook=Hook(
            "worker.profile",
            (Raise("RuntimeError", texts.NO_NVCC),),
            (SAMPLER_RUN, SAMPLER, Frame("flashinfer/jit/cpp_ext.py", "get_cuda_path", "raise RuntimeError(", 60)),
        ),
    ),
    Fault(
        "ptxas-arch",
        T("Triton's ptxas doesn't know the GPU", "Triton 自带的 ptxas 不认识这张 GPU"),
        _expect("compile-jit", "ptxas-arch", "profile-warmup", "ptxas fatal", "PTX codegen error"),
        when="start-up",
        hook=Hook(
            "worker.profile",
            (Raise("RuntimeError", texts.PTXAS),),
            (PROFILE, DUMMY, Frame("triton/backends/nvidia/compiler.py", "make_cubin", "raise PTXASError(error)", 460)),
        ),
    ),
    Fault(
        "no-kernel-image",
        T("the build has no kernels for this GPU", "安装包里没有这张 GPU 的内核"),
        _expect("unsupported-hw", "no-kernel-image", "profile-warmup", "no kernel image is available"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(CUDA, texts.NO_KERNEL_IMAGE),), (PROFILE, DUMMY)),
    ),
    Fault(
        "triton-shared-memory",
        T("a Triton kernel needs more shared memory than the GPU has", "Triton 内核需要的 shared memory 超过硬件上限"),
        _expect(
            "unsupported-hw",
            "triton-smem",
            "profile-warmup",
            "out of resource: shared memory",
            accept=("compile-jit",),
            also=("triton-compile", "inductor-triton"),
        ),
        when="start-up",
        hook=Hook(
            "worker.profile",
            (Raise("triton.runtime.errors:OutOfResources", texts.TRITON_SMEM),),
            (PROFILE, DUMMY, Frame("triton/compiler/compiler.py", "raise_", "raise err", 470)),
        ),
    ),
    Fault(
        "cutlass-capability",
        T("a quantised kernel doesn't exist for this GPU generation", "这一代 GPU 没有对应的量化内核"),
        _expect(
            "model-quant-incompat",
            "gpu-capability",
            "profile-warmup",
            "No compiled cutlass_scaled_mm",
            accept=("unsupported-hw",),
            also=("kernel-missing",),
        ),
        when="start-up",
        hook=Hook(
            "worker.profile",
            (Raise("NotImplementedError", texts.CUTLASS_CAPABILITY),),
            (
                PROFILE,
                DUMMY,
                Frame(
                    "vllm/_custom_ops.py",
                    "cutlass_scaled_mm",
                    "torch.ops._C.cutlass_scaled_mm(out, a, b, scale_a, scale_b, bias)",
                    870,
                ),
            ),
        ),
    ),
    Fault(
        "quant-not-divisible",
        T("a quantised layer can't be split over so many GPUs", "量化层无法按这个张量并行度切分"),
        _expect("model-quant-incompat", "tp-divisibility", "startup-load", "not divisible by min_thread_k"),
        when="start-up",
        hook=Hook(
            "worker.build",
            (Raise("ValueError", texts.NOT_ALIGNED),),
            (
                Frame(
                    "vllm/model_executor/layers/quantization/utils/marlin_utils.py",
                    "verify_marlin_supports_shape",
                    "raise ValueError(",
                    170,
                ),
            ),
        ),
    ),
    Fault(
        "quant-weight-name",
        T(
            "the checkpoint's quantisation has tensors that the model doesn't know",
            "量化 checkpoint 含有模型不认识的张量",
        ),
        _expect(
            "model-quant-incompat",
            "weight-name-mismatch",
            "startup-load",
            "weight_scale",
            accept=("model-load",),
            also=("weights-mismatch",),
        ),
        when="start-up",
        hook=Hook(
            "worker.load",
            (Raise("KeyError", texts.SCALE_KEY),),
            (Frame("vllm/model_executor/models/llama.py", "load_weights", "param = params_dict[name]", 455),),
        ),
    ),
    Fault(
        "torch-abi",
        T("vLLM's library was built for another torch", "vLLM 的动态库与 torch 版本不匹配"),
        _expect("env-install", "torch-abi", "startup-load", "undefined symbol"),
        when="start-up",
        hook=Hook(
            "worker.device",
            (Raise("ImportError", texts.UNDEFINED_SYMBOL),),
            (Frame("vllm/platforms/cuda.py", "import_kernels", "import vllm._C  # noqa: F401", 150),),
        ),
    ),
)

FAULTS = (*MEMORY, *ASYNCHRONOUS, *COLLECTIVES, *COMPILERS)
