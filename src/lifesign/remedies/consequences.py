"""What a remedy gains or costs here, in the log's own figures: tokens of KV cache, memory of graphs, weights per rank.

These functions explain; they choose no value. None = the log doesn't say enough, and the remedy is shown without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifesign.remedies import sizing, wording
from lifesign.remedies.model import Computed
from lifesign.text import T

if TYPE_CHECKING:
    from lifesign.facts.model import Life

KIB = 1024


def kv_bytes_per_token(life: Life) -> float | None:
    """Bytes of KV cache per token on one rank: available KV memory / tokens, both as vLLM prints them."""
    memory, tokens = sizing.figure(life, "kv_available_gib"), sizing.figure(life, "kv_tokens")
    if memory is None or tokens is None or tokens[0] < 1 or memory[0] <= 0:
        return None
    return memory[0] * sizing.GIB / tokens[0]


def kv_shape_bytes(layers: int, kv_heads: int, head_dim: int, element_bytes: float) -> float:
    """Bytes of KV cache per token from a model's shape: 2 (key and value) x layers x KV heads x head size x bytes.

    For models with full attention in each layer; per rank divide by the tensor-parallel size.
    """
    return 2 * layers * kv_heads * head_dim * element_bytes


def kv_halved(life: Life) -> Computed | None:
    """What an fp8 cache gains: twice the tokens in the same memory."""
    each, tokens = kv_bytes_per_token(life), sizing.figure(life, "kv_tokens")
    memory = sizing.figure(life, "kv_available_gib")
    if each is None or tokens is None or memory is None:
        return None
    how = T(
        f"{memory[0]:.2f} GiB / {tokens[0]:,.0f} tokens = {each / KIB:.1f} KiB per token; half of it holds {2 * tokens[0]:,.0f}",
        f"{memory[0]:.2f} GiB / {tokens[0]:,.0f} 个 token = 每个 {each / KIB:.1f} KiB；减半后可放 {2 * tokens[0]:,.0f} 个",
    )
    return Computed("", how, tuple(item[1] for item in (memory, tokens)))


def graphs_freed(life: Life) -> Computed | None:
    """The memory that captured graphs took, which a run without them has."""
    graphs = sizing.figure(life, "graph_gib")
    if graphs is None or graphs[0] <= 0:
        return None
    how = T(f"the graphs took {wording.size_text(graphs[0])}", f"图占了 {wording.size_text(graphs[0])}")
    return Computed("", how, (graphs[1],))


def cache_lost(life: Life) -> Computed | None:
    """How much KV cache a smaller share costs, in tokens: (now - new) x card / bytes per token."""
    lowered, each = sizing.lower_utilisation(life), kv_bytes_per_token(life)
    total, tokens = sizing.figure(life, "total_gib"), sizing.figure(life, "kv_tokens")
    if lowered is None or each is None or total is None or tokens is None:
        return None
    lost = (sizing.current_utilisation(life) - float(lowered.value)) * total[0] * sizing.GIB / each
    if not 0 < lost < tokens[0]:
        return None
    how = T(
        f"costs about {lost:,.0f} of {tokens[0]:,.0f} tokens of KV cache",
        f"约少放 {lost:,.0f} 个 token（共 {tokens[0]:,.0f}）",
    )
    return Computed("", how, (tokens[1],))
