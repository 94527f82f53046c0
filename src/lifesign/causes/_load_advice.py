"""What to do when a model can't be loaded: the advice of model-load."""

from __future__ import annotations

from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

MIRROR = Remedy(
    slug="hub-mirror",
    kind="env",
    title=T("use a mirror of the hub", "使用镜像站"),
    why=T(
        "Where huggingface.co can't be reached, HF_ENDPOINT points huggingface_hub at a mirror; VLLM_USE_MODELSCOPE=True fetches from ModelScope instead.",
        "访问不了 huggingface.co 时，用 HF_ENDPOINT 让 huggingface_hub 走镜像；VLLM_USE_MODELSCOPE=True 则改从 ModelScope（魔搭）下载。",
    ),
    forms=(Form("HF_ENDPOINT", "https://hf-mirror.com"),),
    source="huggingface_hub documentation: environment variables",
)
PRE_DOWNLOAD = Remedy(
    slug="pre-download",
    kind="command",
    title=T("download the model first, then start vLLM", "先下载模型，再启动 vLLM"),
    why=T(
        "A download of its own resumes after interruptions and shows its error at once. Older huggingface_hub: huggingface-cli download.",
        "单独下载可以断点续传，错误也一目了然。旧版 huggingface_hub 用 huggingface-cli download。",
    ),
    command="hf download ORG/MODEL --local-dir /models/NAME",
    source="huggingface_hub documentation: command line",
)
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
    Remedy(
        slug="cache-place",
        kind="check",
        title=T("check that vLLM looks into the right cache", "确认 vLLM 查的是正确的缓存目录"),
        why=T(
            "Another user, HOME or HF_HOME means another, empty cache.", "换了用户、HOME 或 HF_HOME，就是另一个空缓存。"
        ),
        command='ls "${HF_HOME:-$HOME/.cache/huggingface}/hub"',
    ),
    MIRROR,
)
HUB_LOGIN = Remedy(
    slug="hub-login",
    kind="env",
    title=T("send a token: anonymous downloads are limited first", "带上 token：匿名下载最先被限流"),
    why=T("The hub answered 429, too many requests.", "仓库返回 429，请求过多。"),
    forms=(Form("HF_TOKEN", "hf_YOUR_TOKEN"),),
)
ACCEPT_AND_TOKEN = Remedy(
    slug="accept-licence-and-token",
    kind="env",
    title=T(
        "accept the licence on the model's page, then give vLLM a token", "在模型页面同意许可，然后给 vLLM 提供 token"
    ),
    why=T(
        "Log in on the hub with the account that has access, create a read token, and pass it as HF_TOKEN (or run `hf auth login`).",
        "用有权限的账号登录，创建只读 token，通过 HF_TOKEN 传入（或运行 `hf auth login`）。",
    ),
    forms=(Form("HF_TOKEN", "hf_YOUR_TOKEN"),),
    source="huggingface_hub documentation: gated models",
)
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
PATH_EXISTS = Remedy(
    slug="path-exists",
    kind="check",
    title=T("check that the path exists where vLLM runs", "确认 vLLM 运行的环境里有这个路径"),
    why=T("A path with a typo, or one that exists only outside of the container.", "路径写错，或者只存在于容器外面。"),
    command="ls -l MODEL_DIR/config.json",
)
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
DOWNLOAD_AGAIN = Remedy(
    slug="download-again",
    kind="command",
    title=T("delete the damaged file and download it again", "删掉损坏的文件重新下载"),
    why=T("Incomplete downloads stay in the cache.", "不完整的下载会留在缓存里。"),
    command="hf download ORG/MODEL --local-dir /models/NAME --force-download",
)
LFS_PULL = Remedy(
    slug="lfs-pull",
    kind="command",
    title=T("if the model was cloned with git: fetch the LFS files", "如果是 git clone 的：拉取 LFS 文件"),
    why=T("Without git-lfs a clone contains pointers only.", "没有 git-lfs 时克隆下来的只有指针。"),
    command="git lfs install && git lfs pull",
)
JSON_CHECK = Remedy(
    slug="json-check",
    kind="check",
    title=T("let Python name the place in config.json", "用 Python 定位 config.json 的错误处"),
    why=T(
        "Often a hand edit (trailing comma, comment) or a download that broke off.",
        "常见原因是手工改坏（多余逗号、注释）或下载中断。",
    ),
    command="python -m json.tool MODEL_DIR/config.json > /dev/null",
)
TRUST_CODE = Remedy(
    slug="trust-remote-code",
    kind="flag",
    title=T("allow the model's own code, if you trust its source", "信任来源的话，允许运行模型自带代码"),
    why=T(
        "The repository ships Python files that transformers refuses to run without consent.",
        "仓库带有 Python 文件，未经同意 transformers 不会执行。",
    ),
    forms=(Form("--trust-remote-code"),),
    cost=T("runs code from the repository", "会执行仓库里的代码"),
)
TRANSFORMERS_FIT = Remedy(
    slug="transformers-fit",
    kind="command",
    title=T("install the transformers version that this vLLM was made for", "安装与这个 vLLM 匹配的 transformers 版本"),
    why=T(
        "vLLM up to 0.11 needs transformers 4 (4.57.x works, downgrade if 5 is installed); from 0.24 it needs transformers 5. For a brand-new model the model card names the version.",
        "vLLM 0.11 及以前需要 transformers 4（4.57.x 可用，装了 5 就降级）；0.24 起需要 transformers 5。全新的模型请看模型卡写的版本。",
    ),
    command='pip install "transformers>=4.57,<5"   # vLLM up to 0.11; later: what `pip show vllm` requires',
    source="vLLM error text of 0.24; reports of all_special_tokens_extended",
)
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
TRANSFORMERS_KNOWS_MODEL = Remedy(
    slug="transformers-knows-model",
    kind="command",
    title=T(
        "or install a transformers release that knows this model type", "或者安装认识这个模型类型的 transformers 版本"
    ),
    why=T(
        "The model card names it; for a brand-new model it may be the development version. It must still fit the vLLM release.",
        "模型卡会写明版本；全新的模型可能要用开发版。同时它必须与 vLLM 版本兼容。",
    ),
    command="pip install git+https://github.com/huggingface/transformers",
)
VLLM_NEWER = Remedy(
    slug="upgrade-vllm",
    kind="upgrade",
    title=T("or upgrade vLLM to a newer vLLM release", "或者升级到更新的 vLLM"),
    why=T(
        "Models, checkpoint layouts and library versions are supported from a certain release on.",
        "模型、检查点格式和依赖版本都是从某个版本起才支持的。",
    ),
    command="pip install -U vllm",
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
ARCH_SUPPORTED = Remedy(
    slug="architecture-supported",
    kind="check",
    title=T("look from which release the architecture is supported", "查这个架构从哪个版本起受支持"),
    why=T("The list of supported models in vLLM's documentation names the class.", "vLLM 文档的支持模型列表里有类名。"),
    command="grep -A2 architectures MODEL_DIR/config.json",
)
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
    slug="tokenizer-files",
    kind="check",
    title=T("look for the tokenizer files", "看有没有分词器文件"),
    why=T(
        "tokenizer.json, or tokenizer.model with tokenizer_config.json, must be in the folder.",
        "目录里要有 tokenizer.json，或 tokenizer.model 加 tokenizer_config.json。",
    ),
    command="ls -l MODEL_DIR | grep -iE 'token|vocab|merges|processor'",
)
TOKENIZER_FLAG = Remedy(
    slug="tokenizer-elsewhere",
    kind="flag",
    title=T("take the tokenizer from the original model", "改用原始模型的分词器"),
    why=T("Quantised, fine-tuned or GGUF copies often come without one.", "量化、微调或 GGUF 版本常常不带分词器。"),
    forms=(Form("--tokenizer", "ORG/ORIGINAL_MODEL"),),
)
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
CONFIG_OF_CHECKPOINT = Remedy(
    slug="config-of-checkpoint",
    kind="check",
    title=T("compare config.json with the weights of the checkpoint", "核对 config.json 与检查点权重"),
    why=T(
        "hidden_size, vocab_size or the number of layers differ when files of two models were mixed, the vocabulary was resized, or an adapter was saved as a model.",
        "混用了两个模型的文件、改过词表大小，或把适配器当模型保存时，hidden_size、vocab_size 或层数会对不上。",
    ),
    command="python -c \"from safetensors import safe_open; import glob; [print(k, f.get_slice(k).get_shape()) for p in glob.glob('MODEL_DIR/*.safetensors') for f in [safe_open(p,'pt')] for k in list(f.keys())[:5]]\"",
)
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
NO_SPECULATION = Remedy(
    slug="no-speculation",
    kind="check",
    title=T("start without --speculative-config to prove it", "去掉 --speculative-config 验证"),
    why=T("If the engine starts then, the draft is to blame.", "能启动就是草稿模型的问题。"),
)
ADAPTER_PATH = Remedy(
    slug="adapter-path",
    kind="check",
    title=T(
        "restore the adapter's folder, or remove the adapter from the requests",
        "恢复适配器目录，或者不再请求这个适配器",
    ),
    why=T(
        "lora_path must hold adapter_config.json and adapter_model.safetensors, readable inside the container.",
        "lora_path 里要有 adapter_config.json 和 adapter_model.safetensors，并且容器内可读。",
    ),
    command="ls -l /PATH/TO/ADAPTER/adapter_config.json",
)
ADAPTER_STATIC = Remedy(
    slug="adapter-static",
    kind="command",
    title=T("register adapters at the start", "启动时就注册适配器"),
    why=T("--lora-modules checks them before the first request.", "--lora-modules 会在第一个请求之前检查它们。"),
    command="vllm serve ... --enable-lora --lora-modules NAME=/PATH/TO/ADAPTER",
)
TIKTOKEN_FILES = Remedy(
    slug="tiktoken-files",
    kind="env",
    title=T("provide the vocabulary files locally", "在本地提供词表文件"),
    why=T(
        "Download o200k_base.tiktoken and cl100k_base.tiktoken once and name their folder.",
        "把 o200k_base.tiktoken 和 cl100k_base.tiktoken 下载一次，再指定所在目录。",
    ),
    forms=(Form("TIKTOKEN_ENCODINGS_BASE", "/models/tiktoken"),),
    source="vllm#22525",
)
PROXY = Remedy(
    slug="allow-download",
    kind="check",
    title=T("or let the process reach the internet through a proxy", "或者让进程通过代理上网"),
    why=T("The host is openaipublic.blob.core.windows.net.", "需要访问 openaipublic.blob.core.windows.net。"),
    command="curl -sSI https://openaipublic.blob.core.windows.net | head -1",
)
