"""Remedies for loading: files, hubs, tokens, architectures, quantisation, adapters, and the requests that follow."""

from __future__ import annotations

from lifesign.remedies import sizing
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

HF_MIRROR = Remedy(
    slug="hf-mirror",
    kind="env",
    title=T("download from a mirror", "使用镜像站下载"),
    why=T(
        "huggingface.co can't be reached from here; HF_ENDPOINT names a mirror.",
        "这里连不上 huggingface.co；用 HF_ENDPOINT 指定镜像站。",
    ),
    forms=(Form("HF_ENDPOINT", "https://hf-mirror.com"),),
    source="huggingface_hub: environment variables",
)

LOCAL_MODEL_PATH = Remedy(
    slug="local-model-path",
    kind="check",
    title=T("give the full path of a complete local folder", "使用完整的本地模型目录"),
    why=T(
        "The path doesn't exist in this process's view, or it isn't a model folder: check mounts and spelling. A path that is missing is taken for a hub name.",
        "该路径在此进程看来不存在，或不是模型目录：检查挂载和拼写。不存在的路径会被当成仓库名。",
    ),
    command="ls -l /path/to/model/config.json /path/to/model/*.safetensors",
)

PRE_DOWNLOAD = Remedy(
    slug="pre-download",
    kind="command",
    title=T("download first, then start", "先下载，再启动"),
    why=T("The download can be resumed and checked apart from the engine.", "下载可以断点续传，也能单独检查。"),
    command="hf download ORG/MODEL --local-dir ./model   # older: huggingface-cli download",
    source="huggingface_hub: command line",
)

REDOWNLOAD = Remedy(
    slug="redownload",
    kind="command",
    title=T("download the damaged files again", "重新下载损坏的文件"),
    why=T(
        "A file is truncated, incomplete or a git-lfs pointer: compare sizes and checksums with the hub.",
        "文件被截断、不完整，或只是 git-lfs 指针：与仓库核对大小和校验和。",
    ),
    command="ls -l MODEL_DIR; hf download ORG/MODEL --local-dir MODEL_DIR --force-download",
)

OFFLINE_CACHE = Remedy(
    slug="offline-cache",
    kind="check",
    title=T("fill the cache before going offline", "离线前先把缓存备好"),
    why=T(
        "HF_HUB_OFFLINE=1 allows only what is in the cache; download once with network, or unset it.",
        "HF_HUB_OFFLINE=1 时只能用缓存：先联网下载一次，或取消这个变量。",
    ),
    command="hf cache ls 2>/dev/null || huggingface-cli scan-cache; env | grep -E '^HF_|^TRANSFORMERS_'",
    source="huggingface_hub: environment variables",
)

HF_TOKEN = Remedy(
    slug="hf-token",
    kind="env",
    title=T("a token with access to this model", "提供有权限的 token"),
    why=T(
        "The repository is gated or private: accept its licence on the hub, then set HF_TOKEN (or log in with `hf auth login`).",
        "该仓库需要授权或是私有的：先在网站上同意许可，再设置 HF_TOKEN（或 `hf auth login`）。",
    ),
    forms=(Form("HF_TOKEN", "hf_..."),),
    source="huggingface_hub: environment variables",
)

TRUST_REMOTE_CODE = Remedy(
    slug="trust-remote-code",
    kind="flag",
    title=T("allow the model's own code", "允许执行模型自带代码"),
    why=T(
        "The repository brings Python code that Transformers doesn't know; read it before you allow it.",
        "仓库自带 Transformers 里没有的 Python 代码；允许之前先读一遍。",
    ),
    forms=(Form("--trust-remote-code"),),
    cost=T("runs code from the repository", "会执行仓库里的代码"),
    unless=sizing.trusts_remote_code,
    source="vLLM engine arguments: trust_remote_code",
)

