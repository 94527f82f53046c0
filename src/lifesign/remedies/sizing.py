"""Arithmetic behind the remedies: which value to recommend, from the figures that the log prints.

Every function takes a life and gives a `Computed` (value, how it was computed, lines it rests on), or None when nothing
better than the current value can be named. vLLM's own estimate is preferred wherever the log has one. Where a setting
isn't in the log, the smallest default that vLLM could have chosen is assumed, so that a recommended reduction is a
reduction on every machine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lifesign.remedies import versions
from lifesign.remedies.model import LESS, MORE, Computed
from lifesign.remedies.wording import now, size_text
from lifesign.text import T, is_whole

if TYPE_CHECKING:
    from lifesign.facts.model import Life

GIB = 1 << 30
LOGIT_BYTES = 4
"""Logits are sampled in float32."""
SAMPLER_COPIES = 7
"""Arrays of the size of the logits that are alive at the peak of top-k/top-p sampling: logits, sorted values, sorted
indices (int64, so two), softmax, cumulative sum, result (vLLM source: apply_top_k_top_p)."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that --max-lora-rank takes (vLLM source: MaxLoRARanks)."""


# -- reading -----------------------------------------------------------------------------------------------------------


def figure(life: Life, *names: str) -> tuple[float, int] | None:
    """The first of the named figures that the log prints, as (value, line)."""
    for name in names:
        found = life.figures.get(name)
        if found is not None and math.isfinite(found[0]):
            return found
    return None


def setting(life: Life, *names: str) -> float | None:
    """The first of the named settings as a number; None if it isn't set or isn't a number."""
    for name in names:
        value = life.config.get(name)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (int, float)):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, str):
            try:
                return float(value.strip())
            except ValueError:
                continue
    return None


def flag_on(life: Life, name: str) -> bool:
    """Whether the boolean setting `name` is on."""
    return str(life.config.get(name, "")).strip().lower() in ("true", "1", "yes", "on")


def _text(life: Life, name: str) -> str:
    return str(life.config.get(name) or "").strip().lower()


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def floor_power_of_two(value: float) -> int:
    """The largest power of two that isn't above `value`; 0 below 1."""
    return 0 if value < 1 else 1 << (int(value).bit_length() - 1)


def _lines(*found: tuple[float, int] | None) -> tuple[int, ...]:
    return tuple(item[1] for item in found if item is not None and item[1] > 0)


# -- the current values, with vLLM's defaults --------------------------------------------------------------------------


def current_sequences(life: Life) -> int:
    """Sequences per step now: the setting, what the warm-up printed, or the smallest default, unless more were seen running."""
    value = setting(life, "max_num_seqs")
    if value is None:
        found = figure(life, "dummy_requests")
        value = found[0] if found else None
    if value is not None and value >= 1:
        return int(value)
    running = figure(life, "running_reqs")
    default = default_sequences(life.platform, life.version, life.world_size)
    return max(default, int(running[0]) if running else 0)


def default_sequences(platform: str, version: str, ranks: int) -> int:
    """--max-num-seqs of `vllm serve` when it isn't set, the smallest that the release could choose.

    Source: vLLM EngineArgs: 256 on devices below 70 GiB, 1024 above (A100: 256). CPU: 128 x world size from 0.10.0, 32 in
    0.9.2, 256 before.
    """
    if platform != "cpu" or versions.at_least(version, "0.9.2") is False:
        return 256
    if versions.at_least(version, "0.10.0") is False:
        return 32
    return 128 * max(1, ranks)


def current_batched_tokens(life: Life) -> int:
    """Tokens per step now: the setting, what the log prints, or the smallest default (2048; CPU: 2048 x world size)."""
    value = setting(life, "max_num_batched_tokens")
    if value is None:
        found = figure(life, "max_num_batched_tokens")
        value = found[0] if found else None
    if value is not None and value >= 1:
        return int(value)
    return 2048 * max(1, life.world_size) if life.platform == "cpu" else 2048


def current_utilisation(life: Life) -> float:
    """gpu_memory_utilization now: the setting, what the error printed, or the default (0.9; 0.92 from 0.20.0)."""
    value = setting(life, "gpu_memory_utilization")
    if value is None:
        found = figure(life, "utilisation")
        value = found[0] if found else None
    if value is not None and 0 < value <= 1:
        return value
    return 0.92 if versions.at_least(life.version, "0.20.0") else 0.9


