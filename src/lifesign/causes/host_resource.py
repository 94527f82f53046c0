"""host-resource: the operating system or the container refused a port, shared memory, a file, a thread, or locked memory.

The engine is fine; its surroundings are too small or closed. Several of these arrive in disguise: /dev/shm that is too
small ends as an NCCL error or a bus error, a user id without a name as an uninspectable model, pinned memory under WSL
as a CUDA error. `OSError: [Errno 24] Too many open files` also stands inside a warning of nearly every healthy log.
"""

from __future__ import annotations

import re

from lifesign.causes import _host_advice as advice
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.text import T

FULL_SHM = re.compile(r"\s(?:9[5-9]|100)% +/dev/shm$")
SHM_NEAR = (
    "/dev/shm has only",
    "ncclShmSetup",
    "proxyShmSetup",
    "shared memory segment",
    "shm_broadcast",
    "SharedMemory",
    "/dev/shm ",
    "% /dev/shm",
)
PIN_FRAMES = (
    ":pin_memory",
    "flashinfer",
    ":is_pin_memory_available",
    "pin_memory",
    ":_pin",
    "cpu_offload",
    "cudaHostAlloc",
)
CACHE_FRAMES = (
    "torch/_inductor",
    "triton",
    "torch_compile",
    "/cache",
    "tempfile",
    ":makedirs",
    ":mkdir",
    "vllm/envs.py",
    "getpass",
    "usage_lib",
    "huggingface_hub",
    "flashinfer",
)


def _loud(event: Event, life: Life) -> bool:
    return reading.is_loud(event, life) and event.weight != "request"


def _not_a_notice(event: Event, life: Life) -> bool:
    return _loud(event, life) and not event.has("Found ulimit of", "Consider increasing with ulimit")


def _port_refused(event: Event, life: Life) -> bool:
    """Whether the port was really needed: sockets are often tried twice, and NCCL's RAS port is optional."""
    if event.weight == "request" or event.level in ("INFO", "DEBUG") or event.has("NCCL WARN"):
        return False
    if event.kind in ("exception", "wrapper") or event.level in ("ERROR", "CRITICAL"):
        return True
    return event.has("while attempting to bind") or (
        life.after(event, "failed to listen", "DistNetworkError", "EADDRINUSE") is not None
    )


def _nccl_failed_after(event: Event, life: Life) -> bool:
    """A warning of NCCL or ray about shared memory counts when something dies after it."""
    return life.after(event, *reading.NCCL_ERRORS, "DistBackendError", "SIGBUS", "Bus error") is not None


def _bus_error_of_shm(event: Event, life: Life) -> bool:
    """Whether shared memory was in use around a bus error; a truncated library gives the same signal."""
    loading = life.before(event, "Loading nccl from library", "Found nccl from library", within=4)
    if loading is not None and life.before(event, "vLLM is using nccl==", "Starting to load model", within=4):
        loading = None
    near = life.before(event, *SHM_NEAR) is not None or life.after(event, *SHM_NEAR, within=30) is not None
    return near or loading is None


def _locks_host_memory(event: Event, life: Life) -> bool:
    """Whether the log shows that page-locked memory was asked for: by frame, or by the source line of the last frames."""
    if event.exc is None:
        return True
    if event.exc.passes(*PIN_FRAMES):
        return True
    return any("pin_memory" in frame.code for frame in event.exc.frames[-6:])


_QUOTED_PATH = re.compile(r"['\"](/[^'\"\n]{1,300})['\"]")
_SHM_NAME = re.compile(r"'/(?:dev/shm/)?psm_\w{4,16}'")


