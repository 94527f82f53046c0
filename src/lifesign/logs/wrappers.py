"""Takes off what collectors put in front of a line: docker, compose, Kubernetes, journald, ray, CI, supervisors.

Known wrappers are peeled by anchored patterns. Unknown ones are learned per source: wherever a vLLM header is found in
mid-line, the text before it (digits made general) is a wrapper of this source, also on lines without a header.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime, timezone
from typing import NamedTuple

from lifesign.text import is_whole

PROCESS_NAMES = (
    "APIServer", "ApiServer", "EngineCore", "Worker", "VllmWorker", "VllmWorkerProcess", "DPCoordinator", "RayWorkerWrapper",
)  # fmt: skip

# Where vLLM's own part of a line begins. Long alternatives first.
CORE = re.compile(
    r"\((?:APIServer|ApiServer|EngineCore|VllmWorkerProcess|VllmWorker|Worker|DPCoordinator|DPAsyncScheduler|Router|LLMEngine)"
    r"[\w \-=.:]{0,60}\)"
    r"|\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"|\b(?:INFO|WARNING|ERROR): {4,6}\S"
)

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

_CRI = re.compile(rf"({_ISO}) (?:stdout|stderr) [FP] ?")
_STAMP = re.compile(rf"(?:({_ISO})|\[({_ISO})\])(?: ?\| ?| - | |\t|: )")
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.\-]{0,60})? {0,30}\| ?")
_JOURNAL = re.compile(rf"({_MONTH} {{1,2}}\d{{1,2}} \d\d:\d\d:\d\d) (\S{{1,80}}) ([^\s:\[]{{1,60}})(?:\[\d+\])?: ?")
_JOURNAL_ISO = re.compile(rf"({_ISO}) (\S{{1,80}}) ([^\s:\[]{{1,60}})\[\d+\]: ?")
_POD = re.compile(r"\[?(pod/[\w.\-/]{1,120})\] ?")
_RAY = re.compile(r"\(([A-Za-z_][\w.\-:]{0,60}?)(?:\([\w.]{1,60}\))? pid=(\d+)(?:, ip=([\w.:]+))?\) ?")
_RAYLET = re.compile(r"\((raylet|gcs_server|autoscaler)(?:, ip=[\w.:]+)?\) ?")
_STAGE = re.compile(r"\[(?:Stage-\d+|Orchestrator|Omni)\] ?")
_SUPERVISOR = re.compile(r" {0,2}(?:INFO|WARN|ERROR|DEBUG) {1,2}[a-z_]+(?:::[a-z_]+){0,4}: (?:VLLM: ?|\[\w+:\d+\] ?)?")
_MODULE_LEVEL = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+){1,5} - (?:INFO|WARNING|ERROR|DEBUG|CRITICAL) - ")
# glog/klog (Triton server, kubelet): `E1209 07:55:31.933101 1 backend_model.cc:692] "text, \\n for a line break"`.
_GLOG = re.compile(r"([IWEF])(\d\d)(\d\d) (\d\d:\d\d:\d\d)\.\d{6,9} {1,8}\d{1,10} ([\w.\-/]{1,80}:\d{1,6})\] ?")
_GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
# pybind11 writes a Python exception as `Type: text`, a blank line, `At:`, then one frame per line, innermost first.
_PYBIND_FRAME = re.compile(r" {0,4}(\S{1,300})\((\d{1,7})\): (\S{1,120})")
_CI_GROUP = re.compile(r"##\[\w+\]")

# Hosting services (RunPod): `k2v7wq81[info]text\n`, the line's end written out.
_LEVEL_TAG = re.compile(r"([a-z0-9][\w-]{5,40})\[(?:info|error|warn|warning|debug|stdout|stderr)\](?=\S)")
_VLLM_NAME = re.compile(r"(?:APIServer|ApiServer|EngineCore|VllmWorker|Worker|DPCoordinator)")


class Unwrapped(NamedTuple):
    """Text without its wrapper; `tag` tells containers, hosts and ray actors apart; `stamp` is the wrapper's time."""

    text: str
    tag: str
    stamp: str


