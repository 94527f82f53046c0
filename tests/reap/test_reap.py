"""`lifesign reap`: exactly the left-overs, shown first, ended only with --yes; strangers are never touched."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifesign.guard import leftovers, procs
from lifesign.guard.leftovers import Leftover, end_processes, find_files, find_processes, remove
from lifesign.guard.procs import ProcId
from lifesign.text import T

TEST = T("test", "测试")
LIFESIGN = [sys.executable, "-m", "lifesign.cli.main"]
NAMED = "import ctypes,sys,time; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0); print('up', flush=True); time.sleep(120)"
# A parent that starts a named child in a session of its own, says its pid, and goes away.
ORPHANING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
"""


@pytest.fixture
def orphan() -> Iterator[ProcId]:
    """A process with a worker's title whose parent is gone."""
    out = subprocess.run([sys.executable, "-c", ORPHANING, NAMED, "VLLM::Worker_TP"], capture_output=True, text=True)
    proc = procs.identify(int(out.stdout))
    assert proc is not None
    yield proc
    procs.signal_exactly(proc, signal.SIGKILL)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a worker's title whose parent (this test) lives."""
    process = subprocess.Popen([sys.executable, "-c", NAMED, "VLLM::Worker_TP"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_an_orphan_is_found_and_a_child_is_not(orphan: ProcId, child: subprocess.Popen[bytes]) -> None:
    found = {item.proc: item for item in find_processes([])}
    assert orphan in found
    assert "parent is gone" in found[orphan].why.en
    assert child.pid not in {proc.pid for proc in found if proc}


def test_without_yes_nothing_is_ended(orphan: ProcId, tmp_path: Path) -> None:
    shown = subprocess.run(
        [*LIFESIGN, "reap", "--tmp", str(tmp_path)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    assert shown.returncode == 1
    assert f"pid {orphan.pid}" in shown.stdout
    assert "add --yes" in shown.stderr
    assert procs.is_alive(orphan)


def test_ending_is_exact(orphan: ProcId, child: subprocess.Popen[bytes]) -> None:
    mine = [item for item in find_processes([]) if item.proc == orphan]
    assert end_processes(mine) == []
    assert not procs.is_alive(orphan)
    assert child.poll() is None


def test_a_reused_pid_is_never_signalled(child: subprocess.Popen[bytes]) -> None:
    proc = procs.identify(child.pid)
    assert proc is not None
    stale = ProcId(proc.pid, proc.start_ticks - 1)
    assert procs.signal_exactly(stale, signal.SIGKILL) is False
    assert end_processes([Leftover("process", "VLLM::Worker", TEST, stale)]) == []
    assert child.poll() is None


def test_term_comes_before_kill() -> None:
    code = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    proc = procs.identify(process.pid)
    assert proc is not None
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds * 20
        time.sleep(0.01)

    assert end_processes([Leftover("process", "x", TEST, proc)], clock=lambda: now[0], sleep=sleep) == []
    assert process.wait(10) == -signal.SIGKILL


def test_a_record_of_a_dead_guard_names_processes(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    proc = procs.identify(child.pid)
    assert proc is not None
    record = {
        "id": "1-00000000",
        "boot_id": procs.boot_id(),
        "guard": [proc.pid, proc.start_ticks - 5],
        "top": [proc.pid, proc.start_ticks],
        "members": [{"pid": proc.pid, "start_ticks": proc.start_ticks, "role": "worker", "name": "Worker_TP0"}],
    }
    (tmp_path / "life.json").write_text(json.dumps(record))
    found = [item for item in find_processes([tmp_path]) if item.proc == proc]
    assert found
    assert "named in" in found[0].why.en
    me = procs.identify(os.getpid())
    assert me is not None
    (tmp_path / "life.json").write_text(json.dumps({**record, "guard": list(me)}))
    assert [item for item in find_processes([tmp_path]) if item.proc == proc] == [], "its guard lives"
    (tmp_path / "life.json").write_text(json.dumps({**record, "boot_id": "another"}))
    assert [item for item in find_processes([tmp_path]) if item.proc == proc] == [], "another boot's pids mean nothing"


def test_a_zombie_is_named_with_its_parent_and_not_signalled() -> None:
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(15, b"VLLM::Worker_TP", 0, 0, 0)
        os._exit(0)
    try:
        deadline = time.monotonic() + 10
        while (stat := procs.read_stat(pid)) is not None and stat.state != "Z" and time.monotonic() < deadline:
            time.sleep(0.01)
        (zombie,) = [item for item in find_processes([]) if item.proc and item.proc.pid == pid]
        assert zombie.kind == "zombie"
        assert str(os.getpid()) in zombie.why.en
        assert end_processes([zombie]) == []
        assert procs.read_stat(pid) is not None
    finally:
        os.waitpid(pid, 0)


def make_old(path: Path) -> None:
    os.utime(path, (time.time() - 3600, time.time() - 3600), follow_symlinks=False)


def test_files_that_nobody_uses(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    tmp = tmp_path / "tmp"
    shm.mkdir()
    tmp.mkdir()
    for name in ("psm_dead", "psm_open", "unrelated"):
        (shm / name).write_bytes(b"x" * 4096)
        make_old(shm / name)
    (shm / "psm_young").write_bytes(b"x")
    dead, listening = "0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"
    os.chdir(tmp)  # a socket's path is short
    servers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for server, name in zip(servers, (dead, listening), strict=True):
        server.bind(name)
        server.listen()
        make_old(tmp / name)
    servers[0].close()
    (tmp / "vllm_dist_abc").write_bytes(b"x")
    make_old(tmp / "vllm_dist_abc")
    (tmp / "some.txt").write_bytes(b"x")
    make_old(tmp / "some.txt")
    for life, owner in (
        ("100000001-aaaaaaaa", [1, 1]),
        ("100000001-bbbbbbbb", list(procs.identify(os.getpid()) or ())),
    ):
        folder = tmp / f"lifesign-{life}"
        folder.mkdir()
        (folder / ".lifesign-owner").write_text(json.dumps({"guard": owner}))
        make_old(folder)
    with (shm / "psm_open").open("rb"):
        found = {Path(item.path).name: item for item in find_files(time.time(), shm=shm, tmp=tmp)}
    servers[1].close()
    assert set(found) == {"psm_dead", dead, "vllm_dist_abc", "lifesign-100000001-aaaaaaaa"}
    assert found.pop("psm_dead").certainty == "anybody's"
    assert {item.certainty for item in found.values()} == {"certain"}


def test_a_rendezvous_file_younger_than_an_engine_is_left_alone(
    tmp_path: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vllm_dist_xyz"
    path.write_bytes(b"x")
    monkeypatch.setattr(leftovers, "MIN_AGE_S", 0.0)
    empty = tmp_path / "none"
    assert find_files(time.time() + 1, shm=empty, tmp=tmp_path) == []
    make_old(path)
    assert [item.name for item in find_files(time.time(), shm=empty, tmp=tmp_path)] == ["vllm_dist_xyz"]


def test_removing_says_why_it_failed(tmp_path: Path) -> None:
    assert remove(Leftover("file", "x", TEST, path=str(tmp_path / "gone"))) == ""
    assert remove(Leftover("file", "x", TEST, path=str(tmp_path))) != ""


def test_bad_input() -> None:
    done = subprocess.run([*LIFESIGN, "reap", "--format", "xml"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "choose terminal or json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("size_bytes", "words"), [(32, "32 bytes"), (4096, "4,096 bytes"), (2**19, "0.5 MiB"), (251_658_260, "240.0 MiB")]
)
def test_a_small_left_over_is_not_shown_as_nothing(size_bytes: int, words: str) -> None:
    from lifesign.cli.reap import size_words

    assert size_words(size_bytes) == words