def _share_now(life: Life) -> T:
    """The current share in words."""
    stated = setting(life, "gpu_memory_utilization") is not None or figure(life, "utilisation") is not None
    return now(f"{current_utilisation(life):g}", stated)


def step_limit_now(life: Life) -> T:
    """The current limit of a step in words."""
    stated = bool(life.env.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")) or "step_timeout_s" in life.figures
    limit = f"{current_step_timeout_s(life):g}"
    return now(f"{limit} s", stated, f"{limit} 秒")


def current_tensor_parallel(life: Life) -> int:
    """The tensor-parallel size now (1 by default)."""
    return max(1, int(setting(life, "tensor_parallel_size") or 1))


def current_step_timeout_s(life: Life) -> float:
    """The limit of one step now, in seconds: the variable, or the constant of the release (40 s in 0.8.5, else 300 s)."""
    raw = life.env.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "")
    if is_whole(raw) and versions.at_least(life.version, "0.9.2") is not False:
        return float(raw)
    found = figure(life, "step_timeout_s")
    if found is not None:
        return found[0]
    return 40.0 if versions.at_least(life.version, "0.9.0") is False else 300.0


# -- predicates (`unless`) ---------------------------------------------------------------------------------------------


def is_eager(life: Life) -> bool:
    """Eager mode is on already."""
    return flag_on(life, "enforce_eager")


def kv_is_fp8(life: Life) -> bool:
    """The KV cache is a quantised one already."""
    return _text(life, "kv_cache_dtype") not in ("", "auto", "none", "bfloat16", "float16")


def is_single_device(life: Life) -> bool:
    """One rank only, as far as the log says."""
    return (
        life.world_size <= 1
        and current_tensor_parallel(life) <= 1
        and (setting(life, "pipeline_parallel_size") or 1) <= 1
    )


def custom_all_reduce_is_off(life: Life) -> bool:
    """vLLM's own all-reduce is off already."""
    return flag_on(life, "disable_custom_all_reduce")


def has_no_other_attention(life: Life) -> bool:
    """Triton's attention backend is in use already, or the platform hasn't got it."""
    if life.platform not in ("cuda", "rocm", "xpu"):
        return True
    named = _text(life, "attention_backend") or life.env.get("VLLM_ATTENTION_BACKEND", "").lower()
    return "triton" in named


def trusts_remote_code(life: Life) -> bool:
    """The model's own code is allowed already."""
    return flag_on(life, "trust_remote_code")


def quantisation_is_gptq_marlin(life: Life) -> bool:
    """gptq_marlin is in use already."""
    return _text(life, "quantization") == "gptq_marlin"


# -- memory ------------------------------------------------------------------------------------------------------------


def fewer_sequences(life: Life) -> Computed | None:
    """A smaller --max-num-seqs.

    At the sampler's warm-up: sequences x vocabulary x 4 bytes is one copy of the logits; SAMPLER_COPIES of them must fit
    into half of the free memory. Without a vocabulary, the failed allocation is scaled to half of the free memory. On
    CPU the first aid is 16. Otherwise half, and below the number of requests that were running.
    """
    current = current_sequences(life)
    free, tried, vocab = figure(life, "free_gib"), figure(life, "tried_gib"), figure(life, "vocab_size")
    dummy = figure(life, "dummy_requests")
    if dummy is not None and free is not None and vocab is not None and vocab[0] > 0:
        per_sequence = vocab[0] * LOGIT_BYTES
        fits = 0.5 * free[0] * GIB / (SAMPLER_COPIES * per_sequence)
        value = floor_power_of_two(min(current / 2, fits))
        # The figures are those of the warm-up, whatever the reader's command asks for.
        copy_mib = dummy[0] * per_sequence / (1 << 20)
        how = T(
            f"{_whole(dummy[0])} x {_whole(vocab[0])} x 4 bytes = {copy_mib:,.0f} MiB of logits per copy, about "
            f"{SAMPLER_COPIES} copies; {size_text(free[0])} was free",
            f"{_whole(dummy[0])} × {_whole(vocab[0])} × 4 字节 = 每份 logits {copy_mib:,.0f} MiB，约 {SAMPLER_COPIES} 份；"
            f"当时空闲 {size_text(free[0])}",
        )
        return _fewer(value, current, how, _lines(free, vocab, dummy))
    if dummy is not None and free is not None and tried is not None and tried[0] > 0:
        value = floor_power_of_two(min(current / 2, dummy[0] * free[0] / (2 * tried[0])))
        how = T(
            f"{size_text(tried[0])} for {_whole(dummy[0])} sequences, {size_text(free[0])} free: so few that this array fills at most "
            "half of what is free",
            f"{_whole(dummy[0])} 个序列要 {size_text(tried[0])}，只剩 {size_text(free[0])}：按同一数组只占剩余显存的一半来取值",
        )
        return _fewer(value, current, how, _lines(tried, free, dummy))
    stated = dummy is not None or setting(life, "max_num_seqs") is not None
    here = now(str(current), stated)
    if life.platform == "cpu" and current > 16:
        return _fewer(16, current, T(f"first aid on CPU; {here.en}", f"CPU 上的急救值；{here.zh}"), ())
    running = figure(life, "running_reqs")
    if running is not None and _FEW < running[0] < current:
        # A limit above what ran at the death would have changed nothing.
        how = T(f"{_whole(running[0])} were running; {here.en}", f"当时有 {_whole(running[0])} 个在运行；{here.zh}")
        return _fewer(floor_power_of_two(min(current / 2, running[0] * 3 / 4)), current, how, _lines(running))
    return _fewer(floor_power_of_two(current / 2), current, here, ())


