"""What to do when a model can't be loaded: the advice of model-load."""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.remedies.library import collect, loading
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

MIRROR = loading.HF_MIRROR
PRE_DOWNLOAD = loading.PRE_DOWNLOAD
LOCAL_PATH = Remedy(
    slug="local-path",
    kind="command",
    title=T("serve from the local path", "用本地路径启动"),
    why=T("vLLM then doesn't need the hub at all.", "这样 vLLM 完全不需要访问仓库。"),
    command="vllm serve /models/NAME --served-model-name ORG/MODEL",
)
HUB_REACHABLE = Remedy(
    slug="hub-reachable",
    kind="check",
    title=T("test the way to the hub from where vLLM runs", "在 vLLM 运行的地方测试能否访问仓库"),
    why=T("Containers often lack the host's proxy and DNS settings.", "容器里常常没有宿主机的代理和 DNS 设置。"),
    command='curl -sSI https://huggingface.co | head -1; env | grep -iE "proxy|HF_"',
)
USE_CACHE_ONLY = Remedy(
    slug="cache-only",
    kind="env",
    title=T("if the model is in the cache already: stay offline", "模型已在缓存里时：直接离线运行"),
    why=T(
        "HF_HUB_OFFLINE=1 skips every look-up; the cache must be complete.",
        "HF_HUB_OFFLINE=1 跳过所有联网查询；前提是缓存完整。",
    ),
    forms=(Form("HF_HUB_OFFLINE", "1"),),
)
OFFLINE = (
    Remedy(
        slug="leave-offline-mode",
        kind="command",
        title=T("leave offline mode for the download", "下载时关闭离线模式"),
        why=T(
            "HF_HUB_OFFLINE=1 forbids every download; `local_files_only` in the message is not a vLLM option.",
            "HF_HUB_OFFLINE=1 禁止一切下载；报错里的 `local_files_only` 不是 vLLM 的参数。",
        ),
        command="unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
    ),
    PRE_DOWNLOAD,
    LOCAL_PATH,
    loading.OFFLINE_CACHE,
    MIRROR,
)
HUB_LOGIN = Remedy(
    slug="hub-login",
    kind="env",
    title=T("send a token: anonymous downloads are limited first", "带上 token：匿名下载最先被限流"),
    why=T("The hub answered 429, too many requests.", "仓库返回 429，请求过多。"),
    forms=(Form("HF_TOKEN", "hf_YOUR_TOKEN"),),
)
ACCEPT_AND_TOKEN = loading.HF_TOKEN
TOKEN_REACHES_CONTAINER = Remedy(
    slug="token-reaches-process",
    kind="check",
    title=T("check that the token reaches the process", "确认 token 传到了进程里"),
    why=T(
        "docker needs -e HF_TOKEN, Kubernetes a secret; a token in the host's cache isn't visible inside.",
        "docker 要加 -e HF_TOKEN，Kubernetes 要用 secret；宿主机缓存里的 token 在容器里看不到。",
    ),
    command="hf auth whoami",
)
PATH_EXISTS = loading.LOCAL_MODEL_PATH
MOUNTED = Remedy(
    slug="mount-the-folder",
    kind="command",
    title=T("in a container: mount the folder", "容器里：把目录挂载进去"),
    why=T(
        "Links into the Hugging Face cache need the whole cache folder mounted.",
        "指向 Hugging Face 缓存的软链接需要挂载整个缓存目录。",
    ),
    command="docker run -v /models:/models ... vllm/vllm-openai --model /models/NAME",
)
REPOSITORY_NAME = Remedy(
    slug="repository-name",
    kind="check",
    title=T("or check the repository name and revision on the hub", "或者核对仓库名和版本"),
    why=T(
        "A private repository without a token also looks as if it didn't exist.",
        "没有 token 时，私有仓库看起来也像不存在。",
    ),
    command="hf download ORG/MODEL config.json",
)
REPOSITORY_THERE = Remedy(
    slug="repository-there",
    kind="check",
    title=T("check the name, letter by letter", "逐字核对模型名"),
    why=T(
        "If the command finds the repository, only the engine's token or its environment is at fault; on ModelScope set VLLM_USE_MODELSCOPE=True.",
        "如果这条命令能找到仓库，问题就在引擎的 token 或环境里；用 ModelScope 时设置 VLLM_USE_MODELSCOPE=True。",
    ),
    command="hf download ORG/MODEL config.json",
)
CONFIG_THERE = Remedy(
    slug="config-there",
    kind="check",
    title=T("check that config.json is in the folder", "确认目录里有 config.json"),
    why=T(
        "Adapters, GGUF and Mistral-format repositories don't have one and need other flags.",
        "适配器、GGUF 和 Mistral 格式的仓库没有它，需要其他参数。",
    ),
    command="ls -l MODEL_DIR",
)
WEIGHTS_THERE = Remedy(
    slug="weights-there",
    kind="check",
    title=T("look for the weights in the folder", "看看目录里有没有权重"),
    why=T(
        "Files *.safetensors (or *.bin) must lie in the folder itself, not in a subfolder.",
        "*.safetensors（或 *.bin）要直接放在这个目录里，不能在子目录。",
    ),
    command="ls -lL MODEL_DIR | grep -E 'safetensors|bin|gguf'",
)
LOAD_FORMAT = Remedy(
    slug="load-format",
    kind="flag",
    title=T("let vLLM choose the load format", "让 vLLM 自动选择加载格式"),
    why=T("A fixed --load-format only reads its own kind of file.", "固定的 --load-format 只读对应类型的文件。"),
    forms=(Form("--load-format", "auto"),),
)
FILE_SIZES = Remedy(
    slug="file-sizes",
    kind="check",
    title=T("compare file sizes and checksum with the hub", "与仓库对比文件大小和校验和"),
    why=T(
        "A truncated shard is smaller than its neighbours; an LFS pointer has about 130 bytes.",
        "被截断的分片比其他分片小；LFS 指针只有约 130 字节。",
    ),
    command="ls -lL MODEL_DIR/*.safetensors; df -h MODEL_DIR",
)
DOWNLOAD_AGAIN = loading.REDOWNLOAD
LFS_PULL = Remedy(
    slug="lfs-pull",
    kind="command",
    title=T("if the model was cloned with git: fetch the LFS files", "如果是 git clone 的：拉取 LFS 文件"),
    why=T("Without git-lfs a clone contains pointers only.", "没有 git-lfs 时克隆下来的只有指针。"),
    command="git lfs install && git lfs pull",
)
JSON_CHECK = loading.FIX_CONFIG_JSON
TRUST_CODE = loading.TRUST_REMOTE_CODE
TRANSFORMERS_FIT = loading.PIN_TRANSFORMERS
TRANSFORMERS_FIVE = Remedy(
    slug="transformers-five",
    kind="command",
    title=T("install the transformers version that this vLLM was made for", "安装与这个 vLLM 匹配的 transformers 版本"),
    why=T(
        "From 0.24 on vLLM needs transformers 5; the exact range stands in its requirements. An older or newer one lacks what it calls.",
        "vLLM 0.24 起需要 transformers 5，具体范围见它的依赖声明；更旧或更新的版本都可能缺少它要用的东西。",
    ),
    command="python -c \"import importlib.metadata as m; print([r for r in m.requires('vllm') if r.startswith('transformers')])\"",
    source="vLLM error text of 0.24",
)
TRANSFORMERS_KNOWS_MODEL = loading.NEWER_TRANSFORMERS
VLLM_NEWER = replace(
    collect.UPGRADE_VLLM,
    why=T(
        "Models, checkpoint layouts and library versions are supported from a certain release on.",
        "模型、检查点格式和依赖版本都是从某个版本起才支持的。",
    ),
)
MODEL_CARD = Remedy(
    slug="model-card",
    kind="check",
    title=T("look at the model card for the tested versions", "查看模型卡写的已测试版本"),
    why=T(
        "New models name the vLLM and transformers versions they need.",
        "新模型会注明需要的 vLLM 和 transformers 版本。",
    ),
    command="pip list | grep -iE '^(vllm|transformers|tokenizers)'",
)
ARCH_SUPPORTED = loading.SUPPORTED_ARCH
MODEL_IMPL = Remedy(
    slug="transformers-backend",
    kind="flag",
    title=T("try the Transformers modelling back end", "试试 Transformers 建模后端"),
    why=T(
        "vLLM can run many architectures through transformers' own implementation.",
        "很多架构可以通过 transformers 自己的实现来运行。",
    ),
    forms=(Form("--model-impl", "transformers"),),
    cost=T("slower than a native implementation", "比原生实现慢"),
)
TOKENIZER_FILES = Remedy(
    slug="tokenizer-files-there",
    kind="check",
    title=T("look for the tokenizer files", "看有没有分词器文件"),
    why=T(
        "tokenizer.json, or tokenizer.model with tokenizer_config.json, must be in the folder.",
        "目录里要有 tokenizer.json，或 tokenizer.model 加 tokenizer_config.json。",
    ),
    command="ls -l MODEL_DIR | grep -iE 'token|vocab|merges|processor'",
)
TOKENIZER_FLAG = loading.TOKENIZER_FILES
TOKENIZER_PACKAGES = Remedy(
    slug="tokenizer-packages",
    kind="command",
    title=T(
        "only if tokenizer.model is there: install sentencepiece and tiktoken",
        "只有存在 tokenizer.model 时：安装 sentencepiece 和 tiktoken",
    ),
    why=T("Slow tokenizers need them for the conversion.", "慢速分词器的转换需要它们。"),
    command="pip install sentencepiece tiktoken protobuf",
)
CONFIG_OF_CHECKPOINT = loading.WEIGHTS_CONFIG_MATCH
DRAFT_FITS = Remedy(
    slug="draft-fits",
    kind="check",
    title=T("use a draft made for exactly this target model", "使用为这个主模型训练的草稿模型"),
    why=T(
        "Vocabulary, hidden size and architecture of both must fit; the draft's card names its target.",
        "两者的词表、隐藏维度和架构要匹配；草稿模型的卡片会写明目标模型。",
    ),
    command="grep -E 'vocab_size|hidden_size|architectures' TARGET/config.json DRAFT/config.json",
)
NO_SPECULATION = loading.DROP_SPECULATIVE
ADAPTER_PATH = loading.LORA_PATH
ADAPTER_STATIC = Remedy(
    slug="adapter-static",
    kind="command",
    title=T("register adapters at the start", "启动时就注册适配器"),
    why=T("--lora-modules checks them before the first request.", "--lora-modules 会在第一个请求之前检查它们。"),
    command="vllm serve ... --enable-lora --lora-modules NAME=/PATH/TO/ADAPTER",
)
TIKTOKEN_FILES = loading.TIKTOKEN_FILES
PROXY = Remedy(
    slug="allow-download",
    kind="check",
    title=T("or let the process reach the internet through a proxy", "或者让进程通过代理上网"),
    why=T("The host is openaipublic.blob.core.windows.net.", "需要访问 openaipublic.blob.core.windows.net。"),
    command="curl -sSI https://openaipublic.blob.core.windows.net | head -1",
)

