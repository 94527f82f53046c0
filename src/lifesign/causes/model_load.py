"""model-load: the model's files, tokenizer, code or adapter could not be found, fetched, read or understood.

The chain of exceptions is long (socket, urllib3, requests, huggingface_hub, transformers, vLLM) and the last one often
blames something else: a missing folder is reported as a malformed repository name, a tokenizer without files as a missing
sentencepiece. The exception of the hub library names the reason; those below it are only the transport.
"""

from __future__ import annotations

from lifesign.causes import _load_advice as advice
from lifesign.causes import _load_signs as signs
from lifesign.causes import _reading as reading
from lifesign.causes.model import Cause, Finding, Subtype
from lifesign.facts.model import Life
from lifesign.remedies import versions
from lifesign.text import T


def _refine(finding: Finding, life: Life) -> Finding | None:
    event = finding.event
    text = event.text
    if finding.subtype == "weights-mismatch" and _loads_draft(finding, life):
        finding.subtype = "draft-model"
        finding.certainty = "supported"
    if "does not recognize this architecture" in text:
        finding.remedies = (
            advice.ARCH_SUPPORTED,
            advice.VLLM_NEWER,
            advice.TRANSFORMERS_KNOWS_MODEL,
            advice.MODEL_CARD,
        )
        reading.explain(
            finding,
            T(
                "The `model_type` in config.json is unknown to the installed transformers; the model may be newer than it.",
                "已安装的 transformers 不认识 config.json 里的 `model_type`；模型可能比它更新。",
            ),
        )
    if finding.subtype == "transformers-mismatch" and versions.at_least(life.version, "0.24.0"):
        finding.remedies = (advice.TRANSFORMERS_FIVE, advice.VLLM_NEWER, advice.MODEL_CARD)
    if finding.subtype == "path-missing" and any(sign in text for sign in signs.UNKNOWN_TO_THE_HUB):
        finding.remedies = (advice.REPOSITORY_THERE, advice.ACCEPT_AND_TOKEN, advice.PATH_EXISTS, advice.MOUNTED)
        reading.explain(
            finding,
            T(
                "The hub has no repository of this name, or hides it: without a token that may read it, a private one gets the same answer. A local folder that isn't there is taken for such a name.",
                "仓库站点上没有这个名字的模型，或者对你不可见：没有读取权限的 token 时，私有仓库得到的也是同样的回答。不存在的本地目录也会被当成这样的名字。",
            ),
        )
    if finding.subtype == "hf-download":
        if (
            "outgoing traffic has been disabled" in text
            or "offline mode" in text.lower()
            or "OfflineModeIsEnabled" in text
        ):
            finding.remedies = advice.OFFLINE
            finding.why = T(
                "Offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE), and the model isn't in the local cache.",
                "开启了离线模式（HF_HUB_OFFLINE 或 TRANSFORMERS_OFFLINE），而本地缓存里没有这个模型。",
            )
        elif "429" in text:
            finding.remedies = (advice.HUB_LOGIN, advice.PRE_DOWNLOAD, advice.MIRROR)
    return reading.cite(finding, "Value error,") if text.startswith("ValidationError") else finding


def _loads_draft(finding: Finding, life: Life) -> bool:
    """Whether the weights were those of the draft model: by frame, or because its loading had begun."""
    event = finding.event
    if not reading.speculates(life):
        return False
    if event.exc is not None and event.exc.passes(*signs.DRAFT_FRAMES):
        return True
    return life.before(event, "Loading drafter model", "Loading draft model", "Loading EAGLE") is not None


