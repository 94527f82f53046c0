"""The beacon: what is written is read, torn and foreign files are nothing, and nobody else's file is believed."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lifesign.guard.detector import beacon
from lifesign.guard.detector.beacon import (
    SIZE_BYTES,
    BeaconState,
    BeaconWriter,
    Worker,
    find_beacon,
    parse_beacon,
    read_beacon,
)
from lifesign.guard.shm import leases_tell


def test_round_trip(tmp_path: Path) -> None:
    writer = BeaconWriter("cpu", tmp_path)
    writer.set_workers([Worker(0, os.getpid()), Worker(1, 1)])
    writer.set_requests(61, 4)
    writer.step_started(61, 70, limit_s=14.0, predicted_s=0.39)
    reading = read_beacon(writer.path)
    assert reading is not None
    assert (reading.pid, reading.backend, reading.stepping) == (os.getpid(), "cpu", True)
    assert (reading.step_sequences, reading.step_tokens, reading.limit_s, reading.predicted_s) == (61, 70, 14.0, 0.39)
    assert (reading.requests_running, reading.requests_waiting) == (61, 4)
    assert [one.rank for one in reading.workers] == [0, 1]
    assert reading.start_ticks == beacon.process_start_ticks(os.getpid()) == reading.workers[0].start_ticks
    assert 0.0 <= reading.step_age_s(time.monotonic_ns()) < 60.0
    writer.extended(20.0, 1, "TP1 已停止（状态 T）" * 40)
    reading = read_beacon(writer.path)
    assert reading is not None
    assert (reading.state, reading.extensions, reading.stuck_rank) == (BeaconState.UNHEALTHY, 1, 1)
    assert reading.reason.startswith("TP1 已停止")
    assert "\ufffd" not in reading.reason
    writer.step_done(idle=True)
    reading = read_beacon(writer.path)
    assert reading is not None
    assert (reading.state, reading.steps_done, reading.last_tokens, reading.extensions) == (BeaconState.IDLE, 1, 70, 0)
    assert reading.step_age_s(time.monotonic_ns()) == 0.0
    writer.close()
    writer.close()
    assert not writer.path.exists()


def test_two_steps_in_flight_are_taken_one_after_the_other(tmp_path: Path) -> None:
    writer = BeaconWriter("gpu", tmp_path)
    writer.step_started(1, 10)
    writer.step_started(2, 20)
    reading = read_beacon(writer.path)
    assert reading is not None
    assert (reading.steps_started, reading.step_tokens) == (2, 10)
    writer.step_done()
    reading = read_beacon(writer.path)
    assert reading is not None
    assert (reading.stepping, reading.step_tokens, reading.last_tokens) == (True, 20, 10)
    writer.step_done()
    assert writer.step_done() == 0.0  # one too many changes nothing
    writer.step_started(3, 30)
    writer.abandon()
    reading = read_beacon(writer.path)
    assert reading is not None
    assert (reading.stepping, reading.steps_done) == (False, 3)


def test_foreign_files_are_nothing(tmp_path: Path) -> None:
    for name, data in {
        "empty": b"",
        "short": b"LSBEACON",
        "zeros": bytes(4096),
        "noise": os.urandom(4096),
        "magic": b"LSBEACON" + os.urandom(4088),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert read_beacon(path) is None, name
    assert read_beacon(tmp_path / "missing") is None
    assert read_beacon(tmp_path) is None
    os.mkfifo(tmp_path / "fifo")
    assert read_beacon(tmp_path / "fifo") is None


def test_a_torn_or_newer_beacon_is_nothing(tmp_path: Path) -> None:
    writer = BeaconWriter("gpu", tmp_path)
    writer.step_started(3, 30)
    good = writer.path.read_bytes()
    assert parse_beacon(good) is not None
    torn = bytearray(good)
    torn[beacon._HOT_AT + 3] ^= 0xFF
    assert parse_beacon(bytes(torn)) is None
    newer = bytearray(good)
    struct.pack_into("<H", newer, 8, 99)
    assert parse_beacon(bytes(newer)) is None
    inside = bytearray(good)
    struct.pack_into("<Q", inside, beacon._SEQ_AT, 7)
    path = tmp_path / "inside"
    path.write_bytes(bytes(inside))
    assert read_beacon(path) is None


def test_a_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    writer = BeaconWriter("gpu", tmp_path)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number = (number + 1) % 100_000
            writer.step_started(number, number, float(number), float(number))
            writer.step_done()

    thread = threading.Thread(target=write)
    thread.start()
    seen = 0
    try:
        end_s = time.monotonic() + 60.0
        while seen < 300 and time.monotonic() < end_s:
            reading = read_beacon(writer.path)
            if reading is not None:
                seen += 1
                assert reading.step_sequences == reading.step_tokens == reading.limit_s == reading.predicted_s
    finally:
        stop.set()
        thread.join()
    assert seen == 300


def test_found_where_the_engine_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, time\nfrom lifesign.guard.detector.beacon import BeaconWriter\n"
        "w = BeaconWriter('cpu'); print(w.path, flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "LIFESIGN_BEACON_DIR": str(tmp_path / "beacons")}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout is not None
        path = Path(child.stdout.readline().decode().strip())
        assert path.parent == tmp_path / "beacons"
        assert oct(path.parent.stat().st_mode & 0o777) == "0o700"
        assert find_beacon(child.pid) == path
        # A title may have overwritten the environment that /proc shows: the mapped file is found all the same.
        monkeypatch.setattr(beacon, "_environ_of", lambda pid: {})
        assert find_beacon(child.pid) == path
        child.kill()
    # Its process is gone: the next writer of the directory removes what it left.
    assert beacon.sweep(path.parent) == 1
    assert not path.exists()
    assert find_beacon(2**22 + 1) is None


def test_a_planted_directory_or_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("LIFESIGN_BEACON_DIR", str(open_to_all))
    with pytest.raises(OSError, match="own"):
        beacon.beacon_dir()
    linked = tmp_path / "link"
    linked.symlink_to(tmp_path)
    monkeypatch.setenv("LIFESIGN_BEACON_DIR", str(linked))
    with pytest.raises(OSError, match="own"):
        beacon.beacon_dir()
    writer = BeaconWriter("gpu", tmp_path)
    (tmp_path / f"9{beacon.SUFFIX}").symlink_to(writer.path)
    assert read_beacon(tmp_path / f"9{beacon.SUFFIX}") is None


def test_a_full_file_system_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """A hole in the file would be a SIGBUS at the first write through the map: the engine would be dead."""
    code = (
        "import sys; from pathlib import Path; from lifesign.guard.detector.beacon import BeaconWriter\n"
        "try: BeaconWriter('cpu', Path(sys.argv[1])); print('made')\n"
        "except OSError as error: print(error.strerror)"
    )
    # Filled up, then with room for one page of four: the writer says so, or works.
    script = (
        'mount -t tmpfs -o size=64k none "$1" && dd if=/dev/zero of="$1/full" bs=4k status=none 2>/dev/null; '
        '"$2" -c "$3" "$1"; ls -A "$1"; truncate -s 32k "$1/full"; "$2" -c "$3" "$1"'
    )
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "not permitted" in done.stderr or "denied" in done.stderr:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()[:100]}")
    assert done.stdout.splitlines() == [os.strerror(errno.ENOSPC), "full", "made"], done.stderr
    assert done.returncode == 0


def test_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: really(handle, data[:100]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        BeaconWriter("cpu", tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    beacon = BeaconWriter("cpu", tmp_path)
    assert os.stat(beacon.path).st_size == SIZE_BYTES
    beacon.close()


def test_a_beacon_that_is_withdrawn_shows_nothing_running(tmp_path: Path) -> None:
    beacon = BeaconWriter("cpu", tmp_path)
    beacon.step_started(4, 4)
    with beacon.path.open("rb") as early:  # a reader who has it open already
        beacon.withdraw()
        reading = parse_beacon(early.read())
    assert reading is not None
    assert not reading.stepping
    assert reading.state is BeaconState.IDLE, "not CLOSED: the engine works on"
    assert not beacon.path.exists()
    beacon.withdraw()


OTHER_CONTAINER = """
import os, sys
from pathlib import Path
from lifesign.guard.detector import beacon
folder = Path(sys.argv[1])
print(beacon.sweep(folder))
os.getpid = lambda: int(sys.argv[2])
try: beacon.BeaconWriter("cpu", folder); print("made")
except OSError as error: print(error.strerror)
"""


def test_an_engine_in_another_container_keeps_its_beacon(tmp_path: Path) -> None:
    """--ipc=host: one /dev/shm for all, and the same pids in each container."""
    try_it = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    if try_it.returncode:
        pytest.skip(f"no namespaces may be made here: {try_it.stderr.strip()[:100]}")
    if not leases_tell(tmp_path):
        pytest.skip("the kernel grants no leases here")
    mine = BeaconWriter("cpu", tmp_path)
    mine.step_started(4, 4)
    gone = tmp_path / "4194000.beacon"
    gone.write_bytes(mine.path.read_bytes())
    code = [sys.executable, "-c", OTHER_CONTAINER, str(tmp_path), str(mine.pid)]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["1", "another container's engine writes its beacon there"]
    assert not gone.exists()
    reading = read_beacon(mine.path)
    assert reading is not None
    assert reading.stepping
    again = BeaconWriter("cpu", tmp_path)  # our own may be written anew
    again.close()
    mine.withdraw()
