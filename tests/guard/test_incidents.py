"""`lifesign incidents`: lists, shows, and lets nothing from a log reach the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.guard.bundle import Bundle
from lifesign.guard.statedir import StateDir

LIFESIGN = [sys.executable, "-m", "lifesign.cli.main"]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    state = StateDir(tmp_path / "state")
    state.open()
    for number in (1, 2):
        bundle = Bundle(state, f"2026010{number}T000000Z-0001")
        bundle.put("report.txt", f"CAUSE OF DEATH {number}\n\x1b[31mred\x07\n")
        bundle.put_incident(
            {
                "schema": "lifesign.incident/1",
                "complete": True,
                "life": {"ended": 1767225600.0},
                "cause": {"cause": "host-oom", "subtype": "cgroup-limit", "title": "memory\x1b[2J ran out"},
                "decision": {"action": "restart", "why": "try again"},
                "processes": [
                    {
                        "role": "worker",
                        "name": "Worker_TP0",
                        "pid": 7,
                        "signal": "SIGKILL",
                        "exit_code": None,
                        "ended_by_guard": False,
                    },
                    {
                        "role": "api",
                        "name": "APIServer",
                        "pid": 5,
                        "signal": None,
                        "exit_code": 0,
                        "ended_by_guard": True,
                    },
                ],
            }
        )
    Bundle(state, "20260103T000000Z-0001")
    return state.root


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LIFESIGN, "incidents", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


def test_the_list_shows_every_incident_and_the_unfinished_one(kept: Path) -> None:
    done = run("--state-dir", str(kept))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert "host-oom/cgroup-limit" in lines[0]
    assert "unfinished" in lines[2]
    assert "\x1b" not in done.stdout


def test_one_is_shown_by_prefix_or_as_the_last(kept: Path) -> None:
    done = run("20260102", "--state-dir", str(kept))
    assert done.returncode == 0
    assert "CAUSE OF DEATH 2" in done.stdout
    assert "Worker_TP0 (pid 7)  SIGKILL" in done.stdout
    assert "APIServer (pid 5)  exit code 0 (ended by guard)" in done.stdout
    assert "DECISION restart: try again" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "没有" not in done.stdout
    assert "处置 restart" in run("20260102", "--state-dir", str(kept), "--lang", "zh").stdout


def test_json_is_json(kept: Path) -> None:
    rows = json.loads(run("--state-dir", str(kept), "--format", "json").stdout)
    assert [row["complete"] for row in rows] == [True, True, False]
    one = json.loads(run("20260101", "--state-dir", str(kept), "--format", "json").stdout)
    assert one["schema"] == "lifesign.incident/1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing",), "no incident 'nothing'"),
        (("2026",), "give more of the id"),
        (("last",), "missing or unreadable"),
        (("--format", "xml"), "choose terminal or json"),
    ],
)
def test_bad_input_gets_a_sentence(kept: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = run(*arguments, "--state-dir", str(kept))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_state(tmp_path: Path) -> None:
    done = run("--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "no guard kept its state there" in done.stderr