def _refine(finding: Finding, life: Life) -> Finding | None:
    event = finding.event
    if finding.subtype == "port-in-use":
        return _refine_port(finding, life)
    if finding.subtype == "shm-too-small":
        full = next((e for e in life.events if FULL_SHM.search(e.text)), None)
        if event.has("SIGBUS", "Bus error") and full is None and life.mentions(*SHM_NEAR[:4]) is None:
            finding.certainty = "possible"
            finding.strength = SYMPTOM
        reading.add_context(finding, full, T("df shows it full", "df 显示它已满"))
        small = life.mentions("/dev/shm has only")
        reading.add_context(finding, small, T("ray measured /dev/shm", "ray 测得的 /dev/shm 大小"))
    if finding.subtype == "permission" and _SHM_NAME.search(event.text[:2000]):
        finding.remedies = (advice.OWN_SHM, advice.IPC_HOST, advice.SHM_KUBERNETES)
        return reading.explain(
            finding,
            SUBTYPES["permission"].why,
            T(
                "The name is one of shared memory: /dev/shm is mounted read-only, or belongs to somebody else.",
                "这是共享内存的名字：/dev/shm 被挂载成只读，或属于别的用户。",
            ),
        )
    if finding.subtype == "permission" and "getpwuid" in event.text:
        finding.remedies = advice.UID_WITHOUT_NAME
        return reading.explain(
            finding,
            T(
                "The process runs under a user id that /etc/passwd doesn't know (usual on OpenShift); getpass.getuser(), which torch uses to name its cache folder, then fails.",
                "进程的用户 ID 在 /etc/passwd 里没有对应的名字（OpenShift 常见）；torch 用 getpass.getuser() 命名缓存目录，于是失败。",
            ),
        )
    if finding.subtype == "disk-full":
        named = _QUOTED_PATH.search(event.text[:2000])
        path = named[1] if named else ""
        frames = [f"{frame.file}:{frame.func}" for frame in event.exc.frames[-12:]] if event.exc else []
        finding.remedies = advice.for_full_disk(path, " ".join([repr(path), *frames]) if path or frames else "")
    if finding.subtype == "pinned-memory":
        if not _locks_host_memory(event, life):
            finding.certainty = "supported"
        return reading.cite(finding, "OS call failed", "cudaErrorOperatingSystem")
    return finding


def _refine_port(finding: Finding, life: Life) -> Finding:
    """Tells the API server's port from the ports that workers choose, and names the number."""
    event = finding.event
    match = re.search(
        r"port: (\d{2,5})|\]:(\d{2,5})|', (\d{2,5})\)|0\.0\.0\.0:(\d{2,5})|tcp://[\w.\-]{1,60}:(\d{2,5})", event.text
    )
    port = next((group for group in match.groups() if group), "") if match else ""
    inside = event.has("EADDRINUSE", "c10d", "server socket") or (
        event.exc is not None and event.exc.passes("torch/distributed", "StatelessProcessGroup", "TCPStore", "zmq")
    )
    if port:
        finding.values["port"] = port
    if inside:
        finding.remedies = advice.for_inner_port(port)
        return reading.explain(
            finding,
            T(
                f"A port for the traffic between the engine's own processes{' (' + port + ')' if port else ''} is taken, often by a second engine with the same VLLM_PORT or group port.",
                f"引擎内部进程之间通信用的端口{'（' + port + '）' if port else ''}已被占用，常见于另一个引擎设了相同的 VLLM_PORT 或通信组端口。",
            ),
        )
    finding.remedies = advice.for_api_port(port)
    return finding


