"""What is peculiar to a kind of manifest: KServe models, the values of vLLM's production-stack chart, `--config` files.

Each function gets a composed YAML node's mapping and gives the words of `vllm serve`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lifesign.remedies import catalog as catalogs
from lifesign.remedies import overlay
from lifesign.remedies.catalog import normal
from lifesign.remedies.lint.model import Word

MAX_PLAIN = 5000
_KSERVE_OWN = frozenset({"--task", "--model"})
"""Options of KServe's Hugging Face server that vLLM has or had with another meaning."""
_CHART_KEYS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
}
"""Keys of `vllmConfig` that the chart turns into an option as they stand."""


def mapping(node: Any) -> dict[str, Any]:
    """The nodes of a mapping by key; empty when it is none."""
    if node is None or node.id != "mapping":
        return {}
    return {str(key.value): value for key, value in node.value if key.id == "scalar"}


def scalar(node: Any) -> str:
    """The text of a scalar; empty when it is none."""
    return str(node.value) if node is not None and node.id == "scalar" else ""


def kserve(keys: dict[str, Any], words: list[Word]) -> list[Word] | None:
    """The options for vLLM among the arguments of a KServe model; None when the mapping is no such model.

    The server has options of its own beside vLLM's: what no release of vLLM knows, and lint doesn't know as invented,
    is left out.
    """
    if scalar(mapping(keys.get("modelFormat")).get("name")).lower() not in ("huggingface", "vllm"):
        return None
    kept: list[Word] = []
    keeping = False
    for word in words:
        if word.text.startswith("-"):
            name = normal(word.text)
            keeping = _known(name) and name not in _KSERVE_OWN
        if keeping:
            kept.append(word)
    return kept


def _known(option: str) -> bool:
    """Whether some release of vLLM has the option, by this or another name, or people take it for one of vLLM's."""
    known = catalogs.load()
    return bool(
        known.option_ranges(option) or overlay.wrong(option, "option") or known.alias_elsewhere(option, known.newest)
    )


def chart_words(config: Any) -> Iterator[Word]:
    """The options that `vllmConfig` of vLLM's production-stack chart stands for, without `extraArgs`."""
    for key, value in mapping(config).items():
        text = scalar(value)
        if key in _CHART_KEYS and text:
            yield Word(f"{_CHART_KEYS[key]}={text}", value.start_mark.line + 1, "{{" not in text)


def config_words(node: Any) -> list[Word] | None:
    """The options of a file for `vllm serve --config`; None when the mapping doesn't look like one."""
    keys = mapping(node)
    named = [name for name in keys if _known(normal("--" + name))]
    if not named or len(named) * 2 < len(keys):
        return None
    words: list[Word] = []
    for key, value in node.value:
        words += _config_option("--" + scalar(key), key.start_mark.line + 1, value)
    return words


def _config_option(option: str, line: int, value: Any) -> Iterator[Word]:
    if value.id == "mapping":
        yield Word(option, line)
        yield Word(json.dumps(_Plain().of(value)), line)
    elif value.id == "sequence":
        members = [item for item in value.value[:MAX_PLAIN] if item.id == "scalar"]
        yield from [Word(option, line)] if members else []
        yield from (Word(scalar(item), item.start_mark.line + 1) for item in members)
    elif value.tag.endswith(":bool"):
        yield from [Word(option, line)] if value.value.lower() in ("true", "yes", "on") else []
    elif not value.tag.endswith(":null"):
        yield Word(f"{option}={value.value}", line)


class _Plain:
    """YAML nodes as JSON values. Bounded, so that aliases of aliases end."""

    def __init__(self) -> None:
        self.left = MAX_PLAIN

    def of(self, node: Any) -> object:
        """The value of a node; None for what lies beyond the bound."""
        self.left -= 1
        if self.left <= 0:
            return None
        if node.id == "mapping":
            return {scalar(key): self.of(value) for key, value in node.value if key.id == "scalar" and self.left > 0}
        if node.id == "sequence":
            return [self.of(item) for item in node.value if self.left > 0]
        return _typed(node)


def _typed(node: Any) -> object:
    text = str(node.value)
    kind = node.tag.rpartition(":")[2]
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind == "null":
        return None
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except ValueError:
        return text
