"""What to do about a refused setting: the advice of user-config, some of it built from the numbers in the message."""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.causes import _reading as reading
from lifesign.remedies.library import host, loading
from lifesign.remedies.model import LESS, Form, Remedy
from lifesign.text import T

LINT = loading.FIX_FLAG
FLAG_HELP = Remedy(
    slug="flag-help",
    kind="check",
    title=T("look up the option in this release's help", "在这个版本的帮助里查该选项"),
    why=T(
        "From 0.10 `--help=all` lists every flag; `--help=max` searches by name.",
        "0.10 起 `--help=all` 列出全部参数，`--help=max` 可按名称搜索。",
    ),
    command="vllm serve --help=all | grep -i NAME",
)
JSON_QUOTES = Remedy(
    slug="json-quotes",
    kind="check",
    title=T("JSON values: single quotes outside, double quotes inside", "JSON 值：外面用单引号，里面用双引号"),
    why=T(
        "The shell, YAML and Windows eat quotes in different ways.", "shell、YAML 和 Windows 处理引号的方式各不相同。"
    ),
    command='vllm serve MODEL ... --compilation-config \'{"cudagraph_mode": "NONE"}\'',
)
READ_MESSAGE = Remedy(
    slug="change-the-named-setting",
    kind="check",
    title=T("change or remove the setting that the message names", "修改或去掉报错里提到的设置"),
    why=T("The sentence in the proof line says what is allowed.", "证据行的那句话说明了允许的取值。"),
)
SHORTER = loading.SHORTER_DERIVED_CONTEXT
ROPE = Remedy(
    slug="rope-scaling",
    kind="check",
    title=T(
        "only for models made for it: extend the context with RoPE scaling",
        "仅适用于支持的模型：用 RoPE 缩放扩展上下文",
    ),
    why=T(
        "The model card gives the factor; it goes into config.json or --hf-overrides. VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 alone only hides the check and gives wrong output.",
        "模型卡会给出系数，写进 config.json 或 --hf-overrides。只设 VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 只是绕过检查，输出会出错。",
    ),
    command="grep -nE 'max_position_embeddings|rope_' MODEL_DIR/config.json",
)
LENGTH_OUT = Remedy(
    slug="leave-length-out",
    kind="check",
    title=T("leave --max-model-len out", "去掉 --max-model-len"),
    why=T(
        "vLLM derives the length from config.json (max_position_embeddings).",
        "vLLM 会从 config.json（max_position_embeddings）得出长度。",
    ),
)
MAX_MODEL_LEN = (LENGTH_OUT, ROPE)


def for_length(derived: str, line: int) -> tuple[Remedy, ...]:
    """The advice for a context that is too long, with the derived length as the value."""
    how = T("the length that the model's configuration gives", "模型配置给出的长度")
    return (reading.with_value(SHORTER, derived, how, line, LESS), LENGTH_OUT, ROPE)


OLD_MODEL_RUNNER = Remedy(
    slug="first-model-runner",
    kind="env",
    title=T("take the first model runner", "改用第一版 model runner"),
    why=T(
        "The second one doesn't have this feature yet; the first one does, or take the feature off.",
        "第二版 model runner 还不支持这个功能，第一版支持；或者去掉这个功能。",
    ),
    forms=(Form("VLLM_USE_V2_MODEL_RUNNER", "0"),),
)
SPECULATE_LESS = Remedy(
    slug="fewer-draft-tokens",
    kind="check",
    title=T("count the draft tokens too", "把草稿 token 也算进去"),
    why=T(
        "With speculative decoding each sequence brings 1 + num_speculative_tokens tokens into a step.",
        "开启投机解码后，每个序列每步带来 1 + num_speculative_tokens 个 token。",
    ),
)
SGLANG_DISPATCH = Remedy(
    slug="sglang-dispatch-tokens",
    kind="check",
    title=T("make SGLang's batches fit the dispatch buffer", "让 SGLang 的批次放得进 dispatch 缓冲区"),
    why=T(
        "This log is SGLang's: keep --max-running-requests divided by the data-parallel ranks, and --cuda-graph-max-bs, at or below the limit (128 unless set), or raise SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK; the buffer then takes more memory.",
        "这是 SGLang 的日志：让 --max-running-requests 除以数据并行数、以及 --cuda-graph-max-bs 都不超过上限（默认 128），或者调高 SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK，缓冲区会相应占用更多显存。",
    ),
    command='echo "${SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK:-128}"; python -m sglang.launch_server --help | grep -E "running-requests|cuda-graph-max-bs"',
    source="SGLang docs: environment variables; DeepEP#165",
)
TENSOR_PARALLEL = Remedy(
    slug="fitting-tensor-parallel",
    kind="flag",
    title=T("use a tensor-parallel size that fits", "使用合适的张量并行数"),
    why=T("It must divide the attention heads and not exceed the GPUs.", "它要能整除注意力头数，且不超过 GPU 数。"),
    forms=(Form("--tensor-parallel-size", "{value}"),),
    cost=T("more memory per GPU", "每块 GPU 占用更多显存"),
)


