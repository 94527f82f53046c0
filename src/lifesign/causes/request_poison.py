"""One request kills the engine: its images, schema, token ids, length or id break code that all requests share.

It comes back when the client retries. The proof is a frame or text that only a request's own content can reach; a
message that ended just that request (the engine went on) is no death and is kept out by the event's weight.
"""

from __future__ import annotations

import re

from lifesign.causes._engine_places import EMBEDS_FRAMES, ENGINE_LOOP, GRAMMAR_FRAMES, MULTIMODAL_FRAMES, asks_grammar
from lifesign.causes.model import DECISIVE, SYMPTOM, Cause, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies import library as lib
from lifesign.remedies import versions
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

SAMPLING_FRAMES = (
    "logit_bias",
    "logits_bias",
    "allowed_token_ids",
    "min_token",
    "bad_words",
    "sample/logits_processor",
    "openai/logits_processors",
    "logits_process.py",
)
_OTHERS = (
    "out of memory",
    "NCCL error",
    "illegal memory access",
    "EngineDeadError",
    "no kernel image",
    "EngineCore encountered",
)

REFUSE_DUPLICATE = Remedy(
    slug="unique-request-ids",
    kind="check",
    title=T("make request ids unique", "保证 request id 唯一"),
    why=T(
        "Clients may choose the id (request_id, X-Request-Id); two live requests with one id overwrite each other's state. Let the gateway generate ids.",
        "客户端可以自带 id（request_id、X-Request-Id）；两个同时在跑的请求用同一个 id 会互相覆盖状态。让网关统一生成。",
    ),
    command="grep -oE 'Received request [^:]+' vllm.log | sort | uniq -d | head",
    source="vllm#15041, vllm#10583",
)
VALIDATE_EMBEDS = Remedy(
    slug="validate-prompt-embeds",
    kind="check",
    title=T("check the shape of prompt embeddings", "校验 prompt embedding 的形状"),
    why=T(
        "Embeddings must have the model's hidden size and dtype; refuse others, or serve without --enable-prompt-embeds.",
        "embedding 的维度和 dtype 必须与模型一致；不一致就拒绝，或不开 --enable-prompt-embeds。",
    ),
)
REFUSE_LONG = Remedy(
    slug="refuse-too-long",
    kind="check",
    title=T("refuse prompts beyond the model's length", "拒绝超长提示"),
    why=T(
        "The length check counts less than the engine does (chat template, images): reject near the limit, or give --max-model-len some room.",
        "长度检查算得比引擎实际用的少（chat template、图片）：在网关留出余量，或放宽 --max-model-len。",
    ),
    command="curl -s localhost:8000/v1/models | python -m json.tool | grep max_model_len",
)
SGLANG_LENGTH = Remedy(
    slug="sglang-request-limit",
    kind="check",
    title=T("let one request take less than the whole pool", "单个请求不许超过整个池"),
    why=T(
        "The context length may exceed what the pool holds: set --context-length below --max-total-tokens, so that such a request is rejected.",
        "上下文长度可能大于整个池能装的量：把 --context-length 设在 --max-total-tokens 以下，这样的请求就会被拒绝。",
    ),
)
UPGRADE_GRAMMAR = Remedy(
    slug="upgrade-grammar-errors",
    kind="upgrade",
    title=T("upgrade: a bad schema then fails alone", "升级：坏 schema 只让那个请求失败"),
    why=T(
        "From 0.26 (vllm#47312) a grammar that doesn't compile ends its own request with an error instead of the engine.",
        "从 0.26（vllm#47312）起，编译失败的语法只会让它自己的请求报错，不再拖垮引擎。",
    ),
    unless=lambda life: versions.at_least(life.version, "0.26.0") is True,
    source="vllm#47312, vllm#44401, vllm#37642",
)
NO_MM_CACHE = Remedy(
    slug="no-mm-cache",
    kind="flag",
    title=T("switch the multi-modal cache off", "关闭多模态缓存"),
    why=T(
        "The front end sends only a hash for an image it believes the engine still holds; without the cache it sends the image each time.",
        "前端以为引擎还留着某张图片时只发哈希；关掉缓存后每次都发整张图。",
    ),
    forms=(Form("--mm-processor-cache-gb", "0", since="0.10.1"),),
    cost=T("repeated images are processed again", "重复图片要重新处理"),
    source="vllm#31404, vllm#46354",
)
UPGRADE_PROCESSOR = Remedy(
    slug="upgrade-mm-processor",
    kind="upgrade",
    title=T("vLLM and transformers versions that belong together", "换成互相匹配的 vLLM 与 transformers 版本"),
    why=T(
        "An off-by-one between image tokens and placeholders often comes from a processor of another transformers version.",
        "图片 token 与占位符只差一两个，往往是 transformers 版本不同、处理器行为变了。",
    ),
    command="pip list 2>/dev/null | grep -iE '^(vllm|transformers|xgrammar) '",
)

