"""distributed-orchestration: ranks, nodes and devices were put together wrongly, before any of them could work.

Ray can't place the workers, several ranks land on one GPU, the data-parallel coordinator doesn't come up, nodes disagree
about who they are. NCCL's `invalid usage` is the typical disguise of two ranks on one device.
"""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.causes import _reading as reading
from lifesign.causes._comm_advice import REACH_HEAD, SAME_ON_NODES
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.remedies.library import comm, loading
from lifesign.remedies.model import Remedy
from lifesign.text import T

RAY_STATUS = loading.RAY_PLACEMENT
SIZES_TO_CLUSTER = Remedy(
    slug="sizes-to-cluster",
    kind="check",
    title=T(
        "make tensor-parallel x pipeline-parallel size fit the number of GPUs", "让张量并行 × 流水线并行不超过 GPU 总数"
    ),
    why=T(
        "Use the number of GPUs per node for --tensor-parallel-size and the number of nodes for --pipeline-parallel-size.",
        "--tensor-parallel-size 用每个节点的 GPU 数，--pipeline-parallel-size 用节点数。",
    ),
)
DRIVER_HAS_GPU = Remedy(
    slug="driver-has-gpu",
    kind="check",
    title=T(
        "run the driver on a node that has a GPU, and give it a placement group that includes the node",
        "在有 GPU 的节点上运行 driver，并让 placement group 包含该节点",
    ),
    why=T(
        "vLLM's driver shares the first bundle; a head node without GPU can't hold it.",
        "vLLM 的 driver 占用第一个 bundle；没有 GPU 的头节点放不下。",
    ),
)
UNIQUE_IPS = comm.HOST_IP
LONGER_PLACEMENT = Remedy(
    slug="placement-queue",
    kind="check",
    title=T("end the jobs that hold the GPUs, or wait for the autoscaler", "结束占用 GPU 的作业，或等待自动扩容"),
    why=T(
        "A placement group that can't be met waits and then fails.", "无法满足的 placement group 会一直等，最后失败。"
    ),
    command="ray list placement-groups; ray list actors --filter state=ALIVE",
)
OWN_GPU = replace(
    comm.ONE_RANK_PER_DEVICE,
    why=T(
        "Count: data-parallel size x tensor-parallel size GPUs are needed, all listed in CUDA_VISIBLE_DEVICES. A launcher (accelerate, trl, SLURM) that sets the variable to one device per process puts all ranks on the same GPU.",
        "算一下：需要“数据并行数 × 张量并行数”块 GPU，并且都要列在 CUDA_VISIBLE_DEVICES 里。启动器（accelerate、trl、SLURM）若给每个进程只设一块，所有 rank 就会落在同一块 GPU 上。",
    ),
    command='echo "[$CUDA_VISIBLE_DEVICES]"; nvidia-smi --query-compute-apps=pid,gpu_bus_id,used_memory --format=csv',
)
RANK_VARIABLES = Remedy(
    slug="rank-variables",
    kind="check",
    title=T("check local_rank and the data-parallel rank of each process", "核对每个进程的 local_rank 与数据并行 rank"),
    why=T(
        "The device is local rank plus data-parallel rank x tensor-parallel size; stale RANK, LOCAL_RANK or VLLM_DP_RANK variables from a launcher shift it.",
        "设备号 = local_rank + 数据并行 rank × 张量并行数；启动器留下的 RANK、LOCAL_RANK、VLLM_DP_RANK 会让它错位。",
    ),
    command='env | grep -E "RANK|WORLD_SIZE|VLLM_DP"',
)
SMALLER_DP = Remedy(
    slug="smaller-data-parallel",
    kind="check",
    title=T("or use fewer data-parallel ranks (--data-parallel-size)", "或者减少数据并行数（--data-parallel-size）"),
    why=T("One rank needs no assignment at all.", "只有一个 rank 就不存在分配问题。"),
)
COORDINATOR_UPGRADE = Remedy(
    slug="coordinator-upgrade",
    kind="upgrade",
    title=T(
        "upgrade to 0.23 or later: the limit for the coordinator's start is longer there",
        "升级到 0.23 或更高：协调进程的启动时限更长",
    ),
    why=T(
        "It was 30 s and is 120 s from about 0.23 on. vllm#43611 proposes --data-parallel-coordinator-startup-timeout; no release up to 0.33.0 has that option.",
        "原来是 30 秒，大约 0.23 起是 120 秒。vllm#43611 提议加 --data-parallel-coordinator-startup-timeout，但到 0.33.0 为止的版本都没有这个选项。",
    ),
    source="vllm#37452, vllm#42343, vllm#43611; source of 0.32.0; parsers of 45 releases",
)
FAST_START = Remedy(
    slug="fast-import",
    kind="check",
    title=T("find out why starting a process takes so long", "查清为什么启动一个进程要这么久"),
    why=T(
        "Python packages on NFS, many ranks importing at once, or too few CPU cores.",
        "Python 包放在 NFS 上、很多 rank 同时导入，或 CPU 核太少。",
    ),
    command="time python -c 'import vllm'",
)
OWN_PROCESS = Remedy(
    slug="engine-of-its-own",
    kind="check",
    title=T(
        "run vLLM as a server of its own, outside the trainer's ranks", "让 vLLM 作为独立服务运行，不放进训练的 rank 里"
    ),
    why=T(
        "A separate process has its own torch.distributed; trainers can send their rollouts to it (server mode).",
        "独立进程有自己的 torch.distributed；训练框架可以把 rollout 发给它（server 模式）。",
    ),
)
EXTERNAL_LAUNCHER = Remedy(
    slug="external-launcher",
    kind="check",
    title=T(
        'in the same ranks: distributed_executor_backend="external_launcher", and a world size that the sizes multiply to',
        '必须同进程时：设 distributed_executor_backend="external_launcher"，并让各并行数之积等于 world size',
    ),
    why=T(
        "Then every rank builds the engine, and tensor x pipeline (x data) parallel size must be the number of ranks.",
        "这样每个 rank 都会创建引擎，张量 × 流水线（× 数据）并行数必须等于 rank 数。",
    ),
)
TRAINER_RELEASE = Remedy(
    slug="trainer-s-vllm-release",
    kind="check",
    title=T("the vLLM release that the trainer was made for", "使用训练框架所适配的 vLLM 版本"),
    why=T(
        "Trainers patch how vLLM makes its groups, and the patch is written for certain releases: see the trainer's requirements.",
        "训练框架会改写 vLLM 建组的方式，而且只针对特定版本：看框架的依赖说明。",
    ),
    command="pip show vllm torch | grep -E '^(Name|Version)'",
)
FEWER_LOCAL = Remedy(
    slug="fewer-local-ranks",
    kind="check",
    title=T(
        "lower --data-parallel-size-local to what the node can hold", "把 --data-parallel-size-local 降到本机能放下的数"
    ),
    why=T(
        "Each local rank needs tensor-parallel size GPUs on its node.",
        "每个本地 rank 需要“张量并行数”块 GPU，而且要在同一节点。",
    ),
)


