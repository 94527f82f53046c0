"""The vocabulary is data: it must be complete, consistent, and encodable for every engine that it claims."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.drill import models, needs
from lifesign.drill.inject import encode
from lifesign.drill.model import Fault
from lifesign.drill.points import POINTS
from lifesign.drill.vocabulary import all_faults, find, for_engine
from lifesign.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SILENT = ("not-a-crash", "insufficient-log")


def known_causes() -> set[str]:
    """The slugs that the corpus defines."""
    text = (ROOT / "corpus/public/README.md").read_text(encoding="utf-8")
    listed = text[text.index("## Causes") : text.index("## Scoring")]
    return set(re.findall(r"`([a-z-]+)` ", listed)) - {"workspace-locked"}  # a subtype that the text mentions


def test_there_are_enough_faults_and_no_name_twice() -> None:
    names = [fault.name for fault in all_faults()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert len(for_engine("fake")) >= 60
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_each_fault_is_complete(fault: Fault) -> None:
    assert fault.expect.cause in known_causes() | {"unclassified"}
    assert set(fault.expect.accept) <= known_causes() | {"unclassified"}
    assert fault.title.en
    assert fault.title.zh
    assert fault.title.zh != fault.title.en or fault.title.en.isascii()
    assert all(name in needs.CHECKS for name in fault.needs)
    assert 0 < fault.bound_s <= 200
    assert fault.start.model in models.FOLDERS
    if fault.expect.cause not in SILENT:
        assert fault.expect.decisive, "a death needs words by which its line is found"
    if fault.hook is not None:
        assert fault.hook.point in POINTS
        assert all(not frame.path.startswith("/") for frame in fault.hook.frames)
    if "fake" in fault.engines:
        assert fault.how != "start", "the fake engine has no files, flags or host"


def test_every_family_of_the_taxonomy_is_there() -> None:
    injected = {fault.expect.cause for fault in all_faults()}
    missing = known_causes() - injected
    # Ray, drivers and installation are outside of what an engine can be made to do; one case each stands for the rest.
    # A log that can't say is no fault: what was injected is always known.
    assert missing <= {"process-lifecycle", "distributed-orchestration", "insufficient-log"}, missing


def test_no_fault_accepts_a_death_for_a_living_engine_or_the_reverse() -> None:
    softened = {fault.name for fault in all_faults() if fault.expect.accept}
    assert softened == {"start-sigterm", "cgroup-kill", "cgroup-start"}, "each needs its reason, said beside it"
    for fault in all_faults():
        for cause in fault.expect.accept:
            assert (cause in SILENT) == (fault.expect.cause in SILENT), fault.name


def test_every_process_gets_every_signal() -> None:
    given = {
        (fault.signal.role, fault.signal.name) for fault in all_faults() if fault.signal and not fault.signal.group
    }
    names = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGTERM")
    assert {(role, name) for role in ("api", "core", "worker") for name in names} <= given


@pytest.mark.parametrize("fault", [f for f in all_faults() if f.hook], ids=lambda fault: fault.name)
def test_hooks_survive_json(fault: Fault, tmp_path: Path) -> None:
    assert fault.hook is not None
    spec = json.loads(encode(fault.hook, armed_by=tmp_path / "armed", fired=tmp_path / "fired", scale=0.5))
    assert spec["process"] == POINTS[fault.hook.point].role
    assert spec["targets"]
    assert len(spec["actions"]) == len(fault.hook.actions)
    assert all(isinstance(action[0], str) for action in spec["actions"])


def test_an_unknown_fault_is_answered_with_near_names() -> None:
    with pytest.raises(UsageError, match="worker-sigkill"):
        find("worker-sigkil")
    with pytest.raises(UsageError, match="drill list"):
        find("xyzzy")


def test_the_list_command_keeps_its_contract() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", "drill", "list", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert len(rows) == len(all_faults())
    for row, fault in zip(rows, all_faults(), strict=True):
        assert row["fault"] == fault.name
        assert row["expect"] == f"{fault.expect.cause}/{fault.expect.subtype}"
        assert row["engines"] == list(fault.engines)


def test_the_ci_selection_is_short() -> None:
    chosen = [fault for fault in for_engine("vllm") if fault.ci]
    assert 8 <= len(chosen) <= 20
    assert len({fault.expect.cause for fault in chosen}) >= 8


def test_model_folders_are_what_they_claim(tmp_path: Path) -> None:
    good = models.make(tmp_path, "good")
    raw = (good / models.WEIGHTS).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert 8 + size + max(ends) == len(raw)
    assert json.loads((good / "config.json").read_text(encoding="utf-8"))["model_type"] == "llama"
    tokens = json.loads((good / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert len(tokens) == 260

    truncated = models.make(tmp_path, "truncated")
    assert (truncated / models.WEIGHTS).stat().st_size < len(raw)
    pointer = models.make(tmp_path, "lfs-pointer")
    assert (pointer / models.WEIGHTS).read_text(encoding="ascii").startswith("version https://git-lfs")
    with pytest.raises(json.JSONDecodeError):
        json.loads((models.make(tmp_path, "bad-config") / "config.json").read_text(encoding="utf-8"))
    assert not list(models.make(tmp_path, "no-tokenizer").glob("tokenizer*"))
    assert not (models.make(tmp_path, "no-weights") / models.WEIGHTS).exists()


def test_other_packages_add_faults_and_broken_ones_become_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses
    import importlib.metadata

    from lifesign.drill import vocabulary

    class Entry:
        def __init__(self, name: str, value: object) -> None:
            self.name, self.value, self._given = name, f"{name}:FAULTS", value

        def load(self) -> object:
            if isinstance(self._given, Exception):
                raise self._given
            return self._given

    own = find("healthy")
    new = dataclasses.replace(own, name="from-elsewhere")
    entries = [
        Entry("good", [new]),
        Entry("bad", ImportError("no such module")),
        Entry("twice", own),
        Entry("odd", ["text"]),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries if group == "lifesign.faults" else [])
    vocabulary.load.cache_clear()
    try:
        loaded = vocabulary.load()
        assert [fault.name for fault in loaded.faults].count("healthy") == 1
        assert loaded.faults[-1] is new
        assert len(loaded.notes) == 3
        assert "no such module" in loaded.notes[0]
    finally:
        vocabulary.load.cache_clear()