SUBTYPES = {
    "port-in-use": Subtype(
        T("A network port is already taken", "端口已被占用"),
        T(
            "Another process listens on this port: an older server, a left-over process of a crashed engine, or a second engine on the machine.",
            "有其他进程在监听这个端口：旧的服务、崩溃引擎留下的进程，或本机的另一个引擎。",
        ),
        advice.for_api_port(""),
    ),
    "shm-too-small": Subtype(
        T("The shared memory of the container (/dev/shm) is too small", "容器的共享内存（/dev/shm）太小"),
        T(
            "vLLM, NCCL and ray pass data between processes through /dev/shm; docker gives it 64 MiB unless told otherwise.",
            "vLLM、NCCL 和 ray 都通过 /dev/shm 在进程间传数据；docker 默认只给 64 MiB。",
        ),
        (advice.SHM_SIZE, advice.IPC_HOST, advice.SHM_KUBERNETES, advice.SHM_LEFTOVERS),
        ("vllm#4383", "vllm#18831"),
    ),
    "shm-namespace": Subtype(
        T("Processes that must share memory live in different containers", "需要共享内存的进程在不同的容器里"),
        T(
            "One process created a segment in its own /dev/shm, and another one that doesn't see this /dev/shm tried to open it.",
            "一个进程在自己的 /dev/shm 里建了共享段，另一个看不到这个 /dev/shm 的进程去打开它。",
        ),
        (advice.IPC_SHARED, advice.NCCL_SHM_OFF, advice.SHM_LEFTOVERS),
    ),
    "permission": Subtype(
        T("The process may not read or write a file or folder it needs", "进程没有权限读写所需的文件或目录"),
        T(
            "Caches go to HOME, /tmp or the folders of VLLM_CACHE_ROOT and TRITON_CACHE_DIR. Here the user of the container may not write there, or HOME is `/`.",
            "缓存写到 HOME、/tmp 或 VLLM_CACHE_ROOT、TRITON_CACHE_DIR 指定的目录；容器里的用户没有写权限，或者 HOME 是 `/`。",
        ),
        (advice.WRITABLE_HOME, advice.CACHE_DIRS, advice.OWNER),
    ),
    "threads": Subtype(
        T("The system refused another thread or process", "系统不允许再创建线程或进程"),
        T(
            "The limit on processes (ulimit -u, or the container's pids limit) is reached; big machines start one thread per core in each library.",
            "进程数达到上限（ulimit -u 或容器的 pids 限制）；核数多的机器上每个库都会按核数开线程。",
        ),
        (advice.PIDS_LIMIT, advice.FEWER_THREADS),
    ),
    "pinned-memory": Subtype(
        T("Page-locked host memory could not be allocated", "申请锁页内存失败"),
        T(
            "The CUDA error speaks of the operating system: pinned memory is limited or unavailable here (WSL, vGPU, memlock limit). The model and the GPU are not at fault.",
            "这个 CUDA 错误说的是操作系统：此处锁页内存受限或不可用（WSL、vGPU、memlock 限制），与模型和 GPU 无关。",
        ),
        (advice.WSL_PINNED, advice.MEMLOCK, advice.OTHER_BACKEND, advice.NATIVE_LINUX),
    ),
    "fd-limit": Subtype(
        T("Too many open files", "打开的文件数超过限制"),
        T(
            "The limit on file descriptors (ulimit -n) is too small for the sockets and files of the engine.",
            "文件描述符上限（ulimit -n）太小，装不下引擎的套接字和文件。",
        ),
        (advice.NOFILE, advice.NOFILE_DOCKER),
    ),
    "device-busy": Subtype(
        T("Another process holds the accelerator", "加速卡被另一个进程占用"),
        T(
            "The device file could not be opened because somebody has it open already: an earlier run that was not cleaned up, or another job. One process at a time may use a TPU or a Gaudi card (HABANA_VISIBLE_DEVICES and HABANA_VISIBLE_MODULES share those out).",
            "设备文件已被占用，打不开：可能是上次运行没有清理干净，或别的任务正在用。TPU 和 Gaudi 卡同一时刻只能由一个进程使用（Gaudi 用 HABANA_VISIBLE_DEVICES、HABANA_VISIBLE_MODULES 分配）。",
        ),
        (advice.WHO_HOLDS_DEVICE,),
    ),
    "disk-full": Subtype(
        T("The disk is full", "磁盘已满"),
        T("A download, a cache or a temporary file could not be written.", "下载、缓存或临时文件写不下去。"),
        (advice.DISK_SPACE, advice.MOVE_CACHE),
    ),
    "memlock": Subtype(
        T("The network card may not lock memory", "网卡无法锁定内存"),
        T(
            "RDMA registers memory with the card; the limit on locked memory (ulimit -l) forbids it.",
            "RDMA 要向网卡注册内存，锁页内存上限（ulimit -l）不允许。",
        ),
        (advice.MEMLOCK,),
    ),
}

