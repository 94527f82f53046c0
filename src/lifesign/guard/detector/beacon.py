"""The progress beacon: a small memory-mapped file in which an engine says which step it is in, since when, and how big.

An observer outside sees /proc and a metrics page that freezes with the engine; a prefill-only step moves no counter at
all. The beacon closes that gap: the plugin inside EngineCore writes it (a few microseconds per step, no lock, no system
call), anybody with the rights of the engine's user reads it.

Format (little endian, `SIZE_BYTES` long, version 1):

    head   magic, version, EngineCore's pid and start time (clock ticks since boot, field 22 of /proc/PID/stat: a pid
           alone may have been given to another process), backend, number of workers
    seq    seqlock: odd while the writer is inside, raised twice per update
    hot    counters of started and finished steps, the running step's start (CLOCK_MONOTONIC, ns: the same for every
           process of a host) and size, the last step's size and duration, the limit in force, what was predicted,
           extensions granted, state, rank that is stuck, requests running and waiting; then a CRC of it all
    text   the reason of the last state change (UTF-8, cut)
    who    pid and start time of every worker, by rank

The CRC makes a torn read impossible to miss on machines that reorder writes, where a seqlock without barriers could.
The file lies in memory (/run/user, /dev/shm) where it can: on a disk the writer could block on write-back of the page.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import struct
import tempfile
import time
import zlib
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from lifesign.guard.procs import identify, read_environ, sees_everybody
from lifesign.guard.shm import write_lease

MAGIC = b"LSBEACON"
VERSION = 1
SIZE_BYTES = 4096
WORKERS_KEPT = 128
REASON_BYTES = 240
ENV_DIR = "LIFESIGN_BEACON_DIR"
SUFFIX = ".beacon"
READ_TRIES = 20
STEPS_IN_FLIGHT_KEPT = 64

_HEAD = struct.Struct("<8sHBBiQI")  # magic, version, backend, reserved, pid, start_ticks, workers
_SEQ = struct.Struct("<Q")
_SEQ_AT = 64
_HOT = struct.Struct("<QQQQIIIIddddIiIIB")
_HOT_AT = 72
_CRC = struct.Struct("<I")
_CRC_AT = _HOT_AT + _HOT.size
_TEXT_AT = 256
_TEXT = struct.Struct(f"<H{REASON_BYTES}s")
_WHO_AT = 512
_WHO = struct.Struct("<iIQ")  # pid, rank, start_ticks


class BeaconState(IntEnum):
    """What the engine side says of itself."""

    STARTING = 0
    IDLE = 1
    STEPPING = 2
    UNHEALTHY = 3
    """A wait outlasted its limit and was extended, or a worker looks stuck."""
    DEAD = 4
    CLOSED = 5
    """The engine shut down in order."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process of the engine. `start_ticks` is 0 where it isn't known."""

    rank: int
    pid: int
    start_ticks: int = 0


@dataclass(frozen=True, slots=True)
class BeaconReading:
    """One consistent copy of a beacon. Times in nanoseconds are CLOCK_MONOTONIC; 0 means never."""

    pid: int
    start_ticks: int
    backend: str
    workers: tuple[Worker, ...]
    workers_total: int
    state: BeaconState
    steps_started: int
    steps_done: int
    step_start_ns: int
    step_sequences: int
    step_tokens: int
    last_done_ns: int
    last_sequences: int
    last_tokens: int
    last_step_s: float
    limit_s: float
    predicted_s: float
    busy_s: float
    extensions: int
    stuck_rank: int
    requests_running: int
    requests_waiting: int
    reason: str

    @property
    def stepping(self) -> bool:
        """Whether a step is running."""
        return self.steps_started > self.steps_done

    def step_age_s(self, monotonic_ns: int) -> float:
        """Seconds that the running step has taken so far; 0 between steps."""
        if not self.stepping or self.step_start_ns == 0:
            return 0.0
        return max(0, monotonic_ns - self.step_start_ns) / 1e9


def process_start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if it is gone or can't be read."""
    found = identify(pid)
    return found.start_ticks if found is not None else 0


def candidate_dirs(uid: int, environ: dict[str, str] | None = None) -> list[Path]:
    """Where the beacons of a user may lie, best first: $LIFESIGN_BEACON_DIR, the runtime directory, memory, temporary.

    environ: the engine's environment; the own one if None.
    """
    env: dict[str, str] = dict(os.environ) if environ is None else environ
    if env.get(ENV_DIR):
        return [Path(env[ENV_DIR])]
    places = [Path(env["XDG_RUNTIME_DIR"]) / "lifesign"] if env.get("XDG_RUNTIME_DIR") else []
    runtime = Path(f"/run/user/{uid}/lifesign")
    if runtime not in places:
        places.append(runtime)
    places.append(Path(f"/dev/shm/lifesign-{uid}"))
    places.append(Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"lifesign-{uid}")
    return places


