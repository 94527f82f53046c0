"""The report as one HTML page without scripts; every text is escaped by the template engine."""

from __future__ import annotations

from lifesign.report.model import Report
from lifesign.report.view import HEADINGS, setting, view
from lifesign.text import Lang

_PAGE = """<!doctype html>
<html lang="{{ 'zh-CN' if lang == 'zh' else 'en' }}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ v.title }}</title>
<style>
body{font:16px/1.5 system-ui,"Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:.85rem;letter-spacing:.06em;margin:1.6rem 0 .3rem;color:#555;text-transform:uppercase}
code,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;background:#f4f4f4;border-radius:3px}code{padding:.1em .3em;overflow-wrap:anywhere}
pre{padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}.tag{border:1px solid #888;border-radius:3px;padding:0 .4em;font-size:.85rem}
.dim{color:#555}.where{white-space:nowrap}ol,ul{padding-left:1.4rem}li{margin:.35rem 0}
@media (prefers-color-scheme:dark){body{background:#151515;color:#eee}code,pre{background:#262626}h2,.dim{color:#aaa}}
</style>
</head>
<body>
<p class="dim">{{ v.heading }}</p>
<h1>{{ v.title }} <span class="tag">{{ v.certainty }}</span></h1>
<p>{{ v.identity }}<br><span class="dim">{{ v.setup }}</span></p>
{% if v.proof %}<h2>{{ h.proof }}</h2>{% for row in v.proof %}
<p><code class="where">{{ row.where }}</code></p><pre>{{ row.text }}</pre>{% if row.note %}<p class="dim">{{ row.note }}</p>{% endif %}{% endfor %}{% endif %}
{% if v.remedies %}<h2>{{ v.do_heading }}</h2><ol>{% for item in v.remedies %}
<li><b>{{ item.title }}</b>{% if item.knob %} <code>{{ setting(item) }}</code>{% endif %}
{% for text in (item.why, item.cost, item.note) if text %}<br><span class="dim">{{ text }}</span>{% endfor %}
{% if item.command and item.kind not in ('flag', 'env') %}<pre>{{ item.command }}</pre>{% endif %}</li>{% endfor %}</ol>{% endif %}
{% if v.command %}<pre>{{ v.command }}</pre>{% if v.changes %}<p class="dim">{{ h.changed }}: {% for change in v.changes %}<code>{{ change }}</code> {% endfor %}</p>{% endif %}{% endif %}
{% if v.why %}<h2>{{ h.why }}</h2><p>{{ v.why }}</p>{% endif %}
{% if v.not_cause %}<h2>{{ h.not }}</h2><ul>{% for row in v.not_cause %}<li><code class="where">{{ row.where }}</code> <code>{{ row.text[:160] }}</code> <span class="dim">{{ row.note }}</span></li>{% endfor %}</ul>{% endif %}
{% if v.timeline %}<h2>{{ h.time }}</h2><ul>{% for row in v.timeline %}<li><code class="where">{{ row.where or '-' }}</code> {{ row.text }}{% if row.note %} <span class="dim">({{ row.note }})</span>{% endif %}</li>{% endfor %}</ul>{% endif %}
{% if v.known %}<h2>{{ h.known }}</h2><ul>{% for row in v.known %}<li>{{ row.where }}: {{ row.text }} <span class="dim">{{ row.note }}</span></li>{% endfor %}</ul>{% endif %}
{% if v.lives %}<h2>{{ h.lives }}</h2><ul>{% for row in v.lives %}<li><code class="where">{{ row.where }}</code> {{ row.text }} <span class="dim">{{ row.note }}</span></li>{% endfor %}</ul>{% endif %}
{% for note in v.notes %}<p class="dim">{{ note }}</p>{% endfor %}
<p class="dim">lifesign {{ version }}{% if v.more %} · <code>{{ v.more }}</code>{% endif %}</p>
</body>
</html>
"""


def render_html(report: Report, lang: Lang, *, all_lives: bool = False) -> str:
    """A complete HTML page."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    headings = {name: text.pick(lang) for name, text in HEADINGS.items()}
    return environment.from_string(_PAGE).render(
        v=view(report, lang, all_lives=all_lives),
        h=headings,
        lang=lang,
        setting=setting,
        version=report.lifesign_version,
    )
