"""Remedies for device memory: what to make smaller, in the order of least loss."""

from __future__ import annotations

from lifesign.remedies import consequences, sizing
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

FEWER_SEQUENCES = Remedy(
    slug="fewer-sequences",
    kind="flag",
    title=T("fewer sequences at once", "减少并发序列"),
    why=T(
        "Logits, sampler buffers and attention metadata grow with the number of sequences in a step.",
        "logits、采样缓冲区和注意力元数据都随一步中的序列数增长。",
    ),
    forms=(Form("--max-num-seqs", "{value}"),),
    cost=T("fewer requests run side by side; the others queue", "同时运行的请求变少，其余排队"),
    value=sizing.fewer_sequences,
    source="vLLM source: sampler warm-up runs max_num_seqs dummy requests (all of 0.8.5 to 0.33.0)",
)

FEWER_BATCHED_TOKENS = Remedy(
    slug="fewer-batched-tokens",
    kind="flag",
    title=T("fewer tokens per step", "减少每步的 token 数"),
    why=T(
        "Activations of the forward pass grow with the tokens of one step; chunked prefill splits long prompts to fit.",
        "前向计算的激活随每步 token 数增长；分块预填充会把长提示拆开放进去。",
    ),
    forms=(Form("--max-num-batched-tokens", "{value}"),),
    cost=T("long prompts need more steps to their first token", "长提示的首个 token 会来得更晚"),
    value=sizing.fewer_batched_tokens,
    source="vllm#42978 names max-num-batched-tokens; taxonomy: 8192 confirmed in a report of a serving OOM",
)

SHORTER_CONTEXT = Remedy(
    slug="shorter-context",
    kind="flag",
    title=T("a shorter maximum context", "缩短最大上下文长度"),
    why=T(
        "One request of the maximum length must fit into the KV cache.",
        "KV cache 至少要放得下一个最长的请求。",
    ),
    forms=(Form("--max-model-len", "{value}"),),
    cost=T("longer prompts are refused", "超长的请求会被拒绝"),
    value=sizing.shorter_context,
    source="vLLM source: check_enough_kv_cache_memory (0.8.5 to 0.33.0)",
)

LOWER_UTILISATION = Remedy(
    slug="lower-utilisation",
    kind="flag",
    title=T("leave more headroom on the GPU", "给显存多留余量"),
    why=T(
        "vLLM fills its share of the GPU with KV cache; a smaller share leaves room for peaks.",
        "vLLM 会用 KV cache 填满它分到的显存；份额小一些，峰值才有空间。",
    ),
    forms=(Form("--gpu-memory-utilization", "{value}"),),
    cost=T("a smaller KV cache", "KV cache 变小"),
    detail=consequences.cache_lost,
    value=sizing.lower_utilisation,
    source="vLLM source: default 0.9 to 0.19.1, 0.92 from 0.20.0",
)

FIT_UTILISATION = Remedy(
    slug="fit-utilisation",
    kind="flag",
    title=T("ask only for what is free", "只申请现有的空闲显存"),
    why=T(
        "The share is counted from the whole card, and what others hold is missing from it.",
        "份额按整张卡计算，被其他进程占用的部分不会让出来。",
    ),
    forms=(Form("--gpu-memory-utilization", "{value}"),),
    cost=T("a smaller KV cache", "KV cache 变小"),
    value=sizing.fit_utilisation,
    source="vLLM source: request_memory (0.9.1 and later) compares free with utilisation x total",
)

RAISE_UTILISATION = Remedy(
    slug="raise-utilisation",
    kind="flag",
    title=T("give vLLM more of the GPU", "让 vLLM 使用更多显存"),
    why=T(
        "Weights and activations used up the share, so nothing was left for the KV cache: here a larger share helps.",
        "权重和激活已经占满了份额，没有剩给 KV cache：这里要把份额调高。",
    ),
    forms=(Form("--gpu-memory-utilization", "{value}"),),
    cost=T("less headroom for peaks", "峰值余量变小"),
    value=sizing.raise_utilisation,
    source="vLLM's own text: `No available memory for the cache blocks. Try increasing gpu_memory_utilization`",
)

