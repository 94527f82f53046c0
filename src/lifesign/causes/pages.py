"""Reads the pages of the causes (`NAME.md`): sections in two languages, and literate cases that are tests.

A case is a `### case: name` heading, `expect:` and `root:` lines, and a fenced block of log lines.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

import msgspec

from lifesign.causes.model import Cause


class Case(msgspec.Struct, frozen=True):
    """One literate case: `expect` is `cause/subtype` or `not cause`; `root` a part of the decisive line, or empty."""

    cause: str
    name: str
    expect: str
    root: str
    log: str


class Section(msgspec.Struct, frozen=True):
    """One section of a page: its headings and its text in both languages."""

    title_en: str
    title_zh: str
    en: str
    zh: str


_CASE = re.compile(r"^### case: *(.+?)\s*$", re.MULTILINE)
_HEADING = re.compile(r"^## +(.+?)\s*$", re.MULTILINE)
_EXPECT = re.compile(r"^expect: *(not +)?([\w\-]+)(?:/([\w\-]+))?", re.MULTILINE)
_ROOT = re.compile(r"^root: *`(.+?)`\s*$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,})\w*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


@lru_cache(maxsize=64)
def page_text(slug: str) -> str:
    """The page of a cause as written; empty when it has none."""
    name = slug.replace("-", "_") + ".md"
    page = resources.files("lifesign.causes") / name
    return page.read_text(encoding="utf-8") if page.is_file() else ""


def cases(cause: Cause) -> list[Case]:
    """The literate cases of a page."""
    page = page_text(cause.slug)
    starts = list(_CASE.finditer(page))
    found: list[Case] = []
    for number, match in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(page)
        block = page[match.end() : end]
        expect = _EXPECT.search(block)
        fence = _FENCE.search(block)
        if expect is None or fence is None:
            continue
        root = _ROOT.search(block[: fence.start()])
        wanted = f"not {expect[2]}" if expect[1] else f"{expect[2]}/{expect[3] or ''}".rstrip("/")
        found.append(Case(cause.slug, match[1], wanted, root[1] if root else "", fence[2]))
    return found


def sections(cause: Cause) -> list[Section]:
    """The sections before the cases. In each, Chinese paragraphs follow the English ones."""
    page = page_text(cause.slug)
    heads = list(_HEADING.finditer(page))
    found: list[Section] = []
    for number, match in enumerate(heads):
        title = match[1]
        if title.lower().startswith(("case", "用例")):
            break
        end = heads[number + 1].start() if number + 1 < len(heads) else len(page)
        english, _, chinese = title.partition(" / ")
        en, zh = _split_languages(page[match.end() : end])
        found.append(Section(english.strip(), (chinese or english).strip(), en, zh))
    return found


def _split_languages(body: str) -> tuple[str, str]:
    """English and Chinese blocks; a block without words of either (a code fence, a reference list) belongs to both."""
    en: list[str] = []
    zh: list[str] = []
    for block in _blocks(body.strip()):
        if block.startswith("```"):
            (zh if zh and len(zh) > len(en) else en).append(block)
            continue
        if _is_chinese(block):
            zh.append(block)
        else:
            en.append(block)
    english = "\n\n".join(en)
    return english, "\n\n".join(zh) or english


def _blocks(body: str) -> list[str]:
    """Paragraphs, with fenced blocks kept whole."""
    blocks: list[str] = []
    current: list[str] = []
    fenced = False
    for line in body.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        if not line.strip() and not fenced:
            if current:
                blocks.append("\n".join(current))
            current = []
        else:
            current.append(line)
    if current:
        blocks.append("\n".join(current))
    return blocks


def _is_chinese(block: str) -> bool:
    wide = sum(1 for character in block if "\u4e00" <= character <= "\u9fff")
    return wide >= 4 and wide * 8 > len(block.replace(" ", ""))
