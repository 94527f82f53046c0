"""A root exception was found, but no cause knows it: show the exception, the frame, and a fingerprint to search by."""

from __future__ import annotations

import re
import shlex

from msgspec.structs import replace

from lifesign.causes.model import Cause, Subtype
from lifesign.remedies import library as lib
from lifesign.remedies.model import Remedy
from lifesign.text import T

SEARCH_ISSUES = Remedy(
    slug="search-issues",
    kind="check",
    title=T("search the issues for this text", "用这段报错去搜 issue"),
    why=T(
        "Search for the message without its numbers, together with the function's name.",
        "去掉报错里的数字，连同函数名一起搜。",
    ),
    command="gh search issues --repo vllm-project/vllm 'MESSAGE FUNCTION'",
)

SUBTYPES = {
    "unknown-exception": Subtype(
        T("An error that lifesign doesn't know", "lifesign 还不认识的错误"),
        T(
            "No rule explains this one: {exception} (raised at {frame}). Fingerprint {fingerprint}: the same in another log means the same error.",
            "没有规则能解释它：{exception}（出自 {frame}）。指纹 {fingerprint}：别的日志里指纹相同，就是同一个错误。",
        ),
        (SEARCH_ISSUES, lib.UPGRADE_VLLM, lib.COLLECT_FULL_LOG, lib.COLLECT_ENV, lib.REPORT_BUG),
    ),
}

# What differs from log to log, or is the reader's own: quoted text, paths, addresses, numbers.
_OWN = re.compile(r"'[^'\n]{0,400}'|\"[^\"\n]{0,400}\"|\S*[/\\]\S*|\S*\d\S*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_.]{2,40}")
_WORDS = 8  # GitHub's search wants every word: a few telling ones find more than the whole line


def remedies_for(exception: str, function: str) -> tuple[Remedy, ...]:
    """The advice with a search ready to paste: the exception's first line without what is the reader's own, and the function."""
    words = _WORD.findall(_OWN.sub(" ", exception[:600]))[:_WORDS]
    if function.isidentifier():
        words.append(function)
    if len(words) < 2:
        return SUBTYPES["unknown-exception"].remedies
    wanted = shlex.quote(" ".join(words))
    search = replace(SEARCH_ISSUES, command=f"gh search issues --repo vllm-project/vllm {wanted}")
    return (search, *SUBTYPES["unknown-exception"].remedies[1:])


CAUSE = Cause(
    slug="unclassified",
    code="C11",
    title=T("Unclassified", "未归类"),
    summary=T("A root error was found, but no cause knows it.", "找到了根错误，但没有规则认识它。"),
    subtypes=SUBTYPES,
    order=25,
)