def beacon_dir() -> Path:
    """The directory in which this process writes its beacon; made (mode 0700) if it isn't there.

    Raises OSError if no candidate can be used. A shared place (/dev/shm, /tmp) is used only if the directory is ours
    and nobody else can write to it: another user could otherwise plant a link there.
    """
    uid = os.getuid()
    last: OSError = FileNotFoundError("no directory for the beacon")
    for place in candidate_dirs(uid):
        try:
            if not place.parent.is_dir() and not os.environ.get(ENV_DIR):
                continue
            place.mkdir(mode=0o700, parents=bool(os.environ.get(ENV_DIR)), exist_ok=True)
            info = place.lstat()
            if not stat.S_ISDIR(info.st_mode) or info.st_uid != uid or info.st_mode & 0o022:
                raise PermissionError(f"{place} isn't a directory of our own")
        except OSError as error:
            last = error
            continue
        if os.access(place, os.W_OK | os.X_OK):
            return place
    raise last


def sweep(directory: Path) -> int:
    """Remove the beacons of processes that are gone; gives how many. Never raises.

    Containers with --ipc=host share the directory, and a pid of the next one means nothing here: a beacon that somebody
    has mapped stays, as the kernel says, and so does one of which nobody can say it.
    """
    removed = 0
    everybody = sees_everybody()
    for path in list(directory.glob(f"*{SUFFIX}"))[:1000]:
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name[: -len(SUFFIX)])
            reading = read_beacon(path)
            alive = process_start_ticks(pid)
            if alive != 0 and (reading is None or reading.start_ticks in (0, alive)):
                continue
            with write_lease(path) as lease:
                if lease == "granted" or (lease == "no answer" and everybody):
                    path.unlink()
                    removed += 1
    return removed