_FEW = 8
"""With no more requests than this running, their number isn't what filled the memory."""


def _fewer(value: int, current: int, how: T, lines: tuple[int, ...]) -> Computed | None:
    return Computed(str(value), how, lines, LESS) if 1 <= value < current else None


def fewer_batched_tokens(life: Life) -> Computed | None:
    """A smaller --max-num-batched-tokens: scaled by free / tried, else 8192 (CPU: 2048), else half; never below the
    number of sequences, which vLLM demands, nor below 256."""
    current = current_batched_tokens(life)
    free, tried = figure(life, "free_gib"), figure(life, "tried_gib")
    floor = max(256, int(setting(life, "max_num_seqs") or 0))
    first_aid = 2048 if life.platform == "cpu" else 8192
    if free is not None and tried is not None and 0 < tried[0] < 256:
        scaled = current * min(0.5, 0.8 * free[0] / tried[0])
        value = max(floor_power_of_two(scaled), floor)
        how = T(
            f"{_whole(current)} tokens asked for {size_text(tried[0])} with {size_text(free[0])} free",
            f"{_whole(current)} 个 token 时申请 {size_text(tried[0])}，只剩 {size_text(free[0])}",
        )
        return _fewer(value, current, how, _lines(tried, free))
    if current > first_aid:
        return _fewer(max(first_aid, floor), current, T(f"instead of {_whole(current)}", f"原为 {_whole(current)}"), ())
    value = max(floor_power_of_two(current / 2), floor)
    return _fewer(value, current, T(f"half of {_whole(current)}", f"{_whole(current)} 的一半"), ())


def shorter_context(life: Life) -> Computed | None:
    """A smaller --max-model-len: vLLM's own estimate, else the length times available / needed KV cache, else the V0
    token count, else half of the setting."""
    current = setting(life, "max_model_len", "max_seq_len")
    printed = figure(life, "max_len")
    if current is None and printed is not None:
        current = printed[0]
    estimate = figure(life, "est_max_len", "token_count")
    if estimate is not None and estimate[0] >= 16 and (current is None or estimate[0] < current):
        value = int(estimate[0]) // 16 * 16
        return Computed(
            str(value),
            T(f"vLLM's own estimate: {_whole(estimate[0])}", f"vLLM 自己的估计：{_whole(estimate[0])}"),
            _lines(estimate),
            LESS,
        )
    needed, available = figure(life, "kv_needed_gib"), figure(life, "kv_available_gib")
    if current is not None and needed is not None and available is not None and 0 < available[0] < needed[0]:
        value = int(current * available[0] / needed[0]) // 256 * 256
        how = T(
            f"{_whole(current)} x {available[0]:.2f} / {needed[0]:.2f} GiB of KV cache",
            f"{_whole(current)} × {available[0]:.2f} / {needed[0]:.2f} GiB（KV cache）",
        )
        return _fewer(value, int(current), how, _lines(available, needed))
    if current is None or current < 512:
        return None
    return _fewer(int(current / 2), int(current), T(f"half of {_whole(current)}", f"{_whole(current)} 的一半"), ())


