"""One-off remedies of the GPU causes: advice that fits one cause only and therefore is no part of the remedies library."""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

GPU_FOR_ATTENTION = Remedy(
    slug="gpu-for-attention",
    kind="check",
    title=T("a GPU that the attention of this model runs on, or another model", "换用支持该模型注意力的 GPU，或换模型"),
    why=T(
        "The message lists every back end with its reasons; sparse attention (DeepSeek-V3.2 and its kind) needs Hopper or Blackwell.",
        "报错列出了每个后端被排除的原因；稀疏注意力（DeepSeek-V3.2 一类）需要 Hopper 或 Blackwell。",
    ),
    command="python -c 'import torch; print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())'",
)
SLEEP_UPGRADE = Remedy(
    slug="sleep-wake-upgrade",
    kind="upgrade",
    title=T(
        "upgrade vLLM: a failed wake-up is then an error, not a crash later",
        "升级 vLLM：新版唤醒失败会直接报错，而不是之后崩溃",
    ),
    why=T(
        "Before vllm#12981 the C++ allocator printed the failure and went on with an unmapped address (a segfault later); "
        "the same change brought wake_up(tags=[...]).",
        "在 vllm#12981 之前，C++ 分配器只打印错误就继续，随后访问未映射地址而段错误；同一改动也带来了 wake_up(tags=[...])。",
    ),
    source="vllm#12981",
)
SLEEP_SHARE = Remedy(
    slug="sleep-share",
    kind="flag",
    title=T("a smaller share for the sleeping engine", "给休眠引擎更小的显存份额"),
    why=T(
        "On wake-up the engine takes its full share back while the trainer still holds memory; about 0.45 is what reports settled on.",
        "唤醒时引擎要拿回全部份额，而训练进程仍占着显存；公开报告里大约 0.45 可行。",
    ),
    forms=(Form("--gpu-memory-utilization", "0.45"),),
    cost=T("a smaller KV cache", "KV cache 变小"),
    source="vllm#12981",
)
PROFILING_XPU = Remedy(
    slug="profiling-equality-upgrade",
    kind="upgrade",
    title=T("upgrade to a version with vllm#33358", "升级到包含 vllm#33358 的版本"),
    why=T(
        "Both figures are the same: nobody released memory. The check demanded strictly less, which fails where the platform (XPU) "
        "reports no use; vllm#33358 fixes the comparison.",
        "两个数字相同：没有进程释放过显存。断言要求严格变小，而 XPU 平台报告的用量没有变化；vllm#33358 修正了这个比较。",
    ),
    source="vllm#33358",
)
ABSURD_BACKEND = Remedy(
    slug="absurd-allocation-backend",
    kind="check",
    title=T("find out why one tensor is larger than the card", "查清为什么单个张量比整张卡还大"),
    why=T(
        "No setting of memory helps. Usually the attention fell back to a path that builds the whole score matrix (tokens x tokens): "
        "look for 'Using ... backend' in the log, install the fast kernel or choose another backend, or shorten the longest input.",
        "调显存参数没有用。通常是注意力退回到会展开整张得分矩阵（token x token）的实现：看日志里的 “Using ... backend”，"
        "装好快速内核或换一个后端，或缩短最长输入。",
    ),
    command="grep -nE 'attention backend|Using .* backend|SDPA' vllm.log",
)
NO_BLOCK_OVERRIDE = Remedy(
    slug="no-block-override",
    kind="check",
    title=T("drop --num-gpu-blocks-override", "去掉 --num-gpu-blocks-override"),
    why=T(
        "This option fixes the number of cache blocks; memory is not short, the cache was made small by hand.",
        "这个参数把缓存块数定死了：不是显存不够，而是人为设小了。",
    ),
)
PROFILING_UPGRADE = Remedy(
    slug="profiling-upgrade",
    kind="upgrade",
    title=T("upgrade vLLM if it happens on an otherwise empty GPU", "如果 GPU 上没有其他进程仍出现，请升级 vLLM"),
    why=T(
        "Some platforms (XPU) report the same figure twice; vllm#33358 corrected the comparison.",
        "有些平台（XPU）前后两次报告相同的数字；vllm#33358 修正了比较条件。",
    ),
    source="vllm#33358",
)
REPACK_DISPLAY = Remedy(
    slug="repack-display",
    kind="check",
    title=T("see what the desktop and the driver hold", "看看桌面和驱动占了多少"),
    why=T(
        "Under WSL and on a card with a display, the driver keeps part of the GPU memory for itself; some hundred MiB decide here.",
        "在 WSL 或接了显示器的卡上，驱动会自留一部分显存；这里差的可能只有几百 MiB。",
    ),
    command="nvidia-smi --query-gpu=memory.used,memory.total --format=csv",
    source="club-3090#60",
)
DROP_PAGE_CACHE = Remedy(
    slug="drop-page-cache",
    kind="command",
    title=T("free the page cache before the start", "启动前释放页缓存"),
    why=T(
        "Cached files count as used memory for the driver on these machines; a smaller model or --kv-cache-memory-bytes also helps.",
        "在这类机器上，驱动把文件缓存也算作已用内存；换更小的模型或指定 --kv-cache-memory-bytes 也有用。",
    ),
    command="free -g; sync; echo 1 | sudo tee /proc/sys/vm/drop_caches",
    source="vllm#45179",
)
SGLANG_NO_GRAPH = Remedy(
    slug="sglang-no-graph",
    kind="check",
    title=T("SGLang: start without CUDA graphs, then change the back ends", "SGLang：先关闭 CUDA graph，再更换后端"),
    why=T(
        "This log is SGLang's: --disable-cuda-graph shows whether graphs are to blame; --attention-backend and --sampling-backend take a kernel out of the path.",
        "这是 SGLang 的日志：--disable-cuda-graph 可判断是否与图有关；--attention-backend、--sampling-backend 可绕开某个内核。",
    ),
    command="python -m sglang.launch_server --help | grep -E 'disable-cuda-graph|attention-backend|sampling-backend'",
    source="SGLang docs: server arguments",
)
RULE_OUT_XID = Remedy(
    slug="rule-out-xid",
    kind="check",
    title=T("rule the card itself out", "先排除硬件问题"),
    why=T(
        "Xid 13 and 31 in the kernel log fit a software fault; 48, 64, 74, 79, 94 or 95 (ECC, NVLink, fallen off the bus) mean the card.",
        "内核日志里 Xid 13、31 属于软件越界；48、64、74、79、94、95（ECC、NVLink、掉卡）说明是卡的问题。",
    ),
    command='dmesg -T | grep -iE "xid|nvrm" | tail -20; nvidia-smi -q -d ECC',
    source="NVIDIA docs: Xid errors",
)
NO_AUTOTUNE = Remedy(
    slug="no-flashinfer-autotune",
    kind="flag",
    title=T("start without FlashInfer's autotuning", "关闭 FlashInfer 自动调优"),
    why=T("The default kernels are then used as they are.", "直接使用默认内核，不再逐个试探。"),
    forms=(Form("--kernel-config", '{"enable_flashinfer_autotune": false}', since="0.16.0"),),
    cost=T("some kernels are slower", "部分内核变慢"),
    source="vLLM KernelConfig.enable_flashinfer_autotune (0.16.0 and later)",
)
DRAIN_BEFORE_SLEEP = Remedy(
    slug="drain-before-sleep",
    kind="check",
    title=T("put the engine to sleep only when it is idle", "引擎空闲后再 sleep"),
    why=T(
        "Wait until no request runs (and wake up before sending new ones): memory in use must not be unmapped.",
        "等所有请求结束再 sleep，wake_up 完成后再发新请求：正在使用的显存不能被解除映射。",
    ),
    command="curl -s localhost:8000/metrics | grep num_requests_running",
)
BOUND_MEDIA = Remedy(
    slug="bound-media",
    kind="check",
    title=T("bound the length and frame rate of audio and video", "限制音视频的时长和帧率"),
    why=T(
        "Refuse media at the gateway whose positions exceed the model's maximum (long videos, near-zero frame rates); vllm#47407 proposes a check inside vLLM.",
        "在网关拒绝会让位置超出模型上限的媒体（超长视频、接近零的帧率）；vllm#47407 提议在 vLLM 内部做这个检查。",
    ),
    source="vllm#47407",
)
ASCEND_BLOCKING = Remedy(
    slug="ascend-launch-blocking",
    kind="env",
    title=T("run the NPU's operators one by one", "让 NPU 算子同步执行"),
    why=T("The traceback then points at the operator that failed.", "此时的栈才指向真正出错的算子。"),
    forms=(Form("ASCEND_LAUNCH_BLOCKING", "1"),),
    cost=T("very slow: for the search only", "非常慢，只用于排查"),
    source="torch_npu's own hint",
)
WORKSPACE_UPGRADE = Remedy(
    slug="workspace-upgrade",
    kind="upgrade",
    title=T("upgrade to a newer release", "升级到更新的版本"),
    why=T(
        "The warm-up of this path is a matter of vLLM's code: vllm#42978 corrected attention workspaces; for MoE buffers the proposal is vllm#48179 (open in September 2026). Use a version that contains the one you need.",
        "这条路径的预热要靠 vLLM 代码修复：vllm#42978 修正了注意力工作区；MoE 缓冲区的修复提案是 vllm#48179（2026 年 9 月时尚未合并）。请使用包含对应修复的版本。",
    ),
    command="pip install -U vllm",
    source="vllm#48179, vllm#42978",
)
PLAIN_KV_DTYPE = Remedy(
    slug="plain-kv-dtype",
    kind="flag",
    title=T("a KV cache without TurboQuant", "KV cache 不用 TurboQuant"),
    why=T(
        "The attention backend of TurboQuant is the one that asks for the workspace.",
        "要求工作区的正是 TurboQuant 的注意力后端。",
    ),
    forms=(Form("--kv-cache-dtype", "auto"),),
    cost=T("fewer tokens fit into the cache", "缓存能放的 token 变少"),
    source="vllm#43357",
)
NEWER_DRIVER = Remedy(
    slug="newer-driver",
    kind="check",
    title=T("compare the driver with the CUDA version", "核对驱动与 CUDA 版本"),
    why=T(
        "Graph capture with collectives needs a driver of at least the CUDA version that torch was built for; reports with CUDA 12 on an old driver went away with a newer one.",
        "带集合通信的图捕获要求驱动不低于 torch 构建所用的 CUDA 版本；CUDA 12 配旧驱动的案例在升级驱动后消失。",
    ),
    command="nvidia-smi | head -4; python -c 'import torch; print(torch.version.cuda, torch.cuda.nccl.version())'",
    source="vllm#4432",
)
BFLOAT16 = Remedy(
    slug="bfloat16",
    kind="flag",
    title=T("compute in bfloat16", "使用 bfloat16 计算"),
    why=T(
        "float16 overflows above 65504; bfloat16 has the range of float32.",
        "float16 超过 65504 就溢出；bfloat16 的范围与 float32 相同。",
    ),
    forms=(Form("--dtype", "bfloat16"),),
    cost=T("needs a GPU of compute capability 8.0 or newer", "需要计算能力 8.0 及以上的 GPU"),
)
MATCHING_TORCH = Remedy(
    slug="matching-torch",
    kind="check",
    title=T("a torch version whose cuBLAS works", "换用 cuBLAS 正常的 torch 版本"),
    why=T(
        "Compare which cuBLAS is loaded with the CUDA version of torch, and use the torch that this vLLM release pins (nightlies and 2.10 had a faulty one).",
        "核对实际加载的 cuBLAS 与 torch 的 CUDA 版本，并使用该 vLLM 版本锁定的 torch（nightly 和 2.10 曾带有问题版本）。",
    ),
    command="python -c 'import torch; print(torch.__version__, torch.version.cuda)'; ldd $(python -c 'import torch, os; print(os.path.dirname(torch.__file__))')/lib/libtorch_cuda.so | grep -i cublas",
    source="pytorch#174949",
)
READ_COMPILER_LINE = Remedy(
    slug="read-compiler-line",
    kind="check",
    title=T("read the compiler's own line", "看编译器自己的报错行"),
    why=T(
        "The first line with `fatal error`, `not found` or `nvcc fatal` names the missing header, tool or architecture; ninja and Python only repeat that it failed.",
        "第一条含 fatal error、not found 或 nvcc fatal 的行写明了缺少的头文件、工具或架构；ninja 和 Python 只是重复“失败了”。",
    ),
    command='grep -nE "fatal error|nvcc fatal|ptxas fatal|: not found| error: " vllm.log | head; which nvcc; echo "CUDA_HOME=$CUDA_HOME CUDA_PATH=$CUDA_PATH"',
)
CLEAR_FLASHINFER = Remedy(
    slug="clear-flashinfer-cache",
    kind="command",
    title=T("clear FlashInfer's build folder", "清除 FlashInfer 的编译目录"),
    why=T(
        "A half-finished build of another version is taken up again otherwise.",
        "否则会继续使用别的版本编译到一半的结果。",
    ),
    command='mv "$HOME/.cache/flashinfer" /tmp/flashinfer.old',
    cost=T("the kernels are built again", "内核要重新编译"),
)
NEWER_TOOLKIT = Remedy(
    slug="newer-toolkit",
    kind="check",
    title=T("a CUDA toolkit that knows this GPU", "使用认识这块 GPU 的 CUDA 工具包"),
    why=T(
        "sm_120 needs CUDA 12.8, sm_121 needs 12.9 or 13.0; PATH and CUDA_HOME must point at that toolkit, not at an older one.",
        "sm_120 需要 CUDA 12.8，sm_121 需要 12.9 或 13.0；PATH 和 CUDA_HOME 要指向它，而不是旧的。",
    ),
    command="nvcc --version; python -c 'import torch; print(torch.cuda.get_device_capability(), torch.version.cuda)'",
    source="NVIDIA docs: CUDA release notes",
)
OTHER_TORCH = Remedy(
    slug="other-torch",
    kind="upgrade",
    title=T("upgrade torch together with vLLM", "连同 torch 一起升级"),
    why=T(
        "Compilation faults are mostly torch's: use the torch version that a newer vLLM release brings along (the handling of artefacts changed in torch 2.8 and 2.10).",
        "编译类问题多半出在 torch：使用新版 vLLM 自带的 torch 版本（编译产物的处理在 torch 2.8、2.10 有改动）。",
    ),
    command="pip install -U vllm",
    source="vllm#21858",
)
OTHER_TRITON = Remedy(
    slug="other-triton",
    kind="check",
    title=T("the Triton version that belongs to this torch", "安装与 torch 配套的 Triton 版本"),
    why=T(
        "torch pins one Triton release; another one (or triton-ascend, pytorch-triton-xpu on the wrong platform) fails to compile.",
        "torch 只配一个 Triton 版本；装成别的（或装错平台的 triton-ascend、pytorch-triton-xpu）就会编译失败。",
    ),
    command="pip list | grep -iE '^(torch|triton|pytorch-triton)'; pip check",
)
BUILD_FOR_ARCH = Remedy(
    slug="build-for-arch",
    kind="command",
    title=T("build vLLM from source on this machine", "在本机从源码构建 vLLM"),
    why=T("A source build compiles the kernels for the card that it finds.", "源码构建会为本机的卡编译内核。"),
    command="git clone https://github.com/vllm-project/vllm && cd vllm && pip install -e .",
    cost=T("up to an hour; torch itself must still know the GPU", "可能要一小时；torch 本身也要支持该 GPU"),
)
OTHER_LINEAR_BACKEND = Remedy(
    slug="other-linear-backend",
    kind="flag",
    title=T("another kernel for the linear layers", "更换线性层内核"),
    why=T(
        "Take the CUTLASS kernel out of the path: Triton has a block FP8 kernel that runs on more cards (sm_120 Blackwell included).",
        "绕开 CUTLASS 内核：Triton 的分块 FP8 内核支持更多显卡（包括 sm_120 Blackwell）。",
    ),
    forms=(Form("--linear-backend", "triton", since="0.22.0"),),
    cost=T("perhaps slower", "可能变慢"),
    source="vllm#39367; parsers: --linear-backend from 0.22.0",
)
CANN_OPERATORS = Remedy(
    slug="cann-operators",
    kind="check",
    title=T("check that CANN and its kernel package support this chip", "确认 CANN 及算子包支持该芯片"),
    why=T(
        "Install the opp kernels package for exactly this chip (310P, 910B ...) in the version that vllm-ascend names; some operators don't exist on 310P at all.",
        "安装与芯片（310P、910B 等）完全对应、且为 vllm-ascend 指定版本的算子（opp/kernels）包；有些算子在 310P 上根本没有。",
    ),
    command="npu-smi info; cat /usr/local/Ascend/ascend-toolkit/latest/version.cfg; ls /usr/local/Ascend/ascend-toolkit/latest/opp/built-in/op_impl/ai_core/tbe/kernel",
    source="vllm-ascend#6082",
)
HALF_PRECISION = Remedy(
    slug="half-precision",
    kind="flag",
    title=T("compute in float16", "使用 float16"),
    why=T(
        "Cards before compute capability 8.0 have no bfloat16, those before 8.9 no FP8.",
        "计算能力低于 8.0 的卡没有 bfloat16，低于 8.9 的没有 FP8。",
    ),
    forms=(Form("--dtype", "half"),),
    cost=T("some models overflow in float16", "部分模型用 float16 会溢出"),
)
NO_OFFLOAD = Remedy(
    slug="no-offload",
    kind="check",
    title=T("start without offloading to the host", "不要把权重卸载到主机"),
    why=T(
        "Drop --cpu-offload-gb: it needs unified addressing and pinned memory.",
        "去掉 --cpu-offload-gb：它依赖统一寻址和锁页内存。",
    ),
)
_FLASH_ATTN = (
    Form("--attention-backend", "FLASH_ATTN", since="0.13.0"),
    Form("VLLM_ATTENTION_BACKEND", "FLASH_ATTN", until="0.12.0"),
)
NOT_FLASHINFER_ATTENTION = Remedy(
    slug="not-flashinfer-attention",
    kind="flag",
    title=T("an attention backend that isn't FlashInfer's", "换用非 FlashInfer 的注意力后端"),
    why=T(
        "The kernels that could not be built are FlashInfer's attention; FlashAttention comes compiled.",
        "编译失败的是 FlashInfer 的注意力内核；FlashAttention 是预编译的。",
    ),
    forms=_FLASH_ATTN,
    cost=T("some KV cache types and GPUs need FlashInfer", "部分 KV cache 类型和 GPU 只能用 FlashInfer"),
    source="vLLM source: VLLM_ATTENTION_BACKEND is read to 0.12.0, the flag exists from 0.13.0",
)
NOT_TRITON_ATTENTION = replace(
    NOT_FLASHINFER_ATTENTION,
    slug="not-triton-attention",
    title=T("an attention backend that isn't Triton's", "换用非 Triton 的注意力后端"),
    why=T("The kernel that doesn't fit is Triton's attention.", "放不下的正是 Triton 的注意力内核。"),
    cost=T("some head sizes and GPUs need Triton's", "部分 head size 和 GPU 只能用 Triton 后端"),
)
FLASHINFER_ATTENTION = Remedy(
    slug="flashinfer-attention",
    kind="flag",
    title=T("FlashInfer's attention, which fits Turing cards", "换用支持 Turing 显卡的 FlashInfer 注意力后端"),
    why=T(
        "The kernel that doesn't fit is Triton's attention. FlashAttention needs Ampere or newer, FlashInfer runs from Turing (7.5) on.",
        "放不下的正是 Triton 的注意力内核。FlashAttention 要求 Ampere 及以上，FlashInfer 从 Turing（7.5）起就支持。",
    ),
    forms=(
        Form("--attention-backend", "FLASHINFER", since="0.13.0"),
        Form("VLLM_ATTENTION_BACKEND", "FLASHINFER", until="0.12.0"),
    ),
    cost=T(
        "compiles its kernels at the first start; some head sizes need FLEX_ATTENTION instead",
        "首次启动要编译内核；部分 head size 只能用 FLEX_ATTENTION",
    ),
    source="vLLM error text `FlashInfer requires GPUs with sm75 or higher`; vllm#36802",
)
NO_CACHED_PREFIX = Remedy(
    slug="no-cached-prefix-kernel",
    kind="flag",
    title=T("do without the kernel for cached prefixes", "绕开处理已缓存前缀的内核"),
    why=T(
        "prefix_prefill runs when a prompt continues a part that is already in the KV cache: with prefix caching and with chunked prefill.",
        "提示词接着 KV cache 里已有的部分往下算时才会用到 prefix_prefill：前缀缓存和分块预填充都属于这种情况。",
    ),
    forms=(Form("--no-enable-prefix-caching", also=(("--no-enable-chunked-prefill", None),)),),
    cost=T("prompts with a common beginning are computed in full", "相同开头的提示词每次都要完整计算"),
    source="vllm#12498",
)
UNPINNED_ATTENTION = replace(
    NOT_FLASHINFER_ATTENTION,
    slug="backend-without-pinned",
    title=T(
        "another attention backend: FlashInfer pins buffers for every batch",
        "换注意力后端：FlashInfer 每批都要锁页缓冲区",
    ),
    why=T("FLASH_ATTN needs none of these buffers.", "FLASH_ATTN 不需要这些缓冲区。"),
)