SUBTYPES = {
    "mm-placeholders": Subtype(
        T("One request's images don't match its placeholders", "某个请求的图片与占位符数量对不上"),
        T(
            "{what}. One multi-modal request broke the step that all requests share, and the engine died with it.",
            "{what}。一个多模态请求弄坏了所有请求共用的那一步，引擎随之死亡。",
        ),
        (lib.ISOLATE_REQUEST, lib.MM_PLACEHOLDERS, UPGRADE_PROCESSOR, lib.LIMIT_MM_INPUTS),
        ("vllm#15764", "vllm#18572", "vllm#19070", "vllm#16380"),
    ),
    "mm-cache": Subtype(
        T("One request named an image that the engine's cache had dropped", "某个请求引用了引擎缓存里已丢弃的图片"),
        T(
            "{what}. The image caches of the front end and of the engine fell out of step, and the thread that receives requests died of it.",
            "{what}。前端与引擎两侧的图片缓存不再一致，接收请求的线程因此死掉。",
        ),
        (NO_MM_CACHE, lib.UPGRADE_VLLM, lib.ISOLATE_REQUEST),
        ("vllm#31404", "vllm#46354"),
    ),
    "grammar": Subtype(
        T("One request's schema or grammar killed the engine", "某个请求的 schema 或语法约束拖垮了引擎"),
        T(
            "Compiling or advancing the grammar of one request raised an error inside the engine core ({what}). The same request kills it again after a restart.",
            "编译或推进某个请求的语法约束时，在引擎 core 里抛了异常（{what}）。重启后同样的请求会再次杀死它。",
        ),
        (lib.FIX_SCHEMA, UPGRADE_GRAMMAR, lib.OTHER_GRAMMAR_BACKEND, lib.ISOLATE_REQUEST),
        ("vllm#44401", "vllm#47312", "vllm#37642", "vllm#43920"),
    ),
    "oov-token-id": Subtype(
        T("One request names a token id outside the vocabulary", "某个请求带了词表之外的 token id"),
        T(
            "{what}. Ids reach the device unchecked through stop_token_ids, logit_bias, allowed_token_ids or a prompt of ids; usually they belong to another tokenizer.",
            "{what}。stop_token_ids、logit_bias、allowed_token_ids 或以 id 给出的提示未经检查就到了设备上；这些 id 通常来自另一个 tokenizer。",
        ),
        (lib.VALIDATE_TOKEN_IDS, lib.ISOLATE_REQUEST, lib.UPGRADE_VLLM),
        ("vllm#16529",),
    ),
    "duplicate-request-id": Subtype(
        T("Two requests with the same id broke the engine", "两个同 id 的请求弄坏了引擎"),
        T("{what}. The engine's books are kept by request id.", "{what}。引擎内部按 request id 记账。"),
        (REFUSE_DUPLICATE, lib.UPGRADE_VLLM),
        ("vllm#15041", "vllm#10583"),
    ),
    "prompt-too-long": Subtype(
        T("One prompt was longer than the engine has room for", "某个提示超过了引擎的容量"),
        T("{what}. It passed the front end's check and failed inside.", "{what}。它通过了前端检查，却在引擎里失败。"),
        (REFUSE_LONG, lib.ISOLATE_REQUEST, lib.UPGRADE_VLLM),
    ),
    "embeddings": Subtype(
        T("One request's prompt embeddings don't fit the model", "某个请求的 prompt embedding 与模型不匹配"),
        T(
            "{what}. The embeddings of one request don't have the shape or type that the model needs.",
            "{what}。某个请求的 embedding 形状或类型不是模型需要的。",
        ),
        (VALIDATE_EMBEDS, lib.ISOLATE_REQUEST, lib.UPGRADE_VLLM),
    ),
    "kv-exhaust": Subtype(
        T("A single request used up the whole KV pool", "单个请求耗尽了整个 KV 池"),
        T(
            "{what}. Only one request was running and none waited, so the pool isn't too small for the load: this request is longer than the pool.",
            "{what}。当时只有一个请求在跑、没有排队，所以不是负载太大：这个请求本身比整个池还长。",
        ),
        (SGLANG_LENGTH, lib.REQUEST_LENGTH_LIMIT, lib.SGLANG_POOL),
    ),
    "request-input": Subtype(
        T("Something in one request killed the engine", "某个请求的内容拖垮了引擎"),
        T(
            "The error was raised where the request's own parameters are applied ({what}).",
            "异常出在处理请求自带参数的地方（{what}）。",
        ),
        (lib.ISOLATE_REQUEST, lib.UPGRADE_VLLM, lib.REPORT_BUG),
    ),
}


