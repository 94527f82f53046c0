"""Faults that arrive with a request: those that kill the engine, and those that only sound as if they did."""

from __future__ import annotations

from lifesign.drill import texts
from lifesign.drill.model import Ask, Expect, Fault, Frame, Hook, Raise
from lifesign.text import T

REFUSED = Expect(
    "not-a-crash",
    "request-failed",
    accept_subtypes=("healthy", "clean-shutdown", "orderly-shutdown", "request-aborted"),
)

FAULTS = (
    Fault(
        "request-grammar",
        T(
            "a JSON schema that the grammar compiler rejects inside EngineCore",
            "EngineCore 里语法编译器拒绝某个 JSON schema",
        ),
        Expect("request-poison", "grammar", decisive=("Check failed", "compile_json_schema")),
        ask=Ask("grammar"),
        hook=Hook(
            "core.grammar",
            (Raise("RuntimeError", texts.BAD_SCHEMA),),
            (
                Frame(
                    "vllm/v1/structured_output/backend_xgrammar.py",
                    "compile_grammar",
                    "ctx = self.compiler.compile_json_schema(",
                    95,
                ),
                Frame("xgrammar/compiler.py", "compile_json_schema", "self._handle.compile_json_schema(", 283),
            ),
        ),
    ),
    Fault(
        "request-mm-placeholders",
        T("an image gives more tokens than the prompt has places for", "图像产生的 token 比占位符多"),
        Expect("request-poison", "mm-placeholders", decisive=("multimodal tokens to",)),
        hook=Hook(
            "worker.step",
            (Raise("ValueError", texts.MM_PLACEHOLDERS),),
            (Frame("vllm/model_executor/models/utils.py", "_merge_multimodal_embeddings", "raise ValueError(", 480),),
        ),
    ),
    Fault(
        "request-too-long",
        T("a prompt longer than the model allows: refused, not fatal", "提示词超长：被拒绝，引擎不死"),
        REFUSED,
        ask=Ask("long-prompt"),
        fate="lives",
        bound_s=15,
        engines=("vllm",),
    ),
    Fault(
        "request-bad-json",
        T("a body that isn't JSON: refused, not fatal", "请求体不是 JSON：被拒绝，引擎不死"),
        REFUSED,
        ask=Ask("bad-json"),
        fate="lives",
        bound_s=15,
    ),
    Fault(
        "request-unknown-model",
        T("a request for a model that isn't served: refused, not fatal", "请求了不存在的模型：被拒绝，引擎不死"),
        REFUSED,
        ask=Ask("no-model"),
        fate="lives",
        bound_s=15,
    ),
)
