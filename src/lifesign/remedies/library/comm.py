"""Remedies for collectives: NCCL, custom all-reduce, gloo, HCCL, oneCCL, and the road between the cards."""

from __future__ import annotations

from lifesign.remedies import sizing
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

NCCL_DEBUG_INFO = Remedy(
    slug="nccl-debug-info",
    kind="env",
    title=T("let NCCL say what it does", "让 NCCL 打印细节"),
    why=T(
        "The `NCCL WARN` line above the error, or the one after `Last error:`, names the reason.",
        "错误上方的 `NCCL WARN` 行，或 `Last error:` 后面那行，才是原因。",
    ),
    forms=(Form("NCCL_DEBUG", "INFO"),),
    cost=T("a longer log", "日志变长"),
    source="NCCL environment variables",
)

NCCL_IFNAME = Remedy(
    slug="nccl-ifname",
    kind="env",
    title=T("name the network interface", "指定网卡"),
    why=T(
        "NCCL and gloo picked an interface that the other side can't reach; name the one that joins the nodes (`ip -br addr`).",
        "NCCL 和 gloo 选到了对端不可达的网卡；指定连通各节点的那块（用 `ip -br addr` 查看）。",
    ),
    forms=(Form("NCCL_SOCKET_IFNAME", "eth0", also=(("GLOO_SOCKET_IFNAME", "eth0"),)),),
    source="NCCL environment variables; PyTorch distributed: GLOO_SOCKET_IFNAME",
)

HOST_IP = Remedy(
    slug="host-ip",
    kind="env",
    title=T("say which address this node has", "指定本节点的 IP"),
    why=T(
        "With several networks vLLM may announce an address that the others can't reach.",
        "多网卡时 vLLM 可能公布了别人连不上的地址。",
    ),
    forms=(Form("VLLM_HOST_IP", "NODE_IP"),),
    source="envs.py of all 45 releases",
)

NCCL_HCA = Remedy(
    slug="nccl-hca",
    kind="env",
    title=T("name the InfiniBand card", "指定 InfiniBand 网卡"),
    why=T(
        "Only the cards that join the nodes should be used (`ibv_devinfo`).",
        "只应使用连通各节点的那些网卡（用 `ibv_devinfo` 查看）。",
    ),
    forms=(Form("NCCL_IB_HCA", "mlx5_0"),),
    source="NCCL environment variables",
)

NCCL_IB_OFF = Remedy(
    slug="nccl-ib-off",
    kind="env",
    title=T("try without InfiniBand", "暂时不用 InfiniBand"),
    why=T(
        "If sockets work, the fault is in the InfiniBand set-up.", "如果走 socket 正常，问题就在 InfiniBand 配置上。"
    ),
    forms=(Form("NCCL_IB_DISABLE", "1"),),
    cost=T("slow between nodes", "节点间通信很慢"),
    source="NCCL environment variables",
)

NCCL_P2P_OFF = Remedy(
    slug="nccl-p2p-off",
    kind="env",
    title=T("keep the cards from talking directly", "关闭卡间直连（P2P）"),
    why=T(
        "Direct copies between PCIe cards hang behind an IOMMU or ACS; both NCCL's and vLLM's own path must be off.",
        "在 IOMMU/ACS 之后，PCIe 卡间直接拷贝会挂死；NCCL 和 vLLM 自带的 all-reduce 都要关掉。",
    ),
    forms=(Form("NCCL_P2P_DISABLE", "1", also=(("--disable-custom-all-reduce", None),)),),
    cost=T("slower tensor parallelism", "张量并行变慢"),
    unless=sizing.is_single_device,
    source="five public reports; NCCL environment variables",
)

DISABLE_CUSTOM_ALL_REDUCE = Remedy(
    slug="disable-custom-all-reduce",
    kind="flag",
    title=T("use NCCL's all-reduce instead of vLLM's own", "不用 vLLM 自带的 custom all-reduce"),
    why=T(
        "The process that ended was inside vLLM's own all-reduce; NCCL does the same job.",
        "进程死在 vLLM 自带的 all-reduce 里；NCCL 能做同样的事。",
    ),
    forms=(Form("--disable-custom-all-reduce"),),
    cost=T("slightly slower tensor parallelism", "张量并行略慢"),
    unless=sizing.custom_all_reduce_is_off,
    source="vllm#42609, vllm#49101, vllm#56180",
)

DROP_EXPANDABLE_SEGMENTS = Remedy(
    slug="drop-expandable-segments",
    kind="command",
    title=T("remove expandable_segments from the allocator settings", "去掉 expandable_segments"),
    why=T(
        "Memory from expandable segments can't be shared between processes the way custom all-reduce needs it; PyTorch's own OOM hint "
        "that recommends it is what leads here.",
        "可扩展段的显存不能按 custom all-reduce 需要的方式在进程间共享；PyTorch 在 OOM 时给出的那条提示正是诱因。",
    ),
    command="unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",
    cost=T("perhaps more fragmentation", "碎片可能略多"),
    source="vllm#42609, vllm#49101, vllm#56180, vllm#56193",
)