def derived_context(life: Life) -> Computed | None:
    """The model's own maximum, when a longer one was asked for."""
    found = figure(life, "derived_max_len")
    if found is None or found[0] < 1:
        return None
    return Computed(str(int(found[0])), T("the model's own limit", "模型自身的上限"), _lines(found), LESS)


def lower_utilisation(life: Life) -> Computed | None:
    """A smaller --gpu-memory-utilization: now - (tried - free + 0.5 GiB) / total, at least 0.03 less; 0.05 less without
    figures. None when the KV cache has a fixed size, because the share is then not used."""
    if setting(life, "kv_cache_memory_bytes") is not None:
        return None
    current = current_utilisation(life)
    free, tried, total = figure(life, "free_gib"), figure(life, "tried_gib"), figure(life, "total_gib")
    if free is not None and tried is not None and total is not None and 0 < tried[0] < total[0]:
        missing = max(tried[0] - free[0], 0) + 0.5
        step = max(0.03, math.ceil(100 * missing / total[0]) / 100)
        how = T(
            f"{_share_now(life).en}; {size_text(tried[0])} asked, {size_text(free[0])} free of {size_text(total[0])}",
            f"{_share_now(life).zh}；申请 {size_text(tried[0])}，{size_text(total[0])} 中只剩 {size_text(free[0])}",
        )
        lines = _lines(tried, free, total)
    else:
        step, how, lines = 0.05, _share_now(life), ()
    value = math.floor(100 * (current - step) + 1e-6) / 100
    return Computed(f"{value:.2f}", how, lines, LESS) if value >= 0.3 else None


def fit_utilisation(life: Life) -> Computed | None:
    """The share that the free memory allows: (free - 0.2 GiB) / total, rounded down. None when that isn't below the
    current share, when the weights don't fit into it, or when less than a fifth of the card is free."""
    free, total = figure(life, "free_gib"), figure(life, "total_gib")
    if free is None or total is None or total[0] <= 0:
        return None
    value = math.floor(100 * (free[0] - 0.2) / total[0] + 1e-6) / 100
    weights = figure(life, "weights_gib")
    too_small = value < 0.2 or (weights is not None and value * total[0] <= weights[0])
    if too_small or value >= current_utilisation(life):
        return None
    how = T(f"{size_text(free[0])} free of {size_text(total[0])}", f"{size_text(total[0])} 中空闲 {size_text(free[0])}")
    return Computed(f"{value:.2f}", how, _lines(free, total), LESS)


def raise_utilisation(life: Life) -> Computed | None:
    """A larger share: vLLM's own suggestion, else now + missing KV cache / total, at most 0.97; without figures 0.95. None when even 0.97 isn't enough."""
    current = current_utilisation(life)
    own = figure(life, "suggested_utilisation")
    if own is not None and current < own[0] <= 0.98:
        return Computed(f"{own[0]:g}", T("vLLM's own suggestion", "vLLM 自己的建议"), _lines(own), MORE)
    needed, available = figure(life, "kv_needed_gib"), figure(life, "kv_available_gib")
    if needed is not None and available is not None:
        total, weights = figure(life, "total_gib"), figure(life, "weights_gib")
        missing = needed[0] - available[0]
        if total is None and weights is not None:
            # Weights and cache fill the share, so the card is at least this large; on a larger one less is needed.
            total = ((weights[0] + available[0]) / current, weights[1])
        if total is not None and total[0] > 0:
            value = math.ceil(100 * (current + missing / total[0]) - 1e-6) / 100
            how = T(
                f"{_share_now(life).en}; {size_text(missing)} of KV cache are missing on a card of about {total[0]:.0f} GiB",
                f"{_share_now(life).zh}；约 {total[0]:.0f} GiB 的卡上还缺 {size_text(missing)} KV cache",
            )
            lines = _lines(needed, available, total)
            return Computed(f"{value:.2f}", how, lines, MORE) if current < value <= 0.97 else None
    if current < 0.95:
        return Computed("0.95", _share_now(life), (), MORE)
    return None


def unified_utilisation(life: Life) -> Computed | None:
    """A share that leaves the operating system its part of a memory that CPU and GPU share: 0.15 less, at most 0.75."""
    current = current_utilisation(life)
    value = min(0.75, math.floor(100 * (current - 0.15) + 1e-6) / 100)
    return Computed(f"{value:.2f}", _share_now(life), (), LESS) if 0.2 <= value < current else None


