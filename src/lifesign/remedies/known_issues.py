"""Public reports that describe a death like this one: what it was, in which releases, and what ended it.

The data is `data/known_issues.json`, one entry a line. `checked` says how far each was verified: `thread` (the public
thread was read), `source` (the change was found in the sources of the named releases), `report` (taken over from the
report behind the labelled corpus). Facts in our own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from lifesign.errors import LifesignError
from lifesign.remedies import versions
from lifesign.text import T

_DATA = Path(__file__).parent / "data" / "known_issues.json"
TEXT_LIMIT = 40_000
"""Characters of evidence that are searched for an entry's literals."""
MAX_MATCHES = 3
_VLLM = "vllm-project/vllm"
_HOMES: dict[str, str] = {
    "vllm": _VLLM,
    "vllm-ascend": "vllm-project/vllm-ascend",
    "llm-compressor": "vllm-project/llm-compressor",
    "vllm-windows": "SystemPanic/vllm-windows",
    "club-3090": "noonghunna/club-3090",
    "glm-5.3-one-spark": "gitcommit90/glm-5.3-one-spark",
    "llm-scaler": "intel/llm-scaler",
    "ipex-llm": "intel/ipex-llm",
    "gpustack": "gpustack/gpustack",
    "nccl": "NVIDIA/nccl",
    "1Cat-vLLM": "1CatAI/1Cat-vLLM",
    "EuroEval": "EuroEval/EuroEval",
    "Mooncake": "kvcache-ai/Mooncake",
    "flashinfer": "flashinfer-ai/flashinfer",
    "edutelligence": "ls1intum/edutelligence",
    "Qwen3-VL": "QwenLM/Qwen3-VL",
    "dots.ocr": "studio-dots-ai/dots.ocr",
    "pytorch": "pytorch/pytorch",
    "dynamo": "ai-dynamo/dynamo",
    "NeMo-RL": "NVIDIA-NeMo/RL",
    "ms-swift": "modelscope/ms-swift",
    "trl": "huggingface/trl",
    "unsloth": "unslothai/unsloth",
    "LMCache": "LMCache/LMCache",
    "spark-vllm-docker": "eugr/spark-vllm-docker",
    "vllm-ultimate-dgx-spark": "AEON-7/vllm-ultimate-dgx-spark",
    "verl": "verl-project/verl",
    "harmony": "openai/harmony",
}


class KnownIssue(msgspec.Struct, frozen=True):
    """One public report.

    ref: `vllm#42609`. cause, subtypes: where it belongs; no subtypes = any of the cause. any, all, none: literals of the
    evidence (at least one of `any`, every one of `all`, not one of `none`); compared without case. platforms: empty =
    any. since, until: affected releases, inclusive, empty = open. fixed_in: the first release without it.
    state: `open`, `closed`, `fixed`, or empty when not looked up. checked: see the module. also: further references.
    """

    ref: str
    cause: str
    subtypes: tuple[str, ...]
    any: tuple[str, ...]
    all: tuple[str, ...]
    none: tuple[str, ...]
    platforms: tuple[str, ...]
    since: str
    until: str
    fixed_in: str
    state: Literal["open", "closed", "fixed", ""]
    checked: Literal["thread", "source", "report"]
    why: T
    do: T
    also: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where the thread can be read. GitHub leads from `issues` to `pull` by itself."""
        return reference_url(self.ref)

    @property
    def affects(self) -> str:
        """The affected releases for a reader: `0.20.0 - 0.23.0`, `0.21.0+`, `up to 0.11.2`; empty when unknown."""
        if self.since and self.until:
            return f"{self.since} - {self.until}"
        return f"{self.since}+" if self.since else f"up to {self.until}" if self.until else ""

    def matches(self, cause: str, subtype: str, text: str, version: str = "", platform: str = "") -> bool:
        """Whether a death with this cause and evidence is the one that the entry describes.

        An unknown version or platform excludes nothing; a version outside the affected range does.
        """
        if cause != self.cause or (self.subtypes and subtype not in self.subtypes):
            return False
        if not self.may_concern(version, platform):
            return False
        searched = text[:TEXT_LIMIT].lower()
        if self.any and not any(part.lower() in searched for part in self.any):
            return False
        if any(part.lower() in searched for part in self.none):
            return False
        return all(part.lower() in searched for part in self.all)

    def may_concern(self, version: str, platform: str) -> bool:
        """Whether release and platform don't rule the entry out; unknown ones rule out nothing."""
        if self.platforms and platform and platform not in self.platforms:
            return False
        return not version or versions.within(version, self.since or None, self.until or None) is not False

    def specificity(self, version: str) -> int:
        """How much an agreement says: literals, platform, a version range that holds the reader's version."""
        bounded = bool(version) and bool(self.since or self.until)
        longest = max((len(part) for part in self.any), default=0)
        return 4 * len(self.all) + 2 * bool(self.platforms) + 2 * bounded + bool(self.subtypes) + longest // 12


def reference_url(ref: str) -> str:
    """The address of a reference such as `vllm#42609` or `ROCm/vllm#390`."""
    name, _, number = ref.partition("#")
    return f"https://github.com/{name if '/' in name else _HOMES.get(name, _VLLM)}/issues/{number}"


@lru_cache(maxsize=1)
def load() -> tuple[KnownIssue, ...]:
    """Every entry, in the order of the file. Raises LifesignError when the installation lacks it."""
    import msgspec

    try:
        raw = msgspec.json.decode(_DATA.read_bytes())
        return tuple(_issue(entry) for entry in raw["issues"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise LifesignError(f"the list of known issues can't be read ({error}): reinstall lifesign") from None


def _issue(entry: dict[str, object]) -> KnownIssue:
    def words(name: str) -> tuple[str, ...]:
        value = entry.get(name)
        return tuple(str(item) for item in value) if isinstance(value, list) else ()

    why, do = words("why"), words("do")
    return KnownIssue(
        ref=str(entry["ref"]),
        cause=str(entry["cause"]),
        subtypes=words("subtypes"),
        any=words("any"),
        all=words("all"),
        none=words("none"),
        platforms=words("platforms"),
        since=str(entry["since"]),
        until=str(entry["until"]),
        fixed_in=str(entry["fixed_in"]),
        state=entry["state"],  # type: ignore[arg-type]
        checked=entry["checked"],  # type: ignore[arg-type]
        why=T(why[0], why[1]),
        do=T(do[0], do[1]),
        also=words("also"),
    )


def match(
    cause: str, subtype: str, text: str, version: str = "", platform: str = "", limit: int = MAX_MATCHES
) -> list[KnownIssue]:
    """The entries that describe this death, the most specific first, at most `limit`.

    text: the decisive lines with their traceback frames and what stands around them. version, platform: of the log;
    empty when unknown.
    """
    found = [issue for issue in load() if issue.matches(cause, subtype, text, version, platform)]
    found.sort(key=lambda issue: (-issue.specificity(version), issue.ref))
    return found[:limit]


def about(cause: str, subtype: str = "") -> list[KnownIssue]:
    """Every entry of a cause (and subtype), for the page of that cause."""
    return [
        issue
        for issue in load()
        if issue.cause == cause and (not subtype or not issue.subtypes or subtype in issue.subtypes)
    ]


def by_ref(refs: Sequence[str]) -> list[KnownIssue]:
    """The entries that carry one of these references, as their own or among `also`."""
    wanted = set(refs)
    return [issue for issue in load() if issue.ref in wanted or wanted.intersection(issue.also)]
