"""What failing communication looks like in a log: the signatures of collective-comm.

NCCL, gloo, HCCL and oneCCL each have their own dialect, and healthy logs hold many of their warnings: a warning only
counts here when a call fails after it.
"""

from __future__ import annotations

from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Signature
from lifesign.facts.model import Event, Life, Phase

TEARDOWN_FRAMES = (
    ":destroy_process_group",
    ":destroy_distributed_environment",
    ":destroy_model_parallel",
    ":abort_process_group",
)

DATA_PARALLEL_FRAMES = (
    ":has_unfinished_dp",
    ":_has_global_unfinished_reqs",
    ":coordinate_batch_across_dp",
    ":num_tokens_across_dp",
    ":sync_kv_cache_memory_size",
    "dp_utils.py",
    ":_sync_metadata_across_dp",
    ":_synchronize_dp_ranks",
)
"""Where data-parallel ranks wait for each other in every step."""

DEVICE_MEMORY = ("out of memory", "Cuda failure 2 ", "CUDA failure 2 ", "OutOfMemory", "hipErrorOutOfMemory")
DEVICE_FAULT = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "illegal instruction",
    "Cuda failure 700",
    "Cuda failure 719",
    "Cuda failure 710",
    "ECC error",
    "uncorrectable",
    "Cuda failure 900",
    "previous error during capture",
)
SHARED_MEMORY = ("/dev/shm", "shared memory segment", "No space left on device")
DUPLICATE = ("Duplicate GPU detected",)
NOT_OURS_NEAR = (*SHARED_MEMORY, *DUPLICATE)

WARN_NETWORK = (
    r"socketStartConnect|socketPollConnect|socketProgress|socketTryAccept|[Cc]onnect to|Call to (?:connect|bind|recv|send|accept|listen|ibv)|"
    r"no socket interface|[Bb]ootstrap|Connection refused|No route to host|Network is unreachable|"
    r"Got completion|ibv_(?:modify|create|reg|post|poll)|NET/(?:IB|Socket|OFI)|No usable|not enough addresses|"
    r"Message truncated|[Tt]imed? ?out|Could not find"
)
WARN_HARMLESS = (
    "libibverbs",
    "libnccl-net",
    "libnccl-env",
    "libnccl-tuner",
    "libnccl-profiler",
    "Could not find a path",
    "iommu=pt",
    "NCCL_IGNORE",
    "Could not enable P2P",
    "ras/",
    "RAS ",
)


def _nccl_failed_after(event: Event, life: Life) -> bool:
    """A warning of NCCL only counts when a call of NCCL fails after it: healthy logs hold plenty of warnings."""
    return life.after(event, *reading.NCCL_ERRORS, "ncclRemoteError", "DistBackendError") is not None


def _xpu_group(event: Event, life: Life) -> bool:
    """Whether several XPU ranks talk to each other (one card alone has nothing to talk to)."""
    return life.world_size > 1 or life.mentions("|CCL_", "ccl_world_size", "backend=ccl", "backend=xccl") is not None


def _several_ranks(event: Event, life: Life) -> bool:
    return life.world_size > 1 or _int(life, "data_parallel_size") > 1 or life.platform == "npu"


def _int(life: Life, name: str) -> int:
    try:
        return int(str(life.config.get(name, 1)))
    except ValueError:
        return 1


_CUSTOM_AR = ("custom_all_reduce.cuh:", "custom_all_reduce.cu:", "custom_all_reduce_hip", "quick_all_reduce.cuh:")
_GLOO_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Application timeout caused pair closure",
    "Socket closed",
    "Broken pipe",
)
_HCCL = (
    "HcclCommInitRootInfo",
    "HCCL function error",
    "hcclCommInitRootInfo",
    "HcclCommInitClusterInfo",
    "EI0006",
    "EI0009",
    "EI0002",
    "EI0004",
    "EI0005",
    "EJ0001",
    "wait socket establish timeout",
    "Transport init error",
    "Getting socket times out",
    "current working operator name is Hccl",
)