SAFETENSORS_INSTEAD = Remedy(
    slug="safetensors-instead-of-gguf",
    kind="command",
    title=T("serve the model's safetensors checkpoint", "改用该模型的 safetensors 权重"),
    why=T(
        "The original repository, or an AWQ, GPTQ or FP8 quantisation of it if memory is short.",
        "用原始仓库；显存不够就用它的 AWQ、GPTQ 或 FP8 量化版。",
    ),
    command="hf download ORG/MODEL --local-dir ./model && vllm serve ./model ...",
)
NEWER_TRANSFORMERS = Remedy(
    slug="newer-transformers-for-gguf",
    kind="upgrade",
    title=T("a newer transformers or GGUF plug-in", "更新 transformers 或 GGUF 插件"),
    why=T(
        "Support for an architecture's GGUF files comes with a release of the reader; look into its list of supported ones first.",
        "对某种架构 GGUF 的支持随读取库的版本增加；先查它的支持列表。",
    ),
    command="pip install -U transformers gguf",
)

LORA_TARGETS = Remedy(
    slug="lora-target-modules",
    kind="check",
    title=T(
        "see which modules the adapter changes, and train it without the refused one",
        "看适配器改了哪些模块，去掉被拒绝的那个重新训练",
    ),
    why=T(
        "target_modules and modules_to_save decide. Or merge the adapter into the model, and serve that.",
        "由 target_modules 和 modules_to_save 决定。也可以把适配器合并进模型再部署。",
    ),
    command='python -c \'from safetensors import safe_open as o; print(*sorted({k.rsplit(".lora_")[0] for k in o("LORA_PATH/adapter_model.safetensors", "pt").keys()}), sep="\\n")\' | head -40; grep -A20 target_modules LORA_PATH/adapter_config.json',
)
