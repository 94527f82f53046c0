"""How long may one step take? The limit that fits a backend and a batch, from policy, estimate or measurement.

The policy is a floor: base + per-sequence x sequences (30 s and 0.2 s on GPU; base x 10 and per-sequence x 5 on CPU), at
most 1800 s. A measured step or a bandwidth estimate raises it: MARGIN times the slowest step that is to be expected.
"""

from __future__ import annotations

import math

import msgspec

from lifesign.errors import UsageError
from lifesign.remedies import limits, versions
from lifesign.remedies.apply import choose
from lifesign.remedies.catalog import Basis, Catalog
from lifesign.remedies.library.timing import LONGER_STEP_TIMEOUT
from lifesign.text import T

MARGIN = 3.0
"""A healthy step may take so many times the expected one: batches differ, caches warm up, neighbours disturb."""
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1, "int4": 0.5, "awq": 0.5, "gptq": 0.5,
}  # fmt: skip
"""Bytes per weight. 4-bit formats carry scales beside (about a tenth more), which the margin covers."""
BACKENDS = ("cpu", "cuda", "rocm", "xpu", "npu", "tpu")
FIRST_AID_TOKENS = 2048


class Load(msgspec.Struct, frozen=True):
    """What the engine has to do. backend: one of BACKENDS. sequences: --max-num-seqs. params_b: weights in 10^9.
    bandwidth_gb_s: memory bandwidth of one device (10^9 bytes a second). ranks: tensor-parallel size.
    step_s: the slowest step that was measured, with `measured_sequences` (default: `sequences`) in it."""

    backend: str
    sequences: int
    params_b: float | None = None
    dtype: str = "bf16"
    bandwidth_gb_s: float | None = None
    ranks: int = 1
    step_s: float | None = None
    measured_sequences: int | None = None


class Recommendation(msgspec.Struct, frozen=True):
    """limit_s: what to set (never below the release's own limit). policy_s: the floor. step_s: the expected step, None when nothing says it, and `how`.
    default_s: the release's own limit. enough: whether the default is long enough already. sequences: the largest batch
    that the limit carries, 0 when not even one sequence is sure to fit. tokens: for --max-num-batched-tokens. setting: the
    knob as typed, empty when the release has none; note: why not, or what was assumed. cap: what to say where more than
    the cap would be needed. executor: where this limit isn't read at all. verified: false when the release isn't catalogued."""

    limit_s: int
    policy_s: float
    step_s: float | None
    how: T
    default_s: int
    enough: bool
    sequences: int
    tokens: int | None
    release: str
    setting: str
    note: T | None
    cap: T | None
    executor: T | None
    verified: bool


def expected_step_s(load: Load) -> tuple[float, T] | None:
    """The slowest decoding step to expect, and how it was found; None when neither measurement nor size is given.

    Memory-bound decoding reads every weight once a step: weights x bytes / (bandwidth x ranks).
    """
    if load.step_s is not None:
        measured = load.measured_sequences or load.sequences
        step_s = load.step_s * max(1.0, load.sequences / measured)
        if measured == load.sequences:
            return step_s, T(f"measured: {load.step_s:g} s", f"实测：{load.step_s:g} 秒")
        return step_s, T(
            f"measured {load.step_s:g} s with {measured} sequences, scaled to {load.sequences}",
            f"实测 {measured} 个序列时 {load.step_s:g} 秒，按比例换算到 {load.sequences} 个",
        )
    if load.params_b is None or load.bandwidth_gb_s is None:
        return None
    gigabytes = load.params_b * DTYPE_BYTES[load.dtype]
    step_s = gigabytes / (load.bandwidth_gb_s * load.ranks)
    ranks = f" x {load.ranks}" if load.ranks > 1 else ""
    ranks_zh = f" × {load.ranks}" if load.ranks > 1 else ""
    return step_s, T(
        f"{load.params_b:g}e9 weights x {DTYPE_BYTES[load.dtype]:g} bytes / ({load.bandwidth_gb_s:g} GB/s{ranks}) = {step_s:.2f} s",
        f"{load.params_b:g}e9 个权重 × {DTYPE_BYTES[load.dtype]:g} 字节 / （{load.bandwidth_gb_s:g} GB/s{ranks_zh}）= {step_s:.2f} 秒",
    )


def recommend(load: Load, basis: Basis, catalog: Catalog) -> Recommendation:
    """The limit for `load` in a release. Raises UsageError for values that make no sense."""
    _validate(load)
    policy_s = limits.policy_timeout_s(load.backend, load.sequences)
    step = expected_step_s(load)
    wanted_s = max(policy_s, MARGIN * step[0] if step else 0.0)
    needed_s = min(limits.TIMEOUT_CAP_S, math.ceil(wanted_s))
    default_s = 40 if versions.at_least(basis.release, "0.9.0") is False else 300
    how = step[1] if step else _unknown_step(load)
    form = choose(LONGER_STEP_TIMEOUT, basis, catalog)
    enough = default_s >= wanted_s
    limit_s = max(needed_s, default_s) if form is not None else needed_s  # never shorter than vLLM's own limit
    setting = f"{form.knob}={limit_s}" if form is not None else ""
    carried_s = limit_s if form is not None else default_s
    return Recommendation(
        limit_s=limit_s,
        policy_s=policy_s,
        step_s=step[0] if step else None,
        how=how,
        default_s=default_s,
        enough=enough,
        sequences=_carried(load, step[0] if step else None, carried_s),
        tokens=FIRST_AID_TOKENS if load.backend == "cpu" else None,
        release=basis.release,
        setting=setting,
        note=_note(basis, load.backend, form is not None, enough, None if step else default_s),
        cap=_cap(wanted_s),
        executor=_ONE_DEVICE if load.backend != "cpu" and load.ranks == 1 else None,
        verified=basis.verified,
    )


