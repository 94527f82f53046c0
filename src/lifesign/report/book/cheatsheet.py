"""The quick card: one A4 page with the tree, a row per cause and the four commands, from the causes themselves."""

from __future__ import annotations

from html import escape

from lifesign.causes import registry
from lifesign.causes.model import Cause
from lifesign.causes.questions import Question
from lifesign.report.book.explain import plain, spelled_form
from lifesign.report.book.tree import flat, svg
from lifesign.text import Lang, T

FORMATS = ("markdown", "html", "svg")

TITLE = T("vLLM engine dead: the quick card", "vLLM 引擎死亡速查卡")
RULE = T(
    "EngineDeadError is never the cause. Find the first ERROR of EngineCore or a worker and read upwards: cause above, symptom below.",
    "EngineDeadError 从来不是原因。找到 EngineCore 或 worker 的第一条 ERROR，往上读：原因在上，症状在下。",
)
_SEE = T("What you see", "看到什么")
_IS = T("What it is", "是什么")
_FIX = T("First fix", "先做什么")
_TREE = T("Ask from the top", "从上往下问")
_NEXT = T(
    "No: ask the next one. None of them: capture again with VLLM_LOGGING_LEVEL=DEBUG.",
    "答“否”就问下一个；都不是，就设置 VLLM_LOGGING_LEVEL=DEBUG 再抓一次日志。",
)
_COMMANDS_TITLE = T("Four commands", "四条命令")
COMMANDS: tuple[tuple[T, str], ...] = (
    (T("keep the whole log", "保存完整日志"), "vllm serve MODEL ... 2>&1 | tee vllm_full.log"),
    (
        T("the first error of the engine", "引擎的第一条报错"),
        'grep -nE "(EngineCore|Worker).*(ERROR|Error)|Traceback|CUDA error|out of memory|Segfault" vllm_full.log | head',
    ),
    (T("what the kernel says", "内核怎么说"), 'dmesg -T | grep -iE "oom|xid|segfault|killed process"'),
    (T("more detail next time", "下次更详细"), "export VLLM_LOGGING_LEVEL=DEBUG"),
)
_OR = T(
    "or all of it at once: lifesign diagnose vllm_full.log", "或者一步到位：lifesign diagnose vllm_full.log --lang zh"
)


def rows(lang: Lang) -> list[tuple[str, str, str, str]]:
    """(slug, literal text to look for, what it is, first fix) of every cause, in reading order."""
    by_cause: dict[str, Question] = {}
    # A question of the top level shows the text itself; the ones below "no error text" only stand in where there is no other.
    for _, question in sorted(flat(), key=lambda row: row[0]):
        if question.cause and question.look_for and question.cause not in by_cause:
            by_cause[question.cause] = question
    found: list[tuple[str, str, str, str]] = []
    for cause in registry.load()[0]:
        asked = by_cause.get(cause.slug)
        if asked is None or cause.slug in ("not-a-crash", "insufficient-log"):
            continue
        found.append((cause.slug, asked.look_for[0], cause.title.pick(lang), first_fix(cause, asked.card, lang)))
    return found


def first_fix(cause: Cause, card: str, lang: Lang) -> str:
    """The first remedy of the subtype `card` (else of the first that has one), with its knob."""
    chosen = [cause.subtypes[card]] if card in cause.subtypes else list(cause.subtypes.values())
    for subtype in chosen:
        for remedy in subtype.remedies:
            title = plain(remedy.title, lang)
            return f"{title}: {spelled_form(remedy.forms[0])}" if remedy.forms else title
    return ""


def render_cheatsheet(format: str, lang: Lang) -> str:
    """The card in one of FORMATS (svg: the tree alone)."""
    if format == "svg":
        return svg(lang)
    return _html(lang) if format == "html" else _markdown(lang)


