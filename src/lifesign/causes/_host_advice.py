"""What to do when the surroundings of the engine are too small or closed: the advice of host-resource."""

from __future__ import annotations

import shlex

from msgspec.structs import replace

from lifesign.causes._advice import UNPINNED_ATTENTION
from lifesign.remedies.library import comm, host
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

WHO_HAS_PORT = Remedy(
    slug="who-has-the-port",
    kind="check",
    title=T("find out which process holds the port", "查哪个进程占用了端口"),
    why=T(
        "A left-over engine process of the last run is the usual one; end exactly that one.",
        "多半是上次运行留下的引擎进程；只结束这一个。",
    ),
    command="ss -ltnp | grep ':8000 '; lifesign reap",
)
OTHER_PORT = Remedy(
    slug="other-port",
    kind="flag",
    title=T("or listen on another port", "或换一个端口"),
    why=T("If another process in use there is wanted, choose a free port.", "如果那个进程是需要的，就换个空闲端口。"),
    forms=(Form("--port", "8001"),),
)
DISTINCT_INNER_PORT = host.OTHER_VLLM_PORT
MASTER_PORT = Remedy(
    slug="distinct-master-port",
    kind="check",
    title=T(
        "check --master-port, MASTER_PORT and the group port of the framework",
        "检查 --master-port、MASTER_PORT 以及框架的通信组端口",
    ),
    why=T(
        "Every group of processes on the machine needs a distinct port, also after a restart (TIME_WAIT, left-over processes).",
        "本机每组进程都要用不同的端口，重启后也一样（TIME_WAIT、残留进程）。",
    ),
    command='env | grep -E "PORT"; ss -ltnp | grep python',
)


def for_api_port(port: str) -> tuple[Remedy, ...]:
    """The advice for the API server's own port."""
    who = replace(WHO_HAS_PORT, command=f"ss -ltnp | grep ':{port or '8000'} '; lifesign reap")
    return (who, OTHER_PORT, MASTER_PORT)


def for_inner_port(port: str) -> tuple[Remedy, ...]:
    """The advice for a port between the engine's processes."""
    who = replace(WHO_HAS_PORT, command=f"ss -ltnp | grep ':{port} '; lifesign reap") if port else WHO_HAS_PORT
    return (DISTINCT_INNER_PORT, who, MASTER_PORT)