def _validate(load: Load) -> None:
    if load.backend not in BACKENDS:
        raise UsageError(f"--backend {load.backend!r} is none of {', '.join(BACKENDS)}: choose one of them")
    if load.dtype not in DTYPE_BYTES:
        raise UsageError(f"--dtype {load.dtype!r} is none of {', '.join(DTYPE_BYTES)}: choose one of them")
    numbers = {
        "--max-num-seqs": load.sequences,
        "--params": load.params_b,
        "--bandwidth": load.bandwidth_gb_s,
        "--tensor-parallel-size": load.ranks,
        "--step-time": load.step_s,
        "--step-seqs": load.measured_sequences,
    }
    for name, value in numbers.items():
        if value is not None and not 0 < value <= 1e7:
            raise UsageError(f"{name} must be a number above 0 and at most 10 million, not {value}: correct it")


_ONE_DEVICE = T(
    "with one device vLLM runs the worker in the engine's own process (uniproc), where this limit isn't read: it acts from two ranks on",
    "单卡时 vLLM 在引擎进程内运行 worker（uniproc），不读这个时限：两个 rank 起才起作用",
)


def _unknown_step(load: Load) -> T:
    """Why no step is expected: what is missing, or that nothing was given."""
    if load.params_b is not None:
        return T(
            "--bandwidth is missing: weights alone give no step time; the policy alone",
            "缺少 --bandwidth：只有权重大小算不出步时，这里只按策略计算",
        )
    if load.bandwidth_gb_s is not None:
        return T(
            "--params is missing: bandwidth alone gives no step time; the policy alone",
            "缺少 --params：只有带宽算不出步时，这里只按策略计算",
        )
    return T("no step time or model size given: the policy alone", "没有给出步时或模型大小：只按策略计算")


def _cap(wanted_s: float) -> T | None:
    """That the limit is cut, where more would be needed; None where it isn't."""
    cap_s = limits.TIMEOUT_CAP_S
    if wanted_s <= cap_s:
        return None
    return T(
        f"{wanted_s:.0f} s would be needed, but beyond {cap_s} s a real hang goes unnoticed too long: make the batch smaller",
        f"本需 {wanted_s:.0f} 秒，但超过 {cap_s} 秒，真正挂死也会很久才发现：请减小批",
    )


def _carried(load: Load, step_s: float | None, limit_s: float) -> int:
    """How many sequences the limit carries: by the policy's inverse, and by the expected step in proportion; 0 = none."""
    base_s, per_sequence_s = (300.0, 1.0) if load.backend == "cpu" else (30.0, 0.2)
    by_policy = int((limit_s - base_s) / per_sequence_s) if limit_s < limits.TIMEOUT_CAP_S else load.sequences
    if step_s is not None:
        # A step that was measured or estimated says more than the policy does.
        by_step = int(load.sequences * limit_s / (MARGIN * step_s))
        allowed = min(by_step, by_policy) if by_policy > 0 else by_step
    else:
        allowed = by_policy
    return max(0, min(load.sequences, allowed))


def _note(basis: Basis, backend: str, has_knob: bool, enough: bool, unmeasured_s: int | None) -> T | None:
    """What to know about the answer. unmeasured_s: the release's limit, where nothing says how long a step takes."""
    if not has_knob and enough:
        return T(
            f"vLLM {basis.version or basis.release} has no setting for this limit, and needs none here",
            f"vLLM {basis.version or basis.release} 没有设置这个上限的开关，这里也用不着",
        )
    if not has_knob:
        one_s = limits.policy_timeout_s(backend, 1)
        if unmeasured_s is not None and one_s > unmeasured_s:
            return T(
                f"vLLM {basis.version or basis.release} has no setting for this limit (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS exists from 0.9.2): "
                f"upgrade. By the policy no batch is sure to fit into {unmeasured_s} s (one sequence: {one_s:g} s)",
                f"vLLM {basis.version or basis.release} 没有设置这个上限的开关（VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS 自 0.9.2 起才有）：请升级。"
                f"按策略，任何批大小都不保证放得进 {unmeasured_s} 秒（1 个序列就需 {one_s:g} 秒）",
            )
        return T(
            f"vLLM {basis.version or basis.release} has no setting for this limit (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS exists from 0.9.2): "
            "upgrade, or keep the batch small enough",
            f"vLLM {basis.version or basis.release} 没有设置这个上限的开关（VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS 自 0.9.2 起才有）：请升级，或把批减小到放得下",
        )
    if not basis.verified:
        edge = basis.release
        return T(
            f"not verified for {basis.version or 'an unknown version'}: the answer is that of {edge}",
            f"未对 {basis.version or '未知版本'} 核实：按 {edge} 回答",
        )
    if enough:
        return T("the release's own limit is long enough: nothing to set", "该版本默认的上限已经够用，无需设置")
    return None
