"""Processes: names, membership, ends, and that only the right ones are found after a guard was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lifesign.guard import procs
from lifesign.guard.exits import ExitWatch, become_subreaper
from lifesign.guard.helpers import Helpers
from lifesign.guard.life import KEPT_ENDED, MAX_MEMBERS, Life, orphans_of, record_ahead
from lifesign.guard.procs import MARKER, ProcId, describe_status, parse_stat, role_of


@pytest.mark.parametrize(
    ("comm", "cmdline", "role", "name"),
    [
        ("VLLM::EngineCor", ["VLLM::EngineCore_DP0"], "core", "EngineCore_DP0"),
        ("VLLM::EngineCor", [], "core", "EngineCore"),
        ("VLLM::Worker_TP", ["VLLM::Worker_TP1"], "worker", "Worker_TP1"),
        ("VLLM::DPCoordin", ["VLLM::DPCoordinator"], "coordinator", "DPCoordinator"),
        ("VLLM::APIServer", ["VLLM::APIServer_2"], "api", "APIServer_2"),
        (
            "python3",
            ["python3", "-c", "from multiprocessing.resource_tracker import main;main(3)"],
            "tracker",
            "resource_tracker",
        ),
        ("vim", ["vim", "VLLM::Worker_TP1"], "other", "vim"),
        ("bash", ["bash", "-c", "echo VLLM::EngineCore"], "other", "bash"),
    ],
)
def test_roles_come_from_titles_and_not_from_arguments(comm: str, cmdline: list[str], role: str, name: str) -> None:
    assert role_of(comm, cmdline) == (role, name)


def test_a_name_with_brackets_and_spaces_is_parsed() -> None:
    tail = b" S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 " + b"0 " * 29 + b"256"
    stat = parse_stat(b"77 (a ) (b) S) x)" + tail)
    assert stat is not None
    assert (stat.pid, stat.comm, stat.ppid, stat.session, stat.start_ticks) == (77, "a ) (b) S) x", 1, 3, 19)
    assert parse_stat(b"77 (cut") is None


def test_statuses_in_words() -> None:
    assert describe_status(0) == (0, None)
    assert describe_status(7 << 8) == (7, None)
    assert describe_status(signal.SIGSEGV) == (None, "SIGSEGV")


CHAIN = """
import os, sys, time
child = os.fork()
if child == 0:
    grand = os.fork()
    if grand == 0:
        time.sleep(60)
    print(os.getpid(), grand, flush=True)
    os.waitpid(grand, 0)
    time.sleep(60)
time.sleep(60)
"""


@pytest.fixture
def chain() -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Top, child and grandchild in a session of their own."""
    top = subprocess.Popen(
        [sys.executable, "-c", CHAIN],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, MARKER: "1-test"},
    )
    assert top.stdout is not None
    child, grand = map(int, top.stdout.readline().split())
    yield top, child, grand
    for pid in (top.pid, child, grand):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    top.wait()


def life_of(top: int) -> Life:
    proc = procs.identify(top)
    assert proc is not None
    life = Life("1-test", 1, proc)
    life.start("top")
    return life


def test_descendants_are_members_and_strangers_are_not(chain: tuple[subprocess.Popen[str], int, int]) -> None:
    top, child, grand = chain
    life = Life("1-test", 1, ProcId(top.pid, procs.identify(top.pid)[1]))  # type: ignore[index]
    life.join(life.top, os.getpid(), "api", "top")
    life.scan()
    assert {member.id.pid for member in life.members.values()} == {top.pid, child, grand}
    assert life.scan() == []


def test_the_end_of_a_grandchild_is_learned_although_its_parent_reaped_it(
    chain: tuple[subprocess.Popen[str], int, int],
) -> None:
    _, _, grand = chain
    proc = procs.identify(grand)
    assert proc is not None
    watch = ExitWatch()
    fd = watch.add(proc)
    assert fd is not None
    os.kill(grand, signal.SIGSEGV)
    deadline = time.monotonic() + 10
    while procs.read_stat(grand) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    status = watch.status_of(proc)
    if status is None:
        pytest.skip("this kernel (before 6.15) forgets the status of a process that somebody else reaped")
    assert describe_status(status) == (None, "SIGSEGV")
    assert watch.drop(proc) == fd
    watch.close()