DISCRETE_DEVICE = Remedy(
    slug="device-that-reports-memory",
    kind="check",
    title=T("use a device whose driver reports its free memory", "换用驱动能报告剩余显存的设备"),
    why=T(
        "Choose a discrete card, update driver and compute runtime, or run vLLM's CPU build on this machine.",
        "选独立显卡，更新驱动和计算运行时，或在这台机器上用 vLLM 的 CPU 版本。",
    ),
    command="ONEAPI_DEVICE_SELECTOR=level_zero:0 python -c 'import torch; print(torch.xpu.get_device_properties(0)); torch.xpu.mem_get_info()'",
)

ROCM_ARCH = Remedy(
    slug="rocm-arch",
    kind="check",
    title=T("a build for this gfx architecture", "换成支持这个 gfx 架构的构建"),
    why=T(
        "Compare the card's gfx name with the list that torch was built for, and with those of vLLM's and AITER's kernels; take an image of the ROCm release that supports the card.",
        "把显卡的 gfx 名和 torch 编译时的列表、以及 vLLM 和 AITER 内核支持的列表对比；换用支持该卡的 ROCm 版本的镜像。",
    ),
    command="rocminfo | grep -m3 gfx; python -c 'import torch; print(torch.version.hip, torch.cuda.get_arch_list())'",
)