def _several_data_ranks(event: Event, life: Life) -> bool:
    """NCCL's `invalid usage` with several data-parallel engines and no other reason above it."""
    if life.mentions("Mismatched NCCL version", "Duplicate GPU detected") is not None:
        return False
    try:
        ranks = int(str(life.config.get("data_parallel_size", "1")))
    except ValueError:
        ranks = 1
    return ranks > 1 or life.mentions("EngineCore_DP1", "dp_rank=1", "DP rank 1") is not None


def _nccl_failed(event: Event, life: Life) -> bool:
    return life.died or life.after(event, "invalid usage", "NCCL error", "ncclInvalidUsage") is not None


def _ended_in_placement(event: Event, life: Life) -> bool:
    """Ray's notice that a request can't be scheduled proves something only when nothing was served after it."""
    return not life.served


def _refine(finding: Finding, life: Life) -> Finding | None:
    if "Value error," in finding.event.text:
        return reading.cite(finding, "Value error,")
    return finding


SUBTYPES = {
    "ray-placement": Subtype(
        T("Ray could not place the workers on the cluster's GPUs", "ray 无法把 worker 放到集群的 GPU 上"),
        T(
            "The cluster has fewer free GPUs, or in other places, than the parallel sizes ask for.",
            "集群里空闲的 GPU 不够，或者所在的节点不对，满足不了并行数的要求。",
        ),
        (RAY_STATUS, SIZES_TO_CLUSTER, DRIVER_HAS_GPU, UNIQUE_IPS, LONGER_PLACEMENT),
    ),
    "dp-device-assignment": Subtype(
        T(
            "Several ranks were put on the same GPU, or on one that isn't there",
            "多个 rank 被分到同一块 GPU，或分到不存在的 GPU",
        ),
        T(
            "NCCL refuses two ranks on one device (`Duplicate GPU detected`, `invalid usage`). The ranks' device numbers overlap or exceed CUDA_VISIBLE_DEVICES.",
            "NCCL 不允许两个 rank 共用一块设备（`Duplicate GPU detected`、`invalid usage`）。各 rank 的设备号重叠，或超出 CUDA_VISIBLE_DEVICES。",
        ),
        (OWN_GPU, RANK_VARIABLES, FEWER_LOCAL, SMALLER_DP),
    ),
    "world-size-mismatch": Subtype(
        T(
            "The process group that was already there has another size than vLLM's",
            "已经存在的进程组，大小和 vLLM 要的不一致",
        ),
        T(
            "A trainer (or torchrun) had initialised torch.distributed before vLLM was built in the same process. vLLM takes that group, and the product of its own parallel sizes is another number.",
            "训练框架（或 torchrun）先初始化了 torch.distributed，随后在同一进程里创建 vLLM。vLLM 沿用了这个进程组，但它自己的各并行数之积是另一个数。",
        ),
        (OWN_PROCESS, EXTERNAL_LAUNCHER, TRAINER_RELEASE),
        ("ms-swift#3522",),
    ),
    "dp-coordinator-timeout": Subtype(
        T("The data-parallel coordinator did not start in time", "数据并行协调进程没有按时启动"),
        T(
            "The front end waits for the coordinator to report its addresses; the process was slow or failed.",
            "前端等待协调进程上报地址；该进程启动太慢或失败了。",
        ),
        (FAST_START, COORDINATOR_UPGRADE),
        ("vllm#37452", "vllm#43611"),
    ),
    "dp-multinode": Subtype(
        T("The nodes of a data-parallel group don't fit together", "数据并行组的各节点不匹配"),
        T(
            "A node reported an unexpected rank or a different configuration, or the master node is missing.",
            "有节点上报了意外的 rank 或不同的配置，或者主节点缺失。",
        ),
        (SAME_ON_NODES, REACH_HEAD, FEWER_LOCAL),
    ),
}

