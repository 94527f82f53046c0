"""compile-jit: code that is built at run time (torch.compile, Triton, FlashInfer, DeepGEMM) could not be built or loaded.

The exception that reaches the log is a wrapper (`InductorError`, `BackendCompilerFailed`, `Ninja build failed`,
`CalledProcessError`); the compiler's own line, often without any prefix and some way above, tells what is missing. A
build that fails inside `_dummy_sampler_run` or while capturing is still a build: no memory is short.
"""

from __future__ import annotations

import re

from lifesign.causes import _advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes._compile_texts import (
    BUILD_TEXTS,
    CACHE_FRAMES,
    CACHE_TEXTS,
    CACHE_TYPES,
    COMPILER_LINES,
    DEVICE_TEXTS,
    HEADER_TEXTS,
    PTXAS_TEXTS,
)
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.remedies.library import collect, graphs, host, memory
from lifesign.remedies.model import Remedy
from lifesign.text import T

_NEAR_END = 12


def _loads_artefact(event: Event, life: Life) -> bool:
    """Whether the exception came out of loading a stored artefact, and not out of running one."""
    if event.exc is None:
        return False
    last = event.exc.frames[-_NEAR_END:]
    return any(part in f"{frame.file}:{frame.func}" for frame in last for part in CACHE_FRAMES)


def _after_cache_load(event: Event, life: Life) -> bool:
    """Whether generated code failed right after stored artefacts had been loaded: then they don't fit any more."""
    if event.exc is None or not event.exc.frames:
        return False
    last = f"{event.exc.frames[-1].file}"
    if not any(
        part in last for part in ("inductor_cache", "torchinductor_", "torch_compile_cache", "torch_aot_compile")
    ):
        return False
    return life.before(event, "Directly load", "from the cache", "AOT compil", within=200) is not None


