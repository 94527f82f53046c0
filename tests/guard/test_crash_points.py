"""SIGKILL, or a full disk, right before each thing that guard does to the world, one after the other: the next guard must cope with all.

`test_recovery` kills at random moments, and the shortest windows are hit once in a hundred runs. Here a first run lists
every change that guard makes (Python's audit events: files, folders, programs, signals), and each of them is a moment.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from lifesign.guard.logstore import read_segment, segments
from lifesign.guard.statedir import read_json

from .harness import OWN_TMP, GuardRun, guard, wait_until

DIES = ("--die", "worker-exception", "--after", "0.6", "--keep-orphans")
SAMPLE = int(os.environ.get("LIFESIGN_CRASH_POINTS", "14" if os.environ.get("CI") else "5"))
"""Moments drawn beside those around the start of an engine, which are all taken."""
HOOK = """
import os, signal, sys, threading
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.kill", "subprocess.Popen", "shutil.rmtree")
book = os.open({book!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
lock, seen = threading.RLock(), []
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in CHANGES:
        what = args[1] if event == "subprocess.Popen" else args[0]
        if str(what).startswith(("/dev/", "/proc/")) or "__pycache__" in str(what):
            return
        with lock:
            seen.append(event)
            name = " ".join(what)[-400:] if isinstance(what, (list, tuple)) else str(what)
            os.write(book, (event + "\\t" + name.replace("\\n", " ") + "\\n").encode())
            if len(seen) == {number}:
                {then}
sys.addaudithook(hook)
"""


def changes_in(book: Path) -> list[tuple[str, str]]:
    """(event, what) of every change that is on the list."""
    lines = book.read_text().splitlines() if book.exists() else []
    return [(event, what) for event, _, what in (line.partition("\t") for line in lines)]


def is_spawn(change: tuple[str, str]) -> bool:
    """Whether this is the start of the engine itself."""
    return change[0] == "subprocess.Popen" and "fake_engine.py" in change[1]


def every_change(folder: Path) -> list[tuple[str, str]]:
    """The changes of one death, from the first start until the engine serves again."""
    folder.mkdir()
    book = folder / "book"
    with guard(folder, engine_args=DIES, patch=HOOK.format(book=str(book), number=0, then="pass")) as run:
        run.serving(2)
        changes = changes_in(book)
    assert sum(map(is_spawn, changes)) == 2, Counter(event for event, _ in changes)
    return changes


def said_to_die(run: GuardRun) -> set[str]:
    """The lives whose log tells of the worker's exception."""
    return {
        folder.name
        for folder in (run.state / "logs").glob("*")
        if b"OutOfMemoryError" in b"".join(part for _, path in segments(folder) for part in read_segment(path))
    }


def kill_at(folder: Path, number: int, where: str) -> None:
    """Kill a guard right before its change `number`, start the next one, and look at what it makes of that."""
    folder.mkdir()
    tmp = Path(tempfile.mkdtemp(dir=OWN_TMP))
    patch = HOOK.format(book=str(folder / "book"), number=number, then="os.kill(os.getpid(), 9)")
    with guard(folder, engine_args=DIES, patch=patch, env={"TMPDIR": str(tmp)}) as first:
        wait_until(lambda: first.process.poll() is not None, f"the kill: {where}")
        assert first.process.returncode == -signal.SIGKILL, where
        known = {path.name for path in (first.state / "incidents").glob("*") if path.is_dir()}
        already = first.said.count("the engine serves")
        with guard(folder, engine_args=(), env={"TMPDIR": str(tmp)}) as second:
            second.serving(already + 1)
            members = {one["pid"] for one in second.life()["members"]}
            assert set(second.marked()) <= members, f"a process of the engine was left: {where}\n{second.said}"
            incidents = second.incidents()
            assert all(one["complete"] for one in incidents), where
            lives = Counter(one["life"]["id"] for one in incidents if "life" in one)
            assert not lives or max(lives.values()) == 1, f"a life that died twice: {where}"
            told = {one["life"]["id"]: one["cause"]["cause"] for one in incidents if not one.get("abandoned")}
            for life in said_to_die(second):
                assert told.get(life) == "device-oom", f"{life} {told}: {where}\n{second.said}"
            policy = read_json(second.state / "policy.json") or {}
            assert len(policy["deaths"]) <= len(lives), where
            assert known <= {one["folder"].name for one in incidents}, where
            current = second.life()["id"]
            assert [path.name for path in tmp.glob("lifesign-*")] == [f"lifesign-{current}"], where
            second.stop()
            assert second.wait() == 0, where
        assert "Traceback" not in second.said, where
        assert first.marked() == [], where
        assert list(tmp.glob("lifesign-*")) == [], where


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    return every_change(tmp_path_factory.mktemp("crash") / "all")


def test_killed_around_the_start_of_an_engine(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    """From the first note that something is about to start until what was started is on record."""
    first, second = (number for number, change in enumerate(changes, start=1) if is_spawn(change))
    noted = max(number for number in range(1, first) if "life.json" in changes[number - 1][1])
    for number in (*range(noted - 1, first + 9), *range(second, second + 4)):
        kill_at(tmp_path / str(number), number, f"before change {number}: {changes[number - 1]}")


def test_killed_before_other_changes(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    """A sample of all others; `LIFESIGN_CRASH_POINTS=1000` takes every one."""
    seed = int(os.environ.get("LIFESIGN_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed} (repeat with LIFESIGN_SEED={seed})")
    draw = random.Random(seed)
    for number in sorted(draw.sample(range(1, len(changes) + 1), min(SAMPLE, len(changes)))):
        kill_at(tmp_path / str(number), number, f"before change {number}: {changes[number - 1]}, seed {seed}")


def test_a_change_that_the_disk_refuses_costs_no_engine(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    """Each change on files fails once, in its turn: the engine runs, its death is told and written, it comes back."""
    seed = int(os.environ.get("LIFESIGN_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed} (repeat with LIFESIGN_SEED={seed})")
    numbers = [number for number, (event, _) in enumerate(changes, start=1) if event != "subprocess.Popen"]
    for number in sorted(random.Random(seed).sample(numbers, min(SAMPLE // 2, len(numbers)))):
        where = f"at change {number}: {changes[number - 1]}, seed {seed}"
        folder = tmp_path / str(number)
        folder.mkdir()
        then = "raise OSError(28, 'No space left on device', str(what))"
        patch = HOOK.format(book=str(folder / "book"), number=number, then=then)
        with guard(folder, engine_args=DIES, patch=patch, env={"TMPDIR": str(folder)}) as run:
            run.wait_for("the engine serves", 2)
            assert "Traceback" not in run.said, where
            assert "cause: device-oom" in run.said, where
            path = run.said.partition("[lifesign] incident: ")[2].partition("\n")[0]
            assert Path(path).exists(), f"{where}\n{run.said}"
