"""Defects of the engine's own code: an assertion, a wrong shape or a missing key that no other cause claims.

Two layers. Texts that only a defect prints are DECISIVE. Everything else is found by the frames: an exception raised
in vLLM's engine, scheduler, worker or model code while it served or prepared to serve. That layer is SYMPTOM, so that
any cause that knows the text wins over it; and it is silent on errors of loading and configuration, where the code
merely reports what it was given.
"""

from __future__ import annotations

from lifesign.causes._engine_places import (
    EMBEDS_FRAMES,
    ENGINE_LOOP,
    GRAMMAR_FRAMES,
    LOADING_FRAMES,
    MULTIMODAL_FRAMES,
    OTHER_TEXTS,
    OTHER_TYPES,
    SLIPS,
    asks_grammar,
    counts_external_tokens,
    is_engine_frame,
    place_of,
)
from lifesign.causes._reading import speculates
from lifesign.causes.model import DECISIVE, SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies import library as lib
from lifesign.remedies.model import Remedy
from lifesign.text import T

NEW_OR_OLD = Remedy(
    slug="other-vllm-version",
    kind="upgrade",
    title=T("upgrade vLLM, or go back one release", "升级 vLLM，或退回上一个版本"),
    why=T(
        "An assertion of the engine's own is cured by a version, not by memory settings: look for the frame in the release notes and the issues.",
        "引擎自己的断言要靠换版本解决，调内存参数没有用：拿出错的函数去搜 release note 和 issue。",
    ),
    command="pip install -U vllm   # or: pip install vllm==<the last version that worked>",
)
FEATURE_OFF = Remedy(
    slug="switch-feature-off",
    kind="check",
    title=T("switch features off one by one", "逐个关掉功能"),
    why=T(
        "Speculative decoding (MTP), prefix caching, async scheduling, a special --kv-cache-dtype or --block-size: the one that makes the error go away is where the bug is.",
        "投机解码（MTP）、前缀缓存、异步调度、特殊的 --kv-cache-dtype 或 --block-size：关掉哪个不再出错，bug 就在哪里。",
    ),
    command="vllm serve MODEL ... --no-enable-prefix-caching   # then without --speculative-config, without --kv-cache-dtype ...",
)
SGLANG_VERSION = Remedy(
    slug="sglang-newer-version",
    kind="upgrade",
    title=T("a newer SGLang, or without the overlap scheduler", "换更新的 SGLang，或关掉 overlap 调度"),
    why=T(
        "The pool's accounting check failed: a bug in the cache code. --disable-radix-cache or --disable-overlap-schedule tells which part.",
        "池的记账检查失败，是缓存代码的 bug。用 --disable-radix-cache 或 --disable-overlap-schedule 看是哪一部分。",
    ),
)
REPLAY = Remedy(
    slug="replay-request",
    kind="check",
    title=T("does one request bring it back?", "是不是某个请求能复现？"),
    why=T(
        "If the same request kills it again, keep it for the bug report and refuse it until then.",
        "如果同一个请求再次触发，就留作 bug 报告，并先拒绝它。",
    ),
    command='grep -n "Dumping input data" -A3 vllm.log | tail -20',
)

_USUAL = (NEW_OR_OLD, REPLAY, FEATURE_OFF, lib.REPORT_BUG)
_WHERE = T(
    "{type} in {frame}: the engine's own code broke an assumption of its own. {message}",
    "{frame} 抛出 {type}：引擎自己的代码违反了自己的假设。{message_zh}",
)


def _sub(en: str, zh: str, remedies: tuple[Remedy, ...] = _USUAL, known: tuple[str, ...] = ()) -> Subtype:
    return Subtype(T(en, zh), _WHERE, remedies, known)


