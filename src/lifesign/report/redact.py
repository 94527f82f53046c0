"""Takes secrets and prompts out of text that leaves the machine: reports, bundles, recordings.

What is replaced: access tokens and keys by their known shapes, values of variables and JSON fields whose name says
secret, passwords in addresses, and the text of prompts. Paths, host names and IP addresses stay: they are evidence.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from lifesign.report.model import Report
from lifesign.text import is_whole

MARK = "<redacted>"

_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_\-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|ya29\.[A-Za-z0-9_\-]{20,}|nvapi-[A-Za-z0-9_\-]{16,}|ms-[0-9a-f]{8}-[0-9a-f\-]{20,}"
    r"|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{5,})"
)
_NAMED = re.compile(
    r"(?i)((?:[A-Z0-9_\-]{0,40}(?:api[_\-]?keys?|secret|passw(?:or)?d|access[_\-]?token|auth[_\-]?token|hf[_\-]token|hub[_\-]token|private[_\-]?key|credential)[A-Z0-9_\-]{0,20})"
    r"['\"]?\s{0,2}[=:]\s{0,2})(\[[^\]]{1,400}\]|'[^']{1,400}'|\"[^\"]{1,400}\"|[^\s,;)}'\"]{3,400})"
)
_FLAG = re.compile(r"(?i)(--(?:api-key|hf-token|ssl-keyfile-password)(?:=|\s{1,2}))(\S{1,400})")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s{1,2}([A-Za-z0-9._~+/\-]{8,}=*)")
_URL = re.compile(r"\b([a-z][a-z0-9+.\-]{1,20}://)[^/\s:@]{1,80}:[^/\s@]{1,200}@")
_PROMPT = re.compile(
    r"((?:prompt|messages|prompt_text|content|input_text|prompt_token_ids|output_text|outputs?)['\"]?\s{0,2}[=:]\s{0,2})"
    r"('(?:[^'\\]|\\.){1,20000}'|\"(?:[^\"\\]|\\.){1,20000}\"|\[[^\]]{12,20000}\])"
)
_NO_SECRETS = frozenset({"None", "True", "False", "null", "true", "false", "hf_...", "...", "***"})
# Capitals only: a password may begin with a dollar sign.
_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]{0,80}|\{[A-Z_][A-Z0-9_]{0,80}\})")


def redact(text: str) -> str:
    """`text` with secrets and prompts replaced by `<redacted>`."""
    if not text:
        return text
    text = _TOKEN.sub(MARK, text)
    text = _BEARER.sub(rf"\1 {MARK}", text)
    text = _URL.sub(rf"\1{MARK}@", text)
    text = _FLAG.sub(rf"\1{MARK}", text)
    text = _NAMED.sub(_keep_harmless, text)
    return _PROMPT.sub(rf"\1{MARK}", text)


def _keep_harmless(match: re.Match[str]) -> str:
    value = match[2].strip("'\"")
    # `None`, `True` and plain numbers are settings; `hf_...` is to be filled in, `$HF_TOKEN` names the place
    # of the secret, `***` hides it already.
    if value in _NO_SECRETS or is_whole(value) or _VARIABLE.fullmatch(value):
        return match[0]
    return match[1] + MARK


def redact_report(report: Report) -> Report:
    """A copy of the report in which every text went through `redact`."""
    raw = msgspec.to_builtins(report)
    return msgspec.convert(_walk(raw), Report)


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_walk(item) for item in value]
    if isinstance(value, dict):
        return {key: _walk(item) for key, item in value.items()}
    return value
