"""Bundles: bounded, redacted, durable, and honest about what is missing, also on a full or read-only disk."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lifesign.errors import UsageError
from lifesign.guard import statedir
from lifesign.guard.bundle import Bundle, list_archive, select_log, unfinished
from lifesign.guard.logstore import SegmentWriter, compress_segment
from lifesign.guard.statedir import RESERVE_BYTES, StateDir, read_json

from .harness import ENGINE, LIFESIGN


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    made = StateDir(tmp_path / "state")
    made.open()
    return made


def write_log(folder: Path, lines: int, segment_bytes: int = 100_000) -> bytes:
    full: list[int] = []
    writer = SegmentWriter(folder, segment_bytes=segment_bytes, on_full=full.append)
    everything = b""
    for index in range(lines):
        line = b"INFO line %06d of the engine\n" % index
        writer.write(line)
        everything += line
    writer.close()
    for number in full[::2]:
        compress_segment(folder, number)
    return everything


def test_a_short_log_is_copied_whole(state: StateDir) -> None:
    everything = write_log(state.log_folder("a"), 20_000)
    bundle = Bundle(state, "i")
    assert bundle.put_log(state.log_folder("a"), 16 << 20, keep_prompts=False) == 0
    assert (bundle.folder / "engine.log").read_bytes() == everything
    assert bundle.left_out == []


def test_a_long_log_keeps_its_start_and_its_end(state: StateDir) -> None:
    everything = write_log(state.log_folder("a"), 20_000)
    bundle = Bundle(state, "i")
    omitted = bundle.put_log(state.log_folder("a"), 100_000, keep_prompts=False)
    text = (bundle.folder / "engine.log").read_bytes()
    assert text.startswith(b"INFO line 000000")
    assert text.endswith(b"INFO line 019999 of the engine\n")
    assert omitted == len(everything) - 100_000
    assert f"{omitted} bytes left out here".encode() in text
    assert len(text) < 101_000
    assert "in the middle of the life" in bundle.left_out[0]


def test_the_selection_is_exact_for_any_limit(state: StateDir) -> None:
    everything = write_log(state.log_folder("a"), 3000, segment_bytes=7000)
    for limit in (4000, 20_000, 55_555, len(everything) - 1):
        omitted, pieces = select_log(state.log_folder("a"), limit)
        joined = b"".join(piece if isinstance(piece, bytes) else b"".join(piece) for piece in pieces)
        marker = f"\n[lifesign: {omitted} bytes left out here]\n".encode()
        head, _, tail = joined.partition(marker)
        assert everything.startswith(head)
        assert everything.endswith(tail)
        assert len(head) + len(tail) + omitted == len(everything)
        assert len(head) + len(tail) == limit


def test_secrets_and_prompts_stay_out(state: StateDir) -> None:
    folder = state.log_folder("a")
    writer = SegmentWriter(folder)
    writer.write(b"INFO Received request c-1: prompt: 'the secret plan', params: SamplingParams(n=1)\n")
    writer.write(b"token hf_" + b"a1" * 16 + b"\n" + b"x" * 200_000 + b"\n")
    writer.close()
    bundle = Bundle(state, "i")
    bundle.put_log(folder, 1 << 20, keep_prompts=False)
    text = (bundle.folder / "engine.log").read_text()
    assert "secret plan" not in text
    assert "a1a1a1" not in text
    assert "characters left out" in text


def test_an_unfinished_bundle_is_recognised(state: StateDir) -> None:
    bundle = Bundle(state, "i")
    assert unfinished(state) == [bundle.folder]
    bundle.put_incident({"complete": False})
    assert unfinished(state) == [bundle.folder]
    bundle.put_incident({"complete": True})
    assert unfinished(state) == []
    (bundle.folder / "incident.json").write_text("{ cut")
    assert unfinished(state) == [bundle.folder]


def test_what_does_not_fit_is_named(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle(state, "i")
    (bundle.folder / "in-the-way").mkdir()
    assert bundle.put("in-the-way", "text") is False
    assert bundle.left_out == ["in-the-way (4 bytes): Is a directory"]
    assert not (state.root / "reserve").exists(), "the reserve was given back before giving up"
    bundle.sync()
    archive = bundle.finish()
    assert archive is not None
    assert f"{bundle.id}/in-the-way" in list_archive(archive)
    assert (state.root / "reserve").stat().st_size == RESERVE_BYTES


def test_a_damaged_archive_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "x.tar.zst").write_bytes(b"nonsense")
    with pytest.raises(OSError, match="damaged"):
        list_archive(tmp_path / "x.tar.zst")


def test_old_bundles_and_logs_are_pruned(state: StateDir) -> None:
    for number in range(5):
        bundle = Bundle(state, f"2026010{number}T000000Z-0001")
        bundle.put_incident({"complete": True})
        bundle.finish()
        write_log(state.log_folder(f"10{number}-life"), 1000)
    state.prune(keep_incidents=2, keep_log_bytes=50_000, current="100-life")
    assert sorted(path.name for path in state.incidents.iterdir()) == [
        "20260103T000000Z-0001",
        "20260103T000000Z-0001.tar.zst",
        "20260104T000000Z-0001",
        "20260104T000000Z-0001.tar.zst",
    ]
    assert sorted(path.name for path in (state.root / "logs").iterdir()) == ["100-life", "104-life"]


def test_what_no_bundle_took_in_is_pruned_as_well(state: StateDir) -> None:
    for number in range(5):
        (state.root / "captures" / f"10{number}-life" / "0001").mkdir(parents=True)
        (state.root / "events").mkdir(exist_ok=True)
        (state.root / "events" / f"10{number}-life.jsonl").write_text("{}")
    state.prune(keep_incidents=2, keep_log_bytes=50_000, current="100-life")
    assert sorted(path.name for path in (state.root / "captures").iterdir()) == ["100-life", "103-life", "104-life"]
    assert sorted(path.stem for path in (state.root / "events").iterdir()) == ["100-life", "103-life", "104-life"]


def test_a_log_that_is_being_compressed_can_be_pruned(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper replaces a segment between the listing and the look at its size."""
    write_log(state.log_folder("100-life"), 1000)
    write_log(state.log_folder("101-life"), 1000)
    listed = statedir._listing
    monkeypatch.setattr(statedir, "_listing", lambda folder: [*listed(folder), folder / "000009.log"])
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    state.prune(keep_incidents=2, keep_log_bytes=50_000, current="101-life")
    assert [path.name for path in listed(state.root / "logs")] == ["101-life"]