SUBTYPES = {
    "scheduler": _sub(
        "A bug in the scheduler ended the engine", "调度器的 bug 让引擎退出", known=("vllm#25482", "vllm#27711")
    ),
    "kv-cache-manager": _sub("A bug in the KV cache's bookkeeping ended the engine", "KV cache 记账的 bug 让引擎退出"),
    "kv-cache-groups": _sub(
        "A bug in the planning of KV cache groups",
        "KV cache 分组规划的 bug",
        (NEW_OR_OLD, FEATURE_OFF, lib.SMALLER_BLOCK_SIZE, lib.REPORT_BUG),
    ),
    "spec-decode": _sub(
        "A bug in speculative decoding",
        "投机解码的 bug",
        (lib.DROP_SPECULATIVE, NEW_OR_OLD, lib.REPORT_BUG),
        ("vllm#48848", "vllm#21177"),
    ),
    "attention-metadata": _sub(
        "A bug in the attention backend's preparation",
        "注意力后端准备阶段的 bug",
        (NEW_OR_OLD, lib.OTHER_ATTENTION_BACKEND, FEATURE_OFF, lib.REPORT_BUG),
        ("vllm#28411", "vllm#25928"),
    ),
    "model-forward": _sub("A wrong shape or a bug in the model's code", "模型代码的 bug（形状不对等）"),
    "model-runner": _sub("A bug in the model runner", "model runner 的 bug", known=("vllm#25991",)),
    "sampler": _sub("A bug in the sampler", "采样器的 bug"),
    "pooling": _sub("A bug in the pooling (embedding, classification) code", "pooling（向量、分类）代码的 bug"),
    "encoder-decoder": _sub("A bug in the encoder-decoder code", "编码器-解码器代码的 bug"),
    "omni-stage": _sub("A bug in a stage of the omni pipeline", "omni 流水线某一阶段的 bug"),
    "expert-parallel": _sub("A bug in expert parallelism", "专家并行的 bug"),
    "lora": _sub("A bug in the LoRA code", "LoRA 代码的 bug"),
    "output-processor": _sub("A bug in the output processing of the front end", "前端输出处理的 bug"),
    "worker": _sub("A bug in the worker", "worker 的 bug"),
    "engine-core": _sub("A bug in the engine core", "引擎 core 的 bug"),
}


_SLIP_TEXTS = (
    "object has no attribute",
    "list index out of range",
    "object is not subscriptable",
    "object is not iterable",
    "unsupported operand type",
    "values to unpack",
    "dictionary changed size during iteration",
    "referenced before assignment",
    "The size of tensor a (",
    "Sizes of tensors must match",
    "mat1 and mat2 shapes cannot be multiplied",
    "is invalid for input of size",
)


def _frame_name(event: Event) -> str:
    """`scheduler.py:schedule` of the innermost engine frame."""
    for frame in reversed(event.exc.frames if event.exc else []):
        if is_engine_frame(frame):
            return f"{frame.file.replace(chr(92), '/').rpartition('/')[2]}:{frame.func}"
    return event.origin or "worker"


def _in_engine(event: Event, life: Life) -> bool:
    """Whether the exception is the engine's own fault as far as frames can tell; see the module's essay."""
    exc = event.exc
    if exc is None or event.weight in ("request", "teardown") or not exc.frames:
        return False
    if exc.short_type in OTHER_TYPES or exc.short_type.endswith("DeadError"):
        return False
    tail = exc.frames[-8:]
    if not any(is_engine_frame(frame) for frame in tail):
        return False
    if not exc.passes(
        *ENGINE_LOOP,
        ":_initialize_kv_caches",
        ":determine_available_memory",
        ":output_handler",
        ":profile_run",
        ":__init__",
    ):
        return False
    if event.phase is not Phase.SERVING and exc.short_type not in SLIPS:
        # Before serving, a ValueError or RuntimeError is usually a check that refuses what it was given.
        return False
    if event.process.role == "api" and not exc.passes(*ENGINE_LOOP, ":output_handler"):
        return False
    if asks_grammar(event) and event.phase is Phase.SERVING:
        return False
    if exc.passes(*GRAMMAR_FRAMES, *MULTIMODAL_FRAMES, *EMBEDS_FRAMES) and event.phase is Phase.SERVING:
        return False
    if "vllm_omni" in tail[-1].file and exc.short_type in SLIPS:
        return True
    last = [f"{frame.file}:{frame.func}".replace("\\", "/") for frame in tail]
    return not any(part in place for part in LOADING_FRAMES for place in last)


