"""user-config: vLLM refused what it was asked to do, before or instead of loading anything.

The message usually names the setting. What makes these hard is their place: argparse ends with a usage text and without a
banner, pydantic hides the sentence below `1 validation error for ...`, a bad environment value fails in a worker without
naming the variable. Advice inside the message is not always good (VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 seldom is).
"""

from __future__ import annotations

import re

from lifesign.causes import _config_advice as advice
from lifesign.causes import _config_signs as signs
from lifesign.causes import _reading as reading
from lifesign.causes.model import Cause, Finding, Subtype
from lifesign.facts.model import Life
from lifesign.remedies.library import memory
from lifesign.remedies.model import Remedy
from lifesign.text import T


def _refine(finding: Finding, life: Life) -> Finding | None:
    """Fills in the names and numbers, and moves pydantic's finding to the sentence that counts."""
    text = finding.event.text
    if finding.subtype == "bad-env-value":
        return _with_variable(finding)
    if finding.subtype == "max-model-len":
        return _with_length(finding)
    if finding.subtype in ("tp-divisibility", "tp-gt-gpus"):
        finding.remedies = _fitting_size(finding, life)
    if finding.subtype == "unknown-flag":
        match = re.search(
            r"unrecognized arguments: (\S{1,80})|ambiguous option: (\S{1,80})|unexpected keyword argument '(\w{1,80})'",
            text,
        )
        if match:
            name = next(group for group in match.groups() if group)
            return reading.explain(
                finding, T(f"vLLM has no option `{name}` in this release.", f"这个版本的 vLLM 没有 `{name}` 这个选项。")
            )
    if finding.subtype == "deepep-dispatch-limit":
        reading.for_sglang(finding, life, SUBTYPES[finding.subtype].remedies, advice.SGLANG_DISPATCH)
        return reading.cite(finding, "num_max_dispatch_tokens_per_rank")
    if "Model Runner V2 does not" in text:
        finding.remedies = (advice.OLD_MODEL_RUNNER, *SUBTYPES[finding.subtype].remedies)
    if "Value error," in text:
        return reading.cite(finding, "Value error,")
    return finding


def _fitting_size(finding: Finding, life: Life) -> tuple[Remedy, ...] | None:
    """Computes a tensor-parallel size from the numbers in the message; None keeps the subtype's advice."""
    text = finding.event.text
    heads = re.search(r"attention heads \((\d{1,5})\) must be divisible by tensor parallel size \((\d{1,4})\)", text)
    if heads and int(heads[2]) > 1:
        count, asked = int(heads[1]), int(heads[2])
        return (
            advice.for_heads(count, asked, finding.event.line),
            advice.pipeline_for(count, asked, finding.event.line),
            advice.DIVIDING_TP,
        )
    gpus = re.search(r"available GPUs \((\d{1,4})\)|max local gpu count \((\d{1,4})\)", text)
    found = int(gpus[1] or gpus[2]) if gpus else 0
    if found and str(life.config.get("pipeline_parallel_size", "1")) == "1":
        return (advice.for_gpus(found, finding.event.line), advice.COUNT_GPUS, advice.RAY_OR_NNODES)
    return None


def _with_variable(finding: Finding) -> Finding:
    """Names the variable: in the message, or in the source line of the last frame."""
    event = finding.event
    code = event.exc.frames[-1].code if event.exc is not None and event.exc.frames else ""
    match = re.search(r"\b(VLLM_[A-Z0-9_]{2,60})\b", f"{event.text[:600]} {code}")
    if match is None:
        return finding
    name = match[1]
    finding.values["variable"] = name
    finding.remedies = advice.for_variable(name)
    return reading.explain(
        finding,
        T(f"The value of the environment variable {name} can't be read.", f"环境变量 {name} 的值无法解析。"),
    )


def _with_length(finding: Finding) -> Finding:
    """Takes the two lengths out of the message; the derived one is the value to set."""
    match = re.search(
        r"max_model_len \((\d{1,9})\) is greater than the derived max_model_len \([^=]{1,60}=\s?(\d{1,9})",
        finding.event.text.replace("\n", ""),
    )
    if match:
        finding.values.update(asked=match[1], derived=match[2])
        finding.remedies = advice.for_length(match[2], finding.event.line)
        reading.explain(
            finding,
            T(
                f"--max-model-len asks for {match[1]} tokens; the model's configuration allows {match[2]}.",
                f"--max-model-len 要求 {match[1]} 个 token，模型配置只允许 {match[2]}。",
            ),
        )
    return reading.cite(finding, "User-specified max_model_len")