PIN_TRANSFORMERS = Remedy(
    slug="pin-transformers",
    kind="command",
    title=T("the transformers release that fits", "换成匹配的 transformers 版本"),
    why=T(
        "Transformers 5 removed attributes that vLLM to 0.11 uses: downgrade transformers to 4.57.x or upgrade vLLM.",
        "Transformers 5 去掉了 vLLM 0.11 及之前用到的属性：把 transformers 降到 4.57.x，或升级 vLLM。",
    ),
    command="pip install 'transformers>=4.57,<5'",
)

NEWER_TRANSFORMERS = Remedy(
    slug="newer-transformers",
    kind="command",
    title=T("a transformers release that knows this model", "换成认识该模型的 transformers"),
    why=T("The model type is newer than the installed transformers.", "该模型类型比已装的 transformers 更新。"),
    command="pip install -U transformers",
)

SUPPORTED_ARCH = Remedy(
    slug="supported-arch",
    kind="check",
    title=T("a release that supports this architecture", "换成支持该架构的版本"),
    why=T(
        "The list of supported architectures grows with each release; upgrade, or try --model-impl transformers. If the name is on the list, look for an import error above.",
        "支持的架构随版本增加：升级，或试试 --model-impl transformers。若名字已在列表里，请看上方的 import 错误。",
    ),
    command="python -c 'from vllm import ModelRegistry as r; print(*sorted(r.get_supported_archs()), sep=chr(10))' | grep -i NAME",
    source="vLLM docs: supported models",
)

FIX_CONFIG_JSON = Remedy(
    slug="fix-config-json",
    kind="check",
    title=T("repair config.json", "修复 config.json"),
    why=T(
        "The model's config.json isn't valid JSON: download it again.",
        "模型的 config.json 不是合法的 JSON：重新下载它。",
    ),
    command="python -m json.tool MODEL_DIR/config.json",
)

WEIGHTS_CONFIG_MATCH = Remedy(
    slug="weights-config-match",
    kind="check",
    title=T("weights and config of the same model", "核对权重与 config 是否同一模型"),
    why=T(
        "The shapes in the checkpoint don't fit config.json (hidden_size, layers, vocabulary): take both from the same revision.",
        "checkpoint 的形状与 config.json（hidden_size、层数、词表）对不上：两者要取自同一版本。",
    ),
    command='python -c \'import json,glob; c=json.load(open("MODEL_DIR/config.json")); print({k:c.get(k) for k in ("architectures","hidden_size","num_hidden_layers","vocab_size")})\'; ls MODEL_DIR',
)

TOKENIZER_FILES = Remedy(
    slug="tokenizer-files",
    kind="flag",
    title=T("say where the tokenizer is", "指定 tokenizer 的位置"),
    why=T(
        "The model folder has no tokenizer files: add tokenizer.json and tokenizer_config.json, or name the base model.",
        "模型目录里没有 tokenizer 文件：补上 tokenizer.json 和 tokenizer_config.json，或指定基座模型。",
    ),
    forms=(Form("--tokenizer", "ORG/BASE-MODEL"),),
)

OTHER_QUANTISATION = Remedy(
    slug="other-quantisation",
    kind="check",
    title=T("another quantisation of this model", "换一种量化版本"),
    why=T(
        "An FP8 or AWQ checkpoint of the model, re-quantized for this GPU and this tensor-parallel size.",
        "换成该模型的 FP8 或 AWQ 权重，或按此 GPU 与张量并行数重新量化。",
    ),
    command="hf download ORG/MODEL-FP8 --local-dir ./model-fp8",
    cost=T("some accuracy or memory", "精度或显存略有变化"),
)

GPTQ_MARLIN = Remedy(
    slug="gptq-marlin",
    kind="flag",
    title=T("the Marlin kernels for GPTQ", "GPTQ 改用 Marlin 内核"),
    why=T("They take shapes that the plain GPTQ kernel handles badly.", "它能处理普通 GPTQ 内核处理不好的形状。"),
    forms=(Form("--quantization", "gptq_marlin"),),
    cost=T("only for group sizes and GPUs that Marlin supports", "仅限 Marlin 支持的分组大小和 GPU"),
    unless=sizing.quantisation_is_gptq_marlin,
    source="parsers of 45 releases: gptq_marlin is valid in all",
)

