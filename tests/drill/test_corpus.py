"""The recorded corpus: its labels agree with the vocabulary and the logs, and nothing of the recording machine is in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lifesign.drill import record
from lifesign.drill.vocabulary import find

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