ALL_REDUCE_TEST = Remedy(
    slug="all-reduce-test",
    kind="check",
    title=T("first prove that a small all-reduce works without vLLM", "先在 vLLM 之外证明一次小的 all-reduce 能成功"),
    why=T(
        "If this fails too, the machines or the libraries are at fault and no vLLM flag helps. On several nodes run `lifesign check --nnodes N --node-rank R --master-addr HEAD_IP` on each of them; it tries the all-reduce between them.",
        "如果它也失败，就是机器或库的问题，vLLM 的参数都没用。多节点时，在每个节点上运行 `lifesign check --nnodes N --node-rank R --master-addr 主节点IP`，它会在节点之间试一次 all-reduce。",
    ),
    command="NCCL_DEBUG=INFO torchrun --nproc-per-node=2 --no-python python -c \"import os,torch,torch.distributed as d; torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); d.init_process_group('nccl'); x=torch.ones(1).cuda(); d.all_reduce(x); print(x.item()); d.destroy_process_group()\"",
    source="vLLM documentation, troubleshooting: incorrect hardware/driver",
)

DISTRIBUTED_TIMEOUT = Remedy(
    slug="distributed-timeout",
    kind="flag",
    title=T("a longer time-out for collectives", "延长集合通信超时"),
    why=T(
        "For a rank that is slow but alive (large loads, first compilation). If one rank hangs, find that rank instead.",
        "适用于慢但活着的 rank（加载大、首次编译）。若某个 rank 挂住，应先找出它。",
    ),
    forms=(Form("--distributed-timeout-seconds", "1800", since="0.18.0"),),
    cost=T("real hangs are noticed later", "真正挂住时发现得更晚"),
    source="parsers: --distributed-timeout-seconds from 0.18.0; before it PyTorch's 600 s",
)

IOMMU_ACS_OFF = Remedy(
    slug="iommu-acs-off",
    kind="check",
    title=T("turn PCIe ACS or the IOMMU off", "关闭 PCIe ACS 或 IOMMU"),
    why=T(
        "ACS redirects traffic between cards to the root complex, and NCCL hangs after `Init COMPLETE`. Off in the BIOS, or kernel "
        "parameters amd_iommu=off / intel_iommu=off / pci=noacs.",
        "ACS 把卡间流量都绕到根复合体，NCCL 在 `Init COMPLETE` 之后挂死。可在 BIOS 关闭，或用内核参数 amd_iommu=off / intel_iommu=off / pci=noacs。",
    ),
    command="sudo lspci -vvv | grep -i ACSCtl; cat /proc/cmdline; nvidia-smi topo -m",
    cost=T(
        "a reboot; virtual machines with passed-through devices need the IOMMU",
        "需要重启；直通设备的虚拟机离不开 IOMMU",
    ),
    source="NCCL troubleshooting: PCI access control services",
)

FIND_SLOW_RANK = Remedy(
    slug="find-slow-rank",
    kind="check",
    title=T("find the rank that is behind", "找出落后的 rank"),
    why=T(
        "A collective waits for all ranks: the one that never entered it is the cause. Compare the stacks of all workers.",
        "集合通信要等所有 rank：没有进入的那个才是原因。对比所有 worker 的栈。",
    ),
    command="for p in $(pgrep -f 'VLLM::|multiproc_worker|EngineCore'); do echo == $p; py-spy dump --pid $p; done",
    source="PyTorch docs: ProcessGroupNCCL watchdog",
)