SHM_SIZE = host.SHM_SIZE
IPC_HOST = Remedy(
    slug="docker-ipc-host",
    kind="command",
    title=T("or let it use the host's", "或者直接用宿主机的"),
    why=T(
        "The container then sees the host's /dev/shm (compose: ipc: host).",
        "容器会看到宿主机的 /dev/shm（compose 写 ipc: host）。",
    ),
    command="docker run --ipc=host ...",
    source="vLLM documentation: docker",
)
SHM_KUBERNETES = Remedy(
    slug="kubernetes-shm",
    kind="command",
    title=T("in Kubernetes: mount a memory volume at /dev/shm", "Kubernetes：在 /dev/shm 挂载内存卷"),
    why=T(
        "emptyDir with medium: Memory and a sizeLimit; it counts as memory of the pod.",
        "emptyDir，medium: Memory，并设 sizeLimit；它计入 pod 的内存。",
    ),
    command="kubectl patch ... # volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}], mountPath: /dev/shm",
)
SHM_LEFTOVERS = Remedy(
    slug="shm-leftovers",
    kind="check",
    title=T("look for left-over segments of dead engines", "清理已死引擎留下的共享段"),
    why=T("Killed engines leave psm_* and nccl-* files behind.", "被杀的引擎会留下 psm_*、nccl-* 文件。"),
    command="df -h /dev/shm; ls -l /dev/shm | head; lifesign reap",
)
IPC_SHARED = host.SHARED_SHM_NAMESPACE
NCCL_SHM_OFF = comm.NCCL_SHM_OFF
WRITABLE_HOME = Remedy(
    slug="writable-home",
    kind="env",
    title=T("give the process a HOME that it may write to", "给进程一个可写的 HOME"),
    why=T("A random user id in a container often has HOME=/.", "容器里随机分配的用户 ID 常常 HOME=/。"),
    forms=(Form("HOME", "/tmp/home"),),
)
CACHE_DIRS = host.WRITABLE_CACHES
OWNER = Remedy(
    slug="owner-of-the-folder",
    kind="check",
    title=T(
        "look who owns the path in the message, and who runs the process", "查看报错路径的属主，以及进程以谁的身份运行"
    ),
    why=T(
        "Mounted volumes keep the owner of the host; SELinux may forbid access as well (mount option :z).",
        "挂载的卷保留宿主机属主；SELinux 也可能拦截（挂载时加 :z）。",
    ),
    command="id; ls -ld /PATH/IN/THE/MESSAGE",
)
UID_WITHOUT_NAME = (
    Remedy(
        slug="user-name-for-uid",
        kind="command",
        title=T("give the user id a name", "给这个用户 ID 一个名字"),
        why=T(
            "Setting USER or LOGNAME is enough for getpass; an entry in /etc/passwd satisfies everything.",
            "设置 USER 或 LOGNAME 就够 getpass 用了；在 /etc/passwd 里加一条则一劳永逸。",
        ),
        command="export USER=vllm LOGNAME=vllm HOME=/tmp/home; mkdir -p /tmp/home",
    ),
    Remedy(
        slug="inductor-cache-folder",
        kind="env",
        title=T("or name the cache folder, so that no user name is needed", "或者指定缓存目录，这样就不需要用户名"),
        why=T(
            "torch only asks for the name to build this path; Triton has TRITON_CACHE_DIR.",
            "torch 只是为了拼这个路径才查用户名；Triton 对应 TRITON_CACHE_DIR。",
        ),
        forms=(Form("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor"),),
    ),
    Remedy(
        slug="run-as-user",
        kind="command",
        title=T("or run the container as a user that exists in the image", "或者以镜像里存在的用户运行容器"),
        why=T(
            "OpenShift assigns a random uid unless the security context says otherwise.",
            "OpenShift 默认分配随机 uid，除非在 securityContext 里指定。",
        ),
        command="docker run --user 0 ...",
    ),
)
PIDS_LIMIT = host.ULIMIT_THREADS
FEWER_THREADS = Remedy(
    slug="fewer-threads",
    kind="env",
    title=T("start fewer threads per process", "每个进程少开线程"),
    why=T("OpenMP and OpenBLAS take one thread per core otherwise.", "否则 OpenMP 和 OpenBLAS 会按核数开线程。"),
    forms=(Form("OMP_NUM_THREADS", "8"),),
    cost=T("slower work on the CPU", "CPU 上的工作变慢"),
)
WSL_PINNED = Remedy(
    slug="wsl-pinned-memory",
    kind="check",
    title=T(
        "on WSL: give the VM more memory and update Windows and its NVIDIA driver",
        "WSL：给虚拟机更多内存，并更新 Windows 和 NVIDIA 驱动",
    ),
    why=T(
        "Under WSL only a part of the VM's memory can be pinned (page-locked); raise memory= in .wslconfig, and use no CPU offload.",
        "WSL 下只有一部分虚拟机内存可以锁页（pin）；在 .wslconfig 里调大 memory=，并且不要用 CPU 卸载。",
    ),
    command="wsl --shutdown   # after editing %UserProfile%\\.wslconfig",
    source="NVIDIA documentation: CUDA on WSL, limitations of pinned memory",
)
MEMLOCK = Remedy(
    slug="memlock-unlimited",
    kind="command",
    title=T("allow locked memory", "允许锁定内存"),
    why=T(
        "docker: --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity.",
        "docker：--ulimit memlock=-1；systemd：LimitMEMLOCK=infinity。",
    ),
    command="ulimit -l; docker run --ulimit memlock=-1 ...",
)
OTHER_BACKEND = UNPINNED_ATTENTION
NATIVE_LINUX = Remedy(
    slug="native-linux",
    kind="check",
    title=T("if it stays: run on native Linux instead of WSL or a vGPU", "仍然不行：改用原生 Linux，不用 WSL 或 vGPU"),
    why=T("There pinned memory has no such limit.", "那里锁页内存没有这种限制。"),
)
NOFILE = host.ULIMIT_NOFILE
NOFILE_DOCKER = Remedy(
    slug="docker-nofile",
    kind="command",
    title=T("in docker and systemd: set nofile there", "docker 和 systemd：在那边设置 nofile"),
    why=T(
        "The shell's limit doesn't reach the service. systemd: LimitNOFILE=65535.",
        "shell 里的设置影响不到服务。systemd：LimitNOFILE=65535。",
    ),
    command="docker run --ulimit nofile=65535:65535 ...",
)
DISK_SPACE = host.DISK_SPACE
MOVE_CACHE = Remedy(
    slug="move-hf-home",
    kind="env",
    title=T("put the model cache on a larger disk", "把模型缓存放到更大的盘上"),
    why=T("Downloads and xet chunks all go below HF_HOME.", "下载和 xet 分块都在 HF_HOME 下面。"),
    forms=(Form("HF_HOME", "/data/hf"),),
)
_MOVE_VLLM_CACHE = Remedy(
    slug="move-vllm-cache",
    kind="env",
    title=T("put vLLM's cache on a larger disk", "把 vLLM 的缓存放到更大的盘上"),
    why=T(
        "Compiled graphs and vLLM's other caches go below VLLM_CACHE_ROOT (default ~/.cache/vllm).",
        "编译产物等 vLLM 自己的缓存都在 VLLM_CACHE_ROOT 下面（默认 ~/.cache/vllm）。",
    ),
    forms=(Form("VLLM_CACHE_ROOT", "/data/vllm-cache"),),
)
_MOVE_TRITON_CACHE = Remedy(
    slug="move-triton-cache",
    kind="env",
    title=T("put Triton's cache on a larger disk", "把 Triton 的缓存放到更大的盘上"),
    why=T(
        "Triton keeps its compiled kernels below TRITON_CACHE_DIR (default ~/.triton/cache).",
        "Triton 编译出的 kernel 存在 TRITON_CACHE_DIR 下面（默认 ~/.triton/cache）。",
    ),
    forms=(Form("TRITON_CACHE_DIR", "/data/triton-cache"),),
)
_MOVE_INDUCTOR_CACHE = Remedy(
    slug="move-inductor-cache",
    kind="env",
    title=T("put torch's compile cache on a larger disk", "把 torch 的编译缓存放到更大的盘上"),
    why=T(
        "torch.compile writes below TORCHINDUCTOR_CACHE_DIR (default /tmp/torchinductor_USER).",
        "torch.compile 写到 TORCHINDUCTOR_CACHE_DIR 下面（默认 /tmp/torchinductor_用户名）。",
    ),
    forms=(Form("TORCHINDUCTOR_CACHE_DIR", "/data/inductor-cache"),),
)
_MOVE_FLASHINFER_CACHE = Remedy(
    slug="move-flashinfer-cache",
    kind="env",
    title=T("put FlashInfer's cache on a larger disk", "把 FlashInfer 的缓存放到更大的盘上"),
    why=T(
        "FlashInfer builds its kernels below FLASHINFER_WORKSPACE_BASE/.cache/flashinfer (default: HOME).",
        "FlashInfer 在 FLASHINFER_WORKSPACE_BASE/.cache/flashinfer 下编译 kernel（默认在 HOME 下）。",
    ),
    forms=(Form("FLASHINFER_WORKSPACE_BASE", "/data/flashinfer"),),
)
_MOVE_TMP = Remedy(
    slug="move-tmp",
    kind="env",
    title=T("put temporary files on a larger disk", "把临时文件放到更大的盘上"),
    why=T(
        "Temporary files go to TMPDIR (default /tmp). Keep the path short: socket names below it may have 107 characters.",
        "临时文件写到 TMPDIR（默认 /tmp）。路径要短：其中的 socket 路径最长 107 个字符。",
    ),
    forms=(Form("TMPDIR", "/data/tmp"),),
)
# Which folder is full, by what the path or the innermost frames show: the first that fits. vLLM keeps torch's and Triton's
# caches inside its own when it compiles, so its folder stands first.
_FULL_FOLDERS: tuple[tuple[tuple[str, ...], Remedy], ...] = (
    (("/vllm/torch_compile_cache", ".cache/vllm", "vllm/compilation/"), _MOVE_VLLM_CACHE),
    (("torchinductor_", "torch/_inductor"), _MOVE_INDUCTOR_CACHE),
    (("/.triton", "triton/runtime", "triton/compiler"), _MOVE_TRITON_CACHE),
    (("flashinfer",), _MOVE_FLASHINFER_CACHE),
    (("huggingface", "safetensors", "modelscope", "xet"), MOVE_CACHE),
    (("'/tmp/", '"/tmp/', "tempfile.py"), _MOVE_TMP),
)


