"""What runs where reap can't look: another container, another user. It must be left alone, and a neighbour that is dead found."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifesign.guard import environment, leftovers, procs, shm
from lifesign.guard.clearance import remove_shm
from lifesign.guard.leftovers import EngineProcess, find_files, find_processes, is_orphan, remove
from lifesign.guard.life import Life, orphans_of
from lifesign.guard.shm import Users, leases_tell, unlink_unused, write_lease

from .test_reap import make_old

MARKED = "import time; print('up', flush=True); time.sleep(120)"
LIFE = "1796000000-0badcafe"
SHM = Path("/dev/shm")
# In a container of its own, as `docker run --ipc=host` makes one: what does reap see of the segments, and of their users?
LOOK = """
import json, os, sys, time
from pathlib import Path
from lifesign.guard import leftovers, procs
names = sys.argv[1:]
found = leftovers.find_files(time.time(), tmp=Path("/nowhere"))
print(json.dumps({
    "initial": procs.sees_everybody(), "pids": len(procs.all_pids()),
    "found": {item.name: item.certainty for item in found if item.name in names},
}))
"""
# A machine of its own for `reap --yes`: nothing of the real one can be ended or removed from in there.
ISOLATED = """
set -e
mount -t tmpfs none /dev/shm
for name in psm_mine vllm_mine other; do echo x > /dev/shm/$name; touch -d '1 hour ago' /dev/shm/$name; done
exec "$@"
"""


def needs_namespaces() -> None:
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no namespaces may be made here: {done.stderr.strip()[:100]}")


def needs_leases(folder: Path) -> None:
    if not leases_tell(folder):
        pytest.skip(f"{folder}: the kernel grants no leases here")


@pytest.fixture
def marked() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a guarded life, known by the marker in its environment."""
    environ = {**os.environ, procs.MARKER: LIFE}
    process = subprocess.Popen([sys.executable, "-c", MARKED], stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def record_of(folder: Path, **values: object) -> None:
    # The guard's pid as its own container counts: here it means nothing.
    record = {"id": LIFE, "boot_id": procs.boot_id(), "guard": [7, 1], "top": [8, 2], "members": [], **values}
    (folder / "life.json").write_text(json.dumps(record))


def test_a_guard_in_another_container_is_known_by_its_lock(tmp_path: Path, marked: subprocess.Popen[bytes]) -> None:
    record_of(tmp_path, shm=["/dev/shm/psm_known"])

    def pids() -> set[int]:
        return {item.proc.pid for item in find_processes([tmp_path]) if item.proc}

    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert marked.pid not in pids()
        assert leftovers.recorded_shm([tmp_path]) == set()
    assert marked.pid in pids(), "the lock is free: that guard is gone"
    assert leftovers.recorded_shm([tmp_path]) == {"/dev/shm/psm_known"}
    record_of(tmp_path, shm=["/dev/shm/psm_known"], boot_id="another")
    assert leftovers.recorded_shm([tmp_path]) == set()


def test_pids_of_another_container_mean_nothing(marked: subprocess.Popen[bytes]) -> None:
    proc = procs.identify(marked.pid)
    assert proc is not None
    life = Life("1796000000-0000aaaa", 1, proc)
    life.start("x")
    record = life.as_json()
    assert [one for one, _, _ in orphans_of(life.id, record)] == [proc]
    assert orphans_of(life.id, {**record, "pid_namespace": 1}) == []
    assert [one for one, _, _ in orphans_of(LIFE, {**record, "pid_namespace": 1})] == [proc], (
        "the marker counts anywhere"
    )


def test_a_parent_that_cannot_be_seen_is_not_gone() -> None:
    me = procs.read_stat(os.getpid())
    assert me is not None
    for ppid in (0, 2**22 + 1):  # outside the container; another user's behind hidepid
        assert is_orphan(EngineProcess(me._replace(ppid=ppid), "worker", "Worker_TP0")) is None
    handed = is_orphan(EngineProcess(me._replace(ppid=1, session=me.session + 1), "worker", "Worker_TP0"))
    assert handed is not None
    assert "handed to" in handed.en


def test_the_kernel_knows_every_user_of_a_file(tmp_path: Path) -> None:
    needs_leases(tmp_path)
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 4096)

    def lease() -> str:
        with write_lease(path) as answer:
            return answer

    assert lease() == "granted"
    for flags, access in ((os.O_RDWR, mmap.ACCESS_WRITE), (os.O_RDONLY, mmap.ACCESS_READ)):
        fd = os.open(path, flags)
        assert lease() == "refused"
        mapped = mmap.mmap(fd, 4096, access=access)
        os.close(fd)
        assert lease() == "refused", "mapped, and the descriptor is closed"
        assert unlink_unused(path) == "in use by now"
        mapped.close()
        assert lease() == "granted"
    assert unlink_unused(path) == ""
    assert not path.exists()
    assert lease() == "no answer"