def _fill(finding: Finding, _life: Life) -> Finding | None:
    """Puts the first line of the error into the text."""
    lines = [line.strip() for line in finding.event.text[:4000].split("\n") if line.strip()]
    first = lines[0] if lines else ""
    if finding.event.exc is not None and not finding.event.exc.message.strip() and finding.event.exc.frames:
        frame = finding.event.exc.frames[-1]
        first = f"{first} in {frame.file.replace(chr(92), '/').rpartition('/')[2]}:{frame.func}"
    finding.values["what"] = first[:200]
    exc = finding.event.exc
    if finding.subtype == "mm-placeholders" and exc is not None and exc.passes("spec_decode", "eagle", "propose_draft"):
        finding.remedies = (lib.DROP_SPECULATIVE, *SUBTYPES["mm-placeholders"].remedies)
    return finding


def _fatal_place(event: Event, _life: Life) -> bool:
    """Whether the exception passed through the loop that serves every request, or stands in an engine process."""
    if event.weight == "request":
        return False
    if event.exc is None or not event.exc.frames:
        return event.process.role != "api"
    return event.process.role != "api" or event.exc.passes(*ENGINE_LOOP)


def _by_position(event: Event, _life: Life) -> bool:
    """Whether the embedding that was read past its end is the one of positions: the prompt is too long for the model."""
    return event.exc is not None and any("position" in frame.code for frame in event.exc.frames[-6:])


def _vocabulary_sized(event: Event) -> bool:
    """Whether the dimension that was overrun can be the vocabulary: a small one is that of the requests in the step."""
    match = re.search(r"with size (\d{1,9})", event.text[:4000])
    return match is None or int(match[1]) >= 1000


def _came_twice(event: Event, life: Life) -> bool:
    """Whether the id that an error names was accepted twice in this life."""
    if event.exc is None or event.exc.short_type not in ("KeyError", "AssertionError", "ValueError", "RuntimeError"):
        return False
    if event.weight != "fatal" and event.process.role != "core":
        return False
    match = re.search(r"\b((?:chatcmpl|cmpl|embd)-[\w-]{1,80})", event.text[:4000])
    starts = ("Added request ", "Received request ")
    seen: dict[str, int] = {}
    for other in life.events[max(0, event.index - 3000) : event.index]:
        for start in starts:
            if other.text.startswith(start):
                name = start + other.text[len(start) : len(start) + 100].split(":")[0].rstrip(". ")
                seen[name] = seen.get(name, 0) + 1
    twice = {name for name, count in seen.items() if count > 1}
    return any(match is None or name.endswith(match[1]) for name in twice)


def _alone_in_pool(event: Event, life: Life) -> bool:
    """Whether SGLang's last batch lines show at most one running request and an empty queue."""
    last = life.before(event, "#running-req:", within=400)
    if last is None or event.line - last.line > 30:
        # Routine lines may have been passed over: an old one says nothing about the moment of the error.
        return False
    running = re.search(r"#running-req: (\d{1,6})", last.text[:4000])
    queued = re.search(r"#queue-req: (\d{1,6})", last.text[:4000])
    return running is not None and queued is not None and int(running[1]) <= 1 and int(queued[1]) == 0