class Unwrapper:
    """Peels the wrappers of one source. Feed `learn` a sample of its lines first."""

    MAX_TEMPLATES = 12

    def __init__(self) -> None:
        self._templates: list[re.Pattern[str]] = []
        self.journal = False

    def learn(self, sample: list[str]) -> None:
        """Learns wrappers that no built-in pattern knows from lines that hold a vLLM header in mid-line."""
        seen: Counter[str] = Counter()
        for line in sample:
            text = self._peel(line)[0]
            match = CORE.search(text[:400])
            if match is None or match.start() == 0 or match.start() > 160:
                continue
            prefix = text[: match.start()]
            # Words only in front: a sentence that quotes a header is no wrapper.
            if prefix.count(" ") > 14:
                continue
            seen[_general(prefix)] += 1
        total = sum(seen.values())
        for pattern, count in seen.most_common(self.MAX_TEMPLATES):
            if count >= 2 and count * 50 >= total:
                self._templates.append(re.compile(pattern))

    def unwrap(self, line: str) -> list[Unwrapped]:
        """The line without its wrappers; several when a JSON wrapper carried a text of several lines."""
        if line.startswith("{"):
            unpacked = _from_json(line)
            if unpacked is not None:
                text, tag, stamp = unpacked
                parts = [self._strip(part.rstrip("\r")).text for part in text.rstrip("\n").split("\n")]
                return [one for part in parts for one in _bare(Unwrapped(part, tag, stamp))]
        outer = self._strip(line)
        if outer.text.startswith('{"') and _is_record(outer.text):
            # A program that logs JSON, in a container: its lines stand behind the container's prefix.
            unpacked = _from_json(outer.text)
            if unpacked is not None:
                text, tag, stamp = unpacked
                lines = text.rstrip("\n").split("\n")
                return [Unwrapped(part, outer.tag or tag, stamp or outer.stamp) for part in lines]
        return _bare(outer)

    def _strip(self, line: str) -> Unwrapped:
        text, tag, stamp = self._peel(line)
        for template in self._templates:
            match = template.match(text)
            if match:
                text = text[match.end() :]
                inner, inner_tag, inner_stamp = self._peel(text)
                return Unwrapped(inner, tag or inner_tag, stamp or inner_stamp)
        return Unwrapped(text, tag, stamp)

    def _peel(self, line: str) -> tuple[str, str, str]:
        text, tag, stamp = line, "", ""
        for _ in range(5):
            if not text:
                break
            before = text
            first = text[0]
            if is_whole(first) or first == "[":
                text, tag, stamp = _peel_stamp(text, tag, stamp)
            elif first == "(":
                text, tag = _peel_ray(text, tag)
            elif first.isalpha() or first in " |":
                text, tag, stamp = _peel_word(text, tag, stamp)
            if text == before:
                break
        return text, tag, stamp


def _bare(line: Unwrapped) -> list[Unwrapped]:
    """The line itself, or what a glog line says, under any other wrapper."""
    match = _GLOG.match(line.text) if line.text[:1] in _GLOG_LEVEL else None
    if match is None:
        return [line]
    return [Unwrapped(one.text, line.tag, line.stamp) for one in _from_glog(match, line.text[match.end() :].lstrip())]


def _from_glog(match: re.Match[str], body: str) -> list[Unwrapped]:
    """A glog line as lines under a vLLM header; an exception that pybind11 wrote becomes an ordinary traceback."""
    if len(body) > 1 and body[0] == body[-1] == '"':
        body = body[1:-1].replace('\\"', '"').replace("\\n", "\n")
    lines = body.rstrip("\n").split("\n")
    if "At:" in lines:
        place = lines.index("At:")
        frames = [frame for line in lines[place + 1 :] if (frame := _PYBIND_FRAME.match(line))]
        said = [line for line in lines[:place] if line]
        if frames and said:
            *before, kind = re.split(
                r": (?=[\w.]{1,80}(?:Error|Exception|Exit|Interrupt|Timeout): )", said[0], maxsplit=8
            )
            trace = [f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}' for frame in reversed(frames)]
            lines = [": ".join(before), "Traceback (most recent call last):", *trace, kind, *said[1:]]
    head = f"{_GLOG_LEVEL[match[1]]} {match[2]}-{match[3]} {match[4]} [{match[5]}] "
    return [Unwrapped(head + line, "", "") for line in lines]


def _peel_stamp(text: str, tag: str, stamp: str) -> tuple[str, str, str]:
    match = _CRI.match(text)
    if match:
        return text[match.end() :], tag, stamp or match[1]
    match = _JOURNAL_ISO.match(text)
    if match:
        return text[match.end() :], tag or match[3], stamp or match[1]
    match = _POD.match(text)
    if match:
        return text[match.end() :], tag or match[1], stamp
    match = _STAGE.match(text)
    if match:
        return text[match.end() :], tag, stamp
    match = _CI_GROUP.match(text)
    if match:
        return text[match.end() :], tag, stamp
    match = _STAMP.match(text)
    # `[2026-05-24 03:20:11 TP0] ` is SGLang's own header, kernel lines have `[  12.3]`: both don't match here.
    if match and not stamp:
        return text[match.end() :], tag, match[1] or match[2]
    return text, tag, stamp


def _peel_ray(text: str, tag: str) -> tuple[str, str]:
    match = _RAYLET.match(text)
    if match:
        return text[match.end() :], tag or match[1]
    match = _RAY.match(text)
    if match is None or _VLLM_NAME.match(match[1]):
        # vLLM's own prefix has the same shape and belongs to the record.
        return text, tag
    return text[match.end() :], tag or f"{match[1]}-{match[2]}"


