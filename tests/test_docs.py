"""Generated files are fresh, pages hold what they promise, and the quick card fits its page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.causes import registry
from lifesign.cli import reference
from lifesign.report.book.cheatsheet import COMMANDS, render_cheatsheet, rows
from lifesign.report.book.explain import explain_cause, list_causes

ROOT = Path(__file__).resolve().parent.parent


def test_generated_files_are_fresh() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_cause_and_subtype_has_a_page(lang: str) -> None:
    listed = list_causes(lang)  # type: ignore[arg-type]
    for cause in registry.load()[0]:
        assert cause.slug in listed
        assert explain_cause(cause.slug, lang)  # type: ignore[arg-type]
        for name in cause.subtypes:
            page = explain_cause(f"{cause.slug}/{name}", lang)  # type: ignore[arg-type]
            assert name in page


def test_every_variable_is_explained_and_every_explained_one_exists() -> None:
    assert set(reference.variables()) == set(reference.VARIABLES)


def test_an_unknown_page_names_the_nearest() -> None:
    from lifesign.errors import UsageError

    with pytest.raises(UsageError, match="device-oom"):
        explain_cause("device-omm", "en")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_card_has_a_row_per_cause_and_the_commands(lang: str) -> None:
    card = rows(lang)  # type: ignore[arg-type]
    assert {row[0] for row in card} == {cause.slug for cause in registry.load()[0]} - {
        "not-a-crash",
        "insufficient-log",
        "unclassified",
    }
    for _, seen, title, fix in card:
        assert seen
        assert title
        assert fix
    text = render_cheatsheet("markdown", lang)  # type: ignore[arg-type]
    for _, command in COMMANDS:
        assert command in text


def test_mission_order_of_the_first_seven() -> None:
    """The classical seven are read first, in their order."""
    classical = [cause.slug for cause in sorted(registry.load()[0], key=lambda cause: cause.order) if cause.classical]
    assert classical == [
        "device-oom",
        "illegal-memory-access",
        "collective-comm",
        "graph-capture",
        "model-load",
        "model-quant-incompat",
        "timeout-hang",
    ]
    fixes = {row[0]: row[3] for row in rows("en")}
    assert "--max-num-seqs" in fixes["device-oom"]
    assert "HF_ENDPOINT" in fixes["model-load"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="printing needs chromium")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_card_prints_on_one_a4_page(lang: str, tmp_path: Path) -> None:
    page, pdf = tmp_path / "card.html", tmp_path / "card.pdf"
    page.write_text(render_cheatsheet("html", lang), encoding="utf-8")  # type: ignore[arg-type]
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={pdf}", "--no-pdf-header-footer", page.as_uri()],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (
        pdf.read_bytes().count(b"/Type /Page\n") == 1
        or pdf.read_bytes().count(b"/Type /Page ") + pdf.read_bytes().count(b"/Type /Page/") == 1
    )