FLIGHT_RECORDER = Remedy(
    slug="flight-recorder",
    kind="env",
    title=T("record the collectives", "记录集合通信"),
    why=T(
        "PyTorch then writes down which rank stands at which collective when its watchdog fires.",
        "watchdog 触发时，PyTorch 会写下每个 rank 停在哪个集合通信上。",
    ),
    forms=(Form("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", also=(("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),)),),
    source="PyTorch docs: flight recorder",
)

NCCL_SHM_OFF = Remedy(
    slug="nccl-shm-off",
    kind="env",
    title=T("keep NCCL off shared memory", "让 NCCL 不用共享内存"),
    why=T(
        "A way round /dev/shm that is too small or not shared between containers.",
        "绕开过小或容器间不共享的 /dev/shm。",
    ),
    forms=(Form("NCCL_SHM_DISABLE", "1"),),
    cost=T("slower between cards without P2P", "没有 P2P 的卡之间会变慢"),
    source="NCCL environment variables",
)

NCCL_CUMEM_OFF = Remedy(
    slug="nccl-cumem-off",
    kind="env",
    title=T("switch NCCL's cuMem allocations off", "关闭 NCCL 的 cuMem 分配"),
    why=T(
        "vGPUs, shims (libvgpu) and some drivers crash in it; the segfault shows ncclCuMem frames.",
        "vGPU、libvgpu 之类的拦截库和部分驱动会在这里段错误，栈里有 ncclCuMem。",
    ),
    forms=(Form("NCCL_CUMEM_ENABLE", "0", also=(("NCCL_CUMEM_HOST_ENABLE", "0"),)),),
    source="NCCL environment variables; vLLM forced it to 0 to 0.9.0.1",
)

NO_SYMM_MEM = Remedy(
    slug="no-symm-mem",
    kind="env",
    title=T("all-reduce without symmetric memory", "all-reduce 不用对称内存"),
    why=T("Takes PyTorch's symmetric-memory all-reduce out of the path.", "绕开 PyTorch 的对称内存 all-reduce。"),
    forms=(Form("VLLM_ALLREDUCE_USE_SYMM_MEM", "0", since="0.10.2"),),
    cost=T("perhaps a little slower", "可能略慢"),
    source="envs.py: from 0.10.2, on by default from 0.11.0",
)

GPU_SHIM_OFF = Remedy(
    slug="gpu-shim-off",
    kind="env",
    title=T("switch the GPU-sharing shim off", "关闭 GPU 虚拟化垫片"),
    why=T(
        "libvgpu.so in LD_PRELOAD (HAMi) intercepts CUDA calls, and NCCL hangs or crashes in it.",
        "LD_PRELOAD 里的 libvgpu.so（HAMi）拦截 CUDA 调用，NCCL 会在其中挂死或崩溃。",
    ),
    forms=(Form("CUDA_DISABLE_CONTROL", "true"),),
    cost=T("no memory limit by HAMi for this container", "此容器不再受 HAMi 显存限制"),
    source="HAMi documentation; two public reports",
)

ONE_RANK_PER_DEVICE = Remedy(
    slug="one-rank-per-device",
    kind="check",
    title=T("give each rank its own GPU", "每个 rank 单独占一张 GPU"),
    why=T(
        "Two ranks on one GPU: NCCL calls that `invalid usage`. Look at CUDA_VISIBLE_DEVICES and --data-parallel-size.",
        "两个 rank 落在同一张 GPU 上，NCCL 报 `invalid usage`。检查 CUDA_VISIBLE_DEVICES 和 --data-parallel-size。",
    ),
    command='nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"',
)

HCCL_CONNECT = Remedy(
    slug="hccl-connect",
    kind="env",
    title=T("give the ranks more time to connect", "延长 HCCL 建链时间"),
    why=T(
        "A rank was late or unreachable: check its device IP (hccn_tool) and its network first.",
        "有 rank 来晚了或不可达：先查它的设备 IP（hccn_tool）和网络。",
    ),
    forms=(Form("HCCL_CONNECT_TIMEOUT", "1800"),),
    source="CANN documentation: HCCL environment variables",
)

HCCL_NETWORK_CHECK = Remedy(
    slug="hccl-network-check",
    kind="check",
    title=T("check the NPU network", "检查 NPU 网络"),
    why=T("HCCL needs the device IPs of all ranks to reach each other.", "HCCL 要求所有 rank 的设备 IP 互通。"),
    command="for i in 0 1 2 3 4 5 6 7; do hccn_tool -i $i -ip -g; hccn_tool -i $i -link -g; hccn_tool -i $i -net_health -g; done",
    source="CANN documentation: hccn_tool",
)

HCCL_EXEC_TIMEOUT = Remedy(
    slug="hccl-exec-timeout",
    kind="env",
    title=T("bring HCCL's time-out in line with vLLM's", "让 HCCL 超时与 vLLM 对齐"),
    why=T(
        "HCCL waits 1836 s by default, longer than vLLM's for a step (300 s by default), so vLLM ends first and hides the reason.",
        "HCCL 默认等 1836 秒，比 vLLM 的单步时限（默认 300 秒）还长，于是 vLLM 先退出，掩盖了原因。",
    ),
    forms=(Form("HCCL_EXEC_TIMEOUT", "200"),),
    source="vllm-ascend#13233; CANN documentation",
)

OLDER_ONECCL = Remedy(
    slug="older-oneccl",
    kind="check",
    title=T("another oneCCL or image", "换一个 oneCCL 或镜像版本"),
    why=T(
        "The device was lost inside oneCCL: an older image (1.3) or a newer driver worked for others; on one card it isn't used.",
        "设备在 oneCCL 中丢失：有人换旧镜像（1.3）或新驱动后恢复；单卡不走 oneCCL。",
    ),
    command="python -c 'import torch, oneccl_bindings_for_pytorch as c; print(torch.__version__, c.__version__)'",
)
