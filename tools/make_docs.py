"""Regenerates everything in the project that is derived from code: docs/, the report schema. `--check` fails when stale.

python tools/make_docs.py [--check]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lifesign.causes import registry
from lifesign.causes.model import Cause
from lifesign.cli.reference import reference
from lifesign.report.book.cheatsheet import render_cheatsheet
from lifesign.report.book.explain import cause_page, plain, remedy_rows
from lifesign.report.book.tree import render_tree
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.model import SCHEMA, Report
from lifesign.report.render import render
from lifesign.text import Lang

LANGUAGES: tuple[Lang, ...] = ("en", "zh")

ROOT = Path(__file__).resolve().parent.parent


def report_schema() -> str:
    """The JSON schema of `lifesign.report/1`, from the structs."""
    schema = msgspec.json.schema(Report)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = SCHEMA
    schema["title"] = "lifesign report"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def outputs() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    docs = ROOT / "docs"
    files = {ROOT / "src" / "lifesign" / "report" / "schema.json": report_schema()}
    for lang in LANGUAGES:
        folder = docs / lang
        for cause in registry.load()[0]:
            files[folder / "causes" / f"{cause.slug}.md"] = book_page(cause, lang)
        files[folder / "causes" / "README.md"] = index_page(lang)
        files[folder / "tree.md"] = render_tree("markdown", lang)
        files[folder / "tree.svg"] = render_tree("svg", lang)
        files[folder / "cheatsheet.md"] = render_cheatsheet("markdown", lang)
        files[folder / "cheatsheet.html"] = render_cheatsheet("html", lang)
    files[docs / "reference.md"] = reference()
    files[ROOT / "README.md"] = readme()
    return files


def book_page(cause: Cause, lang: Lang) -> str:
    """The page of a cause with its subtypes and remedies."""
    parts = [cause_page(cause, lang)]
    for name, subtype in cause.subtypes.items():
        title = plain(subtype.title, lang)
        parts.append(
            f"### {name}: {title}\n\n{plain(subtype.why, lang)}\n\n"
            + "\n".join(remedy_rows(subtype.remedies, lang))
            + "\n"
        )
    return "\n".join(parts)


SAMPLE = "samples/engine-dead-slow-step.log"


def readme() -> str:
    """README.md with the report of the demo as it is today, 80 columns wide."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- demo:start -->")
    _, _, after = rest.partition("<!-- demo:end -->")
    os.environ["COLUMNS"] = "80"
    with contextlib.chdir(ROOT) if hasattr(contextlib, "chdir") else _inside(ROOT):
        report = render(diagnose_paths([SAMPLE], lang="en"), "terminal", "en", to_file=True)
    return f"{before}<!-- demo:start -->\n```text\n$ lifesign diagnose {SAMPLE}\n{report}```\n<!-- demo:end -->{after}"


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """`contextlib.chdir` for Python 3.10."""
    old = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(old)


def index_page(lang: Lang) -> str:
    """The list of causes with links."""
    rows = ["# " + ("死因一览" if lang == "zh" else "Causes"), ""]
    rows += [f"- [{cause.slug}]({cause.slug}.md): {cause.title.pick(lang)}" for cause in registry.load()[0]]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = [path for path, text in outputs().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if args.check:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)} (run `make docs`)")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outputs()[path], encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
