"""Faults of graph capture, compilers, kernels and checkpoints: what fails between a loaded model and a served request.

As in `devices`, the exception is the real one, raised where it would come from; no GPU and no compiler is needed.
"""

from __future__ import annotations

from lifesign.drill import texts
from lifesign.drill.model import Fault, Frame, Hook, Raise
from lifesign.drill.vocabulary.devices import CAPTURE, CAPTURE_ONE, CUDA, DUMMY, PROFILE, SAMPLER, SAMPLER_RUN, expect
from lifesign.text import T

GRAPH_ENTER = Frame("torch/cuda/graphs.py", "__exit__", "self.cuda_graph.capture_end()", 268)
FLASHINFER = Frame("flashinfer/jit/cpp_ext.py", "run_ninja", "raise RuntimeError(msg) from e", 340)
HASH = Frame("vllm/compilation/compiler_interface.py", "compile", "assert hash_str is not None, (", 468)

FAULTS = (
    Fault(
        "capture-illegal-op",
        T("an operation that can't be captured into a CUDA graph", "出现无法捕获进 CUDA graph 的操作"),
        expect(
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
        expect(
            "graph-capture", "capture-end", "graph-capture", "operation failed due to a previous error during capture"
        ),
        when="start-up",
        hook=Hook("worker.capture", (Raise(CUDA, texts.CAPTURE_INVALID),), (CAPTURE, CAPTURE_ONE, DUMMY, GRAPH_ENTER)),
    ),
    Fault(
        "workspace-locked",
        T("a locked workspace would have to grow", "已锁定的 workspace 需要扩大"),
        expect("graph-capture", "workspace-locked", "serving", "Workspace is locked"),
        hook=Hook(
            "worker.forward",
            (Raise("AssertionError", texts.WORKSPACE_LOCKED),),
            (Frame("vllm/v1/worker/workspace.py", "_ensure_workspace_size", "raise AssertionError(", 190),),
        ),
    ),
    Fault(
        "compile-cache",
        T("torch.compile: the cached artefact doesn't fit", "torch.compile：缓存产物不匹配"),
        expect("compile-jit", "compile-cache", "profile-warmup", "failed to get the hash of the compiled graph"),
        when="start-up",
        hook=Hook("worker.profile", (Raise("AssertionError", texts.COMPILE_CACHE),), (PROFILE, DUMMY, HASH)),
    ),
    Fault(
        "flashinfer-build",
        T("FlashInfer can't be compiled", "FlashInfer 编译失败"),
        expect("compile-jit", "flashinfer-build", "profile-warmup", "Ninja build failed", "curand_kernel.h"),
        when="start-up",
        hook=Hook("worker.profile", (Raise("RuntimeError", texts.NINJA),), (SAMPLER_RUN, SAMPLER, FLASHINFER)),
    ),
    Fault(
        "nvcc-missing",
        T("nvcc isn't installed and something must be compiled", "需要编译，但没有 nvcc"),
        expect("compile-jit", "nvcc-missing", "profile-warmup", "Could not find nvcc"),
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
        expect("compile-jit", "ptxas-arch", "profile-warmup", "ptxas fatal", "PTX codegen error"),
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
        expect("unsupported-hw", "no-kernel-image", "profile-warmup", "no kernel image is available"),
        when="start-up",
        hook=Hook("worker.profile", (Raise(CUDA, texts.NO_KERNEL_IMAGE),), (PROFILE, DUMMY)),
    ),
    Fault(
        "triton-shared-memory",
        T("a Triton kernel needs more shared memory than the GPU has", "Triton 内核需要的 shared memory 超过硬件上限"),
        expect(
            "unsupported-hw",
            "triton-smem",
            "profile-warmup",
            "out of resource: shared memory",
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
        expect(
            "model-quant-incompat",
            "gpu-capability",
            "profile-warmup",
            "No compiled cutlass_scaled_mm",
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
        expect("model-quant-incompat", "tp-divisibility", "startup-load", "not divisible by min_thread_k"),
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
        expect(
            "model-quant-incompat",
            "weight-name-mismatch",
            "startup-load",
            "weight_scale",
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
        expect("env-install", "torch-abi", "startup-load", "undefined symbol"),
        when="start-up",
        hook=Hook(
            "worker.device",
            (Raise("ImportError", texts.UNDEFINED_SYMBOL),),
            (Frame("vllm/platforms/cuda.py", "import_kernels", "import vllm._C  # noqa: F401", 150),),
        ),
    ),
)