def _markdown(lang: Lang) -> str:
    lines = [f"# {TITLE.pick(lang)}", "", f"**{RULE.pick(lang)}**", "", f"## {_COMMANDS_TITLE.pick(lang)}", ""]
    for name, command in COMMANDS:
        lines += [f"- {name.pick(lang)}: `{command}`"]
    lines += ["", _OR.pick(lang), "", f"| {_SEE.pick(lang)} | {_IS.pick(lang)} | {_FIX.pick(lang)} |", "|---|---|---|"]
    for slug, seen, title, fix in rows(lang):
        lines.append(f"| `{seen}` | **{slug}**: {title} | {fix} |".replace("\n", " "))
    lines += ["", f"## {_TREE.pick(lang)}", ""]
    for number, (depth, question) in enumerate(flat(), 1):
        arrow = f" → **{question.cause}**" if question.cause else ""
        lines.append(f"{'   ' * depth}{number}. {question.ask.pick(lang)}{arrow}")
    lines += ["", _NEXT.pick(lang)]
    return "\n".join(lines) + "\n"


_STYLE = """
@page{size:A4 portrait;margin:7mm}
*{box-sizing:border-box}
body{font:7.5pt/1.2 Arial,"Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif;color:#000;background:#fff;margin:0;max-width:196mm}
h1{font-size:13pt;margin:0 0 1mm}p{margin:0 0 1.5mm}h2{font-size:8.6pt;margin:0 0 1mm;border-bottom:.4pt solid #000}
.cols{display:grid;grid-template-columns:68mm 1fr;gap:4mm}
ol{margin:0;padding:0;list-style:none}li{margin:0 0 .55mm;padding-left:5mm;text-indent:-5mm}li.in{padding-left:9mm}
table{border-collapse:collapse;width:100%;table-layout:fixed}th:nth-child(1){width:33%}th:nth-child(2){width:34%}td,th{border:.3pt solid #777;padding:.5mm 1mm;vertical-align:top;text-align:left;overflow-wrap:anywhere}
code{font:6.7pt/1.2 Consolas,Menlo,monospace;overflow-wrap:anywhere}.foot{margin-top:2mm}.foot code{background:#eee;padding:.3mm 1mm}.foot div{margin-bottom:.8mm}
"""


def _html(lang: Lang) -> str:
    def h(text: str) -> str:
        return escape(text, quote=False)

    tree = "".join(
        f'<li class="{"in" if depth else ""}"><b>{number}</b>&nbsp; {h(question.ask.pick(lang))}'
        + (f" → <b>{h(question.cause)}</b>" if question.cause else "")
        + "</li>"
        for number, (depth, question) in enumerate(flat(), 1)
    )
    tree += f"<li>{h(_NEXT.pick(lang))}</li>"
    table = "".join(
        f"<tr><td><code>{h(seen)}</code></td><td><b>{h(slug)}</b><br>{h(title)}</td><td>{h(fix)}</td></tr>"
        for slug, seen, title, fix in rows(lang)
    )
    foot = "".join(f"<div>{h(name.pick(lang))}: <code>{h(command)}</code></div>" for name, command in COMMANDS)
    return f"""<!doctype html>
<html lang="{"zh-CN" if lang == "zh" else "en"}"><head><meta charset="utf-8"><title>{h(TITLE.pick(lang))}</title><style>{_STYLE}</style></head>
<body><h1>{h(TITLE.pick(lang))}</h1><p><b>{h(RULE.pick(lang))}</b></p>
<div class="cols"><div><h2>{h(_TREE.pick(lang))}</h2><ol>{tree}</ol></div>
<div><table><tr><th>{h(_SEE.pick(lang))}</th><th>{h(_IS.pick(lang))}</th><th>{h(_FIX.pick(lang))}</th></tr>{table}</table></div></div>
<div class="foot"><h2>{h(_COMMANDS_TITLE.pick(lang))}</h2>{foot}<p>{h(_OR.pick(lang))}</p></div>
</body></html>
"""