def _fill(finding: Finding, life: Life) -> Finding | None:
    """Chooses the subtype by the frames; an assertion in the scheduler or the cache's books is proof by itself."""
    event = finding.event
    exc = event.exc
    finding.values["type"] = exc.short_type if exc else "An error"
    finding.values["frame"] = _frame_name(event)
    message = exc.message.strip().split("\n")[0][:200] if exc else event.text.split("\n")[0][:200]
    finding.values["message"] = message or "It has no message."
    finding.values["message_zh"] = message or "它没有带说明文字。"
    by_frame = finding.strength == SYMPTOM and event.kind == "exception"
    if by_frame and counts_external_tokens(event, life):
        return None
    if by_frame:
        finding.subtype = place_of(event)
        exact = exc is not None and exc.short_type in (
            "AssertionError",
            "KeyError",
            "IndexError",
            "AttributeError",
            "RecursionError",
        )
        if exact and finding.subtype in ("scheduler", "kv-cache-manager", "kv-cache-groups"):
            finding.strength, finding.certainty = DECISIVE, "established"
    if finding.subtype == "model-forward" and "reduction dim" in event.text and speculates(life):
        finding.subtype = "spec-decode"
    sglang = life.engine == "sglang" or (exc is not None and exc.passes("sglang/srt"))
    if sglang and finding.subtype == "kv-cache-manager":
        finding.remedies = (SGLANG_VERSION, REPLAY)
    return finding


def _serving_shape(event: Event, life: Life) -> bool:
    """A shape error after requests have been answered can't be a checkpoint that doesn't fit, unless it is quantised."""
    quantised = str(life.config.get("quantization") or "None")
    return life.served and event.phase is Phase.SERVING and quantised in ("None", "")


CAUSE = Cause(
    slug="engine-bug",
    code="C1",
    title=T("Bug in the engine", "引擎自身的 bug"),
    summary=T(
        "An assertion or error in the engine's own code that nothing outside explains; the cure is a version or a patch.",
        "引擎自己代码里的断言或错误，外部因素解释不了；要靠换版本或补丁。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "kv-cache-manager",
            any=(
                "memory leak detected!",
                "Invalid block found in popleft()",
                "next_free_block of fake_free_list_head",
                "prev_free_block of fake_free_list_tail",
                "remove() called on an invalid block",
                "No free blocks available",
                "free blocks from the pool",
            ),
            kinds=("exception", "wrapper"),
        ),
        Signature(
            "kv-cache-groups",
            any=(
                "Expected same manager class for identical KV cache specs",
                "HybridKVCacheCoordinator assumes",
                "UnitaryKVCacheCoordinator assumes",
                "The page size of the layer is not divisible",
                "page size is not divisible by the maximum page size",
                "All layers in the same KV cache group",
                "KV cache group overlaps",
                "KV cache groups miss layers",
                "KV cache specs for the same layer are different across workers",
                "failed to convert the KV cache specs to one unified type",
                "Failed to promote local KV cache specs",
                "Each KV cache group's",
                "No common block size for",
                "block_size must be divisible by hash_block_size",
            ),
            kinds=("exception", "wrapper"),
        ),
        Signature(
            "scheduler",
            any=(
                "Invalid request status:",
                "expected running sequences",
                "Only running requests can be preempted",
                "Unexpected blocked waiting status",
                "peek from an empty queue",
                "pop from empty heap",
            ),
            kinds=("exception", "wrapper"),
        ),
        Signature("engine-core", any=("Input socket thread died during startup",), kinds=("exception", "wrapper")),
        Signature(
            "model-forward",
            any=("must have same reduction dim",),
            kinds=("exception", "wrapper"),
            certainty="supported",
        ),
        Signature(
            "model-forward",
            any=(
                "is invalid for input of size",
                "The size of tensor a (",
                "Sizes of tensors must match",
                "mat1 and mat2 shapes cannot be multiplied",
            ),
            kinds=("exception",),
            no_frames=(*GRAMMAR_FRAMES, *MULTIMODAL_FRAMES, ":load_weights"),
            when=_serving_shape,
            certainty="supported",
        ),
        Signature(
            "worker",  # the worker's own traceback is missing: only its message came through
            any=_SLIP_TEXTS,
            kinds=("wrapper",),
            phases=(Phase.SERVING,),
            strength=SYMPTOM,
            certainty="possible",
        ),
        Signature("sampler", any=("NaNs detected in logits",), kinds=("exception", "wrapper"), certainty="supported"),
        Signature(
            "engine-core",  # refined by the frames
            none=OTHER_TEXTS,
            kinds=("exception",),
            when=_in_engine,
            strength=SYMPTOM,
            certainty="supported",
        ),
    ),
    refine=_fill,
    order=14,
)