def for_heads(heads: int, asked: int, line: int) -> Remedy:
    """The largest power of two that divides `heads` and is below `asked` (key-value heads divide by it as well)."""
    fitting = 1
    while fitting * 2 < asked and heads % (fitting * 2) == 0:
        fitting *= 2
    how = f"{heads} / {fitting} = {heads // fitting}"
    return reading.with_value(TENSOR_PARALLEL, str(fitting), T(how, how), line, LESS)


def for_gpus(gpus: int, line: int) -> Remedy:
    """As many ranks as there are GPUs."""
    return reading.with_value(
        TENSOR_PARALLEL, str(gpus), T("the number of GPUs in the message", "报错里的 GPU 数"), line, LESS
    )


MORE_BATCHED_TOKENS = Remedy(
    slug="raise-token-budget",
    kind="check",
    title=T(
        "raise --max-num-batched-tokens to at least --max-model-len, or lower the length",
        "把 --max-num-batched-tokens 提到不小于 --max-model-len，或缩短长度",
    ),
    why=T("It must also be at least --max-num-seqs.", "它还必须不小于 --max-num-seqs。"),
)
CHUNKED_PREFILL = Remedy(
    slug="chunked-prefill",
    kind="flag",
    title=T("or allow chunked prefill", "或者打开分块预填充"),
    why=T("Long prompts are then split over several steps.", "长提示会分成多步处理。"),
    forms=(Form("--enable-chunked-prefill"),),
)
COUNT_GPUS = Remedy(
    slug="count-gpus",
    kind="check",
    title=T("count the GPUs that this process sees", "数一数该进程看到几块 GPU"),
    why=T("Container limits and CUDA_VISIBLE_DEVICES decide.", "由容器限制和 CUDA_VISIBLE_DEVICES 决定。"),
    command='echo "[$CUDA_VISIBLE_DEVICES]"; python -c "import torch; print(torch.cuda.device_count())"',
)
TP_TO_GPUS = Remedy(
    slug="ranks-to-gpus",
    kind="check",
    title=T("set --tensor-parallel-size to that number or less", "把 --tensor-parallel-size 设成不超过这个数"),
    why=T("It must also divide the number of attention heads.", "它还要能整除注意力头数。"),
)
RAY_OR_NNODES = Remedy(
    slug="several-nodes",
    kind="check",
    title=T("for several nodes: say so", "多机：要显式说明"),
    why=T(
        "Use --distributed-executor-backend ray on a ray cluster, or from 0.11.1 --nnodes with --node-rank and --master-addr.",
        "在 ray 集群上用 --distributed-executor-backend ray；0.11.1 起也可用 --nnodes 配合 --node-rank 和 --master-addr。",
    ),
)
DP_OPTIONS = Remedy(
    slug="data-parallel-options",
    kind="check",
    title=T(
        "make --data-parallel-size, -size-local, -rank and the load-balancing mode agree",
        "让 --data-parallel-size、-size-local、-rank 与负载均衡模式保持一致",
    ),
    why=T(
        "One external rank per engine (--data-parallel-rank), or one launcher for all local ranks (--data-parallel-size-local), not both. Dense models need no data-parallel group: start independent servers.",
        "要么每个引擎一个外部 rank（--data-parallel-rank），要么一个启动器管理本机所有 rank（--data-parallel-size-local），不能混用。稠密模型不需要数据并行组，直接起多个独立服务即可。",
    ),
)
DIVIDING_TP = Remedy(
    slug="dividing-tp",
    kind="check",
    title=T(
        "choose a --tensor-parallel-size that divides the number of heads (1, 2, 4, 8 ...)",
        "选能整除注意力头数的 --tensor-parallel-size（1、2、4、8……）",
    ),
    why=T(
        "The head count stands in config.json as num_attention_heads.", "头数在 config.json 的 num_attention_heads 里。"
    ),
    command="grep -nE 'num_attention_heads|num_key_value_heads|vocab_size' MODEL_DIR/config.json",
)
PIPELINE = Remedy(
    slug="pipeline-parallel",
    kind="check",
    title=T(
        "or use the same GPUs by pipeline parallelism (--pipeline-parallel-size)",
        "或者用流水线并行（--pipeline-parallel-size）使用同样多的 GPU",
    ),
    why=T("It splits by layers, not by heads.", "它按层切分，不按头切分。"),
    cost=T("higher latency of a single request", "单个请求延迟更高"),
)


