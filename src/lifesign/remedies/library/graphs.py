"""Remedies around CUDA graphs, compilation and kernel back ends."""

from __future__ import annotations

from lifesign.remedies import consequences, sizing
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

EAGER = Remedy(
    slug="eager",
    kind="flag",
    title=T("run without CUDA graphs and compilation", "关闭 CUDA graph 和编译"),
    why=T(
        "Eager mode skips torch.compile and graph capture: it frees their memory and proves whether they are to blame.",
        "eager 模式跳过 torch.compile 和图捕获：省下它们的显存，也能证明问题是否出在这里。",
    ),
    forms=(Form("--enforce-eager"),),
    cost=T("slower decoding", "解码变慢"),
    detail=consequences.graphs_freed,
    unless=sizing.is_eager,
    source="vLLM engine arguments: enforce_eager (all of 0.8.5 to 0.33.0)",
)

CUDAGRAPH_NONE = Remedy(
    slug="cudagraph-none",
    kind="flag",
    title=T("keep compilation, turn CUDA graphs off", "保留编译，只关 CUDA graph"),
    why=T("Narrower than eager mode: only capture is skipped.", "比 eager 影响小：只跳过图捕获。"),
    forms=(
        Form("--compilation-config", '{"cudagraph_mode": "NONE"}', since="0.10.1"),
        Form("--enforce-eager", until="0.10.0"),
    ),
    cost=T("slower decoding of small batches", "小批量解码变慢"),
    detail=consequences.graphs_freed,
    unless=sizing.is_eager,
    source="parsers of 45 releases: cudagraph_mode is a key of --compilation-config from 0.10.1; it never was a flag",
)

