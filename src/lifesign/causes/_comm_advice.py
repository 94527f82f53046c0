"""What to do when ranks can't talk to each other: the advice of collective-comm, in one place because it is long.

The order inside each subtype follows one rule: first prove with a small all-reduce, outside of vLLM, whether the machines
can talk at all; only then turn knobs. Names of variables were checked against NCCL 2.21 to 2.28 and torch 2.6 to 2.13:
NCCL has no variable for a socket time-out.
"""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.facts.model import Life
from lifesign.remedies.library import comm, memory
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T


def _one_rank(life: Life) -> bool:
    return life.world_size < 2 and str(life.config.get("data_parallel_size", "1")) == "1"


ALL_REDUCE_TEST = comm.ALL_REDUCE_TEST
NCCL_DEBUG = comm.NCCL_DEBUG_INFO
SOCKET_IFNAME = comm.NCCL_IFNAME
GLOO_IFNAME = Remedy(
    slug="gloo-socket-ifname",
    kind="env",
    title=T("give gloo the right network interface", "给 gloo 指定正确的网卡"),
    why=T(
        "gloo binds to the address of the host name; on one machine `lo` is enough, on several it must be the interface between them.",
        "gloo 绑定主机名对应的地址；单机用 `lo` 即可，多机要用互联的网卡。",
    ),
    forms=(Form("GLOO_SOCKET_IFNAME", "eth0"),),
    unless=_one_rank,
    source="PyTorch documentation, torch.distributed: choosing the network interface",
)
IB_HCA = comm.NCCL_HCA
IB_OFF = comm.NCCL_IB_OFF
FLIGHT_RECORDER = comm.FLIGHT_RECORDER
HOST_IP = comm.HOST_IP
HOSTNAME = Remedy(
    slug="hostname-resolves",
    kind="check",
    title=T("check what the host name resolves to", "查看主机名解析到哪里"),
    why=T("It must be an address of this machine.", "它必须是本机的地址。"),
    command='getent hosts "$(hostname)"; ip -br addr',
)
FIREWALL = Remedy(
    slug="open-ports",
    kind="check",
    title=T("check that the nodes reach each other on any port", "确认节点之间任意端口都能互通"),
    why=T(
        "NCCL and gloo use random ports above 1024; a firewall between the nodes must let them through.",
        "NCCL 和 gloo 使用 1024 以上的随机端口，节点之间的防火墙必须放行。",
    ),
    command="nc -l 29511 &  # here, then on the other node: nc -zv THIS_NODE_IP 29511",
)
SHM_CHECK = Remedy(
    slug="shm-size-check",
    kind="check",
    title=T("look at the size of /dev/shm", "看 /dev/shm 有多大"),
    why=T(
        "NCCL shares buffers of ranks on one node through /dev/shm; docker gives it 64 MiB unless told otherwise (--shm-size=16g or --ipc=host).",
        "同一节点的 rank 通过 /dev/shm 共享缓冲区；docker 默认只给 64 MiB（用 --shm-size=16g 或 --ipc=host 调大）。",
    ),
    command="df -h /dev/shm; ulimit -l",
)
P2P_OFF = comm.NCCL_P2P_OFF
ACS = comm.IOMMU_ACS_OFF
CUMEM_OFF = comm.NCCL_CUMEM_OFF
DRIVER_FOR_PTX = Remedy(
    slug="driver-for-toolkit",
    kind="check",
    title=T("compare the driver with the CUDA version of torch and NCCL", "对比驱动版本与 torch、NCCL 的 CUDA 版本"),
    why=T(
        "`nvidia-smi` shows the newest CUDA version the driver knows. If torch or NCCL was built for a newer one, update the driver or install builds for the older CUDA version.",
        "`nvidia-smi` 显示驱动支持的最高 CUDA 版本。torch 或 NCCL 是为更新的 CUDA 编译的话，就升级驱动，或者改装旧 CUDA 的版本。",
    ),
    command='nvidia-smi | grep -i "cuda version"; python -c "import torch; print(torch.version.cuda, torch.cuda.nccl.version())"; pip list | grep -i nccl',
)
COMPAT_LIBRARY = Remedy(
    slug="cuda-compat",
    kind="check",
    title=T("in a container: use the cuda-compat library of the image", "容器里：使用镜像自带的 cuda-compat 库"),
    why=T(
        "On data-centre GPUs the forward compatibility package lets an older driver run a newer CUDA toolkit.",
        "数据中心 GPU 可以用前向兼容包，让旧驱动运行较新的 CUDA。",
    ),
    command="ls /usr/local/cuda/compat 2>/dev/null; ldconfig -p | grep libcuda.so",
    source="NVIDIA documentation: CUDA compatibility",
)
NCCL_VERSIONS = Remedy(
    slug="one-nccl-version",
    kind="check",
    title=T("make sure that one NCCL is loaded on every rank", "确认每个 rank 只加载同一个 NCCL"),
    why=T(
        "A second libnccl on LD_LIBRARY_PATH or in VLLM_NCCL_SO_PATH, or another version on another node, is refused as invalid usage.",
        "LD_LIBRARY_PATH 或 VLLM_NCCL_SO_PATH 里的另一个 libnccl，或另一台机器上的不同版本，会被当作 invalid usage 拒绝。",
    ),
    command='pip list | grep -i nccl; echo "$LD_LIBRARY_PATH $VLLM_NCCL_SO_PATH"; ldconfig -p | grep nccl',
)
ONE_GPU_PER_RANK = comm.ONE_RANK_PER_DEVICE
NO_EXPANDABLE_SEGMENTS = comm.DROP_EXPANDABLE_SEGMENTS
NO_CUSTOM_ALL_REDUCE = comm.DISABLE_CUSTOM_ALL_REDUCE
RANK_BEHIND = comm.FIND_SLOW_RANK
LONGER_COLLECTIVE = comm.DISTRIBUTED_TIMEOUT
OTHER_RANKS = Remedy(
    slug="read-the-other-ranks",
    kind="collect",
    title=T("read the logs of all other ranks and nodes around this time", "查看这一时刻其他所有 rank 和节点的日志"),
    why=T(
        "The rank that reports is the survivor. Give all logs to the diagnosis together: the earliest error is the cause.",
        "报错的是活下来的 rank。把所有日志一起交给诊断：最早的错误才是原因。",
    ),
    command="lifesign diagnose node0.log node1.log",
)
KERNEL_LOG = Remedy(
    slug="kernel-log",
    kind="collect",
    title=T("look whether the kernel ended the peer", "看看是不是内核结束了对端进程"),
    why=T("A process that was killed leaves no word in vLLM's log.", "被杀掉的进程在 vLLM 日志里不会留下任何痕迹。"),
    command='dmesg -T | grep -iE "oom|killed process|xid|segfault" | tail -20',
)
NEWER_NCCL = Remedy(
    slug="newer-nccl",
    kind="upgrade",
    title=T("a newer NCCL or vLLM", "换用更新的 NCCL 或 vLLM"),
    why=T(
        "Crashes in NCCL's pool and proxy threads were fixed in later releases; the version in use stands in the line `vLLM is using nccl==`.",
        "NCCL 内存池和代理线程的崩溃在后来的版本中修复过；当前版本见日志里的 `vLLM is using nccl==`。",
    ),
    command="pip install -U nvidia-nccl-cu12",
)
PRELOAD = comm.GPU_SHIM_OFF
CORE_DUMP = Remedy(
    slug="core-dump",
    kind="collect",
    title=T("keep a core dump and the NCCL debug log", "保留 core dump 和 NCCL 调试日志"),
    why=T("The frames inside libnccl say which part crashed.", "libnccl 内部的帧能说明哪一部分崩溃。"),
    command="ulimit -c unlimited; export PYTHONFAULTHANDLER=1 NCCL_DEBUG=INFO",
)
INIT_SEGFAULT = (PRELOAD, CUMEM_OFF, ALL_REDUCE_TEST, NCCL_DEBUG, NEWER_NCCL, CORE_DUMP)
SAME_CONFIG = Remedy(
    slug="same-version-and-flags",
    kind="check",
    title=T("start all ranks with the same vLLM version and flags", "所有 rank 使用相同的 vLLM 版本和参数"),
    why=T(
        "Differences (expert parallelism, EPLB, graph modes, scheduler limits) make the ranks issue different collectives.",
        "参数不同（专家并行、EPLB、图模式、调度上限）会让各 rank 发出不同的集合操作。",
    ),
    command="vllm --version",
)
HCCN_CHECK = comm.HCCL_NETWORK_CHECK
HCCL_IFNAME = Remedy(
    slug="hccl-interface",
    kind="env",
    title=T("name the host interface for HCCL", "给 HCCL 指定主机网卡"),
    why=T(
        "HCCL opens its first sockets over the host network; set HCCL_SOCKET_IFNAME (or HCCL_IF_IP to the node's own address) on every node, and let the firewall pass.",
        "HCCL 先通过主机网络建立 socket；各节点设置 HCCL_SOCKET_IFNAME（或把 HCCL_IF_IP 设为本机地址），并放行防火墙。",
    ),
    forms=(Form("HCCL_SOCKET_IFNAME", "eth0"),),
    source="Ascend documentation: HCCL environment variables",
)
HCCL_CONNECT_TIMEOUT = comm.HCCL_CONNECT
HCCL_EXEC_TIMEOUT = comm.HCCL_EXEC_TIMEOUT
STEP_TIMEOUT_NPU = Remedy(
    slug="npu-step-timeout",
    kind="env",
    title=T("let vLLM wait longer than HCCL does", "让 vLLM 等得比 HCCL 久"),
    why=T(
        "By default vLLM gives up a step after 300 s, and HCCL names the silent rank only after 1836 s; vllm-ascend sets 3000.",
        "默认情况下，vLLM 每步只等 300 秒，HCCL 要到 1836 秒才会指出没有应答的 rank；vllm-ascend 设为 3000。",
    ),
    forms=(Form("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "3000", since="0.9.2"),),
    source="vllm-ascend#13233",
)
HCCL_310P = Remedy(
    slug="hccl-310p-ranks",
    kind="check",
    title=T(
        "on 310P: check that the card supports communication between these chips", "310P：确认这些芯片之间支持通信"
    ),
    why=T(
        "300I Duo cards carry two chips; tensor parallelism over several cards needs the right rank table and driver.",
        "300I Duo 每卡两颗芯片；跨卡张量并行需要正确的 rank table 和驱动。",
    ),
    command="npu-smi info -t topo; npu-smi info",
)
XPU_ONE_CARD = replace(
    memory.SINGLE_DEVICE,
    title=T("prove it with one card", "用单卡验证"),
    why=T("If one card works, the communication is to blame.", "单卡能跑，问题就在通信。"),
)
XPU_IMAGE = comm.OLDER_ONECCL
CCL_VARIABLES = Remedy(
    slug="ccl-transport",
    kind="env",
    title=T("let oneCCL report, and try its other exchange", "让 oneCCL 输出日志，并换一种句柄交换方式"),
    why=T(
        "CCL_LOG_LEVEL=info shows the topology; CCL_ZE_IPC_EXCHANGE=sockets avoids pidfd/drmfd.",
        "CCL_LOG_LEVEL=info 显示拓扑；CCL_ZE_IPC_EXCHANGE=sockets 可绕开 pidfd/drmfd。",
    ),
    forms=(Form("CCL_ZE_IPC_EXCHANGE", "sockets"),),
    source="oneCCL documentation: environment variables",
)
NO_FLASHINFER_AR = Remedy(
    slug="no-flashinfer-all-reduce",
    kind="env",
    title=T("turn FlashInfer's all-reduce off", "关掉 FlashInfer 的 all-reduce"),
    why=T("NCCL takes over; on by default from 0.29.", "由 NCCL 接手；0.29 起默认开启。"),
    forms=(Form("VLLM_ALLREDUCE_USE_FLASHINFER", "0"),),
    cost=T("perhaps a little slower", "可能略慢"),
    source="vLLM environment variables",
)
NO_AR_FUSION = Remedy(
    slug="no-all-reduce-fusion",
    kind="flag",
    title=T("turn the fused all-reduce + norm pass off", "关掉 all-reduce 与 norm 的融合"),
    why=T("The fusion pass asks for the same workspace.", "融合 pass 要用同一块工作区。"),
    forms=(
        Form("--compilation-config", '{"pass_config": {"fuse_allreduce_rms": false}}', since="0.13.0"),
        Form("--compilation-config", '{"pass_config": {"enable_fi_allreduce_fusion": false}}', until="0.12.0"),
    ),
    cost=T("perhaps a little slower", "可能略慢"),
    source="vLLM compilation configuration: pass_config",
)
IMEX = Remedy(
    slug="imex-channel",
    kind="check",
    title=T("check the NVLink fabric and the IMEX channel in the container", "检查 NVLink fabric 和容器内的 IMEX 通道"),
    why=T(
        "Multi-node NVLink needs the IMEX daemon and a channel device inside the container.",
        "多节点 NVLink 需要 IMEX 守护进程，容器里也要有通道设备。",
    ),
    command="nvidia-smi -q | grep -A3 -i fabric; ls -l /dev/nvidia-caps-imex-channels",
)
NO_SYMM_MEM = comm.NO_SYMM_MEM
OTHER_ALL2ALL = Remedy(
    slug="other-all2all",
    kind="flag",
    title=T("another all-to-all back end", "换一个 all-to-all 后端"),
    why=T(
        "It needs neither DeepEP nor NVSHMEM; if it works, the RDMA set-up is at fault.",
        "不需要 DeepEP 和 NVSHMEM；如果它能跑，问题就在 RDMA 环境。",
    ),
    forms=(
        Form("--all2all-backend", "allgather_reducescatter", since="0.11.1"),
        Form("VLLM_ALL2ALL_BACKEND", "naive", until="0.11.0"),
    ),
    cost=T("slower expert parallelism", "专家并行变慢"),
)

NVLS_OFF = Remedy(
    slug="nccl-nvls-off",
    kind="env",
    title=T("keep NCCL off NVLink SHARP (multicast)", "让 NCCL 不用 NVLink SHARP（多播）"),
    why=T(
        "NVLS joins all GPUs of an NVSwitch into one multicast group; a virtual machine, a container with part of the cards or a fabric manager that isn't ready refuses it.",
        "NVLS 要把 NVSwitch 上的所有 GPU 编成一个多播组；虚拟机、只分到部分卡的容器，或 fabric manager 未就绪时都会被拒绝。",
    ),
    forms=(Form("NCCL_NVLS_ENABLE", "0"),),
    cost=T("somewhat slower all-reduce on NVSwitch machines", "NVSwitch 机器上的 all-reduce 会慢一些"),
    source="NCCL environment variables: NCCL_NVLS_ENABLE",
)
FABRIC_MANAGER = Remedy(
    slug="fabric-complete",
    kind="check",
    title=T("is the fabric manager running, and the fabric complete?", "fabric manager 在运行吗？fabric 状态正常吗？"),
    why=T(
        "On NVSwitch machines it must run in the version of the driver; State must read Completed and Status Success.",
        "NVSwitch 机器上它必须运行，且版本与驱动一致；State 应为 Completed，Status 应为 Success。",
    ),
    command="systemctl status nvidia-fabricmanager --no-pager; nvidia-smi -q | grep -A3 -i fabric",
    source="NVIDIA Fabric Manager user guide",
)
SAME_ON_NODES = Remedy(
    slug="same-on-all-nodes",
    kind="check",
    title=T(
        "start all nodes with the same release, the same sizes and the right ranks",
        "所有节点使用相同版本、相同并行数和正确的 rank",
    ),
    why=T(
        "--data-parallel-size, --data-parallel-address and the RPC port must be equal everywhere; --data-parallel-start-rank must count on from node to node.",
        "--data-parallel-size、--data-parallel-address 和 RPC 端口各节点要一致；--data-parallel-start-rank 要按节点递增。",
    ),
)
REACH_HEAD = Remedy(
    slug="reach-head-node",
    kind="check",
    title=T("check that the other nodes reach the head's address and port", "确认其他节点能连到主节点的地址和端口"),
    why=T(
        "Firewall, wrong interface, or a head that listens on 127.0.0.1.",
        "防火墙、选错网卡，或主节点只监听 127.0.0.1。",
    ),
    command="nc -zv HEAD_IP 13345",
)
