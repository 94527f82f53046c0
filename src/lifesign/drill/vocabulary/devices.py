"""Accelerator and collective faults. This machine needs no GPU for them: the exception (or the line of C code, or
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


def expect(cause: str, subtype: str, phase: str, *decisive: str, also: tuple[str, ...] = ()) -> Expect:
    return Expect(cause, subtype, phase, accept_subtypes=also, decisive=decisive)


MEMORY = (
    Fault(
        "oom-serving",
        T("GPU memory runs out in the forward pass", "前向计算时显存耗尽"),
        expect("device-oom", "serving", "serving", "OutOfMemoryError: CUDA out of memory"),
        hook=Hook("worker.forward", (Raise(OOM, texts.OOM_SERVING),)),
        ci=True,
    ),
    Fault(
        "oom-weights",
        T("GPU memory runs out while weights load", "加载权重时显存耗尽"),
        expect("device-oom", "weights-load", "startup-load", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.load", (Raise(OOM, texts.OOM_WEIGHTS),)),
    ),
    Fault(
        "oom-repack",
        T("GPU memory runs out while quantised weights are repacked", "重排量化权重时显存耗尽"),
        expect(
            "device-oom", "weights-repack", "startup-load", "CUDA driver error: out of memory", also=("weights-load",)
        ),
        when="start-up",
        hook=Hook("worker.load", (Raise("RuntimeError", texts.OOM_REPACK),), (AFTER_LOADING, REPACK)),
    ),
    Fault(
        "oom-profile",
        T("GPU memory runs out in the profiling forward pass", "显存探测的前向计算耗尽显存"),
        expect("device-oom", "profile-forward", "profile-warmup", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(OOM, texts.OOM_PROFILE),), (PROFILE, DUMMY)),
    ),
    Fault(
        "oom-sampler",
        T("GPU memory runs out while the sampler warms up", "采样器预热时显存耗尽"),
        expect("device-oom", "sampler-warmup", "profile-warmup", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(OOM, texts.OOM_SAMPLER),), (SAMPLER_RUN, SAMPLER, SORT)),
    ),
    Fault(
        "oom-sampler-advice",
        T("the same, with vLLM's own wording", "同上，但由 vLLM 自己的文字报告"),
        expect("device-oom", "sampler-warmup", "profile-warmup", "out of memory occurred when warming up sampler"),
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
        expect("device-oom", "graph-capture", "graph-capture", "OutOfMemoryError: CUDA out of memory"),
        when="start-up",
        hook=Hook("worker.capture", (Raise(OOM, texts.OOM_CAPTURE),), (CAPTURE, CAPTURE_ONE, DUMMY)),
    ),
    Fault(
        "oom-free-below-wanted",
        T("another process holds most of the GPU memory at the start", "启动时显存大多被别的进程占用"),
        expect("device-oom", "startup-free-lt-util", "startup-load", "Free memory on device"),
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
        expect("device-oom", "profiling-assert", "profile-warmup", "Error in memory profiling"),
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
        expect("device-oom", "kv-none", "profile-warmup", "No available memory for the cache blocks"),
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
        expect("device-oom", "nccl-alloc", "startup-load", "Cuda failure 2 'out of memory'", "unhandled cuda error"),
        when="start-up",
        hook=Hook("worker.device", (Raise(DIST, texts.NCCL_OOM),), (NEW_GROUP,)),
    ),
    Fault(
        "oom-wake-up",
        T(
            "memory can't be mapped again after sleep mode (a line of C++, then a crash)",
            "休眠唤醒时显存映射失败（一行 C++ 输出后崩溃）",
        ),
        expect("device-oom", "sleep-wake", "serving", "CUDA Error: out of memory at"),
        hook=Hook("worker.step", (Say(texts.CUMEM_LINE), Leave("null")), ()),
    ),
)

ASYNCHRONOUS = (
    Fault(
        "illegal-access",
        T("illegal memory access while serving", "服务中非法显存访问"),
        expect("illegal-memory-access", "ima-serving", "serving", "an illegal memory access was encountered"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.ILLEGAL_ACCESS),)),
        ci=True,
    ),
    Fault(
        "illegal-access-warm-up",
        T("illegal memory access in the profiling run", "探测阶段非法显存访问"),
        expect("illegal-memory-access", "ima-startup", "profile-warmup", "an illegal memory access was encountered"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(CUDA, texts.ILLEGAL_ACCESS),), (PROFILE, DUMMY)),
    ),
    Fault(
        "illegal-access-kernel",
        T("illegal memory access that names its kernel (DeepGEMM)", "非法显存访问，并点名了内核（DeepGEMM）"),
        expect("illegal-memory-access", "ima-kernel", "serving", "CUDA_ERROR_ILLEGAL_ADDRESS", also=("ima-serving",)),
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
        expect(
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
        expect("illegal-memory-access", "misaligned", "serving", "misaligned address"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.MISALIGNED),)),
    ),
    Fault(
        "illegal-instruction-gpu",
        T("illegal instruction on the GPU", "GPU 非法指令"),
        expect("illegal-memory-access", "illegal-instruction", "serving", "an illegal instruction was encountered"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.ILLEGAL_INSTRUCTION),)),
    ),
    Fault(
        "rocm-fault",
        T("ROCm memory access fault (a line of C, then abort)", "ROCm 内存访问错误（一行 C 输出后 abort）"),
        expect("illegal-memory-access", "rocm-fault", "serving", "Memory access fault by GPU node"),
        hook=Hook("worker.step", (Say(texts.ROCM_FAULT), Leave("signal", 6))),
    ),
    Fault(
        "xpu-device-lost",
        T("an XPU is lost", "XPU 设备丢失"),
        expect("illegal-memory-access", "xpu-device-lost", "serving", "UR_RESULT_ERROR_DEVICE_LOST"),
        hook=Hook("worker.forward", (Raise("RuntimeError", texts.XPU_LOST),)),
    ),
    Fault(
        "device-assert",
        T("a device-side assertion: index out of bounds", "设备端断言：下标越界"),
        expect(
            "device-assert", "index-out-of-bounds", "serving", "index out of bounds", "device-side assert triggered"
        ),
        hook=Hook("worker.forward", (Say(texts.ASSERT_LINES), Raise(CUDA, texts.DEVICE_ASSERT))),
        ci=True,
    ),
    Fault(
        "cublas-first",
        T("cuBLAS fails first", "cuBLAS 首先报错"),
        expect("cuda-lib", "cublas", "serving", "CUBLAS_STATUS_EXECUTION_FAILED"),
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
        expect("hardware-fault", "ecc", "serving", "uncorrectable ECC error"),
        hook=Hook("worker.forward", (Raise(CUDA, texts.ECC),)),
    ),
)

COLLECTIVES = (
    Fault(
        "nccl-init",
        T("NCCL can't connect the ranks at the start", "启动时 NCCL 无法连通各 rank"),
        expect(
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
        expect("collective-comm", "nccl-unhandled-cuda", "serving", "unhandled cuda error", "Cuda failure 999"),
        hook=Hook("worker.forward", (Raise(DIST, texts.NCCL_UNHANDLED_CUDA),), (NCCL_BARRIER,)),
    ),
    Fault(
        "nccl-timeout",
        T("a collective operation times out", "集合通信超时"),
        expect("collective-comm", "nccl-timeout", "serving", "Watchdog caught collective operation timeout"),
        hook=Hook("worker.forward", (Raise(DIST, texts.NCCL_TIMEOUT),), (NCCL_BARRIER,)),
    ),
    Fault(
        "nccl-duplicate-gpu",
        T("two ranks on one GPU", "两个 rank 落在同一张 GPU 上"),
        expect(
            "distributed-orchestration",
            "dp-device-assignment",
            "startup-load",
            "Duplicate GPU detected",
            "invalid usage",
            also=("nccl-invalid-usage",),
        ),
        when="start-up",
        hook=Hook("worker.device", (Raise(DIST, texts.NCCL_INVALID_USAGE),), (NEW_GROUP,)),
    ),
    Fault(
        "custom-all-reduce",
        T("vLLM's custom all-reduce ends the process from C++", "自定义 all-reduce 在 C++ 里直接退出进程"),
        expect("collective-comm", "custom-allreduce", "graph-capture", "custom_all_reduce.cuh"),
        when="start-up",
        hook=Hook("worker.capture", (Say(texts.CUSTOM_ALLREDUCE), Leave("exit", 1))),
    ),
)

FAULTS = (*MEMORY, *ASYNCHRONOUS, *COLLECTIVES)