PLAIN_GPTQ = Remedy(
    slug="plain-gptq",
    kind="flag",
    title=T("the plain GPTQ kernels", "改用普通 GPTQ 内核"),
    why=T("They don't have Marlin's demand on the size of each shard.", "它没有 Marlin 对分块大小的要求。"),
    forms=(Form("--quantization", "gptq"),),
    cost=T("slower", "变慢"),
)

NEWER_GPU_OR_QUANT = Remedy(
    slug="newer-gpu-or-quant",
    kind="check",
    title=T("a quantisation that this GPU can run", "换用该 GPU 支持的量化"),
    why=T(
        "The kernel needs a newer compute capability (Turing is 7.5, Ampere 8.0, Ada 8.9, Hopper 9.0): use AWQ or GPTQ on older cards.",
        "该内核要求更高的计算能力（Turing 7.5、Ampere 8.0、Ada 8.9、Hopper 9.0）：旧卡请用 AWQ 或 GPTQ。",
    ),
    command="python -c 'import torch; print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())'",
    source="vLLM docs: quantization, supported hardware",
)

LORA_PATH = Remedy(
    slug="lora-path",
    kind="check",
    title=T("check the adapter's folder", "检查 LoRA 目录"),
    why=T(
        "The LoRA path must exist in this process's view and hold adapter_config.json; restore it or take it out of --lora-modules.",
        "LoRA 路径必须存在，且含有 adapter_config.json；恢复它，或从 --lora-modules 去掉。",
    ),
    command="ls -l LORA_PATH/adapter_config.json LORA_PATH/adapter_model.*",
)

HIGHER_LORA_RANK = Remedy(
    slug="higher-lora-rank",
    kind="flag",
    title=T("allow the adapter's rank", "放宽 LoRA 秩上限"),
    why=T("The adapter's rank is above the limit that buffers were made for.", "适配器的秩超过了缓冲区预留的上限。"),
    forms=(Form("--max-lora-rank", "{value}"),),
    cost=T("more memory for adapters", "LoRA 占用更多显存"),
    value=sizing.higher_lora_rank,
)

TIKTOKEN_FILES = Remedy(
    slug="tiktoken-files",
    kind="env",
    title=T("bring the Harmony vocabulary along", "预先放好 Harmony 词表"),
    why=T(
        "gpt-oss models fetch o200k_base.tiktoken at the first use; offline it must be in a local folder.",
        "gpt-oss 模型首次使用时会下载 o200k_base.tiktoken；离线时要放在本地目录。",
    ),
    forms=(Form("TIKTOKEN_ENCODINGS_BASE", "/path/to/encodings"),),
    source="vllm#22525; vLLM recipes: gpt-oss",
)

DROP_SPECULATIVE = Remedy(
    slug="drop-speculative",
    kind="command",
    title=T("try without speculative decoding", "暂时关闭投机解码"),
    why=T(
        "Take --speculative-config off: if the error goes, the draft model or MTP is at fault.",
        "去掉 --speculative-config：错误消失就说明问题在草稿模型或 MTP。",
    ),
    command="vllm serve MODEL ...   # yours, without --speculative-config",
    cost=T("slower decoding", "解码变慢"),
)

DROP_KV_CONNECTOR = Remedy(
    slug="drop-kv-connector",
    kind="command",
    title=T("try without the KV connector", "暂时关闭 KV connector"),
    why=T(
        "Take --kv-transfer-config off: if the error goes, the connector (LMCache, NIXL, Mooncake ...) or its version is at fault; upgrade it together with vLLM.",
        "去掉 --kv-transfer-config：错误消失就说明问题在 connector（LMCache、NIXL、Mooncake 等）或其版本；请与 vLLM 一起升级。",
    ),
    command="vllm serve MODEL ...   # yours, without --kv-transfer-config",
)

MATCH_PREFILL_DECODE = Remedy(
    slug="match-prefill-decode",
    kind="check",
    title=T("the same settings on prefill and decode", "统一 prefill 与 decode 的设置"),
    why=T(
        "Both sides need the same vLLM, model, dtype, block size and a fitting tensor-parallel size.",
        "两侧的 vLLM、模型、dtype、block size 必须一致，张量并行数要匹配。",
    ),
    command="diff <(grep -m1 'non-default args' prefill.log) <(grep -m1 'non-default args' decode.log)",
)