SIGNATURES = (
    Signature(
        "world-size-mismatch",
        any=("is invalid for input of size",),
        frames=(":initialize_model_parallel",),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "ray-placement",
        any=(
            "exceeds the total number of available",
            "Cannot provide a placement group",
            "is not included in a placement group",
            "Ray does not allocate any GPUs on the driver node",
            "Every node should have a unique IP address",
            "Placement group bundle cannot have more than 1",
            "placement group bundle index",
            "Ray workers have not started successfully",
            "vLLM engine cannot start without",
            "Total available GPUs",
            "No available node types can fulfill resource request",
        ),
        kinds=("exception", "wrapper", "log", "plain"),
        when=lambda event, life: event.level not in ("INFO", "WARNING", "DEBUG"),
    ),
    Signature(
        "ray-placement",
        any=(
            "PlacementGroupSchedulingError",
            "placement group is infeasible",
            "Placement group creation timed out",
            "cannot be scheduled right now",
        ),
        when=_ended_in_placement,
        certainty="supported",
        strength=SYMPTOM,
    ),
    Signature(
        "ray-placement",
        any=("Waiting for creating a placement group",),
        kinds=("log",),
        when=_ended_in_placement,
        certainty="possible",
        strength=1,
    ),
    Signature("dp-device-assignment", any=("Duplicate GPU detected",), when=_nccl_failed),
    Signature(
        "dp-device-assignment",
        any=(
            "Error setting CUDA_VISIBLE_DEVICES: local range",
            "Error computing device indices for",
            "DP adjusted local rank",
            "Error setting HIP_VISIBLE_DEVICES",
            "Error setting ASCEND_RT_VISIBLE_DEVICES",
            "needs devices [",
            "local rank is out of bounds",
            "allocations from overlapping devices",
        ),
        kinds=("exception", "wrapper"),
    ),
    Signature(
        "dp-device-assignment",
        any=("invalid usage", "ncclInvalidUsage"),
        kinds=("exception", "wrapper", "log"),
        when=lambda event, life: reading.is_loud(event, life) and _several_data_ranks(event, life),
        certainty="supported",
    ),
    Signature("dp-coordinator-timeout", any=("DP Coordinator process failed",)),
    Signature(
        "dp-multinode",
        any=(
            "Message from engine with unexpected data parallel rank",
            "Not enough resources to allocate",
            "Not enough total available nodes",
            "is missing or dead",
            "Configuration mismatch detected for engine",
            "DPSupervisor exited before startup",
            "Created fewer DP placement groups",
            "elastic EP startup requires",
            "DeepEP kernels require EP ranks",
        ),
        kinds=("exception", "wrapper"),
    ),
)

CAUSE = Cause(
    slug="distributed-orchestration",
    code="B6",
    title=T("Ranks, nodes and GPUs were put together wrongly", "rank、节点与 GPU 的编排有误"),
    summary=T(
        "Ray or the data-parallel launcher could not give every rank a place and a device of its own.",
        "ray 或数据并行启动器没能给每个 rank 分到位置和独立的设备。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=_refine,
    order=13,
)