def test_the_lease_is_given_back(tmp_path: Path) -> None:
    """Who opens the file afterwards must not wait, and no signal of the lease may end us."""
    needs_leases(tmp_path)
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    with write_lease(path) as answer:
        assert answer == "granted"
        code = "import sys; open(sys.argv[1], 'r+b'); print('opened', flush=True)"
        other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        # Only that it waits is timed; the answer can't come before the lease is given back.
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
    assert other.stdout.readline() == "opened\n"
    assert other.wait(10) == 0


@pytest.mark.parametrize(("everybody", "hidden"), [(True, False), (False, False), (True, True)])
def test_without_leases_only_a_full_view_proves_that_nobody_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everybody: bool, hidden: bool
) -> None:
    def look(pid: int, folder: Path) -> set[tuple[int, int]]:
        if pid != os.getpid() and hidden:
            raise PermissionError
        return really(pid, folder)

    really = shm.inodes_of

    monkeypatch.setattr(procs, "all_pids", lambda: [os.getpid(), os.getppid()])
    monkeypatch.setattr(shm, "inodes_of", look)
    for name in ("psm_free", "vllm_free", "psm_open"):
        (tmp_path / name).write_bytes(b"x")
        make_old(tmp_path / name)

    def users(folder: Path) -> Users:
        return Users(folder, leases=lambda path: False, sees_everybody=lambda: everybody)

    with (tmp_path / "psm_open").open("rb"):
        items = find_files(time.time(), shm=tmp_path, tmp=tmp_path / "none", users=users)
    certainties = {item.name: item.certainty for item in items}
    if everybody and not hidden:
        assert certainties == {"psm_free": "anybody's", "vllm_free": "certain"}
    else:
        assert certainties == {"psm_free": "unseen users", "vllm_free": "unseen users"}


def test_what_a_dead_engine_had_is_certain(tmp_path: Path) -> None:
    names = ("psm_recorded", "psm_ended", "psm_else", "sem.mp-else", "nccl-x", "odd-name-recorded")
    for name in names:
        (tmp_path / name).write_bytes(b"x")
        make_old(tmp_path / name)
    info = (tmp_path / "psm_ended").stat()
    recorded = {str(tmp_path / "psm_recorded"), str(tmp_path / "odd-name-recorded")}
    items = find_files(
        time.time(), shm=tmp_path, tmp=tmp_path / "none", recorded=recorded, ended={(info.st_dev, info.st_ino)}
    )
    assert {item.name: item.certainty for item in items} == {
        "psm_recorded": "certain", "psm_ended": "certain", "psm_else": "anybody's", "sem.mp-else": "anybody's",
        "nccl-x": "certain", "odd-name-recorded": "certain",
    }  # fmt: skip


def test_a_segment_that_somebody_took_meanwhile_stays(tmp_path: Path) -> None:
    needs_leases(tmp_path)
    path = tmp_path / "vllm_x"
    path.write_bytes(b"x")
    make_old(path)
    (item,) = find_files(time.time(), shm=tmp_path, tmp=tmp_path / "none")
    with path.open("rb"):
        assert remove(item) == "in use by now"
    assert path.exists()
    assert remove(item) == ""
    assert not path.exists()


def test_a_segment_of_another_container_is_no_left_over() -> None:
    """`docker run --ipc=host`: processes of our own, shared memory of everybody."""
    needs_namespaces()
    needs_leases(SHM)
    used, unused = (SHM / f"psm_test_{os.getpid()}_{name}" for name in ("used", "unused"))
    try:
        for path in (used, unused):
            path.write_bytes(b"x" * 4096)
            make_old(path)
        with used.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", LOOK, used.name, unused.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        mapped.close()
        seen = json.loads(done.stdout)
        assert seen["initial"] is False
        assert seen["pids"] < 10
        assert seen["found"] == {unused.name: "anybody's"}
    finally:
        for path in (used, unused):
            path.unlink(missing_ok=True)


