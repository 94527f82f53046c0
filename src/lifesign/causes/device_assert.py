"""device-assert: a check inside a GPU kernel failed, nearly always an index outside its table.

The proof is in the unprefixed C lines (`... Assertion ... failed.`) that the kernel prints, one per thread. The Python
error comes later, at any call, and says only `device-side assert triggered`.
"""

from __future__ import annotations

import re

from lifesign.causes import _advice as advice
from lifesign.causes import _config_advice as config
from lifesign.causes import _reading as reading
from lifesign.causes.model import SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life
from lifesign.remedies.library import collect, graphs, loading
from lifesign.text import T, is_whole

INDEX_TEXTS = (
    "index out of bounds",
    "Index out of range in dimension",
    "index out of range",
    "srcIndex < srcSelectDimSize",
    "ind_dim_size",
    "idx_dim < index_size",
    "-sizes[i] <= index",
    "index >= -sizes",
    "dstIndex < dstAddDimSize",
    "t >= 0 && t < n_classes",
    "cur_target >= 0",
)
NAN_TEXTS = (
    "probability tensor",
    "MultinomialKernel",
    "0 <= p4 && p4 <= 1",
    "input[0] != 0",
    "val >= zero",
    "cumdist[size - 1] > 0",
    "!(isnan",
    "std::isnan",
)
PYTHON_TEXTS = (
    "device-side assert triggered",
    "cudaErrorAssert",
    "CUDA_ERROR_ASSERT",
    "hipErrorAssert",
    "Device-side assertion",
)
_ASSERTION = r"Assertion .{1,400}failed"

SIGNATURES = (
    Signature("nan-probabilities", any=NAN_TEXTS, regex=_ASSERTION, kinds=("plain", "log", "native")),
    Signature("index-out-of-bounds", any=INDEX_TEXTS, regex=_ASSERTION, kinds=("plain", "log", "native")),
    # Ascend prints the value: the family of requests reads it more closely, so this one steps back.
    Signature(
        "index-out-of-bounds",
        any=("[ASSERT]",),
        all=("exceeds bounds",),
        kinds=("plain", "log", "native"),
        strength=SYMPTOM,
    ),
    Signature("other-assertion", all=("block: [", "thread: [", "Assertion"), kinds=("plain", "log", "native")),
    Signature(
        "nan-probabilities",
        any=("probability tensor contains either `inf`, `nan` or element < 0",),
        when=reading.is_loud,
    ),
    # The Python error without the C line: the cause is certain, the kind of check isn't.
    Signature(
        "index-out-of-bounds",
        any=PYTHON_TEXTS,
        none=("tracking was not enabled",),
        when=reading.is_loud,
        strength=SYMPTOM,
        certainty="supported",
    ),
    Signature(
        "index-out-of-bounds",
        all=("device-side assert triggered",),
        when=reading.is_loud,
        strength=SYMPTOM,
        certainty="supported",
    ),
)

SEARCH = (graphs.LAUNCH_BLOCKING, loading.ISOLATE_REQUEST, graphs.EAGER, collect.UPGRADE_VLLM)

SUBTYPES = {
    "index-out-of-bounds": Subtype(
        T("A GPU kernel was given an index outside its table", "GPU 内核收到了越界的索引"),
        T(
            "A kernel checked an index (a token id, a position, a row) and found it outside the table. It usually comes from one input: an id beyond the vocabulary, a position beyond the maximum, a draft token.",
            "内核检查索引（token id、位置或行号）时发现越界。通常由某个输入引起：超出词表的 id、超过上限的位置，或草稿 token。",
        ),
        (loading.VALIDATE_TOKEN_IDS, *SEARCH),
        ("AEON-7/vllm-ultimate-dgx-spark#5",),
    ),
    "nan-probabilities": Subtype(
        T("The sampler was given probabilities that are no numbers", "采样器拿到的概率不是有效数值"),
        T(
            "The logits held inf or NaN, so sampling refused them: an overflow in float16, broken weights, or a faulty kernel.",
            "logits 里出现 inf 或 NaN，采样无法进行：float16 溢出、权重损坏，或内核有问题。",
        ),
        (advice.BFLOAT16, loading.REDOWNLOAD, graphs.OTHER_ATTENTION_BACKEND, *SEARCH),
    ),
    "other-assertion": Subtype(
        T("A check inside a GPU kernel failed", "GPU 内核里的断言失败"),
        T(
            "The kernel printed the condition that did not hold; the Python traceback is only where it was noticed.",
            "内核打印出了不成立的条件；Python 栈只是发现它的地方。",
        ),
        SEARCH,
    ),
}

