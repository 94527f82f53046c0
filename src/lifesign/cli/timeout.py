"""`lifesign timeout`: how long one step may take on this backend with this batch, and the knob that says so."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from lifesign.errors import UsageError
from lifesign.text import Lang, T, default_lang

if TYPE_CHECKING:
    from lifesign.remedies.timing import Load, Recommendation

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def timeout(
    backend: Annotated[str, typer.Option(help="cpu, cuda, rocm, xpu, npu or tpu; gpu means cuda.")] = "cuda",
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Sequences in one step; default: vLLM's for the backend.")
    ] = None,
    params: Annotated[str | None, typer.Option(help="Weights of the model: 7b, 70B, 0.5b.", metavar="N")] = None,
    dtype: Annotated[str, typer.Option(help="Of the weights: bf16, fp16, fp32, fp8, int8, int4.")] = "bf16",
    bandwidth: Annotated[
        float | None, typer.Option(help="Memory bandwidth of one device, in GB/s.", metavar="GB/S")
    ] = None,
    tensor_parallel_size: Annotated[int, typer.Option(help="Ranks that share the weights.")] = 1,
    step_time: Annotated[
        float | None, typer.Option(help="The slowest step that was measured, in seconds.", metavar="S")
    ] = None,
    step_seqs: Annotated[int | None, typer.Option(help="Sequences in that step; default: --max-num-seqs.")] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="Default: the installed vLLM, else the newest known.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="terminal or json.")] = "terminal",
    lang: Annotated[str | None, typer.Option("--lang", help="en or zh; default: the locale.")] = None,
) -> None:
    """The RPC timeout that fits a backend and a batch, why, and the exact knob of the vLLM release."""
    from lifesign.remedies import catalog as catalogs
    from lifesign.remedies.lint import installed_version
    from lifesign.remedies.sizing import default_sequences
    from lifesign.remedies.timing import Load, recommend
    from lifesign.remedies.versions import known_or_refuse

    if output_format not in ("terminal", "json"):
        raise UsageError(f"--format {output_format!r} is neither terminal nor json: choose one of them")
    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {lang!r} is neither en nor zh: choose one of them")
    language: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    known = catalogs.load()
    if vllm_version is not None:
        known_or_refuse(vllm_version)
    version = vllm_version or installed_version() or known.newest
    basis = known.basis(version)
    platform = "cuda" if backend.lower() == "gpu" else backend.lower()
    sequences = max_num_seqs if max_num_seqs is not None else default_sequences(platform, version, tensor_parallel_size)
    load = Load(
        backend=platform,
        sequences=sequences,
        params_b=_billions(params) if params is not None else None,
        dtype=dtype.lower(),
        bandwidth_gb_s=bandwidth,
        ranks=tensor_parallel_size,
        step_s=step_time,
        measured_sequences=step_seqs,
    )
    answer = recommend(load, basis, known)
    text = (
        _as_json(load, answer, version, language)
        if output_format == "json"
        else _as_text(load, answer, version, language)
    )
    sys.stdout.write(text)


def _billions(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,4})?)\s?([bBmM]?)", text.strip())
    if match is None:
        raise UsageError(f"--params {text!r} isn't a size: write 7b, 70B or 500m")
    return float(match.group(1)) / (1000 if match.group(2) in ("m", "M") else 1)


def _as_json(load: Load, answer: Recommendation, version: str, lang: Lang) -> str:
    values: dict[str, Any] = {"schema": "lifesign.timeout/1", "vllm_version": version, "load": asdict(load)}
    for name, value in asdict(answer).items():
        values[name] = value.pick(lang) if isinstance(value, T) else value
    return json.dumps(values, ensure_ascii=False, indent=2) + "\n"


def _as_text(load: Load, answer: Recommendation, version: str, lang: Lang) -> str:
    rows: list[tuple[T, str]] = []
    policy = T(
        f"{answer.policy_s:g} s for {load.sequences} sequences on {load.backend} (the floor)",
        f"{answer.policy_s:g} 秒（{load.backend} 上 {load.sequences} 个序列的下限）",
    )
    if answer.setting and answer.enough:
        rows.append((T("keep", "保持"), f"{answer.setting} ({T('the default', '默认值').pick(lang)})"))
    elif answer.setting:
        rows.append((T("set", "设置"), answer.setting))
    elif not answer.enough:
        rows.append((T("needed", "需要"), f"{answer.limit_s} s"))
    rows.append((T("policy", "策略"), policy.pick(lang)))
    step = answer.how.pick(lang)
    if answer.step_s is not None:
        from lifesign.remedies.timing import MARGIN

        tripled = answer.step_s * MARGIN
        step += T(f"; x {MARGIN:g} = {tripled:.0f} s", f"；× {MARGIN:g} = {tripled:.0f} 秒").pick(lang)
    rows.append((T("step", "一步"), step))
    default = T(
        f": {answer.default_s} s, {'long enough' if answer.enough else 'too short'}",
        f"：{answer.default_s} 秒，{'够用' if answer.enough else '太短'}",
    )
    rows.append((T("default", "默认"), f"vLLM {version}{default.pick(lang)}"))
    if answer.cap is not None:
        rows.append((T("cap", "上限"), answer.cap.pick(lang)))
    if answer.sequences and (answer.sequences < load.sequences or (load.backend == "cpu" and not answer.enough)):
        batch = f"--max-num-seqs {answer.sequences}"
        batch += f" --max-num-batched-tokens {answer.tokens}" if answer.tokens else ""
        rows.append((T("batch", "批"), batch))
    if not answer.enough:
        patience = T(
            "LIFESIGN_PATIENCE=1 (with lifesign in the engine's environment) waits as long as the worker works",
            "LIFESIGN_PATIENCE=1（引擎环境里要装 lifesign）：只要 worker 还在干活就继续等",
        )
        rows.append((T("or", "或者"), patience.pick(lang)))
    for note in (answer.note, answer.executor):
        if note is not None:
            rows.append((T("note", "说明"), note.pick(lang)))
    return "".join(f"{_padded(label.pick(lang))}{text}\n" for label, text in rows)


def _padded(label: str, width: int = 9) -> str:
    """A label filled up to `width` columns; Chinese characters take two."""
    return label + " " * max(1, width - sum(2 if ord(char) > 0x2E80 else 1 for char in label))