def for_full_disk(path: str, clues: str) -> tuple[Remedy, ...]:
    """The advice for a full disk: `path` as the error names it, or empty; `clues` the path and the frames, innermost last.

    What moves is the folder that was written to; a full disk below ~/.cache/vllm isn't helped by HF_HOME.
    """
    room = DISK_SPACE
    if path.startswith("/") and "/" in path[1:]:
        folder = shlex.quote(path.rsplit("/", 1)[0])
        room = replace(DISK_SPACE, command=f"df -h {folder}; du -sh ~/.cache/* /tmp 2>/dev/null | sort -h")
    for signs, remedy in _FULL_FOLDERS:
        if any(sign in clues for sign in signs):
            return (room, remedy)
    return (room, MOVE_CACHE)


WHO_HOLDS_DEVICE = Remedy(
    slug="who-holds-the-device",
    kind="check",
    title=T("find the process that holds the device", "找出占用设备的进程"),
    why=T(
        "End that process, or wait for the other job; then start again.",
        "结束那个进程，或等别的任务跑完，再重新启动。",
    ),
    command="sudo fuser -v /dev/vfio/* /dev/accel/* 2>&1; hl-smi 2>/dev/null",
)

OWN_SHM = Remedy(
    slug="writable-shm",
    kind="command",
    title=T("give the container a /dev/shm that it may write to", "给容器一个可写的 /dev/shm"),
    why=T(
        "--read-only or a mount over /dev/shm took it away; a tmpfs brings it back.",
        "--read-only 或覆盖 /dev/shm 的挂载使它不可写；挂一个 tmpfs 即可。",
    ),
    command="docker run --tmpfs /dev/shm:rw,size=8g ...   # see it: mount | grep /dev/shm",
)
