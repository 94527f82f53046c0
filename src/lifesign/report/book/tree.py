"""The decision tree as text, Mermaid, Markdown, SVG and HTML, from the same questions that the tests walk."""

from __future__ import annotations

from xml.sax.saxutils import escape

from lifesign.causes import registry
from lifesign.causes.questions import Question, questions
from lifesign.text import Lang, T

FORMATS = ("text", "mermaid", "markdown", "svg", "html")

_START = T(
    "Find the first ERROR of EngineCore or a worker (or the C line before the reports of the death). The last line is a signal, never the cause.",
    "先找到 EngineCore 或 worker 的第一条 ERROR（或死亡转述之前的 C 语言输出）。最后一行只是信号，不是原因。",
)
_NONE = T(
    "none of them: capture again with VLLM_LOGGING_LEVEL=DEBUG", "都不是：设置 VLLM_LOGGING_LEVEL=DEBUG 再抓一次日志"
)
_YES, _NO = T("yes", "是"), T("no", "否")
_TITLE = T("Decision tree", "决策树")


def title_of(slug: str, lang: Lang) -> str:
    """The title of a cause in lower case, for a leaf."""
    cause = registry.by_slug(slug)
    return cause.title.pick(lang) if cause else slug


def flat() -> list[tuple[int, Question]]:
    """The questions in walking order with their depth."""
    rows: list[tuple[int, Question]] = []

    def visit(branch: tuple[Question, ...], depth: int) -> None:
        for question in branch:
            rows.append((depth, question))
            visit(question.then, depth + 1)

    visit(questions(), 0)
    return rows


def render_tree(format: str, lang: Lang) -> str:
    """The tree in one of FORMATS."""
    return {"text": _text, "mermaid": _mermaid, "markdown": _markdown, "svg": svg, "html": _html}[format](lang)


def _text(lang: Lang) -> str:
    rows = [_START.pick(lang), ""]
    for number, (depth, question) in enumerate(flat(), 1):
        pad = "    " * depth
        seen = ", ".join(word for word in question.look_for[:3] if word)
        rows.append(f"{pad}{number}. {question.ask.pick(lang)}" + (f"  [{seen}]" if seen else ""))
        if question.then:
            rows.append(f"{pad}   {_YES.pick(lang)} ->")
        else:
            rows.append(f"{pad}   {_YES.pick(lang)} -> {question.cause}: {title_of(question.cause, lang)}")
    rows += ["", _NONE.pick(lang)]
    return "\n".join(rows) + "\n"


def _mermaid(lang: Lang) -> str:
    rows = ["flowchart TD", f'  start["{_quote(_START.pick(lang))}"]']
    yes, no = _YES.pick(lang), _NO.pick(lang)

    def visit(branch: tuple[Question, ...], entry: str, label: str, after: str) -> None:
        previous, edge = entry, label
        for question in branch:
            rows.append(f'  {question.id}{{"{_quote(question.ask.pick(lang))}"}}')
            rows.append(f"  {previous} -->{f'|{edge}|' if edge else ''} {question.id}")
            if question.then:
                visit(question.then, question.id, yes, "")
            else:
                rows.append(f'  {question.id}_leaf["{question.cause}"]')
                rows.append(f"  {question.id} -->|{yes}| {question.id}_leaf")
            previous, edge = question.id, no
        if after:
            rows.append(f"  {previous} -->|{no}| {after}")

    rows.append(f'  none["{_quote(_NONE.pick(lang))}"]')
    visit(questions(), "start", "", "none")
    return "\n".join(rows) + "\n"


def _quote(text: str) -> str:
    return text.replace('"', "'")


def _markdown(lang: Lang) -> str:
    return f"# {_TITLE.pick(lang)}\n\n```mermaid\n{_mermaid(lang)}```\n\n```text\n{_text(lang)}```\n"


_ROW, _WIDTH, _LEAF = 34, 1120, 300


def svg(lang: Lang) -> str:
    """One column of questions with their causes to the right; black on white."""
    rows = flat()
    height = 70 + _ROW * (len(rows) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#000">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="26" font-size="14" font-weight="bold">{escape(_START.pick(lang)[:150])}</text>',
    ]
    for index, (depth, question) in enumerate(rows):
        top = 48 + _ROW * index
        left = 12 + 26 * depth
        box = _WIDTH - _LEAF - 60 - left
        parts.append(f'<rect x="{left}" y="{top}" width="{box}" height="26" rx="4" fill="none" stroke="#000"/>')
        parts.append(f'<text x="{left + 8}" y="{top + 18}">{index + 1}. {escape(question.ask.pick(lang))}</text>')
        if index + 1 < len(rows):
            parts.append(f'<path d="M{left + 14} {top + 26} V{top + _ROW}" stroke="#000"/>')
        if question.then:
            continue
        right = _WIDTH - _LEAF - 12
        parts.append(
            f'<path d="M{left + box} {top + 13} H{right}" stroke="#000"/><text x="{right - 34}" y="{top + 9}" font-size="11">{_YES.pick(lang)}</text>'
        )
        parts.append(f'<rect x="{right}" y="{top}" width="{_LEAF}" height="26" fill="#eee" stroke="#000"/>')
        parts.append(f'<text x="{right + 8}" y="{top + 18}" font-weight="bold">{escape(question.cause)}</text>')
    bottom = 48 + _ROW * len(rows)
    parts.append(f'<text x="26" y="{bottom + 18}">{escape(_NONE.pick(lang))}</text></svg>')
    return "\n".join(parts) + "\n"


def _html(lang: Lang) -> str:
    language = "zh-CN" if lang == "zh" else "en"
    return (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8"><title>{escape(_TITLE.pick(lang))}</title>'
        f"<style>@page{{size:A4;margin:8mm}}body{{margin:0}}svg{{width:100%}}</style>{svg(lang)}</html>\n"
    )
