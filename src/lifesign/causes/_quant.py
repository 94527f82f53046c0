"""How to tell a quantised model, and the names that only its tensors have: shared by model-load and model-quant-incompat."""

from __future__ import annotations

import re

from lifesign.facts.model import Event, Life

QUANT_SUFFIX = (
    r"weight_scale|g_idx|qweight|qzeros|\.scales|input_scale|weight_packed|weight_shape|weight_zero_point|absmax|quant_state|"
    r"weight_scale_inv|deq_scale|quant_bias|input_offset|k_scale|v_scale|_blocks|weight_scale_2|global_scale|zeros"
)
QUANT_NAMES = (
    "weight_scale",
    "g_idx",
    "qweight",
    "qzeros",
    ".scales",
    "input_scale",
    "weight_packed",
    "weight_zero_point",
    "absmax",
    "k_scale",
    "v_scale",
    "global_scale",
    "weight_shape",
    "deq_scale",
    "quant_bias",
)
"""Parts of the names of tensors that only quantised checkpoints have."""

QUANT_WORDS = re.compile(
    r"gptq|awq|int4|int8|w4a16|w8a8|w4a8|fp8|fp4|nvfp4|mxfp4|bnb|bitsandbytes|gguf|autoround|marlin|compressed-tensors|modelopt"
)
_LINEAR = re.compile(r"(?:proj|experts|mlp|attn|\bfc\d?|linear|w\d{1,2})[\w.]{0,40}(?:weight|bias)\b")

LOAD_FRAMES = (
    ":load_weights",
    ":weight_loader",
    ":_load_module",
    ":_load_param",
    ":load_model_weights",
    ":default_weight_loader",
    ":load_column_parallel_weight",
    ":load_row_parallel_weight",
    ":load_merged_column_weight",
    ":load_qkv_weight",
)


def is_quantised(event: Event, life: Life) -> bool:
    """Whether the served model is quantised, by its configuration, its name, or the layers in the traceback."""
    named = str(life.config.get("quantization") or "")
    if named and named not in ("None", "null"):
        return True
    if QUANT_WORDS.search(f"{life.model} {life.config.get('model', '')}".lower()):
        return True
    return event.exc is not None and event.exc.passes(
        "layers/quantization", "marlin", "gptq", "awq", "deep_gemm", "cutlass"
    )


def quantised_layer(event: Event, life: Life) -> bool:
    """Whether a missing name is that of a linear layer of a quantised model (norms and embeddings stay as they are)."""
    return is_quantised(event, life) and _LINEAR.search(event.text[:400]) is not None