def kv_cache_bytes(life: Life) -> Computed | None:
    """The size of the KV cache in bytes that vLLM itself suggests in the log."""
    own = figure(life, "suggested_kv_bytes")
    if own is None or own[0] < (1 << 20):
        return None
    return Computed(str(int(own[0])), T("vLLM's own suggestion", "vLLM 自己的建议"), _lines(own))


def more_tensor_parallel(life: Life) -> Computed | None:
    """The next power of two that fits the weights: per-rank weights x current / new <= 0.8 x share x card. None beyond
    the visible devices (or 8 without knowing them), and on CPU."""
    if life.platform == "cpu":
        return None
    current = current_tensor_parallel(life)
    seen = figure(life, "gpus_seen")
    limit = int(seen[0]) if seen is not None else 8
    value = 2 * floor_power_of_two(current)
    weights, total = figure(life, "weights_gib"), figure(life, "total_gib")
    how, lines = T(f"now {current}", f"现为 {current}"), _lines(seen)
    if weights is not None and total is not None and total[0] > 0:
        room = 0.8 * current_utilisation(life) * total[0]
        while value < limit and weights[0] * current / value > room:
            value *= 2
        how = T(
            f"now {current}; {size_text(weights[0])} of weights per rank become {size_text(weights[0] * current / value)}",
            f"现为 {current}；每个 rank 的权重由 {size_text(weights[0])} 变为 {size_text(weights[0] * current / value)}",
        )
        lines = _lines(weights, total, seen)
    return Computed(str(value), how, lines, MORE) if current < value <= limit else None


def less_tensor_parallel(life: Life) -> Computed | None:
    """Half of the tensor-parallel size; None at 1."""
    current = current_tensor_parallel(life)
    return Computed(str(current // 2), T(f"now {current}", f"现为 {current}"), (), LESS) if current > 1 else None


def cpu_offload(life: Life) -> Computed | None:
    """GiB of weights to keep in host memory: a quarter of the card (8 when its size is unknown), or twice the setting."""
    if life.platform == "cpu":
        return None
    current = setting(life, "cpu_offload_gb") or 0
    total = figure(life, "total_gib")
    if current > 0:
        return Computed(f"{2 * current:g}", T(f"now {current:g}", f"现为 {current:g}"), (), MORE)
    value = max(2, round(total[0] / 4)) if total is not None else 8
    how = (
        T(f"a quarter of {size_text(total[0])}", f"{size_text(total[0])} 的四分之一")
        if total
        else T("a start", "先试这个值")
    )
    return Computed(str(value), how, _lines(total), MORE)


def fewer_loras(life: Life) -> Computed | None:
    """Half of the adapter slots; None at one."""
    current = int(setting(life, "max_loras") or 1)
    return Computed(str(current // 2), T(f"now {current}", f"现为 {current}"), (), LESS) if current > 1 else None


def higher_lora_rank(life: Life) -> Computed | None:
    """The smallest allowed rank limit that takes the adapter's rank."""
    found = figure(life, "lora_rank")
    if found is None:
        return None
    current = setting(life, "max_lora_rank") or 16
    fitting = [rank for rank in LORA_RANKS if rank >= found[0] and rank > current]
    if not fitting:
        return None
    how = T(f"the adapter's rank is {found[0]:g}", f"适配器的秩为 {found[0]:g}")
    return Computed(str(fitting[0]), how, _lines(found), MORE)


def cpu_kv_space(life: Life) -> Computed | None:
    """GiB for the KV cache on CPU: half of the available RAM after the weights, or half of the setting."""
    raw = life.env.get("VLLM_CPU_KVCACHE_SPACE", "")
    current = float(raw) if is_whole(raw.replace(".", "", 1)) else None
    ram, weights = figure(life, "ram_gib"), figure(life, "weights_gib")
    if ram is not None:
        value = int(0.5 * (ram[0] - (weights[0] if weights else 0)))
        if value >= 1 and (current is None or value < current):
            how = T(
                f"half of the {size_text(ram[0])} of RAM that was available", f"可用内存 {size_text(ram[0])} 的一半"
            )
            return Computed(str(value), how, _lines(ram, weights), LESS)
    if current is not None and current >= 2:
        return Computed(str(int(current / 2)), T(f"now {current:g}", f"现为 {current:g}"), (), LESS)
    return Computed("1", T("a start", "先试这个值"), (), LESS) if current is None or current > 1 else None