KV_CACHE_BYTES = Remedy(
    slug="kv-cache-bytes",
    kind="flag",
    title=T("state the size of the KV cache", "直接指定 KV cache 大小"),
    why=T("A fixed size overrules the share and its profiling.", "固定大小会取代按份额的估算。"),
    forms=(Form("--kv-cache-memory-bytes", "{value}", since="0.10.2"),),
    value=sizing.kv_cache_bytes,
    source="vLLM prints a fitting number itself; the full name of the flag is --kv-cache-memory-bytes (0.10.2+)",
)

KV_CACHE_FP8 = Remedy(
    slug="kv-cache-fp8",
    kind="flag",
    title=T("an fp8 KV cache", "使用 fp8 KV cache"),
    why=T("Half the bytes per token, so twice the tokens.", "每个 token 的字节减半，容量翻倍。"),
    forms=(Form("--kv-cache-dtype", "fp8"),),
    cost=T("slightly less exact; not on every GPU and backend", "精度略降；并非所有 GPU 和后端都支持"),
    detail=consequences.kv_halved,
    unless=sizing.kv_is_fp8,
    source="vLLM docs: quantized KV cache",
)

MORE_TENSOR_PARALLEL = Remedy(
    slug="more-tensor-parallel",
    kind="flag",
    title=T("spread the model over more GPUs", "把模型分到更多 GPU 上"),
    why=T("Each rank then holds its part of the weights and of the KV cache.", "每个 rank 只放一部分权重和 KV cache。"),
    forms=(Form("--tensor-parallel-size", "{value}"),),
    cost=T("more GPUs; communication in each layer", "需要更多 GPU；每层都有通信"),
    value=sizing.more_tensor_parallel,
    source="vLLM docs: parallelism and scaling",
)

SINGLE_DEVICE = Remedy(
    slug="single-device",
    kind="flag",
    title=T("run on a single card", "只用一张卡运行"),
    why=T("It takes the communication between cards out of the picture.", "这样可以完全排除卡间通信。"),
    forms=(Form("--tensor-parallel-size", "1"),),
    cost=T("the model must fit on one card", "模型必须放得进一张卡"),
    unless=sizing.is_single_device,
)

QUANTISED_WEIGHTS = Remedy(
    slug="quantised-weights",
    kind="check",
    title=T("a quantised or smaller model", "换用量化或更小的模型"),
    why=T(
        "The weights alone don't fit: use an FP8, AWQ or GPTQ checkpoint, or a smaller model; lowering the utilisation can't help.",
        "光是权重就放不下：换 FP8、AWQ 或 GPTQ 量化的权重，或更小的模型；调低显存份额没有用。",
    ),
    command="hf download ORG/MODEL-FP8 --local-dir ./model-fp8",
    cost=T("some accuracy", "损失少量精度"),
)

CPU_OFFLOAD = Remedy(
    slug="cpu-offload",
    kind="flag",
    title=T("keep part of the weights in host memory", "把部分权重放到主机内存"),
    why=T("Takes so many GiB of weights off each GPU.", "每张卡可以少放这么多 GiB 权重。"),
    forms=(Form("--cpu-offload-gb", "{value}"),),
    cost=T("much slower: these weights cross PCIe in every step", "明显变慢：这些权重每步都要走 PCIe"),
    value=sizing.cpu_offload,
    source="vLLM engine arguments: cpu_offload_gb",
)

LIMIT_MM_INPUTS = Remedy(
    slug="limit-mm-inputs",
    kind="flag",
    title=T("fewer images or videos per prompt", "限制每个请求的图片/视频数"),
    why=T(
        "The profiling run of a multi-modal model takes the largest input that is allowed.",
        "多模态模型做显存预演时，按允许的最大输入计算。",
    ),
    forms=(Form("--limit-mm-per-prompt", '{"image": 1, "video": 0}'),),
    cost=T("prompts with more of them are refused", "超出的请求会被拒绝"),
)