class BeaconWriter:
    """Writes the beacon of this process. One thread only; every update takes a few microseconds and makes no system call.

    Raises OSError from the constructor if the file can't be made; never from an update.
    """

    def __init__(self, backend: str = "gpu", directory: Path | None = None) -> None:
        where = beacon_dir() if directory is None else directory
        sweep(where)
        self.pid = os.getpid()
        self.path = where / f"{self.pid}{SUFFIX}"
        other = read_beacon(self.path)
        if other is not None and other.start_ticks != process_start_ticks(self.pid):
            # What the sweep left under our name is of a living engine in another container.
            raise FileExistsError(errno.EEXIST, "another container's engine writes its beacon there", str(self.path))
        fresh = where / f".{self.pid}{SUFFIX}.new"
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Written, not only made that long: writing to a hole through the map on a full file system is a SIGBUS.
            if os.write(handle, bytes(SIZE_BYTES)) != SIZE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(fresh))
            self._map = mmap.mmap(handle, SIZE_BYTES)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        finally:
            os.close(handle)
        self.state = BeaconState.STARTING
        self.steps_started = self.steps_done = 0
        self.step_start_ns = self.last_done_ns = 0
        self.step_sequences = self.step_tokens = self.last_sequences = self.last_tokens = 0
        self.last_step_s = self.limit_s = self.predicted_s = self.busy_s = 0.0
        self.extensions = 0
        self.stuck_rank = -1
        self.requests_running = self.requests_waiting = 0
        self._in_flight: deque[tuple[int, int, float, float]] = deque()
        self._seq = 0
        self._backend = 1 if backend == "cpu" else 0
        self._head(0)
        self._write()
        # Readers find either no file or a whole one.
        os.replace(fresh, self.path)

    def _head(self, workers: int) -> None:
        _HEAD.pack_into(
            self._map, 0, MAGIC, VERSION, self._backend, 0, self.pid, process_start_ticks(self.pid), workers
        )

    def _write(self) -> None:
        view = self._map
        self._seq += 2
        _SEQ.pack_into(view, _SEQ_AT, self._seq - 1)
        hot = _HOT.pack(
            self.steps_started, self.steps_done, self.step_start_ns, self.last_done_ns,
            self.step_sequences, self.step_tokens, self.last_sequences, self.last_tokens,
            self.last_step_s, self.limit_s, self.predicted_s, self.busy_s,
            self.extensions, self.stuck_rank, self.requests_running, self.requests_waiting, self.state,
        )  # fmt: skip
        view[_HOT_AT:_CRC_AT] = hot
        _CRC.pack_into(view, _CRC_AT, zlib.crc32(hot))
        _SEQ.pack_into(view, _SEQ_AT, self._seq)

    def step_started(self, sequences: int, tokens: int, limit_s: float = 0.0, predicted_s: float = 0.0) -> None:
        """A step is handed to the workers: its size, the limit in force and the expected time, if known.

        With asynchronous scheduling or pipeline parallelism a second step is handed over while the first one runs; the
        workers take them one after the other, so the beacon keeps showing the older one until it is done.
        """
        step = (_u32(sequences), _u32(tokens), limit_s, predicted_s)
        self.steps_started += 1
        if len(self._in_flight) < STEPS_IN_FLIGHT_KEPT:
            self._in_flight.append(step)
        if self.steps_started - self.steps_done == 1:
            self._show(time.monotonic_ns())
        self._write()

    def _show(self, now_ns: int) -> None:
        if self._in_flight:
            self.step_sequences, self.step_tokens, self.limit_s, self.predicted_s = self._in_flight[0]
        self.step_start_ns = now_ns
        self.state = BeaconState.STEPPING

    def step_done(self, idle: bool = False) -> float:
        """The oldest step in flight is finished; gives its seconds, counted from when it was the only one running."""
        now_ns = time.monotonic_ns()
        if self.steps_done >= self.steps_started:
            return 0.0
        self.steps_done += 1
        self.last_step_s = max(0, now_ns - self.step_start_ns) / 1e9
        self.busy_s += self.last_step_s
        self.last_done_ns = now_ns
        self.last_sequences, self.last_tokens = self.step_sequences, self.step_tokens
        self.extensions = 0
        self.stuck_rank = -1
        if self._in_flight:
            self._in_flight.popleft()
        if self.steps_started > self.steps_done:
            self._show(now_ns)
        else:
            self.state = BeaconState.IDLE if idle else BeaconState.STEPPING
        self._write()
        return self.last_step_s

    def abandon(self) -> None:
        """No step in flight will finish (the engine raised): nothing runs any more, nothing was learned."""
        self.steps_done = self.steps_started
        self._in_flight.clear()
        self._write()

    def extended(self, limit_s: float, stuck_rank: int = -1, reason: str = "") -> None:
        """The wait for the running step outlasted its limit and goes on: UNHEALTHY, with the new limit."""
        self.extensions += 1
        self.limit_s = limit_s
        self.stuck_rank = stuck_rank
        self.set_state(BeaconState.UNHEALTHY, reason)

    def set_state(self, state: BeaconState, reason: str = "") -> None:
        """Say what the engine is now, and why (cut to 240 bytes)."""
        self.state = state
        cut = reason.encode("utf-8", "replace")[:REASON_BYTES]
        cut = cut.decode("utf-8", "ignore").encode("utf-8")
        _TEXT.pack_into(self._map, _TEXT_AT, len(cut), cut)
        self._write()

    def set_requests(self, running: int, waiting: int) -> None:
        """How many requests the scheduler holds; an observer can't learn it from a metrics page that froze."""
        if (running, waiting) != (self.requests_running, self.requests_waiting):
            self.requests_running, self.requests_waiting = _u32(running), _u32(waiting)
            self._write()

    def set_workers(self, workers: list[Worker]) -> None:
        """Name the worker processes. Only the first 128 are kept; the count tells a reader how many there are."""
        for place, worker in enumerate(workers[:WORKERS_KEPT]):
            ticks = worker.start_ticks or process_start_ticks(worker.pid)
            _WHO.pack_into(self._map, _WHO_AT + place * _WHO.size, worker.pid, worker.rank, ticks)
        self._head(len(workers))
        self._write()

    def close(self) -> None:
        """Say CLOSED and remove the file; safe to call twice."""
        if self._map.closed:
            return
        self.set_state(BeaconState.CLOSED)
        self._map.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def withdraw(self) -> None:
        """Take the beacon back, because nobody will write it any more: a step that it shows as running would never end.

        It doesn't say CLOSED, for the engine works on. Never raises; safe to call twice.
        """
        with contextlib.suppress(Exception):
            self.state = BeaconState.IDLE
            self.abandon()
        with contextlib.suppress(OSError):
            self.path.unlink()
        with contextlib.suppress(Exception):
            self._map.close()


def _u32(value: int) -> int:
    return min(max(0, int(value)), 0xFFFFFFFF)


