"""Rules for settings that are good alone and bad together."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lifesign.remedies import versions
from lifesign.remedies.catalog import Catalog
from lifesign.remedies.lint.model import Invocation, Problem, Setting, Severity
from lifesign.remedies.lint.options import Options, Used
from lifesign.text import T

CAPTURE_OPTIONS = (
    "--cudagraph-capture-sizes",
    "--max-cudagraph-capture-size",
    "--cuda-graph-sizes",
    "--max-seq-len-to-capture",
)
CAPTURE_KEYS = (
    "cudagraph_capture_sizes",
    "cudagraph_mode",
    "max_cudagraph_capture_size",
    "full_cuda_graph",
    "use_cudagraph",
)


class Together:
    """Looks at all settings of one invocation at once."""

    def __init__(self, invocation: Invocation, options: Options, catalog: Catalog, release: str) -> None:
        self.invocation = invocation
        self.catalog = catalog
        self.release = release
        self.used = {item.knob.name: item for item in options.used}
        self.all = options.used
        self.env = {item.name: item for item in invocation.settings}

    def problems(self) -> Iterator[Problem]:
        """Every contradiction and trap."""
        yield from self._twice()
        yield from self._eager()
        yield from self._sizes()
        yield from self._utilisation()
        yield from self._expandable()
        yield from self._backend()
        yield from self._peer_to_peer()
        yield from self._blocking()

    def _number(self, name: str) -> float | None:
        used = self.used.get(name)
        if used is None or used.value is None or not used.value.literal:
            return None
        try:
            return float(used.value.text)
        except ValueError:
            return None

    def _on(self, name: str) -> bool:
        used = self.used.get(name)
        return used is not None and not used.knob.negative

    def _problem(
        self, severity: Severity, code: str, at: Used | Setting, message: T, source: str, *rights: str
    ) -> Problem:
        line = at.word.line if isinstance(at, Used) else at.line
        name = at.word.text.partition("=")[0] if isinstance(at, Used) else at.name
        return Problem(severity, code, self.invocation.path, line, name, message, rights, source)

    def _twice(self) -> Iterator[Problem]:
        seen: dict[str, Used] = {}
        for item in self.all:
            before = seen.get(item.knob.name)
            seen[item.knob.name] = item
            if (
                before is None
                or "." in item.word.text
                or item.knob.name in ("--middleware", "--lora-modules", "--ignore-patterns")
            ):
                continue
            texts = [used.value.text if used.value else used.word.text for used in (before, item)]
            if texts[0] != texts[1]:
                message = T(
                    f"given twice; the last one wins ({texts[1][:60]})",
                    f"出现了两次；以最后一次为准（{texts[1][:60]}）",
                )
                yield self._problem("warning", "contradiction", item, message, "argparse")

    def _eager(self) -> Iterator[Problem]:
        eager = self._on("--enforce-eager")
        off = "--enforce-eager" if eager else "cudagraph_mode NONE" if self._mode_none() else ""
        if off:
            message = T(f"has no effect with {off}, which captures nothing", f"与 {off} 同用时没有作用：它不捕获任何图")
            source = "vLLM configuration documentation"
            for name in CAPTURE_OPTIONS:
                if name in self.used:
                    yield self._problem("warning", "contradiction", self.used[name], message, source)
            for item in self.all:
                if any(key != "cudagraph_mode" or eager for key in self._capture_keys(item)):
                    yield self._problem("warning", "contradiction", item, message, source)
        if versions.at_least(self.release, "0.19.1"):
            yield from self._both_places()

    def _mode_none(self) -> bool:
        mode = None
        for item in self.all:
            mode = self._compilation(item).get("cudagraph_mode", mode)
        return isinstance(mode, str) and mode.upper() == "NONE"

    def _compilation(self, item: Used) -> dict[str, object]:
        """What an option puts into the compilation config, as JSON or as one dotted key."""
        if item.knob.name != "--compilation-config" or item.value is None:
            return {}
        key = item.word.text.partition("=")[0].partition(".")[2]
        if key:
            return {key: item.value.text}
        try:
            parsed = json.loads(item.value.text)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}

    def _capture_keys(self, item: Used) -> list[str]:
        """The keys of an option by which it asks for captured graphs."""
        keys = self._compilation(item)
        return [key for key in CAPTURE_KEYS if key in keys and keys[key] not in ("NONE", "none", None, False, "false")]

    def _both_places(self) -> Iterator[Problem]:
        """A size given as an option and as a key: vLLM raises."""
        for name in ("--cudagraph-capture-sizes", "--max-cudagraph-capture-size"):
            key = name[2:].replace("-", "_")
            if name in self.used and any(self._compilation(item).get(key) is not None for item in self.all):
                message = T(
                    f"`{key}` is in --compilation-config as well: vLLM refuses to have both",
                    f"--compilation-config 里也写了 `{key}`：vLLM 不允许两处都给",
                )
                source = "EngineArgs of 0.19.1, 0.27.1, 0.30.0 and 0.32.0: mutually exclusive"
                severity: Severity = "error" if versions.within(self.release, None, "0.32.0") else "warning"
                yield self._problem(severity, "contradiction", self.used[name], message, source)

    def _sizes(self) -> Iterator[Problem]:
        tokens, sequences = self._number("--max-num-batched-tokens"), self._number("--max-num-seqs")
        source = "vLLM source: SchedulerConfig verification"
        if tokens is not None and sequences is not None and tokens < sequences:
            message = T(
                f"{tokens:g} tokens per step for {sequences:g} sequences: vLLM refuses fewer tokens than sequences",
                f"每步 {tokens:g} 个 token 却有 {sequences:g} 个序列：token 数不能少于序列数，vLLM 会拒绝",
            )
            yield self._problem("error", "contradiction", self.used["--max-num-batched-tokens"], message, source)
        length, chunked = self._number("--max-model-len"), self.used.get("--enable-chunked-prefill")
        if (
            tokens is not None
            and length is not None
            and chunked is not None
            and chunked.knob.negative
            and tokens < length
        ):
            message = T(
                "below --max-model-len while chunked prefill is off: vLLM refuses it",
                "小于 --max-model-len，而分块预填充已关闭：vLLM 会拒绝",
            )
            yield self._problem("error", "contradiction", self.used["--max-num-batched-tokens"], message, source)

    def _utilisation(self) -> Iterator[Problem]:
        if "--kv-cache-memory-bytes" in self.used and "--gpu-memory-utilization" in self.used:
            message = T(
                "isn't used for the KV cache when --kv-cache-memory-bytes is given",
                "设置了 --kv-cache-memory-bytes 后，KV cache 不再按它计算",
            )
            yield self._problem(
                "note", "contradiction", self.used["--gpu-memory-utilization"], message, "vLLM source: CacheConfig"
            )

    def _expandable(self) -> Iterator[Problem]:
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            setting = self.env.get(name)
            if setting is None or "expandable_segments:true" not in setting.value.lower().replace(" ", ""):
                continue
            if (
                "--kv-transfer-config" in self.used
                and name == "PYTORCH_CUDA_ALLOC_CONF"
                and versions.at_least(self.release, "0.21.0")
            ):
                message = T("with a KV connector vLLM refuses to start", "与 KV connector 同用时 vLLM 拒绝启动")
                yield self._problem("error", "trap", setting, message, "vLLM source, 0.21.0 and later", f"unset {name}")
            elif self._on("--enable-sleep-mode") and versions.within(self.release, None, "0.20.0"):
                message = T("with sleep mode an assertion fails at the start", "与 sleep mode 同用时启动断言失败")
                yield self._problem("error", "trap", setting, message, "vLLM source, 0.8.5 to 0.20.0", f"unset {name}")
            elif self._parallel() and not self._on("--disable-custom-all-reduce"):
                message = T(
                    "custom all-reduce can't share memory from expandable segments: workers abort after graph capture",
                    "custom all-reduce 无法共享可扩展段的显存：worker 会在图捕获之后异常退出",
                )
                rights = (f"unset {name}", "--disable-custom-all-reduce")
                source = "vllm#42609, vllm#49101, vllm#56180"
                yield self._problem("error", "trap", setting, message, source, *rights)

    def _parallel(self) -> bool:
        return any(
            (self._number(name) or 1) > 1 for name in ("--tensor-parallel-size", "--prefill-context-parallel-size")
        )

    def _backend(self) -> Iterator[Problem]:
        setting = self.env.get("VLLM_ATTENTION_BACKEND")
        if setting is not None and "--attention-backend" in self.used:
            message = T("--attention-backend is given as well, and wins", "同时给了 --attention-backend，以它为准")
            yield self._problem("warning", "contradiction", setting, message, "vLLM 0.13.0")

    def _peer_to_peer(self) -> Iterator[Problem]:
        setting = self.env.get("NCCL_P2P_DISABLE")
        if (
            setting is not None
            and setting.value == "1"
            and self._parallel()
            and not self._on("--disable-custom-all-reduce")
        ):
            message = T(
                "switches off NCCL's direct path only; vLLM's own all-reduce has another one",
                "只关掉了 NCCL 的直连；vLLM 自带的 all-reduce 另有一条",
            )
            yield self._problem(
                "note", "trap", setting, message, "five public reports of hangs", "--disable-custom-all-reduce"
            )

    def _blocking(self) -> Iterator[Problem]:
        setting = self.env.get("CUDA_LAUNCH_BLOCKING")
        if setting is not None and setting.value == "1" and not self._on("--enforce-eager"):
            message = T("points at the right call only without CUDA graphs", "要关闭 CUDA graph 才能指向真正出错的调用")
            yield self._problem("note", "trap", setting, message, "CUDA programming guide", "--enforce-eager")
