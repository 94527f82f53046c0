#!/usr/bin/env python3
"""What guard costs, as measured on this machine: processor share beside a quiet engine, delay of a log line, throughput.

    python bench/guard_overhead.py [--seconds 30] [--json]

* share: processor time of guard and its log keeper per second of wall time, around a fake engine with three processes
  and a metrics page, after a warm-up. A real engine has more threads; what a look at those costs is in bench of watch.
* delay: a line is stamped when the engine writes it, and again when it comes out of guard's stdout; 10,000 lines a
  second. The same through a bare pipe is measured beside it: the difference is guard's.
* throughput: 2 GiB of log as fast as it goes, in 100-byte lines, with rotation and compression, nothing lost.

Prints figures and judges nothing: no test depends on them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
GUARD = [sys.executable, "-m", "lifesign.cli.main", "guard", "--http", "off"]
FAKE = [sys.executable, str(ROOT / "tests" / "guard" / "fake_engine.py")]
# Writes RATE lines a second for SECONDS, each with the time at which it was written.
TICKER = """
import sys, time
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
out = sys.stdout
start = time.monotonic()
count = 0
while (now := time.monotonic()) - start < seconds:
    due = int((now - start) * rate)
    while count < due:
        out.write("%d %s\\n" % (time.monotonic_ns(), "x" * 80))
        out.flush()
        count += 1
    time.sleep(0.0005)
"""
# Writes a number of bytes as fast as it goes.
FLOOD = """
import os, sys
total = int(sys.argv[1])
block = b"".join(b"INFO %09d %s\\n" % (i, b"y" * 84) for i in range(10000))
left = total
while left > 0:
    left -= os.write(1, block[:left] if left < len(block) else block)
"""


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def keeper_of(pid: int) -> int | None:
    """The log keeper among the children of a guard."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == pid and b"logkeeper" in words:
            return int(name)
    return None


def share(seconds: float) -> dict[str, float]:
    """Processor share (of one core) of guard and keeper around a quiet engine that serves."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*GUARD, "--state-dir", folder, "--engine-url", "http://127.0.0.1:48123", "--", *FAKE, "--port", "48123"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            while b"serves after" not in process.stderr.readline():
                pass
            time.sleep(10)  # what is learned and imported once is no running cost
            keeper = keeper_of(process.pid)
            before = cpu_s(process.pid), cpu_s(keeper) if keeper else 0.0
            started = time.monotonic()
            time.sleep(seconds)
            wall = time.monotonic() - started
            after = cpu_s(process.pid), cpu_s(keeper) if keeper else 0.0
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    return {
        "guard_percent_of_a_core": round(100 * (after[0] - before[0]) / wall, 3),
        "keeper_percent_of_a_core": round(100 * (after[1] - before[1]) / wall, 3),
        "seconds": round(wall, 1),
    }


def read_delays(stream: IO[bytes], delays_ns: list[int]) -> None:
    """Collect, for each line, now minus the stamp in it; chunks are read raw so that reading costs little."""
    rest = b""
    while chunk := os.read(stream.fileno(), 1 << 16):
        now = time.monotonic_ns()
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            stamp = line.split(b" ", 1)[0]
            if stamp.isdigit():
                delays_ns.append(now - int(stamp))


def delay(rate: int, seconds: float, guarded: bool) -> dict[str, float]:
    """Percentiles of the way of a line, in milliseconds, through guard or through a bare pipe."""
    command = [sys.executable, "-c", TICKER, str(rate), str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        if guarded:
            command = [*GUARD, "--no-detector", "--state-dir", folder, "--", *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        delays_ns: list[int] = []
        reader = threading.Thread(target=read_delays, args=(process.stdout, delays_ns))
        reader.start()
        process.wait()
        reader.join()
        logs = Path(folder).glob("logs/*/*.log")
        kept = sum(path.read_bytes().count(b"\n") for path in logs) if guarded else len(delays_ns)
    values = sorted(one / 1e6 for one in delays_ns)
    return {
        "lines": len(values),
        "lost_lines": kept - len(values),
        "p50_ms": round(statistics.median(values), 3),
        "p99_ms": round(values[int(len(values) * 0.99)], 3),
        "max_ms": round(values[-1], 3),
    }


def throughput(total: int) -> dict[str, Any]:
    """MB/s through guard into a reader of its stdout, and whether every byte came out and was kept."""
    from lifesign.guard.logstore import read_segment, segments

    with tempfile.TemporaryDirectory() as folder:
        command = [
            *GUARD,
            "--no-detector",
            "--log-keep-mib",
            "8192",
            "--state-dir",
            folder,
            "--",
            sys.executable,
            "-c",
            FLOOD,
            str(total),
        ]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        shown, first_s = 0, 0.0
        while chunk := os.read(process.stdout.fileno(), 1 << 20):
            first_s = first_s or time.monotonic()
            shown += len(chunk)
        ended_s = time.monotonic()
        process.wait()
        (life,) = (Path(folder) / "logs").iterdir()
        kept = sum(len(part) for _, path in segments(life) for part in read_segment(path))
    return {
        "MB_per_s": round(total / 1e6 / (ended_s - first_s), 1),
        "seconds": round(ended_s - started, 1),
        "shown_bytes": shown,
        "kept_bytes": kept,
        "lost_bytes": 2 * total - shown - kept,
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    figures = {
        "load_average": os.getloadavg()[0],
        "share": share(options.seconds),
        "line_bare": delay(options.rate, min(options.seconds, 10.0), guarded=False),
        "line_guarded": delay(options.rate, min(options.seconds, 10.0), guarded=True),
        "throughput": throughput(options.mib << 20),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:<14} {value}")


if __name__ == "__main__":
    main()