def test_a_second_guard_is_refused_and_a_folder_that_is_a_file_is_replaced(tmp_path: Path) -> None:
    first = StateDir(tmp_path / "state")
    first.open()
    with pytest.raises(UsageError, match="another guard"):
        StateDir(tmp_path / "state").open()
    first.close()
    (tmp_path / "file").write_text("x")
    odd = StateDir(tmp_path / "file")
    odd.open()
    assert "can't be used" in odd.fallback_note
    assert odd.root != tmp_path / "file"
    odd.close()
    shutil.rmtree(odd.root)


def test_json_that_is_no_object_or_endless_is_none(tmp_path: Path) -> None:
    for text in ("[1]", "", "{", "[" * 100_000):
        (tmp_path / "x.json").write_text(text)
        assert read_json(tmp_path / "x.json") is None


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


NO_SPACE = "No space left on device"


def test_full_when_the_folder_is_made(state: StateDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        return full() if path.name == ".room" else real(path, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bundle = Bundle(state, "i")
    assert bundle.folder.parent == tmp_path
    assert bundle.left_out == [f"the state folder takes nothing ({NO_SPACE}): this bundle is in {bundle.folder}"]
    bundle.put_incident({"complete": True})
    assert json.loads((bundle.folder / "incident.json").read_text())["left_out"] == bundle.left_out
    assert not (state.incidents / "i").exists()


@pytest.mark.parametrize("frees", [True, False])
def test_full_when_a_piece_is_written(state: StateDir, monkeypatch: pytest.MonkeyPatch, frees: bool) -> None:
    """With the reserve given back it fits, or it is named."""
    bundle = Bundle(state, "i")
    real = os.write

    def write(fd: int, data: bytes) -> int:
        return real(fd, data) if frees and not (state.root / "reserve").exists() else full()

    monkeypatch.setattr(os, "write", write)
    assert bundle.put("versions.json", "{}") is frees
    assert (bundle.folder / "versions.json").exists() is frees
    assert bundle.left_out == ([] if frees else [f"versions.json (2 bytes): {NO_SPACE}"])
    assert [path.name for path in bundle.folder.iterdir()] == (["versions.json"] if frees else [])


def test_full_when_the_last_word_is_written(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """incident.json says what is missing: what helps less makes room for it."""
    bundle = Bundle(state, "i")
    bundle.put("events.jsonl", "x" * 100)
    bundle.put("environment.json", "{}")
    real = os.write

    def write(fd: int, data: bytes) -> int:
        return full() if (bundle.folder / "events.jsonl").exists() else real(fd, data)

    monkeypatch.setattr(os, "write", write)
    bundle.put_incident({"complete": True})
    incident = json.loads((bundle.folder / "incident.json").read_text())
    assert incident["left_out"] == ["events.jsonl: it had to make room for incident.json"]
    assert (bundle.folder / "environment.json").exists()
    monkeypatch.setattr(os, "write", full)
    bundle.put_incident({"complete": True})
    assert bundle.left_out[-1] == f"incident.json: {NO_SPACE}"


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_full_when_it_is_packed(state: StateDir, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    bundle = Bundle(state, "i")
    bundle.put("a.txt", os.urandom(1 << 20))
    bundle.put_incident({"complete": True})
    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        real = Path.open

        def open_(path: Path, mode: str = "r", **options: Any) -> Any:
            file = real(path, mode, **options)
            return Brim(file) if path.name.endswith(".part") else file

        monkeypatch.setattr(Path, "open", open_)
    assert bundle.finish() is None
    assert bundle.left_out == [f"i.tar.zst: {NO_SPACE}; the same is in {bundle.folder}"]
    assert [path.name for path in state.incidents.iterdir()] == ["i"], "no half archive stays"
    assert not (state.root / "reserve").exists(), "the reserve was given back before giving up"


class Brim:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: Any) -> None:
        self.file, self.room = file, 100_000

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        return self.file.write(data) if self.room > 0 else full()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Brim:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def test_the_reserve_may_be_just_what_the_archive_needs(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle(state, "i")
    bundle.put("a.txt", "a")
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: full() if (state.root / "reserve").exists() else real(fd))
    assert bundle.finish() is not None
    assert bundle.left_out == []


def test_what_the_disk_takes_back_is_named(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems say only at fsync that there is no room."""
    bundle = Bundle(state, "i")
    bundle.put("b.txt", "b")
    bundle.put("captures/1/a.txt", "a")
    real = os.fsync
    names = lambda fd: Path(os.readlink(f"/proc/self/fd/{fd}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda fd: full() if names(fd) == "a.txt" else real(fd))
    bundle.sync()
    assert bundle.left_out == [f"captures/1/a.txt: may not be whole on the disk ({NO_SPACE})"]


def test_room_is_made_only_where_it_is_needed(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle(state, "i")
    bundle.make_room(1)
    assert (state.root / "reserve").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    bundle.make_room(11)
    assert not (state.root / "reserve").exists()


def can_mount() -> bool:
    done = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


needs_mount = pytest.mark.skipif(
    not shutil.which("unshare") or not can_mount(), reason="may not mount a small disk here"
)


def run_on(mount: str, folder: Path, *engine_args: str) -> subprocess.CompletedProcess[str]:
    """A guard whose state folder is a file system of its own; what it kept is copied to `folder`/kept afterwards."""
    disk = folder / "disk"
    disk.mkdir()
    command = " ".join(
        [
            *LIFESIGN,
            "guard",
            "--http",
            "off",
            "--max-restarts",
            "0",
            "--state-dir",
            f"{disk}/s",
            "--",
            sys.executable,
            ENGINE,
            *engine_args,
        ]
    )
    script = f"{mount.format(disk=disk)} && {command}; code=$?; mkdir -p {folder}/kept; cp -r {disk}/s/. {folder}/kept/ 2>/dev/null; exit $code"
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


@needs_mount
def test_a_full_disk_costs_bytes_of_the_log_and_nothing_else(tmp_path: Path) -> None:
    """7 MiB of disk, 20 MiB of log: the engine runs to its own end, the verdict is right, the bundle says what it lacks."""
    done = run_on(
        "mount -t tmpfs -o size=7m none {disk}",
        tmp_path,
        "--noise",
        "1500000",
        "--die",
        "worker-exception",
        "--after",
        "5",
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert done.stdout.count("\n") > 1_500_000, "stdout lost nothing"
    assert "the log can't be written (No space left on device)" in done.stderr
    assert "device-oom/serving" in done.stderr, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    (path,) = re.findall(r"incident: (\S+)", done.stderr)
    folder = Path(path.removesuffix(".tar.zst"))
    if str(folder).startswith(str(tmp_path)):
        folder = tmp_path / "kept" / "incidents" / folder.name
    incident = json.loads((folder / "incident.json").read_text())
    assert incident["complete"] is True
    assert incident["left_out"]
    assert incident["log"]["unsaved_bytes"] > 0
    assert "OutOfMemoryError" in (folder / "engine.log").read_text()
    shutil.rmtree(folder)


@needs_mount
def test_a_read_only_state_folder_is_replaced(tmp_path: Path) -> None:
    done = run_on("mount -t tmpfs -o ro none {disk}", tmp_path, "--die", "worker-exception")
    assert done.returncode == 1, done.stderr[-2000:]
    assert "Read-only file system" in done.stderr
    assert "device-oom/serving" in done.stderr
    (path,) = re.findall(r"incident: (\S+)", done.stderr)
    assert Path(path).exists()
    assert not path.startswith(str(tmp_path))
    shutil.rmtree(Path(path).parents[1])