_BOUND = re.compile(r"index value (-?\d{1,12}) exceeds bounds (\d{1,12})")
_BETWEEN = re.compile(r"0 <= [\w.(), \[\]]{1,60} < (\d{1,12})")


_SMALLEST_VOCABULARY = 20_000


_DERIVED = re.compile(r"derived max_model_len \((?:max_position_embeddings=)?(\d{1,9})")
_ALLOWED = T(
    "At the start vLLM warned that --max-model-len is beyond the positions of the model, and the failing table has exactly that many: a request grew longer than the model can be.",
    "启动时 vLLM 警告过 --max-model-len 超出模型的位置数，而出错的表正好只有这么多项：有请求超过了模型允许的长度。",
)


def _beyond_positions(finding: Finding, life: Life) -> tuple[Event, str] | None:
    """The start's warning of a context that is too long, and the model's own length, if the table's bound is that length."""
    warning = life.before(finding.event, "is greater than the derived max_model_len")
    found = _DERIVED.search(warning.text[:4000]) if warning is not None else None
    if warning is None or found is None or finding.values.get("bound") != found[1]:
        return None
    return warning, found[1]


def refine(finding: Finding, life: Life) -> Finding | None:
    """Reads the bound where the kernel prints it, and looks for a drafter or penalties that make bad ids."""
    text = finding.event.text
    reading.cite(finding, "Assertion", *PYTHON_TEXTS)
    base = SUBTYPES[finding.subtype]
    remedies = list(base.remedies)
    notes: list[T] = []
    if match := _BOUND.search(text):
        finding.values.update(index=match[1], bound=match[2])
        notes.append(
            T(
                f"The index was {match[1]}, the table has {match[2]} entries.",
                f"索引为 {match[1]}，而表只有 {match[2]} 项。",
            )
        )
    elif match := _BETWEEN.search(text):
        finding.values["bound"] = match[1]
        notes.append(T(f"The table has {match[1]} entries.", f"该表有 {match[1]} 项。"))
    if "ScatterGather" in text:
        notes.append(
            T(
                "Penalties (repetition, presence) and logit_bias use this kernel: an id in the prompt or the request is out of range.",
                "重复/存在惩罚和 logit_bias 会用到这个内核：提示或请求里有 id 超出范围。",
            )
        )
    if finding.strength == SYMPTOM and not finding.event.has("Assertion"):
        notes.append(
            T(
                "The kernel's own line is not in the log, so the kind of check is a guess from experience.",
                "日志里没有内核自己打印的那一行，具体是哪种断言只能凭经验推断。",
            )
        )
    beyond = _beyond_positions(finding, life)
    if beyond is not None:
        warning, length = beyond
        remedies = [config.for_length(length, warning.line)[0], *remedies]
        reading.add_context(finding, warning, _ALLOWED)
        notes.append(_ALLOWED)
    if life.platform == "npu" or finding.event.has("CANN"):
        remedies = [advice.ASCEND_BLOCKING if remedy is graphs.LAUNCH_BLOCKING else remedy for remedy in remedies]
    if reading.speculates(life):
        # A table smaller than any vocabulary is one of positions: the draft model's is often shorter than the model's.
        small = is_whole(finding.values.get("bound", "")) and int(finding.values["bound"]) < _SMALLEST_VOCABULARY
        remedies.insert(0 if small else 1, loading.DROP_SPECULATIVE)
        if small:
            notes.append(
                T(
                    "No vocabulary is that small: compare the number with max_position_embeddings of the draft model.",
                    "词表不会这么小：拿这个数和草稿模型的 max_position_embeddings 对比。",
                )
            )
    finding.remedies = tuple(remedies)
    reading.for_sglang(finding, life, finding.remedies, advice.SGLANG_NO_GRAPH)
    return reading.explain(finding, base.why, *notes) if notes else finding


CAUSE = Cause(
    slug="device-assert",
    code="A8",
    title=T("A check on the GPU failed", "GPU 端断言失败"),
    summary=T(
        "A kernel refused its input, nearly always an index outside its table; one request often brings it, and brings it again when retried.",
        "内核拒绝了输入，几乎总是索引越界；往往由某个请求触发，重试会再次触发。",
    ),
    subtypes=SUBTYPES,
    signatures=SIGNATURES,
    refine=refine,
    order=8,
)