SIGNATURES = (
    Signature("custom-allreduce", any=_CUSTOM_AR, none=(*DEVICE_FAULT, "out of memory")),
    Signature(
        "custom-allreduce",
        any=(
            "CUDA error: invalid argument",
            "CUDA error: invalid resource handle",
            "CUDART error",
            "CUDA error: peer access",
            "invalid device pointer",
        ),
        frames=(
            "custom_all_reduce.py",
            "_custom_ops.py:register_buffer",
            ":register_graph_buffers",
            ":get_graph_buffer_ipc_meta",
            ":create_shared_buffer",
        ),
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "custom-allreduce",
        any=("batch testing peer-to-peer access",),
        kinds=("exception", "wrapper"),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "nccl-timeout",
        any=("Watchdog caught collective operation timeout",),
        none=("CUDA error", "WorkHCCL"),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature("hccl-timeout", all=("WorkHCCL", "before timing out"), certainty="supported", strength=SYMPTOM),
    Signature(
        "hccl-timeout",
        any=("hccl fftsplus task timeout occurred", "Notify_Wait_Time_Out(EI0002)"),
        kinds=("plain", "log", "exception", "native"),
        certainty="supported",
    ),
    Signature(
        "nccl-timeout",
        any=(
            "watchdog got stuck",
            "Collective operation timeout: WorkNCCL",
            "ProcessGroupNCCL watchdog hang",
            "ncclGroupEnd timed out",
        ),
        none=DEVICE_FAULT,
        certainty="possible",
        strength=SYMPTOM,
    ),
    Signature(
        "nccl-unhandled-cuda",
        all=("NCCL WARN",),
        regex=r"(?:C[Uu][Dd][Aa]|HIP) failure",
        none=(*DEVICE_MEMORY, *DEVICE_FAULT),
        when=_nccl_failed_after,
    ),
    Signature(
        "nccl-init",
        all=("NCCL WARN",),
        regex=WARN_NETWORK,
        none=(*WARN_HARMLESS, *NOT_OURS_NEAR, *DEVICE_MEMORY),
        when=_nccl_failed_after,
    ),
    Signature(
        "nccl-init",
        any=(*reading.NCCL_ERRORS, "ncclRemoteError", "ncclInvalidUsage"),
        none=("NCCL WARN", "NCCL INFO"),
        kinds=("exception", "wrapper", "log"),
        when=reading.is_loud,
    ),
    Signature(
        "nccl-remote",
        any=(
            "NCCL communicator was aborted",
            "NCCL communicator encountered error",
            "remote process exited or there was a network error",
        ),
        none=DEVICE_FAULT,
        certainty="possible",
        strength=SYMPTOM,
    ),
    Signature(
        "nccl-init",
        any=(
            "The client socket has timed out after",
            "The client socket has failed to connect to any network address",
            "waiting for clients",
            "clients joined",
            "failed to load the NCCL library for unique-id rendezvous",
        ),
        none=("EADDRINUSE",),
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "gloo-dp-desync",
        any=("op.preamble.length <= op.nbytes", "op.getOpcode()", "Mismatched collective"),
        certainty="supported",
    ),
    Signature(
        "gloo-init",
        any=(
            "onnectFullMesh failed",
            "unsupported gloo device",
            "Unable to find address for",
            "unable to resolve hostname",
            "gloo::IoException: Unable",
        ),
        none=("closed by peer", "reset by peer", "Too many open files"),
        certainty="supported",
    ),
    Signature("gloo-peer-lost", all=("gloo",), regex="|".join(_GLOO_LOST), certainty="possible", strength=SYMPTOM),
    Signature(
        "gloo-peer-lost",
        any=(
            "Timed out waiting",
            "Barrier timed out after",
            "Barrier departure timed out",
            "Failed to signal barrier",
            "Application timeout",
        ),
        regex=r"gloo|[Bb]arrier|recv operation|send operation",
        certainty="possible",
        strength=SYMPTOM,
    ),
    Signature(
        "oneccl",
        any=("oneCCL:", "|CCL_ERROR|", "ccl::v1::exception", "oneapi::ccl", "libccl.so"),
        none=("fallback to", "falling back"),
        kinds=("exception", "wrapper", "log", "plain", "native"),
    ),
    Signature(
        "oneccl",
        any=("UR_RESULT_ERROR_DEVICE_LOST",),
        frames=("torch/distributed/", ":all_reduce", ":all_gather", "xpu_communicator"),
        certainty="supported",
    ),
    Signature(
        "oneccl",
        any=("UR_RESULT_ERROR_DEVICE_LOST",),
        when=_xpu_group,
        phases=(Phase.LOAD, Phase.PROFILE),
        certainty="possible",
        strength=SYMPTOM,
    ),
    Signature("hccl-init", any=_HCCL, none=("aicore execution", "507014"), when=_several_ranks),
    Signature(
        "mnnvl-workspace",
        any=(
            "mnnvl",
            "MNNVL",
            "Mnnvl",
            "all-reduce workspace",
            "allreduce workspace",
            "Allreduce norm fusion workspace",
        ),
        none=("out of memory",),
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "mnnvl-workspace",
        frames=(
            "flashinfer_all_reduce.py",
            "flashinfer/comm/",
            "trtllm_mnnvl",
            ":create_allreduce_fusion_workspace",
            "trtllm_allreduce",
            "allreduce_rms_fusion.py",
        ),
        none=("out of memory", *DEVICE_FAULT, "ninja", "nvcc"),
        kinds=("exception",),
        certainty="supported",
    ),
    Signature(
        "symm-mem",
        any=("SymmMem", "symmetric memory", "CUDASymmetricMemory", "_SymmetricMemory"),
        none=("Communicator is not available", "will be disabled", "out of memory", "overlapping devices"),
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "deepep-nvshmem",
        any=("nvshmem", "NVSHMEM", "DeepEP error", "DeepEP timeout", "DeepEPv2", "deep_ep.cpp", "deep_ep/"),
        none=(
            "No module named",
            "cannot open shared object",
            "out of memory",
            "num_max_dispatch_tokens",
            *DEVICE_FAULT,
        ),
        kinds=("exception", "wrapper", "plain", "native"),
        certainty="supported",
        when=reading.is_loud,
    ),
    Signature(
        "nccl-segfault",
        any=(
            "ncclMemoryPoolAlloc",
            "ncclProxyProgress",
            "ncclProxyService",
            "ncclCuMemHostEnable",
            "ncclTopoGetSystem",
        ),
        none=("SIGBUS", "Bus error"),
        kinds=("native", "plain"),
        certainty="supported",
        strength=SYMPTOM,
        when=lambda event, life: life.before(event, "SIGBUS", "Bus error", within=15) is None,
    ),
    Signature(
        "nccl-segfault",
        any=("Segfault encountered", "SIGSEGV", "Segmentation fault", "Signal 11", "signal 11"),
        kinds=("native", "plain"),
        when=lambda event, life: (
            life.after(
                event,
                "ncclMemoryPool",
                "ncclProxy",
                "ncclCuMem",
                "ncclTopo",
                "ncclComm",
                "ncclGroup",
                "libnccl",
                within=25,
            )
            is not None
        ),
        certainty="supported",
        strength=SYMPTOM,
    ),
)