def test_orphans_are_found_by_record_marker_and_session_only(chain: tuple[subprocess.Popen[str], int, int]) -> None:
    top, child, grand = chain
    life = life_of(top.pid)
    record = life.as_json()
    found = {proc.pid for proc, _, _ in orphans_of("1-test", record)}
    assert {top.pid, child, grand} <= found, "the marker finds those that no record names"
    assert orphans_of("9-other", {**record, "id": "9-other", "boot_id": "another", "members": []}) == []
    shifted = {**record, "members": [{**record["members"][0], "start_ticks": 1}], "top": [top.pid, 1]}
    assert orphans_of("9-other", shifted) == [], "a reused pid is a stranger"


def test_a_record_from_before_the_spawn_finds_a_process_that_lost_its_marker() -> None:
    """A title overwrites the environment: such a process is known by the session of one that still bears the marker."""
    code = (
        "import ctypes, os, sys, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.execve(sys.executable, ['VLLM::EngineCore', '-c', 'import time; print(1, flush=True); time.sleep(60)'], {})\n"
        "print(pid, flush=True)\n"
        "time.sleep(60)"
    )
    record = record_ahead("1-test", 1, {})
    assert orphans_of("1-test", record) == [], "nothing runs yet"
    environment = {**os.environ, MARKER: "1-test"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as top:
        assert top.stdout is not None
        try:
            said = {int(top.stdout.readline()), int(top.stdout.readline())}
            (child,) = said - {1}
            assert procs.marker_of(child) is None
            found = {proc.pid: role for proc, role, _ in orphans_of("1-test", record)}
            assert found == {top.pid: "other", child: "core"}
            assert orphans_of("2-test", record) == [], "another life's marker"
        finally:
            os.killpg(top.pid, signal.SIGKILL)


def test_ended_helpers_make_room_and_processes_of_the_engine_stay(
    chain: tuple[subprocess.Popen[str], int, int],
) -> None:
    """A compile storm: thousands of helpers have ended, and a child that is born afterwards is still found."""
    top, child, grand = chain
    proc = procs.identify(top.pid)
    assert proc is not None
    now = [0.0]
    life = Life("1-test", 1, proc, lambda: now[0])
    life.join(life.top, os.getpid(), "api", "top")
    core = life.join(ProcId(5_000_000, 1), top.pid, "core", "EngineCore")
    life.ended(core.id, 9)
    for number in range(MAX_MEMBERS + 100):
        now[0] = float(number)
        helper = life.join(ProcId(5_000_001 + number, 1), top.pid, "other", "cc1plus")
        if number != 7:
            life.ended(helper.id, 0)
    living = ProcId(5_000_008, 1)
    life.scan()
    assert {child, grand} <= {member.id.pid for member in life.members.values()}
    ended = [member.id.pid for member in life.members.values() if member.ended_s is not None]
    assert core.id.pid in ended
    assert living in life.members, "only what has ended is forgotten"
    helpers = sorted(pid for pid in ended if pid > 5_000_000)
    assert helpers == list(range(5_000_001 + MAX_MEMBERS + 100 - KEPT_ENDED, 5_000_001 + MAX_MEMBERS + 100))
    assert life.as_json()["members"][0]["pid"] == top.pid


def test_a_helper_is_nobodys_member() -> None:
    helpers = Helpers()
    process = helpers.start([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        proc = procs.identify(process.pid)
        assert proc is not None
        life = Life("1-none", 1, ProcId(os.getppid(), 0), is_helper=helpers.owns)
        life.scan()
        assert proc not in life.members
    finally:
        process.kill()
        process.wait()
        helpers.forget(process.pid)


def test_a_tool_that_hangs_is_ended() -> None:
    started = time.monotonic()
    result = Helpers().run([sys.executable, "-c", "import time; print('x', flush=True); time.sleep(60)"], 1.0)
    assert result.code is None
    assert "no answer within 1 s" in result.note
    assert time.monotonic() - started < 10
    assert Helpers().run(["/no/such/tool"], 1.0).note.startswith("/no/such/tool")


def test_this_kernel_lets_us_adopt_orphans() -> None:
    code = "from lifesign.guard.exits import become_subreaper; print(become_subreaper())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    assert callable(become_subreaper)