UCX_TRANSPORT = Remedy(
    slug="ucx-transport",
    kind="env",
    title=T("name the transports that UCX may use", "指定 UCX 传输方式"),
    why=T(
        "NIXL's backend failed in UCX: the RDMA device or cuda_ipc isn't usable here; name what is (UCX_NET_DEVICES too).",
        "NIXL 后端在 UCX 中失败：RDMA 设备或 cuda_ipc 在此不可用；请明确指定（还有 UCX_NET_DEVICES）。",
    ),
    forms=(Form("UCX_TLS", "tcp,cuda_copy,cuda_ipc"),),
    cost=T("slower than RDMA", "比 RDMA 慢"),
    source="UCX documentation; vLLM docs: NIXL connector",
)

VALIDATE_TOKEN_IDS = Remedy(
    slug="validate-token-ids",
    kind="check",
    title=T("check token ids before they reach the engine", "在进入引擎前校验 token id"),
    why=T(
        "A request carried a token id outside the vocabulary (stop_token_ids, logit_bias, allowed_token_ids, a prompt of ids, or a draft token): refuse it at the gateway.",
        "某个请求带了超出词表的 token id（stop_token_ids、logit_bias、allowed_token_ids、以 id 给出的提示，或草稿 token）：请在网关处拒绝。",
    ),
    command='python -c \'from transformers import AutoTokenizer as t, AutoConfig as c; print(len(t.from_pretrained("MODEL")), c.from_pretrained("MODEL").vocab_size)\'',
    source="vllm#16529 (0.8.4)",
)

ISOLATE_REQUEST = Remedy(
    slug="isolate-request",
    kind="check",
    title=T("find the request that kills it, and stop retries", "找出致命请求并停止重试"),
    why=T(
        "One request does it, and it comes back when the client retries; replay the last ones alone to find it.",
        "是某一个请求造成的，客户端一重试又会发生；把最后几个请求单独重放就能找到。",
    ),
    command='grep -n "Dumping input data" -A3 vllm.log | tail -20',
)

FIX_SCHEMA = Remedy(
    slug="fix-schema",
    kind="check",
    title=T("check the JSON schema or grammar of the request", "检查请求的 JSON schema 或语法"),
    why=T(
        "The grammar of a request (response_format, structured output) couldn't be compiled, and that ended the engine; validate schemas at the gateway.",
        "某个请求的语法（response_format、结构化输出）编译失败，拖垮了引擎；请在网关处校验 schema。",
    ),
    command="python -c 'import json,sys,jsonschema; jsonschema.Draft202012Validator.check_schema(json.load(open(\"schema.json\")))'",
    source="vllm#44401, vllm#47312, vllm#37642",
)

OTHER_GRAMMAR_BACKEND = Remedy(
    slug="other-grammar-backend",
    kind="flag",
    title=T("another grammar back end", "更换结构化输出后端"),
    why=T(
        "guidance compiles lazily, where xgrammar works out the whole grammar first.",
        "guidance 按需编译，而 xgrammar 会先编译整个语法。",
    ),
    forms=(
        Form("--structured-outputs-config", '{"backend": "guidance"}', since="0.12.0"),
        Form("--guided-decoding-backend", "guidance", until="0.11.2"),
    ),
    source="parsers: --guided-decoding-backend to 0.11.2",
)

MM_PLACEHOLDERS = Remedy(
    slug="mm-placeholders",
    kind="check",
    title=T("make images and placeholders agree", "让图片与占位符一致"),
    why=T(
        "The prompt's image placeholders and the processor's multi-modal tokens differ in number: check the chat template and validate such requests; upgrade vLLM, whose checks grew.",
        "提示里的图片占位符与处理器给出的多模态 token 数不一致：检查 chat template 并校验请求；升级 vLLM，新版校验更全。",
    ),
    command='grep -n "multimodal tokens" vllm.log',
)