def parse_beacon(data: bytes) -> BeaconReading | None:
    """The reading in `data`; None if it isn't a beacon, is of another version, or was caught in mid-update."""
    if len(data) < SIZE_BYTES:
        return None
    magic, version, backend, _, pid, start_ticks, total = _HEAD.unpack_from(data, 0)
    if magic != MAGIC or version != VERSION:
        return None
    hot = data[_HOT_AT:_CRC_AT]
    if _CRC.unpack_from(data, _CRC_AT)[0] != zlib.crc32(hot):
        return None
    values = _HOT.unpack(hot)
    try:
        state = BeaconState(values[16])
    except ValueError:
        return None
    length, text = _TEXT.unpack_from(data, _TEXT_AT)
    places = range(_WHO_AT, _WHO_AT + min(total, WORKERS_KEPT) * _WHO.size, _WHO.size)
    workers = tuple(Worker(rank, who, ticks) for who, rank, ticks in (_WHO.unpack_from(data, at) for at in places))
    return BeaconReading(
        pid=pid,
        start_ticks=start_ticks,
        backend="cpu" if backend else "gpu",
        workers=workers,
        workers_total=total,
        state=state,
        steps_started=values[0],
        steps_done=values[1],
        step_start_ns=values[2],
        last_done_ns=values[3],
        step_sequences=values[4],
        step_tokens=values[5],
        last_sequences=values[6],
        last_tokens=values[7],
        last_step_s=values[8],
        limit_s=values[9],
        predicted_s=values[10],
        busy_s=values[11],
        extensions=values[12],
        stuck_rank=values[13],
        requests_running=values[14],
        requests_waiting=values[15],
        reason=text[: min(length, REASON_BYTES)].decode("utf-8", "replace"),
    )


def read_beacon(path: Path) -> BeaconReading | None:
    """One consistent reading of the file; None if there is none, it isn't a beacon, or it never held still.

    Never raises for a missing, unreadable or foreign file. Opens the file anew: the writer may have been replaced.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        for _ in range(READ_TRIES):
            data = os.pread(handle, SIZE_BYTES, 0)
            if len(data) < SIZE_BYTES or data[: len(MAGIC)] != MAGIC:
                return None
            before = _SEQ.unpack_from(data, _SEQ_AT)[0]
            after = _SEQ.unpack(os.pread(handle, _SEQ.size, _SEQ_AT))[0]
            if before == after and before % 2 == 0:
                reading = parse_beacon(data)
                if reading is not None:
                    return reading
    except (OSError, struct.error):
        return None
    finally:
        os.close(handle)
    return None


def find_beacon(pid: int) -> Path | None:
    """The beacon file of EngineCore `pid`, or None.

    Looks where that process would write (its user, its environment, and ours: a guard hands its own down). A process that
    sets its title overwrites the environment that /proc shows, so the files that it has mapped are asked last.
    """
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    places = dict.fromkeys([*candidate_dirs(uid, _environ_of(pid)), *candidate_dirs(uid), *candidate_dirs(uid, {})])
    # An engine in a container writes under its own pid, into its own /run and /dev/shm, which its root link reaches.
    names = dict.fromkeys([f"{pid}{SUFFIX}", f"{_inner_pid(pid)}{SUFFIX}"])
    for root in ("", f"/proc/{pid}/root"):
        for place in places:
            for name in names:
                path = Path(f"{root}{place}") / name
                if _is_of(path, uid):
                    return path
    for mapped in _mapped(pid, tuple(f"/{name}" for name in names)):
        for path in (Path(mapped), Path(f"/proc/{pid}/root{mapped}")):
            if _is_of(path, uid):
                return path
    return None


def _is_of(path: Path, uid: int) -> bool:
    """Anybody may plant a file in a shared place: only the engine's own user speaks for it."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_uid == uid


def _mapped(pid: int, ends: tuple[str, ...]) -> list[str]:
    """Files that the process has mapped and whose path ends like that."""
    found: list[str] = []
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                path = line[line.find("/") :].rstrip("\n")
                if path.endswith(ends) and path not in found:
                    found.append(path)
    except OSError:
        pass
    return found


def _inner_pid(pid: int) -> int:
    """The process's pid in its own pid namespace; `pid` itself where that can't be read."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return pid


def _environ_of(pid: int) -> dict[str, str]:
    wanted = (ENV_DIR, "XDG_RUNTIME_DIR", "TMPDIR")
    return {name: value for name, value in read_environ(pid).items() if name in wanted}