CUDAGRAPH_PIECEWISE = Remedy(
    slug="cudagraph-piecewise",
    kind="flag",
    title=T("only piecewise CUDA graphs", "只用 PIECEWISE 图"),
    why=T(
        "Full graphs also capture attention; piecewise ones leave it out.",
        "FULL 图把注意力也捕获进去；PIECEWISE 不捕获注意力。",
    ),
    forms=(Form("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}', since="0.10.1"),),
    cost=T("decoding of small batches is somewhat slower", "小批解码略慢"),
    unless=sizing.is_eager,
    source="vLLM source: CUDAGraphMode values since 0.10.1",
)

CUDAGRAPH_FULL_DECODE = Remedy(
    slug="cudagraph-full-decode",
    kind="flag",
    title=T("full graphs for decoding only", "只对解码使用 FULL 图"),
    why=T(
        "It avoids the piecewise graphs that free buffers which a neighbour still uses.",
        "绕开会提前释放共享缓冲区的 PIECEWISE 图。",
    ),
    forms=(Form("--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}', since="0.10.1"),),
    cost=T("prefill runs without graphs", "预填充不再使用图"),
    unless=sizing.is_eager,
    source="vLLM source: CUDAGraphMode values since 0.10.1",
)

FEWER_CAPTURE_SIZES = Remedy(
    slug="fewer-capture-sizes",
    kind="flag",
    title=T("capture fewer graph sizes", "少捕获几种批大小的图"),
    why=T("Each captured batch size keeps its own buffers.", "每一种捕获的批大小都要占显存。"),
    forms=(
        Form("--cudagraph-capture-sizes", "1 2 4 8 16 32", since="0.11.1"),
        Form("--compilation-config", '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}', until="0.11.0"),
    ),
    cost=T("larger batches run without a graph", "更大的批不走图，会慢一些"),
    detail=consequences.graphs_freed,
    unless=sizing.is_eager,
    source="parsers of 45 releases: own flag from 0.11.1, JSON key in all",
)

CLEAR_COMPILE_CACHE = Remedy(
    slug="clear-compile-cache",
    kind="command",
    title=T("clear the compile cache", "清除编译缓存"),
    why=T(
        "Artefacts of another torch, vLLM or GPU are loaded again from torch_compile_cache; move them away and start again.",
        "torch_compile_cache 里旧版本 torch、vLLM 或其他 GPU 的产物被重新加载；把它移走再启动。",
    ),
    command='mv "${VLLM_CACHE_ROOT:-$HOME/.cache/vllm}/torch_compile_cache" /tmp/torch_compile_cache.old',
    cost=T("the next start compiles again", "下次启动要重新编译"),
    source="vLLM docs: torch.compile integration, compile cache",
)

NO_COMPILE_CACHE = Remedy(
    slug="no-compile-cache",
    kind="env",
    title=T("start once without the compile cache", "不用编译缓存启动一次"),
    why=T("Shows whether a stale artefact is to blame.", "可以看出是不是陈旧缓存造成的。"),
    forms=(Form("VLLM_DISABLE_COMPILE_CACHE", "1"),),
    cost=T("compiles at each start", "每次启动都要重新编译"),
    source="envs.py of all 45 releases",
)

UNSET_INDUCTOR_CACHE_OFF = Remedy(
    slug="unset-inductor-cache-off",
    kind="command",
    title=T("unset TORCHINDUCTOR_FORCE_DISABLE_CACHES", "取消 TORCHINDUCTOR_FORCE_DISABLE_CACHES"),
    why=T(
        "With caches forced off, the artefact that vLLM wants to read is never written.",
        "强制关闭缓存后，vLLM 要读的产物根本没有写出。",
    ),
    command="unset TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    source="vllm#21858",
)

NO_FLASHINFER_SAMPLER = Remedy(
    slug="no-flashinfer-sampler",
    kind="env",
    title=T("sample without FlashInfer", "采样不用 FlashInfer"),
    why=T(
        "FlashInfer compiles its sampler at run time and needs nvcc; PyTorch's own sampler doesn't.",
        "FlashInfer 采样要现场用 nvcc 编译；PyTorch 自带的采样不需要。",
    ),
    forms=(Form("VLLM_USE_FLASHINFER_SAMPLER", "0"),),
    cost=T("sampling is a little slower", "采样稍慢"),
    source="envs.py of all 45 releases; default on from 0.21.0",
)

NO_DEEP_GEMM = Remedy(
    slug="no-deep-gemm",
    kind="env",
    title=T("switch DeepGEMM off", "关闭 DeepGEMM"),
    why=T("FP8 layers then use the other kernels (CUTLASS, Triton).", "FP8 层改用其他内核（CUTLASS、Triton）。"),
    forms=(Form("VLLM_USE_DEEP_GEMM", "0"),),
    cost=T("FP8 models may be slower", "FP8 模型可能变慢"),
    source="envs.py of all 45 releases; default on from 0.11.0",
)

OTHER_ATTENTION_BACKEND = Remedy(
    slug="other-attention-backend",
    kind="flag",
    title=T("another attention backend", "更换注意力后端"),
    why=T("Takes the kernel that failed out of the path.", "绕开出错的内核。"),
    forms=(
        Form("--attention-backend", "TRITON_ATTN", since="0.13.0"),
        Form("VLLM_ATTENTION_BACKEND", "TRITON_ATTN", since="0.11.0", until="0.12.0"),
        Form("VLLM_ATTENTION_BACKEND", "TRITON_ATTN_VLLM_V1", since="0.8.0", until="0.10.2"),
        Form("VLLM_ATTENTION_BACKEND", "XFORMERS", until="0.7.3"),
    ),
    cost=T("perhaps slower", "可能变慢"),
    unless=sizing.has_no_other_attention,
    source="vLLM source: VLLM_ATTENTION_BACKEND is read to 0.12.0, the flag exists from 0.13.0; Triton's is of V1 only",
)

OTHER_MOE_BACKEND = Remedy(
    slug="other-moe-backend",
    kind="flag",
    title=T("another MoE kernel", "更换 MoE 内核"),
    why=T("Takes the fused expert kernel that failed out of the path.", "绕开出错的专家融合内核。"),
    forms=(
        Form("--moe-backend", "triton", since="0.17.0"),
        Form("VLLM_USE_FLASHINFER_MOE_FP8", "0", until="0.16.0", since="0.10.0"),
    ),
    cost=T("perhaps slower", "可能变慢"),
    source="parsers: --moe-backend from 0.17.0",
)

NO_AITER = Remedy(
    slug="no-aiter",
    kind="env",
    title=T("switch the AITER kernels off", "关闭 AITER 内核"),
    why=T("Takes AMD's AITER kernels out of the path.", "绕开 AMD 的 AITER 内核。"),
    forms=(Form("VLLM_ROCM_USE_AITER", "0"),),
    cost=T("slower kernels on AMD GPUs", "AMD GPU 上的内核变慢"),
    source="envs.py of all 45 releases",
)

LAUNCH_BLOCKING = Remedy(
    slug="launch-blocking",
    kind="env",
    title=T("make the failing kernel show itself", "定位出错的 GPU 核函数"),
    why=T(
        "CUDA reports errors late; with CUDA_LAUNCH_BLOCKING=1 (and --enforce-eager) the traceback points at the call that failed.",
        "CUDA 的错误是异步上报的；设置 CUDA_LAUNCH_BLOCKING=1（配合 --enforce-eager）后，栈才指向真正出错的调用。",
    ),
    forms=(Form("CUDA_LAUNCH_BLOCKING", "1"),),
    cost=T("very slow: for the search only", "非常慢，只用于排查"),
    source="CUDA C programming guide: CUDA_LAUNCH_BLOCKING",
)

HIP_LAUNCH_BLOCKING = Remedy(
    slug="hip-launch-blocking",
    kind="env",
    title=T("make the failing kernel show itself", "定位出错的 GPU 核函数"),
    why=T(
        "Kernels then run one after the other, so the last one named is the one that failed.",
        "内核逐个串行执行，最后一个就是出错的那个。",
    ),
    forms=(Form("AMD_SERIALIZE_KERNEL", "3"),),
    cost=T("very slow: for the search only", "非常慢，只用于排查"),
    source="ROCm docs: AMD_SERIALIZE_KERNEL, HIP_LAUNCH_BLOCKING",
)

TRITON_PTXAS = Remedy(
    slug="triton-ptxas",
    kind="env",
    title=T("let Triton use the toolkit's ptxas", "让 Triton 使用 CUDA 工具包里的 ptxas"),
    why=T("The ptxas in Triton's wheel is older than this GPU.", "Triton 自带的 ptxas 不认识这种 GPU。"),
    forms=(Form("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas"),),
    source="Triton: TRITON_PTXAS_PATH; reports with `sm_121a`",
)

TRITON_LIBCUDA = Remedy(
    slug="triton-libcuda",
    kind="command",
    title=T("let the linker find libcuda", "让链接器找到 libcuda"),
    why=T("Triton links a small launcher against libcuda.so at run time.", "Triton 运行时要链接 libcuda.so。"),
    command="sudo ldconfig; export TRITON_LIBCUDA_PATH=$(dirname $(ldconfig -p | awk '/libcuda.so.1/{print $NF; exit}'))",
    source="Triton: TRITON_LIBCUDA_PATH",
)

INSTALL_NVCC = Remedy(
    slug="install-nvcc",
    kind="command",
    title=T("install nvcc and point CUDA_HOME at it", "安装 nvcc 并设置 CUDA_HOME"),
    why=T(
        "FlashInfer, DeepGEMM and others compile kernels at run time and need the CUDA toolkit.",
        "FlashInfer、DeepGEMM 等要现场编译内核，需要 CUDA toolkit。",
    ),
    command="apt-get install -y cuda-toolkit  # then: export CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH",
)

FIX_CUDA_HOME = Remedy(
    slug="fix-cuda-home",
    kind="command",
    title=T("set CUDA_HOME to one folder", "把 CUDA_HOME 设为单个目录"),
    why=T(
        "CUDA_HOME (or CUDA_PATH) must name exactly one folder, without a colon; only PATH-like environment variables take lists.",
        "CUDA_HOME（或 CUDA_PATH）只能是一个目录，不能带冒号；只有 PATH 这类环境变量才接受列表。",
    ),
    command="export CUDA_HOME=/usr/local/cuda",
)

CUDA_HEADERS = Remedy(
    slug="cuda-headers",
    kind="command",
    title=T("install the missing CUDA headers", "补齐缺少的 CUDA 头文件"),
    why=T(
        "The toolkit lacks a library's development header (curand, cublas ...): install the dev package, or use prebuilt kernels (flashinfer-cubin).",
        "CUDA toolkit 缺少开发头文件（curand、cublas 等）：安装 dev 包，或使用预编译内核（flashinfer-cubin）。",
    ),
    command="apt-get install -y libcurand-dev-12-8 libcublas-dev-12-8  # the numbers are those of your CUDA toolkit",
)

HOST_COMPILER = Remedy(
    slug="host-compiler",
    kind="command",
    title=T("install the C compiler and headers", "安装 C 编译器和头文件"),
    why=T(
        "torch.compile and Triton build small C files at run time: they need gcc, the C library's headers and Python.h; ccache in front of gcc can break it (CC=/usr/bin/gcc).",
        "torch.compile 和 Triton 运行时要编译 C 代码：需要 gcc、libc 头文件和 Python.h；套了 ccache 的 gcc 可能出错（用 CC=/usr/bin/gcc）。",
    ),
    command="apt-get install -y build-essential python3-dev  # Fedora/RHEL: dnf install gcc glibc-devel kernel-headers python3-devel",
)