REQUEST_LENGTH_LIMIT = Remedy(
    slug="request-length-limit",
    kind="check",
    title=T("limit the length of a request", "限制单个请求的长度"),
    why=T(
        "One request took the whole KV pool: reject inputs and max_tokens beyond a limit at the gateway.",
        "单个请求耗尽了整个 KV 池：在网关处限制输入长度和 max_tokens。",
    ),
    command="curl -s localhost:8000/v1/models | python -m json.tool | grep max_model_len",
)

FEWER_LOGPROBS = Remedy(
    slug="fewer-logprobs",
    kind="flag",
    title=T("no prompt_logprobs on long prompts", "长提示不要开 prompt_logprobs"),
    why=T(
        "prompt_logprobs materialises logits for every token of the prompt (tokens x vocabulary x 4 bytes); limit them.",
        "prompt_logprobs 会为提示的每个 token 算出完整 logits（token 数 × 词表 × 4 字节）；应加以限制。",
    ),
    forms=(Form("--max-logprobs", "0"),),
    cost=T("requests with logprobs are refused", "带 logprobs 的请求会被拒绝"),
)

PATCHED_BUILD = Remedy(
    slug="patched-build",
    kind="check",
    title=T("the vLLM build that this framework needs", "安装该框架要求的 vLLM 版本"),
    why=T(
        "The framework expects a patched vLLM (or another version than the stock one): install the version it names.",
        "该框架要求打过补丁的 vLLM（或特定版本），而不是官方原版：请按其说明安装。",
    ),
    command="pip list | grep -iE 'vllm|dynamo|lmcache|nixl'",
)

FIX_FLAG = Remedy(
    slug="fix-flag",
    kind="check",
    title=T("check the flags and arguments against this release", "按该版本核对命令行参数"),
    why=T(
        "The parser doesn't know an option of this command line; lint names the right one.",
        "命令行里有该版本不认识的选项；lint 会给出正确的名字。",
    ),
    command="lifesign lint -- vllm serve ...",
)

SHORTER_DERIVED_CONTEXT = Remedy(
    slug="shorter-derived-context",
    kind="flag",
    title=T("a context that the model supports", "使用模型支持的上下文长度"),
    why=T(
        "The model's own limit (max_position_embeddings) is below the value given; longer needs RoPE scaling.",
        "给的值超过了模型自身上限（max_position_embeddings）；更长需要 RoPE 缩放。",
    ),
    forms=(Form("--max-model-len", "{value}"),),
    value=sizing.derived_context,
    source="vLLM source: `User-specified max_model_len is greater than the derived max_model_len` (all 45)",
)

FT_FLAGS = Remedy(
    slug="fault-tolerance-flags",
    kind="flag",
    title=T("the flags that fault tolerance needs", "补上容错所需的参数"),
    why=T(
        "--enable-fault-tolerance works only with external data-parallel load balancing: --data-parallel-external-lb or --data-parallel-rank.",
        "--enable-fault-tolerance 只在外部数据并行负载均衡下可用：加 --data-parallel-external-lb 或 --data-parallel-rank。",
    ),
    forms=(Form("--data-parallel-external-lb", since="0.11.1"),),
)

RAY_PLACEMENT = Remedy(
    slug="ray-placement",
    kind="check",
    title=T("make Ray see as many GPUs as asked for", "让 Ray 看到足够的 GPU"),
    why=T(
        "The cluster has fewer free GPUs than tensor x pipeline parallel size; stale placement groups hold some.",
        "集群空闲 GPU 少于张量 × 流水并行数；残留的 placement group 可能占着一些。",
    ),
    command="ray status; ray list placement-groups",
)

SMALLER_BLOCK_SIZE = Remedy(
    slug="same-block-size",
    kind="flag",
    title=T("another KV block size", "换一个 KV block size"),
    why=T(
        "Hybrid models and connectors ask for page sizes that divide each other.",
        "混合模型和 connector 要求各层的页大小能整除。",
    ),
    forms=(Form("--block-size", "16"),),
)
