"""The recorded corpus: its labels agree with the vocabulary and the logs, and nothing of the recording machine is in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lifesign.drill import record
from lifesign.drill.vocabulary import find
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.render import render

RECORDED = Path(__file__).resolve().parents[2] / "corpus" / "recorded"
FOLDERS = sorted(path.parent for path in RECORDED.glob("*/labels.jsonl"))
PRIVATE = re.compile(r"/root/|pyenv|/tmp/lifesign|lifesign-drill|/\.cache/lifesign|/work/")


def rows(folder: Path) -> list[dict[str, Any]]:
    """The labels of a folder."""
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()]


ROWS = [(folder, row) for folder in FOLDERS for row in rows(folder)]


@pytest.mark.parametrize(("folder", "row"), ROWS, ids=[f"{folder.name}-{row['drill']}" for folder, row in ROWS])
def test_a_label_says_what_the_vocabulary_says(folder: Path, row: dict[str, Any]) -> None:
    fault = find(row["drill"])
    lines = (folder / row["file"]).read_bytes().decode("utf-8").split("\n")
    assert (row["cause"], row["subtype"], row["phase"]) == (
        fault.expect.cause,
        fault.expect.subtype,
        fault.expect.phase,
    )
    assert (row["decisive_lines"], row["repeat_lines"]) == record.decisive_lines(fault.expect, lines)
    assert bool(row["decisive_lines"]) == (row["cause"] not in record.SILENT)
    assert row["vllm_version"] == folder.name


@pytest.mark.parametrize(("folder", "row"), ROWS, ids=[f"{folder.name}-{row['drill']}" for folder, row in ROWS])
def test_every_recorded_log_is_diagnosed_as_what_was_injected(folder: Path, row: dict[str, Any]) -> None:
    """Strictly: no other cause is accepted, however defensible."""
    expect = find(row["drill"]).expect
    verdict = diagnose_paths([str(folder / row["file"])]).verdict
    assert verdict.cause == expect.cause
    assert verdict.subtype in (expect.subtype, *expect.accept_subtypes)


KILLED = [(folder, row) for folder, row in ROWS if (row["observed"]["exit_code"] or 0) < 0]


@pytest.mark.parametrize(("folder", "row"), KILLED, ids=[row["drill"] for _, row in KILLED])
def test_the_exit_status_stands_below_the_log_that_cannot_tell_it(folder: Path, row: dict[str, Any]) -> None:
    last = (folder / row["file"]).read_text(encoding="utf-8").splitlines()[-1]
    assert last == f"vllm-1 exited with code {128 - row['observed']['exit_code']}"


@pytest.mark.parametrize("name", ["api-sigkill", "api-sigabrt"])
def test_a_log_that_ends_in_mid_service_alone_claims_no_more_than_it_shows(name: str, tmp_path: Path) -> None:
    log, status = tmp_path / "vllm.log", tmp_path / "status.txt"
    lines = (RECORDED / "0.32.0" / f"{name}.log").read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(lines[:-1]), encoding="utf-8")
    status.write_text(lines[-1], encoding="utf-8")
    alone = diagnose_paths([str(log)])
    assert (alone.verdict.cause, alone.verdict.subtype) == ("not-a-crash", "healthy")
    page = render(alone, "terminal", "en")
    assert "NO DEATH SEEN" in page
    assert "killed from outside" in page
    assert all(check in page for check in ("docker inspect", "kubectl", "dmesg", "ps -eo", "--with"))
    assert "Nothing died" not in page
    assert alone.verdict.remedies[0].title != "nothing to repair here"
    told = diagnose_paths([str(log)], extra=[str(status)])
    assert (told.verdict.cause, told.verdict.subtype) == ("silent-death", "signal")
    assert told.found_death


def test_a_stop_that_was_asked_for_is_still_no_crash() -> None:
    report = diagnose_paths([str(RECORDED / "0.32.0" / "stop-sigterm.log")])
    page = render(report, "terminal", "en")
    assert "NOT A CRASH" in page
    assert "killed from outside" not in page


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_logs_and_labels_belong_together(folder: Path) -> None:
    labelled = [row["file"] for row in rows(folder)]
    assert len(set(labelled)) == len(labelled)
    assert set(labelled) == {path.name for path in folder.glob("*.log")}
    for path in folder.glob("*.log"):
        found = PRIVATE.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.name} shows {found and found[0]}"


def test_there_is_a_corpus() -> None:
    assert FOLDERS, "corpus/recorded is empty"
