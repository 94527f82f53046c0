"""Rules for environment variables and engine arguments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from lifesign.remedies import overlay, versions
from lifesign.remedies.catalog import Catalog, Knob
from lifesign.remedies.lint import env_values
from lifesign.remedies.lint.model import Invocation, Problem, Setting, Severity
from lifesign.remedies.lint.options import instead, with_notes
from lifesign.remedies.lint.values import NUMBER
from lifesign.text import T

OUT_OF_TREE = (
    "VLLM_ASCEND_",
    "VLLM_OMNI_",
    "VLLM_HPU_",
    "VLLM_GAUDI_",
    "VLLM_NEURON_",
    "VLLM_PROMPT_",
    "VLLM_DECODE_",
    "VLLM_TPU_",
)
"""Prefixes of platform plugins, whose variables vLLM itself doesn't know."""
FOREIGN = (
    "NCCL_",
    "TORCH_",
    "PYTORCH_",
    "HF_",
    "CUDA_",
    "HCCL_",
    "GLOO_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "UCX_",
    "LIFESIGN_",
)
_TRUTH = frozenset({"0", "1", "true", "false", "yes", "no", "on", "off", ""})


def problems(invocation: Invocation, catalog: Catalog, release: str) -> Iterator[Problem]:
    """Every problem of the variables and arguments of an invocation, in order."""
    for setting in invocation.settings:
        yield from _variable(invocation, setting, catalog, release)
    for argument in invocation.arguments:
        yield from _argument(invocation, argument, catalog, release)


def _problem(
    invocation: Invocation,
    severity: Severity,
    code: str,
    setting: Setting,
    message: T,
    source: str,
    *rights: str,
) -> Problem:
    given = tuple(right for right in rights if right)
    return Problem(severity, code, invocation.path, setting.line, setting.name, message, given, source)


def _variable(invocation: Invocation, setting: Setting, catalog: Catalog, release: str) -> Iterator[Problem]:
    name = setting.name
    entries = [
        entry for entry in overlay.wrong(name, "env") if versions.within(release, entry.since, entry.until) is not False
    ]
    if entries:
        yield from _wrong(invocation, setting, entries, catalog, release)
        return
    if name.startswith("VLLM_"):
        knob = catalog.env(name, release)
        if knob is None:
            yield from _unknown(invocation, setting, catalog, release)
        else:
            yield from _known(invocation, setting, knob, catalog, release)
        return
    external = overlay.EXTERNAL.get(name)
    if external is not None:
        if external.since is not None and versions.at_least(release, external.since) is False:
            message = T(f"acts with vLLM {external.since} and later", f"vLLM {external.since} 起才起作用")
            yield _problem(invocation, "warning", "no-effect", setting, message, external.source)
        if name == "HF_ENDPOINT":
            yield from _endpoint(invocation, setting)
        return
    if name.startswith(FOREIGN):
        slip = next((known for known in sorted(overlay.EXTERNAL) if _one_slip(name, known)), "")
        if slip:
            message = T(f"looks like a slip of {slip}", f"疑似 {slip} 的笔误")
            source = overlay.EXTERNAL[slip].source
            right = f"{slip}={setting.value}"
            yield _problem(invocation, "warning", "misspelt-variable", setting, message, source, right)


def _one_slip(name: str, known: str) -> bool:
    """Whether one typing slip (a letter changed, lost, added, or two neighbours swapped) turns `known` into `name`."""
    if abs(len(name) - len(known)) > 1 or len(known) < 8:
        return False
    if len(name) == len(known):
        at = [index for index in range(len(name)) if name[index] != known[index]]
        swapped = len(at) == 2 and at[1] == at[0] + 1 and name[at[0]] == known[at[1]] and name[at[1]] == known[at[0]]
        return swapped or (len(at) == 1 and name[at[0]].isalpha())
    short, long = sorted((name, known), key=len)
    return any(long[:index] + long[index + 1 :] == short for index in range(len(long)))


def _wrong(
    invocation: Invocation, setting: Setting, entries: list[overlay.Wrong], catalog: Catalog, release: str
) -> Iterator[Problem]:
    for entry in entries:
        knob = catalog.env(setting.name, release)
        severity: Severity = "error" if entry.never else "warning"
        code = "invented-name" if entry.never else "no-effect"
        if not entry.never and knob is not None and knob.unread:
            code = "unread-variable"
        elif not entry.never and knob is None and catalog.env_ranges(setting.name):
            code = "removed-variable"
        if setting.name == "VLLM_USE_V1" and setting.value.strip() not in ("0", "false"):
            return
        rights = instead(entry.rights, release, setting.value if setting.literal else "")
        message = with_notes(entry.why, entry.rights, release)
        yield _problem(invocation, severity, code, setting, message, entry.source, *rights)