SIGNATURES = (
    Signature("flashinfer-build", any=BUILD_TEXTS, frames=("flashinfer",)),
    Signature("flashinfer-build", any=BUILD_TEXTS, regex=r"flashinfer"),
    Signature("flashinfer-build", types=("FileNotFoundError",), any=("'ninja'",)),
    # Only the wrapper is left: the compiler's own line stands further up, or nowhere.
    Signature("jit-build", types=("CalledProcessError",), any=("'ninja'",), strength=SYMPTOM, certainty="supported"),
    Signature("jit-build", any=(*BUILD_TEXTS, "Ninja is required to load C++ extensions")),
    Signature("ptxas-arch", any=PTXAS_TEXTS, when=reading.is_loud),
    Signature("ptxas-arch", types=("PTXASError",)),
    Signature(
        "nvcc-missing",
        any=(
            "Could not find nvcc",
            "nvcc not found at",
            "CUDA_HOME environment variable is not set",
            "/bin/nvcc'",
            "nvcc: No such file",
        ),
        when=reading.is_loud,
    ),
    Signature(
        "nvcc-missing",
        types=("AssertionError", "FileNotFoundError"),
        frames=(":_find_cuda_home", ":get_cuda_path", ":get_nvcc_compiler", ":find_cuda_home"),
    ),
    Signature(
        "host-linker-libcuda",
        any=(
            "cannot find -lcuda",
            "cannot find -l:libcuda.so",
            "libcuda.so cannot found",
            "libcuda.so cannot be found",
            "cannot find -lamdhip64",
            "cannot find -lze_loader",
        ),
        none=("-lcudart", "-lcudadevrt", "-l:libcudart"),
    ),
    # Libraries of the CUDA toolkit, not of the driver.
    Signature("jit-build", any=("cannot find -lcudart", "cannot find -lcudadevrt"), when=reading.is_loud),
    Signature(
        "flashinfer-build",
        any=(
            "curand_kernel.h: No such file",
            "cublas_v2.h: No such file",
            "cuda_fp8.h: No such file",
            "cuda_runtime.h: No such file",
            "nv/target: No such file",
        ),
    ),
    # The failed process below a build error: its command line says little, the error above it quotes the compiler.
    Signature(
        "flashinfer-build",
        types=("CalledProcessError",),
        frames=("flashinfer/jit", "flashinfer\\jit"),
        strength=SYMPTOM,
    ),
    Signature(
        "flashinfer-build",
        frames=("flashinfer/jit", "flashinfer\\jit"),
        types=("RuntimeError", "FileNotFoundError", "OSError"),
        none=(*DEVICE_TEXTS, "undefined symbol"),
        certainty="supported",
    ),
    Signature(
        "jit-build",
        any=(
            "NVCC compilation failed",
            "NVRTC compilation failed",
            "NVRTC_ERROR",
            "DSLRuntimeError",
            "DSLCudaRuntimeError",
            "HIPRTC_ERROR",
            "hiprtcCompileProgram",
        ),
        none=DEVICE_TEXTS,
        when=reading.is_loud,
    ),
    Signature("jit-build", all=("[aiter]", "build", "failed"), when=reading.is_loud),
    Signature(
        "jit-build", any=("/jit/kernel_runtime.hpp", "/jit/compiler.hpp", "NVCC compilation failed"), none=DEVICE_TEXTS
    ),
    Signature(
        "jit-build",
        frames=("deep_gemm/jit/", "tilelang/", "/tvm/", "aiter/jit/"),
        types=("RuntimeError", "CalledProcessError", "InternalError", "AssertionError"),
        none=DEVICE_TEXTS,
        certainty="supported",
    ),
    Signature("host-compiler-headers", any=HEADER_TEXTS, when=reading.is_loud),
    Signature(
        "host-compiler-headers",
        any=("fatal error: ",),
        regex=r"fatal error: (?:'[\w./+-]{1,80}' file not found|[\w./+-]{1,80}: No such file or directory)",
        kinds=("plain", "log", "exception", "wrapper", "native"),
        when=reading.is_loud,
    ),
    Signature("xla-compile", any=("XLA:TPU compile permanent error", "XLA compilation failed"), when=reading.is_loud),
    Signature(
        "host-compiler-headers",
        any=("main.c", "cuda_utils.c", "launcher.c", "hip_utils.c"),
        regex=r"(?:main|cuda_utils|launcher|hip_utils)\.c(?:pp)?:\d{1,6}:\d{1,5}: (?:fatal )?error",
        kinds=("plain", "exception", "log"),
    ),
    Signature(
        "host-compiler-headers",
        types=("CalledProcessError", "InductorError", "BackendCompilerFailed"),
        regex=r"(?:gcc|cc|clang|g\+\+|c\+\+)'.{1,400}\.c(?:pp)?'",
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature("host-compiler-headers", types=("CppCompileError", "InvalidCxxCompiler")),
    Signature(
        "host-compiler-headers",
        any=("CppCompileError", "C++ compile error", "InvalidCxxCompiler"),
        when=reading.is_loud,
        certainty="supported",
    ),
    Signature("compile-cache", any=CACHE_TEXTS, when=reading.is_loud),
    # A stored graph that meets inputs of another kind: the name stands in the frame, not in the text.
    Signature("compile-cache", types=("AssertionError",), frames=(":copy_misaligned_inputs",), certainty="supported"),
    Signature("compile-cache", types=CACHE_TYPES, none=DEVICE_TEXTS, when=_loads_artefact, certainty="supported"),
    Signature(
        "compile-cache",
        types=("AssertionError", "TypeError", "KeyError", "AttributeError", "NameError"),
        when=_after_cache_load,
        certainty="supported",
    ),
    Signature(
        "inductor-triton",
        types=("AssertionError",),
        any=("expected size ",),
        regex=r"expected size \d{1,12}==\d{1,12}, stride",
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature(
        "inductor-triton",
        any=("No valid triton configs", "NoTritonConfigsError", "NoValidChoicesError", "LoweringException"),
        when=reading.is_loud,
    ),
    Signature(
        "triton-missing",
        any=("Cannot find a working triton installation", "TritonMissing"),
        when=reading.is_loud,
    ),
    Signature(
        "triton-compile",
        any=(
            "PassManager::run failed",
            "Failed to translate TritonGPU to LLVM IR",
            "LLVM ERROR:",
            "failed to legalize operation",
            "triton.compiler.errors.CompilationError",
        ),
        when=reading.is_loud,
    ),
    Signature("triton-compile", types=("CompilationError",), none=("not supported in this architecture",)),
    Signature("triton-compile", types=("MLIRCompilationError", "UnsupportedLanguageConstruct")),
    Signature(
        "dynamo-trace",
        any=(
            "torch._dynamo.exc.Unsupported",
            "torch._dynamo.exc.UserError",
            "torch._dynamo.exc.FailOnRecompileLimitHit",
        ),
        when=reading.is_loud,
    ),
    Signature(
        "inductor-triton",
        types=("InductorError", "BackendCompilerFailed"),
        none=DEVICE_TEXTS,
        strength=SYMPTOM,
        certainty="supported",
    ),
)

_EAGER_LAST = (graphs.EAGER, collect.UPGRADE_VLLM)

SUBTYPES = {
    "compile-cache": Subtype(
        T("A stored compilation artefact could not be used", "编译缓存无法使用"),
        T(
            "vLLM stores what torch.compile made and loads it at the next start. This copy is missing, cut short, or made by another version; a failure only on the second start is typical.",
            "vLLM 会保存 torch.compile 的产物供下次启动加载。这一份缺失、不完整，或来自别的版本；典型表现是第一次启动正常、第二次失败。",
        ),
        (graphs.CLEAR_COMPILE_CACHE, graphs.NO_COMPILE_CACHE, *_EAGER_LAST),
        ("vllm#21858",),
    ),
    "flashinfer-build": Subtype(
        T("FlashInfer could not build its kernels", "FlashInfer 内核编译失败"),
        T(
            "FlashInfer compiles kernels on first use with nvcc and ninja; the compiler's own line names what is missing. Nothing is wrong with memory, whatever stage it happens in.",
            "FlashInfer 首次使用时用 nvcc 和 ninja 编译内核；编译器自己的那一行写明了缺什么。无论发生在哪个阶段，都与显存无关。",
        ),
        (advice.READ_COMPILER_LINE, graphs.INSTALL_NVCC, graphs.NO_FLASHINFER_SAMPLER, advice.CLEAR_FLASHINFER),
        ("vllm#36077", "flashinfer#4410"),
    ),
    "jit-build": Subtype(
        T("A kernel library could not build its kernels", "内核库现场编译失败"),
        T(
            "DeepGEMM, TileLang, CUTLASS or AITER compile kernels when they are first used, and the compiler failed.",
            "DeepGEMM、TileLang、CUTLASS 或 AITER 首次使用时要编译内核，编译器报错。",
        ),
        (advice.READ_COMPILER_LINE, graphs.INSTALL_NVCC, graphs.NO_DEEP_GEMM, collect.UPGRADE_VLLM),
    ),
    "nvcc-missing": Subtype(
        T("The CUDA compiler (nvcc) is not installed or not found", "找不到 CUDA 编译器（nvcc）"),
        T(
            "A library wanted to build a kernel and found no nvcc. The runtime image of CUDA has none; that it happens in the sampler's warm-up says nothing about memory.",
            "某个库要编译内核却找不到 nvcc。CUDA 的 runtime 镜像里没有它；发生在采样器预热阶段并不说明显存有问题。",
        ),
        (graphs.INSTALL_NVCC, graphs.NO_FLASHINFER_SAMPLER, graphs.NO_DEEP_GEMM),
        ("vllm#49497",),
    ),
    "ptxas-arch": Subtype(
        T("The CUDA assembler doesn't know this GPU", "CUDA 汇编器不认识这块 GPU"),
        T(
            "nvcc or ptxas (the one inside Triton's wheel, or an old toolkit) is older than the GPU or the code that it is given.",
            "nvcc 或 ptxas（Triton 自带的，或旧工具包里的）比 GPU 或要编译的代码更旧。",
        ),
        (graphs.TRITON_PTXAS, advice.NEWER_TOOLKIT, collect.UPGRADE_VLLM),
        ("flashinfer#1657",),
    ),
    "host-compiler-headers": Subtype(
        T("The C compiler or its headers are missing", "缺少 C 编译器或头文件"),
        T(
            "Triton and torch.compile build small C files at run time. The compiler is missing, broken, or lacks a header; its line stands above the Python error, often without a prefix.",
            "Triton 和 torch.compile 运行时要编译小段 C 代码。编译器缺失、损坏或缺头文件；它的报错行在 Python 错误上方，常常没有前缀。",
        ),
        (graphs.HOST_COMPILER, graphs.EAGER),
        ("vllm#19656",),
    ),
    "host-linker-libcuda": Subtype(
        T("The linker can't find the driver's library", "链接器找不到驱动库"),
        T(
            "Triton links a launcher against libcuda.so when it first runs, and the linker has no path to it.",
            "Triton 首次运行要链接 libcuda.so，而链接器不知道它在哪。",
        ),
        (graphs.TRITON_LIBCUDA,),
    ),
    "inductor-triton": Subtype(
        T("torch.compile could not build a kernel", "torch.compile 生成的内核编译失败"),
        T(
            "Inductor wrote a Triton kernel that fits no configuration of this GPU, or failed while lowering the model. `out of resource` and `OutOfMemoryError` in this line mean the small on-chip memory, not the GPU's.",
            "Inductor 生成的 Triton 内核不适合这块 GPU 的任何配置，或在把模型转换成内核（lowering）时失败。这一行里的 out of resource、OutOfMemoryError 指芯片内部的小容量内存，不是显存。",
        ),
        (graphs.EAGER, graphs.CLEAR_COMPILE_CACHE, advice.OTHER_TORCH, collect.UPGRADE_VLLM),
        ("vllm#31940",),
    ),
    "triton-compile": Subtype(
        T("Triton could not compile a kernel", "Triton 内核编译失败"),
        T(
            "A hand-written Triton kernel was refused by Triton's compiler on this GPU or in this version.",
            "手写的 Triton 内核在这块 GPU 或这个版本上无法通过编译。",
        ),
        (advice.OTHER_TRITON, advice.NOT_TRITON_ATTENTION, collect.UPGRADE_VLLM),
    ),
    "xla-compile": Subtype(
        T("XLA could not compile a program of the model for this TPU", "XLA 无法为这块 TPU 编译模型的程序"),
        T(
            "The compiler names what ran out, often one of the TPU's small memories (smem, vmem); a program for shorter contexts or smaller batches needs less of it.",
            "编译器会写明缺什么，往往是 TPU 的小容量存储（smem、vmem）；上下文更短、batch 更小的程序占用更少。",
        ),
        (memory.SHORTER_CONTEXT, memory.FEWER_SEQUENCES, collect.UPGRADE_VLLM),
    ),
    "triton-missing": Subtype(
        T("Triton is missing, too old, or sees no GPU", "Triton 缺失、过旧，或看不到 GPU"),
        T("torch.compile needs a working Triton for this device.", "torch.compile 需要该设备可用的 Triton。"),
        (advice.OTHER_TRITON, graphs.EAGER, host.REINSTALL_MATCHING),
    ),
    "dynamo-trace": Subtype(
        T("torch.compile could not trace the model", "torch.compile 无法追踪模型代码"),
        T(
            "The model's code does something that Dynamo can't trace in one graph.",
            "模型代码里有 Dynamo 无法整图追踪的写法。",
        ),
        (graphs.EAGER, collect.UPGRADE_VLLM, collect.REPORT_BUG),
    ),
}

_HEADER = re.compile(r"fatal error: '?([\w./+-]{1,120})'?(?:: No such file| file not found)")
_ARCH = re.compile(r"(sm_\d{2,3}[a-z]?|compute_\d{2,3}[a-z]?)")


def refine(finding: Finding, life: Life) -> Finding | None:
    """Cites the compiler's own line and chooses the remedy that fits it."""
    text = finding.event.text
    if finding.subtype == "compile-cache":
        return _cache(reading.cite(finding, *CACHE_TEXTS), life)
    words = next((words for words in COMPILER_LINES if finding.event.has(*words)), ())
    if words:
        reading.cite(finding, *words)
    remedies = list(SUBTYPES[finding.subtype].remedies)
    notes: list[T] = []
    if match := _HEADER.search(text):
        finding.values["header"] = match[1]
        notes.append(T(f"The header {match[1]} was not found.", f"缺少头文件 {match[1]}。"))
        if finding.subtype in ("flashinfer-build", "jit-build"):
            remedies.insert(0, graphs.CUDA_HEADERS)
    if re.search(r"(?:^|[\s'\"\]])[:;]/\S{0,120}nvcc", text):
        remedies.insert(0, graphs.FIX_CUDA_HOME)
        notes.append(
            T(
                "The path of nvcc begins with a colon: CUDA_HOME (or CUDA_PATH) was built like a list.",
                "nvcc 的路径以冒号开头：CUDA_HOME（或 CUDA_PATH）被当成列表拼接了。",
            )
        )
    if finding.subtype in ("flashinfer-build", "nvcc-missing"):
        remedies = [_way_round(remedy, finding) for remedy in remedies]
    if finding.subtype in ("flashinfer-build", "jit-build") and any(part in text for part in PTXAS_TEXTS):
        remedies.insert(0, advice.NEWER_TOOLKIT)
        notes.append(T("The compiler is older than the GPU or the code.", "编译器比 GPU 或代码更旧。"))
    if finding.subtype == "ptxas-arch" and (match := _ARCH.search(text)):
        finding.values["arch"] = match[1]
        notes.append(T(f"The architecture is {match[1]}.", f"目标架构是 {match[1]}。"))
    if "ccache" in text or reading.seen(life, "ccache") is not None:
        notes.append(
            T(
                "ccache stands in front of the compiler; call the compiler directly (CC=/usr/bin/gcc).",
                "编译器前套了 ccache；请直接使用编译器（CC=/usr/bin/gcc）。",
            )
        )
    exc = finding.event.exc
    of_attention = exc is not None and exc.passes("attention", "attn") and life.platform == "cuda"
    if finding.subtype == "triton-compile" and not of_attention:
        remedies.remove(advice.NOT_TRITON_ATTENTION)
    finding.remedies = tuple(remedies)
    return reading.explain(finding, SUBTYPES[finding.subtype].why, *notes) if notes else finding


def _way_round(remedy: Remedy, finding: Finding) -> Remedy:
    """The setting that avoids the kernels that could not be built: sampling, attention or experts."""
    if remedy is not graphs.NO_FLASHINFER_SAMPLER:
        return remedy
    exc, text = finding.event.exc, finding.event.text
    if "sampling" in text or (exc is not None and exc.passes("sample", "sampling.py")):
        return remedy
    if "fused_moe" in text or (exc is not None and exc.passes("fused_moe")):
        return graphs.OTHER_MOE_BACKEND
    if any(part in text for part in ("batch_prefill", "batch_decode", "single_prefill", "mla")) or (
        exc is not None and exc.passes("attention", "prefill.py", "decode.py", "mla.py")
    ):
        return advice.NOT_FLASHINFER_ATTENTION
    return remedy


def _caches_off(life: Life) -> Event | str | None:
    """Evidence that an environment variable keeps inductor from writing its artefacts."""
    if str(life.env.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "")).strip() in ("1", "true", "True"):
        return "env"
    return reading.seen(
        life,
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES: 1",
        "'TORCHINDUCTOR_FORCE_DISABLE_CACHES': '1'",
    )


def _cache(finding: Finding, life: Life) -> Finding:
    off = _caches_off(life)
    if off is not None:
        if isinstance(off, Event):
            reading.add_context(
                finding,
                off,
                T("This variable keeps the artefact from being written.", "这个变量让编译产物根本没有写出。"),
            )
        finding.remedies = (graphs.UNSET_INDUCTOR_CACHE_OFF, advice.OTHER_TORCH, graphs.EAGER)
        note = T(
            "Caching is switched off by an environment variable, so removing the cache changes nothing.",
            "环境变量关闭了缓存，所以删除缓存没有用。",
        )
        return reading.explain(finding, SUBTYPES["compile-cache"].why, note)
    if "failed to get the hash" in finding.event.text:
        finding.remedies = (graphs.UNSET_INDUCTOR_CACHE_OFF, *SUBTYPES["compile-cache"].remedies, advice.OTHER_TORCH)
        note = T(
            "This text also appears when TORCHINDUCTOR_FORCE_DISABLE_CACHES is set: check the environment first.",
            "设置了 TORCHINDUCTOR_FORCE_DISABLE_CACHES 也会出现这段文字：请先检查环境变量。",
        )
        return reading.explain(finding, SUBTYPES["compile-cache"].why, note)
    return finding


CAUSE = Cause(
    slug="compile-jit",
    code="A10",
    title=T("Building kernels at run time failed", "运行时编译失败"),
    summary=T(
        "torch.compile, Triton, FlashInfer or DeepGEMM could not build a kernel or load a stored one: a compiler, header or library is missing or doesn't fit.",
        "torch.compile、Triton、FlashInfer 或 DeepGEMM 无法编译内核或加载缓存：缺少编译器、头文件或库，或版本不匹配。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=10,
)