SUBTYPES = {
    "gated-token": Subtype(
        T("The hub refused access to the model (gated or private)", "模型需要授权（gated 或私有），下载被拒绝"),
        T(
            "The repository asks for a login and for its licence to be accepted; the token is missing, wrong, or not allowed to read it.",
            "这个仓库需要登录并同意许可；没有提供 token，或者 token 不对、没有权限。",
        ),
        (advice.ACCEPT_AND_TOKEN, advice.TOKEN_REACHES_CONTAINER, advice.PRE_DOWNLOAD, advice.LOCAL_PATH),
    ),
    "hf-download": Subtype(
        T("The model could not be downloaded", "模型下载失败"),
        T(
            "The hub was not reachable (no network, proxy, DNS, rate limit), or the download broke off.",
            "连不上模型仓库（没有网络、代理、DNS、限流），或者下载中断。",
        ),
        (advice.MIRROR, advice.PRE_DOWNLOAD, advice.LOCAL_PATH, advice.HUB_REACHABLE, advice.USE_CACHE_ONLY),
    ),
    "path-missing": Subtype(
        T("The model path or name does not exist", "模型路径或名称不存在"),
        T(
            "A local path that doesn't exist (or isn't mounted into the container) is taken for a repository name, and the error then speaks of repository names.",
            "本地路径不存在（或没有挂载进容器）时会被当成仓库名，于是报错说的是仓库名格式。",
        ),
        (advice.PATH_EXISTS, advice.MOUNTED, advice.REPOSITORY_NAME, advice.CONFIG_THERE),
    ),
    "weights-file-missing": Subtype(
        T("The model folder has no weight files", "模型目录里没有权重文件"),
        T(
            "Configuration was found, but no file that this load format reads (*.safetensors, *.bin, *.pt).",
            "找到了配置，但没有当前加载格式能读的权重文件（*.safetensors、*.bin、*.pt）。",
        ),
        (advice.WEIGHTS_THERE, advice.PRE_DOWNLOAD, advice.LOAD_FORMAT),
    ),
    "corrupt-or-partial-download": Subtype(
        T("A model file is damaged or incomplete", "有模型文件损坏或不完整"),
        T(
            "The file is shorter than its header says, is a Git LFS pointer instead of the weights, or shards named in the index are missing.",
            "文件比文件头声明的短，或者只是 Git LFS 指针，或者索引里列出的分片缺失。",
        ),
        (advice.FILE_SIZES, advice.DOWNLOAD_AGAIN, advice.LFS_PULL),
    ),
    "config-corrupt": Subtype(
        T("A JSON file of the model can't be parsed", "模型的某个 JSON 文件解析不了"),
        T(
            "config.json (or another JSON file of the model) is not valid JSON.",
            "config.json（或模型的其他 JSON 文件）不是合法的 JSON。",
        ),
        (advice.JSON_CHECK, advice.DOWNLOAD_AGAIN),
    ),
    "config-or-code": Subtype(
        T("The model's configuration or its own code could not be used", "模型的配置或自带代码无法使用"),
        T(
            "The repository ships its own code that has to be allowed, or its configuration lacks something that vLLM or transformers needs.",
            "仓库自带的代码需要先获得许可，或者配置里缺少 vLLM 或 transformers 需要的字段。",
        ),
        (advice.TRUST_CODE, advice.TRANSFORMERS_FIT, advice.CONFIG_THERE, advice.VLLM_NEWER),
    ),
    "tokenizer-missing": Subtype(
        T("The tokenizer (or processor) could not be loaded", "分词器（或处理器）加载失败"),
        T(
            "The model folder has no usable tokenizer or processor files; the advice to install sentencepiece or tiktoken is beside the point then.",
            "模型目录里没有可用的分词器或处理器文件；这时提示安装 sentencepiece 或 tiktoken 并不对症。",
        ),
        (advice.TOKENIZER_FILES, advice.TOKENIZER_FLAG, advice.TOKENIZER_PACKAGES, advice.DOWNLOAD_AGAIN),
    ),
    "transformers-mismatch": Subtype(
        T("The installed transformers version doesn't fit", "transformers 版本不合适"),
        T(
            "vLLM or the model uses something that this transformers version no longer has, or doesn't have yet.",
            "vLLM 或模型用到的东西，在这个 transformers 版本里已经没有，或者还没有。",
        ),
        (advice.TRANSFORMERS_FIT, advice.VLLM_NEWER, advice.MODEL_CARD),
    ),
    "unsupported-arch": Subtype(
        T("This vLLM release doesn't know the model's architecture", "这个 vLLM 版本不支持该模型架构"),
        T(
            "The `architectures` entry of config.json names a class that this release has no implementation for.",
            "config.json 里的 `architectures` 指定的类，在这个版本里没有实现。",
        ),
        (advice.ARCH_SUPPORTED, advice.VLLM_NEWER, advice.MODEL_IMPL),
    ),
    "gguf-arch": Subtype(
        T("GGUF files of this architecture can't be read yet", "还不支持读取这种架构的 GGUF 文件"),
        T(
            "The reader of GGUF files (in transformers, or vLLM's GGUF plug-in) has no mapping for this architecture, whatever vLLM can do with the model's own format.",
            "GGUF 的读取代码（transformers 或 vLLM 的 GGUF 插件）里没有这种架构的映射；模型的原始格式 vLLM 未必不支持。",
        ),
        (advice.SAFETENSORS_INSTEAD, advice.NEWER_TRANSFORMERS, advice.VLLM_NEWER),
    ),
    "weights-mismatch": Subtype(
        T("The weights don't fit the model's configuration", "权重与模型配置对不上"),
        T(
            "A tensor of the checkpoint has another name or shape than the model that config.json describes (hidden_size, vocab_size, number of layers).",
            "检查点里某个张量的名字或形状，与 config.json 描述的模型（hidden_size、vocab_size、层数）不一致。",
        ),
        (advice.CONFIG_OF_CHECKPOINT, advice.VLLM_NEWER, advice.DOWNLOAD_AGAIN),
    ),
    "draft-model": Subtype(
        T("The draft model doesn't fit the target model", "草稿模型与主模型不匹配"),
        T(
            "Speculative decoding needs a draft checkpoint made for this target: same vocabulary, fitting hidden size, known layout.",
            "投机解码需要为该主模型训练的草稿检查点：词表相同、隐藏维度匹配、结构受支持。",
        ),
        (advice.DRAFT_FITS, advice.NO_SPECULATION, advice.VLLM_NEWER),
    ),
    "lora-missing": Subtype(
        T("A LoRA adapter could not be loaded", "LoRA 适配器加载失败"),
        T(
            "The adapter's folder or its adapter_config.json is missing, or the adapter doesn't fit the model. In the V0 engine one such request ends the engine.",
            "适配器目录或其中的 adapter_config.json 不存在，或者适配器与模型不匹配。V0 引擎里，一个这样的请求就会让引擎结束。",
        ),
        (advice.ADAPTER_PATH, advice.ADAPTER_STATIC, advice.VLLM_NEWER),
    ),
    "lora-weights": Subtype(
        T("A LoRA adapter holds weights that vLLM can't apply", "LoRA 适配器里有 vLLM 无法应用的权重"),
        T(
            "The adapter was found; one of its tensors belongs to a module that this release can't adapt (a vision tower, an embedding, modules_to_save), or has a name of another model.",
            "适配器找到了，但其中有张量属于本版本无法做 LoRA 的模块（视觉塔、embedding、modules_to_save），或者名字属于另一个模型。",
        ),
        (advice.LORA_TARGETS, advice.VLLM_NEWER),
    ),
    "loader-error": Subtype(
        T("The model loader stopped", "模型加载器中止"),
        T(
            "vLLM's loader refused the files or its own settings (load format, extra loader configuration, sharding); the proof line says what.",
            "vLLM 的加载器拒绝了这些文件或加载设置（加载格式、加载器额外配置、分片）；具体原因见证据行。",
        ),
        (advice.LOAD_FORMAT, advice.WEIGHTS_THERE, advice.MODEL_CARD, advice.VLLM_NEWER),
    ),
    "aux-download": Subtype(
        T("An auxiliary file (gpt-oss vocabulary) could not be downloaded", "附属文件（gpt-oss 词表）下载失败"),
        T(
            "gpt-oss needs a tiktoken vocabulary that openai_harmony fetches at start, often after graph capture; without network this ends the start.",
            "gpt-oss 需要 tiktoken 词表，openai_harmony 在启动时（常在图捕获之后）下载；没有网络就启动失败。",
        ),
        (advice.TIKTOKEN_FILES, advice.PROXY),
        ("vllm#22525",),
    ),
}

CAUSE = Cause(
    slug="model-load",
    code="B3",
    title=T("The model could not be found, downloaded or read", "模型找不到、下载不了或读不出来"),
    summary=T(
        "Files, access, tokenizer, custom code, adapter or draft model: something the engine has to load is missing, refused, damaged or unknown to this release.",
        "文件、权限、分词器、自带代码、适配器或草稿模型：引擎要加载的东西缺失、被拒绝、损坏，或者这个版本不认识。",
    ),
    subtypes=SUBTYPES,
    signatures=signs.SIGNATURES,
    refine=_refine,
    order=5,
    classical=5,
)