def _unknown(invocation: Invocation, setting: Setting, catalog: Catalog, release: str) -> Iterator[Problem]:
    name = setting.name
    ranges = catalog.env_ranges(name)
    source = "envs.py of the catalogued releases"
    warns = versions.at_least(release, "0.17.0")
    fate = (
        T("vLLM warns and ignores it", "vLLM 会给出警告并忽略")
        if warns
        else T("vLLM ignores it without a word", "vLLM 会悄悄忽略")
    )
    if ranges:
        first, _ = catalog.span(ranges)
        future = (versions.key(first) or ()) > (versions.key(release) or ())
        spell = catalog.spelled(ranges)
        state = T("not yet", "还没有") if future else T("not any more", "已没有")
        message = T(
            f"{state.en} in {release} ({spell.en}): {fate.en}", f"{release} {state.zh}（{spell.zh}）：{fate.zh}"
        )
        code = "future-variable" if future else "removed-variable"
        yield _problem(invocation, "warning", code, setting, message, source)
        return
    if name.startswith(OUT_OF_TREE):
        return
    close = difflib.get_close_matches(name, catalog.env_names(release), n=1, cutoff=0.85)
    message = T(f"{release} has no such variable: {fate.en}", f"{release} 没有这个变量：{fate.zh}")
    right = f"{close[0]}={setting.value}" if close else ""
    yield _problem(invocation, "error" if close else "warning", "unknown-variable", setting, message, source, right)


def _known(invocation: Invocation, setting: Setting, knob: Knob, catalog: Catalog, release: str) -> Iterator[Problem]:
    if knob.unread:
        message = T(f"{release} defines it, but nothing reads it", f"{release} 里有定义，但没有代码读取")
        yield _problem(invocation, "warning", "unread-variable", setting, message, "sources of the release")
        return
    if not setting.literal:
        return
    value = setting.value.strip()
    unit = overlay.UNITS.get(setting.name, "")
    by_default = list(_by_default(value, knob, unit))
    failed = False
    if env_values.known(setting.name, release):
        sure = env_values.is_read(release) or bool(by_default)
        for fault in env_values.faults(setting.name, value, release, unit):
            failed = failed or fault.fails
            right = f"{setting.name}={fault.right}" if fault.right else ""
            severity: Severity = "error" if fault.fails and sure else "warning"
            yield _problem(invocation, severity, "wrong-type", setting, fault.message, env_values.SOURCE, right)
    else:
        for message in by_default:
            source = "envs.py: the type of the default"
            yield _problem(invocation, "error", "wrong-type", setting, message, source)
    flipped = overlay.FLIPPED.get(setting.name)
    if flipped is not None and not failed and versions.at_least(release, flipped[0]) and value.lower() in ("1", "true"):
        yield _problem(invocation, "note", "no-effect", setting, flipped[1], "envs.py: default by release")


def _by_default(value: str, knob: Knob, unit: str) -> Iterator[T]:
    """What the type of the default says about a value, where the source of the release wasn't read."""
    default = knob.default
    number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if number and NUMBER.fullmatch(value) is None:
        wanted = T(f" ({unit})", f"（{unit}）") if unit else T("", "")
        yield T(
            f"takes a number{wanted.en}, not `{value[:60]}`: vLLM fails on it",
            f"要填数字{wanted.zh}，而不是 `{value[:60]}`：vLLM 会报错",
        )
    elif isinstance(default, bool) and value.lower() not in _TRUTH and NUMBER.fullmatch(value) is None:
        yield T(f"takes 0 or 1, not `{value[:60]}`", f"要填 0 或 1，而不是 `{value[:60]}`")


def _endpoint(invocation: Invocation, setting: Setting) -> Iterator[Problem]:
    """A hub's address needs its scheme: the client raises on every request without one."""
    value = setting.value.strip()
    if setting.literal and value and not re.match(r"https?://", value, re.IGNORECASE):
        message = T(
            f"needs https:// in front (`{value[:60]}`): every download fails",
            f"前面要有 https://（`{value[:60]}`）：否则所有下载都会失败",
        )
        source = "requests and httpx refuse an address without a scheme"
        yield _problem(invocation, "error", "wrong-type", setting, message, source, f"{setting.name}=https://{value}")


def _argument(invocation: Invocation, argument: Setting, catalog: Catalog, release: str) -> Iterator[Problem]:
    if catalog.argument(argument.name, release):
        return
    for entry in overlay.wrong(argument.name, "argument"):
        rights = instead(entry.rights, release, argument.value)
        message = with_notes(entry.why, entry.rights, release)
        yield _problem(invocation, "error", "invented-name", argument, message, entry.source, *rights)
        return
    removed = overlay.renamed("--" + argument.name.replace("_", "-"))
    if removed is not None:
        rights = instead(removed.rights, release, argument.value)
        yield _problem(invocation, "error", "unknown-argument", argument, removed.why, removed.source, *rights)
        return
    close = difflib.get_close_matches(argument.name, catalog.argument_names(release), n=1, cutoff=0.8)
    if not close:
        return  # LLM() has parameters of its own beside the engine's: only a near miss is worth a word
    message = T(f"{release} has no such argument (TypeError)", f"{release} 没有这个参数（TypeError）")
    yield _problem(invocation, "error", "unknown-argument", argument, message, "fields of AsyncEngineArgs", close[0])
