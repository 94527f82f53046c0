"""Limits of time: how long a step or a start may take, from the release's own limit, the batch and what the log shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lifesign.remedies.model import MORE, Computed
from lifesign.remedies.sizing import current_sequences, current_step_timeout_s, figure, step_limit_now
from lifesign.remedies.wording import now
from lifesign.text import T, is_whole

if TYPE_CHECKING:
    from lifesign.facts.model import Life

TIMEOUT_CAP_S = 1800
"""A longer limit than this only hides a real hang."""


def policy_timeout_s(platform: str, sequences: int) -> float:
    """The documented floor of one step's limit: base + per-sequence x sequences, at most 1800 s.

    Base 30 s and 0.2 s per sequence on GPU; on CPU the base is ten times and the part per sequence five times that.
    """
    base, per_sequence = (300.0, 1.0) if platform == "cpu" else (30.0, 0.2)
    return min(TIMEOUT_CAP_S, base + per_sequence * max(0, sequences))


def step_timeout(life: Life) -> Computed | None:
    """A longer limit of one step for the batch that the engine may run: see `longer_step_limit`."""
    return longer_step_limit(life, current_sequences(life), step_limit_now(life))


def longer_step_limit(life: Life, sequences: int, now_text: T, ran_out_s: float | None = None) -> Computed | None:
    """A longer limit of one step, and which term it comes from: the policy for `sequences`, twice the limit that ran out,
    three times the longest step seen, and never less than the release's own limit; at most 1800 s.

    ran_out_s: what the log shows of the limit that ran out (an upper bound), where that is less than the default. None
    when the limit is there already.
    """
    default_s = current_step_timeout_s(life)
    current_s = default_s if ran_out_s is None else min(default_s, ran_out_s)
    policy_s = policy_timeout_s(life.platform, sequences)
    step = figure(life, "step_s")
    terms = [
        (policy_s, T(f"the policy for {sequences} sequences on {life.platform} ({policy_s:g} s)",
                     f"{life.platform} 上 {sequences} 个序列按策略需 {policy_s:g} 秒")),
        (2 * current_s, T("twice the limit that ran out", "取已耗尽的时限的两倍")),
    ]  # fmt: skip
    if ran_out_s is not None:
        terms.append(
            (default_s, T("vLLM's default, which a setting had shortened", "恢复 vLLM 的默认值（原先被设短了）"))
        )
    if step is not None:
        terms.append(
            (
                3 * step[0],
                T(f"three times the longest step seen ({step[0]:g} s)", f"取所见最长一步（{step[0]:g} 秒）的三倍"),
            )
        )
    wanted_s, reason = max(terms, key=lambda term: term[0])
    value_s = min(TIMEOUT_CAP_S, math.ceil(wanted_s / 10) * 10)
    if value_s <= current_s:
        return None
    if wanted_s > TIMEOUT_CAP_S:
        reason = T(f"{reason.en}, capped", f"{reason.zh}，已到上限")
    elif value_s > wanted_s:
        reason = T(f"{reason.en}, rounded up", f"{reason.zh}，向上取整")
    how = T(f"{now_text.en}; {value_s:g} s: {reason.en}", f"{now_text.zh}；{value_s:g} 秒：{reason.zh}")
    return Computed(f"{value_s:.0f}", how, (step[1],) if step is not None and step[1] > 0 else (), MORE)


def ready_timeout(life: Life) -> Computed | None:
    """A longer limit for the start: 1800 s, or twice the current one up to 7200 s."""
    raw = life.env.get("VLLM_ENGINE_READY_TIMEOUT_S", "")
    current = int(raw) if is_whole(raw) else 600
    value = 1800 if current < 1800 else min(7200, 2 * current)
    return (
        Computed(str(value), now(f"{current} s", is_whole(raw), f"{current} 秒"), (), MORE) if value > current else None
    )


def iteration_timeout(life: Life) -> Computed | None:
    """A longer limit for one iteration of the V0 engine: 300 s, or twice the current one."""
    raw = life.env.get("VLLM_ENGINE_ITERATION_TIMEOUT_S", "")
    current = int(raw) if is_whole(raw) else 60
    value = min(TIMEOUT_CAP_S, max(300, 2 * current))
    return (
        Computed(str(value), now(f"{current} s", is_whole(raw), f"{current} 秒"), (), MORE) if value > current else None
    )
