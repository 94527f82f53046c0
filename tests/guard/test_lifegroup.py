"""A control group per life: it holds on to what no other sign knows, it goes with the life, and it is never needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lifesign.guard import lifegroup, procs
from lifesign.guard.evidence.memory import memory_folder
from lifesign.guard.life import orphans_of
from lifesign.guard.lifegroup import LifeGroup, make_group, recorded_group

from .harness import guard, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]


@contextmanager
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(SLEEP)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _possible() -> bool:
    with sleeper() as pid:
        group = make_group("probe", pid)
        if group is None:
            return False
    wait_until(group.remove, "an empty group")
    return True


POSSIBLE = _possible()
needs_groups = pytest.mark.skipif(not POSSIBLE, reason="control groups (version 2) can't be made here")

# Serves; once its guard is gone it starts a process that nothing but the group knows: a session of its own, no
# environment, a parent that ends.
ESCAPE = """
import os, sys, time
guard = os.getppid()
print("INFO: Application startup complete.", flush=True)
while os.getppid() == guard:
    time.sleep(0.05)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(120)"], {})
    os._exit(0)
os.wait()
time.sleep(120)
"""


@needs_groups
@pytest.mark.parametrize("option", ["--own-cgroup", "--shared-cgroup"])
def test_what_got_away_after_the_guard_was_killed(option: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    engine = [sys.executable, "-c", ESCAPE, str(note)]
    with guard(tmp_path, option, engine=engine) as first:
        first.wait_for("the engine serves")
        path = first.life()["cgroup"]
        assert (path is not None) == (option == "--own-cgroup")
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        wait_until(lambda: note.exists() and note.read_text(), "the process that gets away")
        escaped = procs.identify(int(note.read_text()))
        assert escaped is not None
        wait_until(lambda: not procs.read_environ(escaped.pid), "it to be without environment")
        try:
            with guard(tmp_path, option, engine=engine) as second:
                second.wait_for("the engine serves", 2)
                assert procs.is_alive(escaped) == (option == "--shared-cgroup")
                assert path is None or not os.path.exists(path)
                now = second.life()["cgroup"]
                second.stop()
                assert second.wait() == 128 + signal.SIGTERM, "the way this engine ends"
                assert now is None or not os.path.exists(now)
        finally:
            with suppress(OSError):
                procs.signal_exactly(escaped, signal.SIGKILL)


@needs_groups
def test_a_life_is_in_its_group_and_guard_is_not(tmp_path: Path) -> None:
    with guard(tmp_path) as run:
        run.serving()
        group = LifeGroup(Path(run.life()["cgroup"]))
        assert {run.pid(role) for role in ("api", "core", "worker")} <= group.pids()
        assert run.process.pid not in group.pids()
        assert not group.remove(), "the kernel keeps a group in which something runs"
        run.stop()
        assert run.wait() == 0
        assert not group.path.exists()


@needs_groups
def test_groups_that_the_engine_made_in_it_count_and_go() -> None:
    with sleeper() as pid:
        group = make_group("nested", pid)
        assert group is not None
        below = group.path / "a" / "b"
        below.mkdir(parents=True)
        (below / "cgroup.procs").write_text(str(pid))
        assert group.pids() == {pid}
        record = {"cgroup": str(group.path), "top": [1, 0]}
        assert [proc.pid for proc, _, _ in orphans_of("nested", record)] == [pid]
        assert orphans_of("other", record) == [], "another life's group"
    wait_until(group.remove, "an empty group")
    assert recorded_group(str(group.path), "nested") is None


@needs_groups
def test_empty_groups_of_lives_that_nobody_came_back_for_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeper() as lives, sleeper() as other, sleeper() as third:
        running, inner = make_group("sweep-runs", lives), None
        assert running is not None
        inner = running.path / "inner"
        inner.mkdir()
        left = running.path.with_name("lifesign-sweep-left")
        strange = running.path.with_name("lifesigns-of-somebody")
        for folder in (left, strange):
            folder.mkdir()
        young = make_group("sweep-second", other)
        assert left.exists(), "young: its guard may be about to use it"
        monkeypatch.setattr(lifegroup, "EMPTY_AGE_S", -60.0)
        old = make_group("sweep-third", third)
        there = (left.exists(), strange.exists(), running.path.exists(), inner.exists())
        strange.rmdir()
    for group in (running, young, old):
        assert group is not None
        wait_until(group.remove, "an empty group")
    assert there == (False, True, True, True)


def test_where_the_system_refuses(tmp_path: Path) -> None:
    own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip().lstrip("/")
    home = tmp_path / own
    home.mkdir(parents=True, exist_ok=True)
    assert make_group("x", os.getpid(), tmp_path) is None, "no such group"
    (home / "cgroup.procs").write_text("1\n2\n")
    assert make_group("x", os.getpid(), tmp_path) is None, "a group that isn't ours"
    (home / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    (home / "lifesign-x").write_text("")
    assert make_group("x", os.getpid(), tmp_path) is None, "can't be made"
    (home / "lifesign-x").unlink()
    (home / "lifesign-y").symlink_to("/nowhere/at/all")
    assert make_group("y", os.getpid(), tmp_path) is None


def test_a_record_does_not_name_other_folders(tmp_path: Path) -> None:
    folder = tmp_path / "lifesign-x"
    folder.mkdir()
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert recorded_group(str(folder), "x") is None
    mount = lifegroup._mount()
    for path in (None, 7, "", "lifesign-x", f"{mount}/../{folder}", f"{mount}/no/lifesign-x"):
        assert recorded_group(path, "x") is None
    assert orphans_of("x", {"cgroup": str(folder)}) == []


def test_a_guard_without_a_group_goes_on(tmp_path: Path) -> None:
    broken = "from lifesign.guard import lifegroup\nlifegroup._mount = lambda: None"
    with guard(tmp_path, patch=broken) as run:
        run.serving()
        assert run.life()["cgroup"] is None
        run.stop()
        assert run.wait() == 0


def test_the_memory_of_a_group_without_the_controller_is_that_of_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "0::/pod/engine/lifesign-x\n"
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: line if self.match("/proc/*/cgroup") else read_text(self, *a, **k)
    )
    (tmp_path / "pod" / "engine" / "lifesign-x").mkdir(parents=True)
    (tmp_path / "memory.events").write_text("oom_kill 9\n")
    assert memory_folder(1, tmp_path) == tmp_path
    (tmp_path / "pod" / "memory.events").write_text("oom_kill 1\n")
    assert memory_folder(1, tmp_path) == tmp_path / "pod"
    (tmp_path / "pod" / "engine" / "lifesign-x" / "memory.events").write_text("oom_kill 2\n")
    assert memory_folder(1, tmp_path) == tmp_path / "pod" / "engine" / "lifesign-x"
    line = "0::/not/mounted/here\n"
    assert memory_folder(1, tmp_path) == tmp_path