SUBTYPES = {
    "deepep-dispatch-limit": Subtype(
        T(
            "A step held more tokens than DeepEP's low-latency buffer was made for",
            "一步里的 token 数超过了 DeepEP 低延迟缓冲区的上限",
        ),
        T(
            "The buffer of the low-latency all-to-all is allocated once, for a fixed number of tokens per rank (num_max_dispatch_tokens_per_rank). A decode batch of one rank was larger; nothing is wrong with the network.",
            "低延迟 all-to-all 的缓冲区只分配一次，每个 rank 的 token 数固定（num_max_dispatch_tokens_per_rank）。某个 rank 的解码批次超过了它；网络没有问题。",
        ),
        (memory.FEWER_SEQUENCES, advice.SPECULATE_LESS),
        ("DeepEP#165",),
    ),
    "max-model-len": Subtype(
        T("The requested context is longer than the model allows", "要求的上下文长度超过模型上限"),
        T(
            "--max-model-len is larger than what config.json derives (max_position_embeddings, or the tokenizer's limit). The variable that the message offers lifts the check, not the model's limit.",
            "--max-model-len 大于由 config.json 得出的长度（max_position_embeddings 或分词器上限）。报错里提到的环境变量只是跳过检查，模型能力不会变。",
        ),
        advice.MAX_MODEL_LEN,
    ),
    "batched-tokens": Subtype(
        T(
            "Token budget, sequence count and context length contradict each other",
            "token 预算、序列数与上下文长度互相矛盾",
        ),
        T(
            "max_num_batched_tokens must hold a whole prompt when chunked prefill is off, and never be below max_num_seqs.",
            "关闭分块预填充时，max_num_batched_tokens 必须放得下一整条提示，并且不能小于 max_num_seqs。",
        ),
        (advice.MORE_BATCHED_TOKENS, advice.CHUNKED_PREFILL),
    ),
    "tp-gt-gpus": Subtype(
        T("More ranks were asked for than there are GPUs", "要求的并行数超过 GPU 数"),
        T(
            "tensor_parallel_size x pipeline_parallel_size is larger than the number of GPUs this process can see.",
            "tensor_parallel_size × pipeline_parallel_size 大于该进程能看到的 GPU 数。",
        ),
        (advice.COUNT_GPUS, advice.TP_TO_GPUS, advice.RAY_OR_NNODES),
    ),
    "dp-vs-gpus": Subtype(
        T("The data-parallel options don't fit the machine or each other", "数据并行的选项与机器不符，或互相矛盾"),
        T(
            "Sizes, ranks and load-balancing modes of data parallelism must agree.",
            "数据并行的大小、rank 与负载均衡模式必须一致。",
        ),
        (advice.DP_OPTIONS, advice.COUNT_GPUS),
    ),
    "tp-divisibility": Subtype(
        T("The model can't be divided by this tensor-parallel size", "模型无法按这个张量并行数整除"),
        T(
            "The number of attention heads (or the vocabulary, or a layer) is no multiple of --tensor-parallel-size.",
            "注意力头数（或词表、某一层的大小）不是 --tensor-parallel-size 的整数倍。",
        ),
        (advice.DIVIDING_TP, advice.PIPELINE),
    ),
    "device-visibility": Subtype(
        T("A GPU was asked for that this process can't see", "要求使用一块进程看不到的 GPU"),
        T(
            "`invalid device ordinal`: the rank's device number is not in CUDA_VISIBLE_DEVICES, or the variable is set differently for parent and worker (ray, SLURM, UUIDs).",
            "`invalid device ordinal`：rank 的设备编号不在 CUDA_VISIBLE_DEVICES 里，或者父进程与 worker 的设置不同（ray、SLURM、UUID）。",
        ),
        (advice.VISIBLE_DEVICES, advice.COUNT_GPUS, advice.TP_TO_GPUS),
    ),
    "lora-rank": Subtype(
        T("An adapter's rank is above the configured maximum", "LoRA 适配器的 rank 超过设置的上限"),
        T(
            "--max-lora-rank (16 by default) reserves the buffers at start; this adapter needs more.",
            "--max-lora-rank（默认 16）在启动时决定缓冲区大小，这个适配器需要更大。",
        ),
        (advice.MAX_LORA_RANK,),
    ),
    "mamba-block-size": Subtype(
        T("--mamba-block-size needs prefix caching", "--mamba-block-size 需要开启前缀缓存"),
        T(
            "The block size of Mamba states only exists with prefix caching.",
            "只有开启前缀缓存时，Mamba 状态才有块大小。",
        ),
        (advice.MAMBA,),
    ),
    "unknown-flag": Subtype(
        T("The command line has an option that this release doesn't know", "命令行里有这个版本不认识的选项"),
        T(
            "A misspelt, removed or not yet existing flag. The parser ends with exit code 2 before anything is loaded.",
            "选项拼错、已移除，或该版本还没有。解析器在加载之前就以退出码 2 结束。",
        ),
        (advice.LINT, advice.FLAG_HELP),
    ),
    "usage": Subtype(
        T("The command line was refused", "命令行参数被拒绝"),
        T(
            "The program ended before it did anything, with exit code 2 (bad options), 126 (may not be run) or 127 (not found); its log holds no sentence that says more.",
            "程序什么都没做就退出了：退出码 2（参数不对）、126（不可执行）或 127（找不到命令）；日志里没有更具体的说明。",
        ),
        (advice.LINT, advice.FLAG_HELP),
    ),
    "bad-value": Subtype(
        T("An option has a value that vLLM doesn't accept", "某个选项的值不被接受"),
        T(
            "The parser refused the value (wrong type, not one of the choices, broken JSON).",
            "解析器拒绝了这个值（类型不对、不在可选范围内、JSON 写坏）。",
        ),
        (advice.LINT, advice.FLAG_HELP, advice.JSON_QUOTES),
    ),
    "bad-env-value": Subtype(
        T("An environment variable has a value that can't be read", "某个环境变量的值无法解析"),
        T(
            "vLLM reads its environment variables when they are first needed, so this fails late, in whichever process comes first.",
            "vLLM 在第一次用到时才读取环境变量，所以出错较晚，而且可能在任何一个进程里。",
        ),
        advice.BAD_ENV,
    ),
    "fault-tolerance-flags": Subtype(
        T("Fault tolerance was switched on without what it needs", "开启了容错，但缺少所需的条件"),
        T(
            "--enable-fault-tolerance works only with data parallelism behind an external load balancer.",
            "--enable-fault-tolerance 只在外部负载均衡的数据并行下可用。",
        ),
        (advice.FAULT_TOLERANCE,),
    ),
    "speculative": Subtype(
        T(
            "The speculative-decoding settings contradict each other or the model",
            "投机解码的设置互相矛盾，或与模型不符",
        ),
        T(
            "Method, number of draft tokens and draft model must fit together.",
            "方法、草稿 token 数与草稿模型必须匹配。",
        ),
        (advice.SPECULATIVE, advice.LINT),
    ),
    "attention-backend": Subtype(
        T("No attention backend fits the requested combination", "没有注意力后端支持所要求的组合"),
        T(
            "Head size, data type, KV-cache type and block size together exclude every back end, or exclude the chosen one; the message lists the reasons.",
            "头维度、数据类型、KV cache 类型和块大小的组合排除了所有后端，或排除了指定的那个；报错里列出了原因。",
        ),
        (advice.BACKEND_AUTO, advice.KV_DTYPE_AUTO),
    ),
    "refused-setting": Subtype(
        T("vLLM refused a setting or a combination of settings", "vLLM 拒绝了某个设置或设置组合"),
        T(
            "The configuration check names the setting; nothing was loaded yet.",
            "配置检查的报错写明了是哪个设置；还没有加载任何东西。",
        ),
        (advice.READ_MESSAGE, advice.LINT),
    ),
}

CAUSE = Cause(
    slug="user-config",
    code="B5",
    title=T("vLLM refused a setting", "vLLM 拒绝了某个设置"),
    summary=T(
        "A flag, an environment variable or a combination of them is unknown, impossible on this machine, or contradicts the model.",
        "某个参数、环境变量或它们的组合不存在、在这台机器上做不到，或与模型矛盾。",
    ),
    subtypes=SUBTYPES,
    signatures=signs.SIGNATURES,
    refine=_refine,
    order=10,
)
