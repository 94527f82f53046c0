"""What a reader is told about each kind of device-oom: titles, reasons, remedies in the order in which to try them."""

from __future__ import annotations

from lifesign.causes import _advice as advice
from lifesign.causes.model import Subtype
from lifesign.remedies.library import graphs, host, memory
from lifesign.text import T

PEAK = (memory.FEWER_SEQUENCES, memory.LOWER_UTILISATION, graphs.EAGER)
WEIGHTS = (memory.MORE_TENSOR_PARALLEL, memory.QUANTISED_WEIGHTS, memory.CPU_OFFLOAD, memory.FREE_DEVICE)

SUBTYPES = {
    "startup-free-lt-util": Subtype(
        T(
            "The GPU had less free memory at the start than vLLM was told to take",
            "启动时空闲显存少于 vLLM 要占用的份额",
        ),
        T(
            "Before loading anything, vLLM compares the free memory with its share of the whole card and refuses when it is missing.",
            "加载模型之前，vLLM 先比较空闲显存和它的份额（按整卡计算），不够就拒绝启动。",
        ),
        (memory.FREE_DEVICE, memory.FIT_UTILISATION, memory.SHORTER_CONTEXT),
        ("vllm#20305", "vllm#25837"),
    ),
    "profiling-assert": Subtype(
        T(
            "Another process changed the GPU's free memory while vLLM was measuring",
            "vLLM 测量显存时，其他进程改变了空闲显存",
        ),
        T(
            "vLLM measures free memory before and after a trial run and refuses the result when it has grown: nothing ran out.",
            "vLLM 在试运行前后各测一次空闲显存，发现反而变多就拒绝这次测量：并没有耗尽显存。",
        ),
        (memory.RETRY_ALONE, advice.PROFILING_UPGRADE),
        ("vllm#33358",),
    ),
    "kv-none": Subtype(
        T("Nothing of the GPU share was left for the KV cache", "显存份额里没有剩下 KV cache 的空间"),
        T(
            "Weights and the peak of the trial run used up the share that --gpu-memory-utilization allows; here the share must grow, not shrink.",
            "权重和试运行的峰值已用完 --gpu-memory-utilization 允许的份额；这里要调高份额，而不是调低。",
        ),
        (
            memory.RAISE_UTILISATION,
            memory.FEWER_BATCHED_TOKENS,
            memory.FREE_DEVICE,
            memory.MORE_TENSOR_PARALLEL,
            memory.QUANTISED_WEIGHTS,
        ),
    ),
    "kv-too-small": Subtype(
        T("The KV cache can't hold one request of the maximum length", "KV cache 放不下一个最长的请求"),
        T(
            "No allocation failed: what is left for the KV cache is smaller than one request of --max-model-len needs.",
            "没有任何分配失败：剩给 KV cache 的显存放不下一个 --max-model-len 长度的请求。",
        ),
        (memory.SHORTER_CONTEXT, memory.RAISE_UTILISATION, memory.KV_CACHE_FP8, memory.MORE_TENSOR_PARALLEL),
        ("vllm#25350",),
    ),
    "kv-requested-gt-free": Subtype(
        T("More KV cache was asked for than memory is free", "申请的 KV cache 超过了空闲内存"),
        T(
            "The size of the KV cache was set by hand (or by the share) and is larger than what is free on the memory node.",
            "KV cache 的大小是手工（或按份额）指定的，超过了该内存节点的空闲量。",
        ),
        (host.CPU_KV_SPACE, memory.KV_CACHE_BYTES),
    ),
    "kv-alloc": Subtype(
        T("GPU memory ran out while the KV cache was allocated", "分配 KV cache 时显存耗尽"),
        T(
            "vLLM had measured enough room, but it was gone when the cache was allocated: a neighbour took it, or the size was set by hand.",
            "测量时空间够，分配时却没有了：被其他进程占走，或大小是手工指定的。",
        ),
        (memory.FREE_DEVICE, memory.LOWER_UTILISATION, memory.SHORTER_CONTEXT),
    ),
    "kv-pool-exhausted": Subtype(
        T("The pool of KV cache slots was exhausted", "KV cache 槽位池耗尽"),
        T(
            "This is no CUDA out-of-memory: the engine's own pool of token slots had no room for the next chunk, and the scheduler gave up.",
            "这不是 CUDA 显存溢出：引擎自己的 token 槽位池放不下下一段，调度器随之退出。",
        ),
        (memory.SGLANG_POOL,),
        ("sglang#26265",),
    ),
    "weights-load": Subtype(
        T("The weights don't fit on the GPU", "模型权重放不进显存"),
        T(
            "Memory ran out while the model was built or its weights were loaded, before any KV cache: a lower --gpu-memory-utilization can't help.",
            "在构建模型或加载权重时显存耗尽，此时还没有 KV cache：调低 --gpu-memory-utilization 没有用。",
        ),
        WEIGHTS,
    ),
    "weights-repack": Subtype(
        T("GPU memory ran out while the weights were repacked", "重排量化权重时显存耗尽"),
        T(
            "After loading, quantised weights are rearranged for the kernel; old and new copies exist side by side for a moment.",
            "加载之后，量化权重要按内核格式重排，短时间内新旧两份同时存在。",
        ),
        (*WEIGHTS, advice.REPACK_DISPLAY),
        ("club-3090#60",),
    ),
    "profile-forward": Subtype(
        T("GPU memory ran out in the trial forward pass", "试运行前向计算时显存耗尽"),
        T(
            "Before serving, vLLM runs the largest batch once; its activations didn't fit beside the weights.",
            "开始服务前，vLLM 用最大的批跑一次；激活放不进权重之外的空间。",
        ),
        (memory.FEWER_BATCHED_TOKENS, memory.FEWER_SEQUENCES, memory.MORE_TENSOR_PARALLEL, memory.QUANTISED_WEIGHTS),
    ),
    "sampler-warmup": Subtype(
        T("GPU memory ran out while warming up the sampler", "采样器预热时显存耗尽"),
        T(
            "The warm-up samples for --max-num-seqs requests at once; sorting logits of that many rows over the vocabulary needs several copies.",
            "预热会一次为 --max-num-seqs 个请求采样；这么多行、整个词表的 logits 排序需要好几份拷贝。",
        ),
        PEAK,
        ("vllm#29049", "vllm#30637"),
    ),
    "graph-capture": Subtype(
        T("GPU memory ran out while CUDA graphs were captured", "捕获 CUDA graph 时显存耗尽"),
        T(
            "The KV cache had taken its share already; the graphs' own buffers didn't fit into the rest.",
            "KV cache 已经占满它的份额，剩下的放不下 CUDA graph 自己的缓冲区。",
        ),
        (graphs.FEWER_CAPTURE_SIZES, memory.LOWER_UTILISATION, graphs.EAGER),
        ("vllm#19186", "vllm#18446"),
    ),
    "serving": Subtype(
        T("GPU memory ran out while serving", "服务过程中显存耗尽"),
        T(
            "A step needed more than the trial run had shown, and the KV cache had taken the rest of the card.",
            "某一步需要的显存超过了试运行时的峰值，而其余显存已被 KV cache 占满。",
        ),
        (memory.FEWER_BATCHED_TOKENS, *PEAK),
        ("club-3090#58", "vllm#15039"),
    ),
    "sleep-wake": Subtype(
        T("GPU memory ran out while the engine woke up", "引擎唤醒时显存耗尽"),
        T(
            "wake_up maps the weights and the KV cache again, but another process (the trainer) still holds that memory.",
            "wake_up 要重新映射权重和 KV cache，但这块显存还被别的进程（训练侧）占着。",
        ),
        (memory.STAGED_WAKE_UP, advice.SLEEP_SHARE, advice.SLEEP_UPGRADE),
        ("vllm#12981",),
    ),
    "nccl-alloc": Subtype(
        T("Device memory ran out inside NCCL or HCCL", "NCCL/HCCL 申请显存失败"),
        T(
            "The communication library reports an error of the device, and its reason is that memory ran out: the communication buffers found no room. The network is fine.",
            "通信库报的是设备错误，而原因写着显存不足：通信缓冲区没有显存可用。网络没有问题。",
        ),
        (memory.LOWER_UTILISATION, memory.FREE_DEVICE, memory.FEWER_BATCHED_TOKENS),
        ("vllm#19865",),
    ),
    "absurd-allocation": Subtype(
        T("One allocation is larger than the whole GPU", "单次分配超过了整张卡的显存"),
        T(
            "A single tensor of this size can't be meant: some layer took a path that builds a matrix over all pairs of tokens.",
            "不可能真的需要这么大的单个张量：某一层走了会展开 token 两两矩阵的路径。",
        ),
        (advice.ABSURD_BACKEND, graphs.OTHER_ATTENTION_BACKEND, memory.FEWER_BATCHED_TOKENS, memory.SHORTER_CONTEXT),
        ("gpustack#4963",),
    ),
    "unified-memory": Subtype(
        T("The memory that CPU and GPU share ran out", "CPU 与 GPU 共用的内存耗尽"),
        T(
            "On this machine GPU memory is host memory; the driver was refused pages (NV_ERR_NO_MEMORY) although tools may show some free.",
            "这类机器的显存就是主机内存；驱动申请不到内存页（NV_ERR_NO_MEMORY），尽管工具可能显示还有空闲。",
        ),
        (host.UNIFIED_MEMORY, advice.DROP_PAGE_CACHE),
        ("vllm#45179", "lemonade-sdk/vllm-rocm#5"),
    ),
}