def pipeline_for(heads: int, asked: int, line: int) -> Remedy:
    """All `asked` GPUs, by as few pipeline stages as leave a tensor-parallel size that divides `heads`."""
    stages = next(count for count in range(2, asked + 1) if asked % count == 0 and heads % (asked // count) == 0)
    ranks = asked // stages
    how = T(
        f"{stages} x {ranks} = {asked} GPUs; {heads} / {ranks} = {heads // ranks}",
        f"{stages} x {ranks} = {asked} 块 GPU；{heads} / {ranks} = {heads // ranks}",
    )
    flag = Form("--pipeline-parallel-size", "{value}", also=(("--tensor-parallel-size", str(ranks)),))
    return reading.with_value(replace(PIPELINE, kind="flag", forms=(flag,)), str(stages), how, line)


VISIBLE_DEVICES = host.VISIBLE_DEVICES
MAX_LORA_RANK = loading.HIGHER_LORA_RANK
MAMBA = Remedy(
    slug="mamba-prefix-caching",
    kind="flag",
    title=T("switch prefix caching on, or leave --mamba-block-size out", "打开前缀缓存，或去掉 --mamba-block-size"),
    why=T("Without prefix caching there is nothing to size.", "没有前缀缓存时这个参数没有意义。"),
    forms=(Form("--enable-prefix-caching"),),
)
FAULT_TOLERANCE = loading.FT_FLAGS
SPECULATIVE = Remedy(
    slug="speculative-settings",
    kind="check",
    title=T(
        "correct --speculative-config as the message says, or start without it to compare",
        "按报错修改 --speculative-config，或先去掉它做对比",
    ),
    why=T(
        "The number of draft tokens must fit the draft model; some methods exclude other options.",
        "草稿 token 数要与草稿模型匹配；有些方法与其他选项互斥。",
    ),
)
BACKEND_AUTO = Remedy(
    slug="backend-auto",
    kind="check",
    title=T("let vLLM choose the attention backend", "让 vLLM 自己选择注意力后端"),
    why=T(
        "Remove --attention-backend (0.13 and later) or VLLM_ATTENTION_BACKEND (read up to 0.12), and then the option that the reasons name.",
        "去掉 --attention-backend（0.13 起）或 VLLM_ATTENTION_BACKEND（0.12 及以前有效），再看报错列出的原因调整。",
    ),
)
KV_DTYPE_AUTO = Remedy(
    slug="kv-dtype-auto",
    kind="flag",
    title=T("use the default type for the KV cache", "KV cache 使用默认类型"),
    why=T("FP8 and FP4 caches are supported by few back ends.", "FP8、FP4 的缓存只有少数后端支持。"),
    forms=(Form("--kv-cache-dtype", "auto"),),
    cost=T("fewer tokens fit into the cache", "缓存能放的 token 变少"),
)
UNSET_VARIABLE = Remedy(
    slug="fix-variable",
    kind="command",
    title=T("correct or unset the environment variable", "修正或清除这个环境变量"),
    why=T(
        "In Kubernetes a service called `vllm` injects VLLM_PORT=tcp://...: rename the service, or set the variable yourself.",
        "在 Kubernetes 里，名为 `vllm` 的 service 会注入 VLLM_PORT=tcp://...：改掉 service 名，或自己设置这个变量。",
    ),
    command="env | grep ^VLLM_",
)
BAD_ENV = (UNSET_VARIABLE,)


def for_variable(name: str) -> tuple[Remedy, ...]:
    """The advice for one named environment variable."""
    named = replace(UNSET_VARIABLE, title=T(f"correct or unset {name}", f"修正或清除 {name}"), command=f"unset {name}")
    return (named, replace(LINT, command=f"lifesign lint -- {name}=VALUE vllm serve MODEL ..."))