def test_guard_leaves_a_segment_that_another_container_uses() -> None:
    needs_namespaces()
    needs_leases(SHM)
    used, unused = (SHM / f"psm_test_{os.getpid()}_{name}" for name in ("shared", "own"))
    code = "import sys; from lifesign.guard.clearance import remove_shm; print(*remove_shm(set(sys.argv[1:])))"
    try:
        for path in (used, unused):
            path.write_bytes(b"x" * 4096)
        with used.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, str(used), str(unused)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(unused)]
        assert used.exists()
        mapped.close()
        assert remove_shm({str(used)}) == [str(used)]
    finally:
        for path in (used, unused):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("options", "removed", "code"),
    [
        ((), set(), 1),
        (("--yes",), {"vllm_mine"}, 1),
        (("--yes", "--all"), {"vllm_mine", "psm_mine"}, 0),
    ],
)
def test_what_may_be_anybodys_goes_only_with_all(
    tmp_path: Path, options: tuple[str, ...], removed: set[str], code: int
) -> None:
    needs_namespaces()
    inner = [sys.executable, "-m", "lifesign.cli.main", "reap", "--tmp", str(tmp_path), "--format", "json", *options]
    command = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "sh", "-c", ISOLATED, "sh", *inner]
    state = tmp_path / "state"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LIFESIGN_STATE_DIR": str(state)})
    assert done.returncode == code, done.stderr
    said = json.loads(done.stdout)
    assert {item["name"] for item in said["found"]} == {"psm_mine", "vllm_mine"}
    assert {item["name"] for item in said["ended"]} == removed
    assert {item["name"] for item in said["kept"]} == ({"psm_mine"} if options == ("--yes",) else set())


def test_the_folder_of_a_life_in_another_container_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    folders = {name: tmp_path / f"lifesign-1796000001-{name * 8}" for name in "abc"}
    for folder in folders.values():
        folder.mkdir()
        (folder / environment.OWNER_FILE).write_text(json.dumps({"guard": [7, 1], "top": [8, 2]}))
    with (folders["a"] / environment.OWNER_FILE).open() as lock, socket.socket(socket.AF_UNIX) as server:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server.bind(f"{folders['b'].name}/s")
        server.listen()
        for folder in folders.values():
            make_old(folder)
        found = [item.name for item in find_files(time.time(), shm=tmp_path / "none", tmp=tmp_path)]
        assert found == [folders["c"].name]
    for folder in folders.values():
        make_old(folder)
    found = [item.name for item in find_files(time.time(), shm=tmp_path / "none", tmp=tmp_path)]
    assert found == [folder.name for folder in folders.values()], "the guard is gone, and so is the listener"


def test_guard_locks_the_folder_of_its_life_and_no_older_one(tmp_path: Path) -> None:
    def locked(folder: Path) -> bool:
        with (folder / environment.OWNER_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    first = environment.private_tmp("1796000002-aaaaaaaa", {"TMPDIR": "/tmp"})
    assert first is not None
    try:
        assert locked(first)
        # The session writes who the engine is into the same file: the lock stays.
        (first / environment.OWNER_FILE).write_text("{}")
        assert locked(first)
        second = environment.private_tmp("1796000002-bbbbbbbb", {"TMPDIR": "/tmp"})
        assert second is not None
        assert (locked(first), locked(second)) == (False, True)
    finally:
        for name in "ab":
            folder = Path(f"/tmp/lifesign-1796000002-{name * 8}")
            (folder / environment.OWNER_FILE).unlink(missing_ok=True)
            folder.rmdir()


def test_an_owner_file_with_anything_in_it_is_read(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", "{", '{"top": {"a": 1}}', '{"top": 5, "guard": "x"}', '{"guard": [1]}')):
        folder = tmp_path / f"lifesign-179600000{number}-aaaaaaaa"
        folder.mkdir()
        (folder / environment.OWNER_FILE).write_text(text)
        make_old(folder)
    assert len(find_files(time.time(), shm=tmp_path / "none", tmp=tmp_path)) == 6


@pytest.mark.parametrize("everybody", [True, False])
def test_a_rendezvous_file_is_certain_only_where_every_engine_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everybody: bool
) -> None:
    path = tmp_path / "vllm_dist_xyz"
    path.write_bytes(b"x")
    make_old(path)
    os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(procs, "sees_everybody", lambda: everybody)
    (item,) = find_files(time.time(), shm=tmp_path / "none", tmp=tmp_path)
    assert item.certainty == ("certain" if everybody else "unseen users")