TEXT_ONLY = Remedy(
    slug="text-only",
    kind="flag",
    title=T("use the model for text only", "只用它的文本能力"),
    why=T("Without images the vision encoder isn't profiled.", "不接受图片时，就不会预演视觉编码器。"),
    forms=(Form("--limit-mm-per-prompt", '{"image": 0, "video": 0}'),),
    cost=T("images are refused", "不再接受图片"),
)

SMALLER_IMAGES = Remedy(
    slug="smaller-images",
    kind="flag",
    title=T("smaller images", "降低图片分辨率上限"),
    why=T(
        "The encoder's memory grows with the pixels that the processor lets through.",
        "编码器显存随处理器放行的像素数增长。",
    ),
    forms=(Form("--mm-processor-kwargs", '{"max_pixels": 1003520}'),),
    cost=T("less detail; the name of the limit depends on the model's processor", "细节变少；参数名因模型而异"),
)

FREE_DEVICE = Remedy(
    slug="free-device",
    kind="check",
    title=T("find who else holds the GPU", "查出还有谁占着 GPU"),
    why=T(
        "Another process (often a left-over worker of the last run) holds memory that vLLM counted on. End exactly that one; "
        "`lifesign reap` shows engine processes without a living parent.",
        "其他进程（常常是上一次遗留的 worker）占着 vLLM 要用的显存。只结束那一个；`lifesign reap` 会列出没有父进程的引擎进程。",
    ),
    command="nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv; fuser -v /dev/nvidia*; lifesign reap",
    source="vLLM source: request_memory; vllm reports of startup-free-lt-util",
)

RETRY_ALONE = Remedy(
    slug="retry-alone",
    kind="check",
    title=T("start again while nothing else starts or stops on this GPU", "等该 GPU 上没有其他进程启停时再启动"),
    why=T(
        "Memory of another process changed while vLLM was measuring, so the measurement was refused.",
        "vLLM 测量显存期间，另一个进程释放或占用了显存，测量因此作废。",
    ),
    command="nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
    source="vLLM source: memory profiling assert; vllm#33358 for XPU",
)

STAGED_WAKE_UP = Remedy(
    slug="staged-wake-up",
    kind="command",
    title=T("wake up in stages", "分阶段 wake_up"),
    why=T(
        'Weights first, then the KV cache: wake_up(tags=["weights"]), load the weights, free the trainer\'s memory (empty_cache), '
        'then wake_up(tags=["kv_cache"]).',
        '先权重、后 KV cache：wake_up(tags=["weights"])，更新权重并释放训练侧显存（empty_cache），再 wake_up(tags=["kv_cache"])。',
    ),
    command='llm.wake_up(tags=["weights"]); ...; llm.wake_up(tags=["kv_cache"])',
    source="vllm#12981, vLLM docs: sleep mode",
)

FEWER_LORAS = Remedy(
    slug="fewer-loras",
    kind="flag",
    title=T("fewer adapters on the GPU", "减少常驻显存的 LoRA 数"),
    why=T("Slots for adapters are allocated in full at the start.", "LoRA 槽位在启动时就全部分配。"),
    forms=(Form("--max-loras", "{value}"),),
    cost=T("adapters beyond that number wait for a slot", "超出数量的 LoRA 要等槽位"),
    value=sizing.fewer_loras,
)

SGLANG_POOL = Remedy(
    slug="sglang-pool",
    kind="check",
    title=T("give SGLang's KV cache pool room", "给 SGLang 的 KV cache 池留够空间"),
    why=T(
        "This log is SGLang's: lower --max-running-requests or --chunked-prefill-size, or raise --mem-fraction-static.",
        "这是 SGLang 的日志：调低 --max-running-requests 或 --chunked-prefill-size，或调高 --mem-fraction-static。",
    ),
    command="python -m sglang.launch_server --help | grep -E 'mem-fraction|running-requests|chunked-prefill'",
    source="SGLang docs: server arguments, hyper-parameter tuning",
)