CAUSE = Cause(
    slug="request-poison",
    code="C2",
    title=T("One request kills the engine", "单个请求拖垮引擎"),
    summary=T(
        "The content of one request breaks code that all share; it dies again when the client retries.",
        "某个请求的内容弄坏了公用代码；客户端一重试，引擎又死。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "mm-placeholders",
            any=(
                "multimodal tokens to",
                "image tokens to",
                "Encoder cache miss for",
                "multi-modal positions and hashes must match",
            ),
            kinds=("exception", "wrapper", "log"),
            when=_fatal_place,
        ),
        Signature(
            "mm-placeholders",
            any=(
                "shape mismatch",
                "masked_scatter",
                "do not match",
                "AssertionError",
                "IndexError",
                "must match",
                "KeyError",
            ),
            none=_OTHERS,
            frames=MULTIMODAL_FRAMES,
            phases=(Phase.SERVING,),
            kinds=("exception",),
            when=_fatal_place,
        ),
        Signature(
            "mm-placeholders",
            any=("shape mismatch: value tensor of shape",),
            all=("cannot be broadcast to indexing result of shape",),
            phases=(Phase.SERVING,),
            kinds=("exception", "wrapper"),
            when=_fatal_place,
            certainty="supported",
        ),
        Signature(
            "mm-placeholders",
            any=("contains inconsistent shapes",),
            frames=("tensor_schema",),
            kinds=("exception", "wrapper"),
            when=_fatal_place,
        ),
        Signature("mm-cache", any=("Expected a cached item for",), kinds=("exception", "wrapper"), when=_fatal_place),
        Signature(
            "oov-token-id",
            any=("Index out of range in dimension",),
            regex=r"index value \d{4,9} exceeds bounds \d{4,9}",
            kinds=("plain", "log", "native", "exception"),
        ),
        Signature(
            "oov-token-id",
            any=(
                "is out of bounds for dimension",
                "index out of range",
                "out of range integral type conversion",
                "out of vocabulary",
            ),
            frames=(*SAMPLING_FRAMES, "detokenizer", "convert_ids_to_tokens", "tokenization_utils", "apply_penalties"),
            kinds=("exception",),
            when=lambda event, life: _fatal_place(event, life) and _vocabulary_sized(event),
        ),
        Signature(
            "oov-token-id",
            any=("device-side assert triggered",),
            frames=SAMPLING_FRAMES,
            phases=(Phase.SERVING,),
            kinds=("exception",),
            strength=SYMPTOM,
            certainty="possible",
        ),
        Signature(
            "oov-token-id",
            any=("index out of range in self",),
            frames=("vocab_parallel_embedding", ":get_input_embeddings", ":embed_input_ids", ":embedding"),
            phases=(Phase.SERVING,),
            kinds=("exception", "wrapper"),
            when=lambda event, life: _fatal_place(event, life) and not _by_position(event, life),
            certainty="supported",
        ),
        Signature(
            "prompt-too-long",
            any=("index out of range in self",),
            phases=(Phase.SERVING,),
            kinds=("exception",),
            when=lambda event, life: _fatal_place(event, life) and _by_position(event, life),
            certainty="supported",
        ),
        Signature(
            "grammar",
            any=("xgrammar::", "/cpp/grammar_", "grammar_matcher.cc", "grammar_compiler.cc", "llguidance"),
            regex=r"what\(\)|terminate called|panicked",
            phases=(Phase.SERVING,),
            kinds=("plain", "native", "log"),
            certainty="supported",
        ),
        Signature(
            "grammar",
            any=("AssertionError", "AttributeError"),
            phases=(Phase.SERVING,),
            kinds=("exception",),
            when=lambda event, life: _fatal_place(event, life) and asks_grammar(event),
        ),
        Signature(
            "grammar",
            none=_OTHERS,
            frames=GRAMMAR_FRAMES,
            phases=(Phase.SERVING,),
            kinds=("exception",),
            when=lambda event, life: (
                _fatal_place(event, life)
                and event.exc is not None
                and event.exc.short_type
                not in (
                    "ImportError",
                    "ModuleNotFoundError",
                    "TimeoutError",
                    "KeyboardInterrupt",
                    "FileNotFoundError",
                    "PermissionError",
                )
                and not event.exc.passes("gpu_model_runner.py:_dummy")
            ),
        ),
        Signature(
            "duplicate-request-id",
            any=(
                "already exists",
                "duplicate request",
                "Duplicate request",
                "request_id not in",
                "req_id not in",
                "already running",
            ),
            regex=r"(?i)request|req_id",
            kinds=("exception",),
            when=_fatal_place,
        ),
        Signature("duplicate-request-id", kinds=("exception",), none=_OTHERS, when=_came_twice, certainty="supported"),
        Signature(
            "prompt-too-long",
            any=("could not broadcast input array from shape",),
            frames=("input_batch", "InputBatch"),
            kinds=("exception", "wrapper"),
        ),
        Signature(
            "prompt-too-long",
            any=("longer than the maximum model length", "exceeds the model's maximum", "is too long and exceeds"),
            kinds=("exception",),
            phases=(Phase.SERVING,),
            when=lambda event, life: _fatal_place(event, life) and event.weight == "fatal",
        ),
        Signature(
            "embeddings",
            none=_OTHERS,
            frames=EMBEDS_FRAMES,
            phases=(Phase.SERVING,),
            kinds=("exception",),
            when=_fatal_place,
            certainty="supported",
        ),
        Signature(
            "kv-exhaust",
            any=("Prefill out of memory. Try to lower your batch size", "alloc_paged_token_slots_extend"),
            kinds=("exception", "log", "plain"),
            when=_alone_in_pool,
            strength=DECISIVE,
            certainty="supported",
        ),
        Signature(
            "request-input",
            none=(*_OTHERS, "CUDA error", "Workspace is locked"),
            frames=SAMPLING_FRAMES,
            phases=(Phase.SERVING,),
            kinds=("exception",),
            when=_fatal_place,
            strength=SYMPTOM,
            certainty="supported",
        ),
    ),
    refine=_fill,
    order=13,
)