SIGNATURES = (
    Signature(
        "port-in-use",
        any=(
            "Address already in use",
            "address already in use",
            "EADDRINUSE",
            "Errno 98",
            "Errno 48]",
            "WinError 10048",
            "server socket has failed to listen",
        ),
        kinds=("exception", "wrapper", "log", "plain"),
        when=_port_refused,
    ),
    Signature(
        "memlock",
        any=("Cannot allocate memory", "RLIMIT_MEMLOCK"),
        regex=r"ibv_(?:reg_\w{0,12}mr|create|modify)|MEMLOCK|libfabric",
    ),
    Signature("shm-too-small", any=("Insufficient space in /dev/shm",)),
    Signature("shm-too-small", any=("Insufficient space in ",), all=("--shm-size",)),
    Signature(
        "shm-namespace",
        any=(
            "attaching to shared memory segment",
            "Error while attaching to",
            "failed to open /dev/shm",
            "Error: failed to open",
        ),
        when=_nccl_failed_after,
    ),
    Signature(
        "shm-too-small",
        any=("creating shared memory segment", "shared memory segment /dev/shm", "No space left on device"),
        all=("/dev/shm",),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "shm-too-small",
        any=("shared memory", "/dev/shm", "No space left on device", "posix_fallocate"),
        all=("NCCL WARN",),
        when=_nccl_failed_after,
    ),
    Signature(
        "shm-too-small",
        any=(
            "unable to open shared memory object",
            "unable to write to file </torch_",
            "unable to mmap",
            "shm_open failed",
            "unable to allocate shared memory(shm)",
            "insufficient shared memory (shm)",
        ),
        none=("Cannot allocate memory", ".safetensors", ".bin>"),
        kinds=("exception", "wrapper", "plain", "log"),
        when=_loud,
    ),
    Signature(
        "shm-too-small",
        any=("No space left on device", "Errno 28"),
        frames=("shared_memory.py", "shm_broadcast", "shm_object_storage", "torch/multiprocessing"),
        kinds=("exception",),
    ),
    Signature(
        "shm-too-small",
        any=("The object store is using /tmp instead of /dev/shm",),
        when=_nccl_failed_after,
        why=T(
            "ray found /dev/shm too small for its object store; NCCL then failed",
            "ray 发现 /dev/shm 太小，放不下它的对象存储；随后 NCCL 失败",
        ),
    ),
    Signature(
        "shm-too-small",
        any=("SIGBUS", "Bus error"),
        kinds=("native", "plain", "exception", "log", "death"),
        when=_bus_error_of_shm,
        certainty="supported",
    ),
    Signature(
        "shm-namespace",
        any=(
            "No such file or directory: '/psm_",
            "No such file or directory: '/torch_",
            "FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm",
        ),
        kinds=("exception", "wrapper"),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "disk-full",
        any=("No space left on device", "Disk quota exceeded", "os error 28", "Errno 28]", "Errno 122]"),
        none=("NCCL", "/dev/shm"),
        kinds=("exception", "wrapper", "plain"),
        when=_loud,
    ),
    Signature(
        "permission",
        any=(
            "getpwuid(): uid not found",
            "No username set in the environment",
            "Unable to determine home directory",
            "Could not determine home directory",
        ),
    ),
    Signature(
        "permission",
        any=("Permission denied", "PermissionError", "Read-only file system", "Operation not permitted: '"),
        types=(
            "PermissionError",
            "OSError",
            "RuntimeError",
            "FileNotFoundError",
            "BackendCompilerFailed",
            "InductorError",
            "LocalEntryNotFoundError",
        ),
        no_frames=("usage_lib", "flashinfer/comm", "mnnvl", "symm_mem"),
        when=_loud,
        kinds=("exception",),
    ),
    Signature(
        "permission",
        any=("Permission denied",),
        frames=("usage_lib",),
        kinds=("exception",),
        certainty="possible",
        strength=SYMPTOM,
    ),
    Signature(
        "permission",
        any=("Permission denied: '", "Read-only file system: '"),
        kinds=("wrapper", "log"),
        when=_loud,
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "permission",
        any=("Insufficient Permissions", "NVML_ERROR_NO_PERMISSION"),
        kinds=("exception",),
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "device-busy", all=("/dev/vfio/", "Device or resource busy"), kinds=("exception", "wrapper", "log", "plain")
    ),
    Signature("device-busy", any=("Device acquire failed",), kinds=("exception", "wrapper"), certainty="supported"),
    Signature(
        "threads",
        any=(
            "pthread_create failed",
            "pthread_create: ",
            "can't start new thread",
            "Thread creation failed",
            "libgomp: ",
            "Resource temporarily unavailable",
        ),
        regex=r"pthread_create|start new thread|Thread creation|fork|BlockingIOError|Resource temporarily",
        none=("zmq", "Again"),
        kinds=("exception", "wrapper", "plain", "native", "log"),
        when=_loud,
    ),
    Signature(
        "pinned-memory",
        any=("OS call failed or operation not supported on this OS", "cudaErrorOperatingSystem"),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "pinned-memory",
        any=("cudaHostAlloc", "cudaHostRegister", "pin_memory", "pinned memory"),
        regex=r"[Ff]ail|[Ee]rror|not supported|denied",
        none=("out of memory", "Out of memory"),
        kinds=("exception", "wrapper"),
        certainty="supported",
    ),
    Signature(
        "fd-limit",
        any=("Too many open files", "EMFILE", "Errno 24]"),
        kinds=("exception", "wrapper", "plain", "native", "log"),
        when=_not_a_notice,
    ),
)

CAUSE = Cause(
    slug="host-resource",
    code="B7",
    title=T("The host or container refused a resource", "主机或容器拒绝提供某种资源"),
    summary=T(
        "A port, shared memory, a writable folder, threads, file descriptors, disk or page-locked memory was not available.",
        "端口、共享内存、可写目录、线程、文件描述符、磁盘或锁页内存不可用。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=_refine,
    order=11,
)
