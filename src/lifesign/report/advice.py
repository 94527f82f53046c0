"""Remedies of a finding, rendered for this life: the right form for the release, values, the corrected command."""

from __future__ import annotations

from msgspec.structs import replace

from lifesign.causes.model import Finding, Subtype
from lifesign.facts.model import Life
from lifesign.remedies.apply import RenderedRemedy, is_env, render, spelled
from lifesign.remedies.command import Change, corrected_command
from lifesign.report.model import Advice
from lifesign.text import Lang

MAX_REMEDIES = 8


def advise(finding: Finding, life: Life, subtype: Subtype | None, lang: Lang) -> tuple[list[Advice], str, list[str]]:
    """The remedies in order, the user's command with the first setting applied (empty if there is none), its changes.

    One change at a time: only the first flag or variable goes into the command.
    """
    remedies = finding.remedies if finding.remedies is not None else (subtype.remedies if subtype else ())
    rendered: list[RenderedRemedy] = []
    seen: set[tuple[str, str, str]] = set()
    for remedy in remedies:
        each = render(remedy, life, finding.values)
        # Two intents may come down to one flag in an old release.
        if each is None or _is_foreign(each, life, finding.cause) or _same(each) in seen:
            continue
        seen.add(_same(each))
        rendered.append(each)
        if len(rendered) == MAX_REMEDIES:
            break
    first = next((each for each in rendered if each.knob), None)
    command = ""
    changes: list[str] = []
    if first is not None and life.engine != "sglang":
        # Only what the user set: the engine's own config line would add every default.
        own = replace(life, config=life.user_args)
        built = corrected_command(own, [first])
        if built.basis != "none":
            command = built.text
            changes = [_change(each) for each in built.changes]
    return [_advice(number, each, lang) for number, each in enumerate(rendered, 1)], command, changes


_ACCELERATED = ("NCCL_", "CUDA_", "PYTORCH_CUDA_", "TORCH_NCCL_")
_ON_ACCELERATORS = ("torch.cuda", "'nccl'", "nvidia-smi")
_WAITS = ("timeout-hang", "silent-death", "process-lifecycle")


def _is_foreign(each: RenderedRemedy, life: Life, cause: str) -> bool:
    """Whether this advice is for another engine or machine.

    SGLang's flags aren't vLLM's (CUDA's and NCCL's variables serve both). On the CPU back end there is neither CUDA nor NCCL to
    wait for; where they fail by name the log itself says that they are there. HCCL and oneCCL read none of NCCL's variables.
    """
    if life.platform == "cpu" and cause in _WAITS:
        command = each.command
        if each.knob.startswith(_ACCELERATED) or any(word in command for word in _ON_ACCELERATORS):
            return True
    if life.platform in ("npu", "xpu") and each.knob.startswith(_ACCELERATED):
        return True
    return life.engine == "sglang" and (each.knob.startswith("VLLM_") or (bool(each.knob) and not is_env(each.knob)))


def _change(change: Change) -> str:
    """`--max-num-seqs: 256 -> 64`; `+ --enforce-eager` for a setting that wasn't there."""
    if change.before is None:
        return f"+ {spelled(change.knob, change.after)}"
    return f"{change.knob}: {change.before} -> {change.after if change.after is not None else ''}".rstrip()


def _same(each: RenderedRemedy) -> tuple[str, str, str]:
    return ("", each.knob, each.value) if each.knob else (each.slug, "", "")


def _sentence(text: str, lang: Lang) -> str:
    """`text` with a full stop and what separates it from the next sentence."""
    if lang == "zh":
        return text if text.endswith(("。", "！", "？")) else text + "。"
    return text + (" " if text.endswith((".", "!", "?")) else ". ")


def _short(each: RenderedRemedy) -> str:
    """The setting in its place; the whole command line stands once, in the verdict."""
    settings = [(each.knob, each.value or None), *each.also]
    env = " ".join(spelled(knob, value) for knob, value in settings if is_env(knob))
    flags = " ".join(spelled(knob, value) for knob, value in settings if not is_env(knob))
    return " ".join(part for part in (env, "vllm serve ...", flags) if part)


def _advice(number: int, each: RenderedRemedy, lang: Lang) -> Advice:
    why = each.why.pick(lang)
    if each.how is not None:
        why = _sentence(each.how.pick(lang), lang) + why
    return Advice(
        rank=number,
        kind=each.kind,
        title=each.title.pick(lang),
        knob=each.knob,
        value=each.value,
        command=_short(each) if each.knob else each.command,
        valid_in_version=each.valid_in_version,
        why=why,
        cost=each.cost.pick(lang) if each.cost else "",
        note=each.note.pick(lang) if each.note else "",
        source=each.source,
    )