def _peel_word(text: str, tag: str, stamp: str) -> tuple[str, str, str]:
    match = _JOURNAL.match(text)
    if match:
        # The kernel's own lines keep their name: `kernel: ...` decides that it is one.
        if match[3] == "kernel":
            return "kernel: " + text[match.end() :], tag or "kernel", stamp or match[1]
        return text[match.end() :], tag or match[3], stamp or match[1]
    match = _LEVEL_TAG.match(text)
    if match:
        return text[match.end() :].removesuffix("\\n"), tag or match[1], stamp
    match = _SUPERVISOR.match(text)
    if match and stamp:
        return text[match.end() :], tag, stamp
    match = _MODULE_LEVEL.match(text)
    if match and stamp:
        return text[match.end() :], tag, stamp
    bar = text.find("|", 0, 64)
    if bar > 0:
        match = _COMPOSE.match(text)
        # A traceback caret line or a table may hold a bar too: a name without blanks must stand before it, or nothing.
        if match and (match[1] or text[:bar].isspace()):
            return text[match.end() :], tag or (match[1] or ""), stamp
    return text, tag, stamp


def _general(prefix: str) -> str:
    """A pattern for `prefix` in which digit runs, and words with digits in them, stand for any of their kind."""
    parts = re.split(r"(\d+)", prefix)
    return "".join(r"\d{1,20}" if is_whole(part) else re.escape(part) for part in parts)


_MESSAGE_KEYS = ("log", "MESSAGE", "message", "msg", "text", "body")
_TIME_KEYS = ("time", "timestamp", "ts", "@timestamp", "asctime", "__REALTIME_TIMESTAMP")
_TAG_KEYS = ("container_name", "CONTAINER_NAME", "container", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "pod")


def _iso(stamp: str) -> str:
    """A count of seconds, milli-, micro- or nanoseconds since 1970 as an ISO time in UTC; anything else as it is."""
    whole = stamp.partition(".")[0]
    if not is_whole(whole) or len(whole) not in (10, 13, 16, 19):
        return stamp
    moment = datetime.fromtimestamp(int(whole[:10]), timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


_RECORD_KEYS = ('"level', '"severity"', '"logger"', '"lvl"')


def _is_record(text: str) -> bool:
    """Whether JSON text looks like a log record: somebody's data has no level and no logger near its message."""
    return any(key in text for key in _RECORD_KEYS) and any(f'"{key}"' in text for key in _MESSAGE_KEYS)


def _module(item: dict[str, object]) -> str:
    """File name of the logger that wrote a JSON record (`vllm.v1.engine.core` is `core.py`), else `json`."""
    name = next((item[key] for key in ("logger", "name", "logger_name") if isinstance(item.get(key), str)), "")
    parts = str(name).split(".")
    return f"{parts[-1]}.py" if parts[0] == "vllm" and len(parts) > 1 and parts[-1].isidentifier() else "json"


def _speaker(item: dict[str, object]) -> str:
    """The prefix of the vLLM process that wrote a JSON record: `(EngineCore pid=301) `, or empty."""
    name = next((item[key] for key in ("processName", "process_name", "process") if isinstance(item.get(key), str)), "")
    pid = next((item[key] for key in ("pid", "process") if isinstance(item.get(key), int)), None)
    if pid is None or not _VLLM_NAME.match(str(name)):
        return ""
    return f"({name} pid={pid}) "


def _from_json(line: str) -> tuple[str, str, str] | None:
    """Text, tag and time of a JSON log line (docker, journald export, structured loggers), or None."""
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(item, dict):
        return None
    text = next((item[key] for key in _MESSAGE_KEYS if isinstance(item.get(key), str)), None)
    if text is None:
        message = item.get("MESSAGE")
        if isinstance(message, list):
            # journald exports non-UTF-8 messages (ANSI colours count) as a list of byte values.
            text = bytes(value for value in message if isinstance(value, int) and 0 <= value < 256).decode(
                "utf-8", "replace"
            )
        else:
            return None
    level = next((str(item[key]) for key in ("levelname", "level", "severity") if key in item), "")
    for key in ("exc_info", "stack_info", "exception", "traceback"):
        if isinstance(item.get(key), str):
            text = f"{text}\n{item[key]}"
    stamp = _iso(next((str(item[key]) for key in _TIME_KEYS if key in item), ""))
    tag = next((str(item[key]) for key in _TAG_KEYS if key in item), "")
    if level and "log" not in item and level.upper() in ("ERROR", "WARNING", "CRITICAL", "INFO", "DEBUG"):
        where = next((str(item[key]) for key in ("filename", "fileinfo", "module") if key in item), _module(item))
        number = next((str(item[key]) for key in ("lineno", "line") if key in item), "0")
        if CORE.search(text[:200]) is None:
            header = f"{_speaker(item)}{level.upper()} 00-00 00:00:00 [{where}:{number}] "
            text = "\n".join(header + part for part in text.split("\n"))
    return text, tag, stamp


def unpack_json_body(text: str) -> list[str] | None:
    """Lines of vLLM's own JSON logging behind a process prefix: `(Worker pid=1) {"message": ...}`."""
    unpacked = _from_json(text)
    return None if unpacked is None else unpacked[0].split("\n")
