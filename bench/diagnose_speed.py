"""Speed and memory of `lifesign diagnose`, as ratios against grep on the same file in the same run.

    python bench/diagnose_speed.py [--mb 1000] [--rounds 3]

Prints: a healthy log with one death at its end (target: ratio <= 1.0), an error storm in which a third of all lines are
prefixed tracebacks (target: <= 3), peak memory of both (target: <= 100 MB), and start-up times against bare Python.
Machines are noisy: the best of the rounds counts on both sides.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATTERN = "ERROR|Traceback|CUDA error|OOM|illegal|SIGSEGV|Timeout"
DEATH = Path(__file__).resolve().parent.parent / "corpus" / "lab" / "oom_serving_mlp.log"


def healthy_block(rng: random.Random, lines: int) -> bytes:
    """Routine of a serving engine: statistics and access lines."""
    rows = []
    for number in range(lines):
        clock = f"{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
        if number % 3 == 0:
            rows.append(
                f"(APIServer pid=4117) INFO 09-12 {clock} [loggers.py:271] Engine 000: Avg prompt throughput: {rng.random() * 900:.1f} tokens/s, "
                f"Avg generation throughput: {rng.random() * 900:.1f} tokens/s, Running: {rng.randint(0, 99)} reqs, Waiting: 0 reqs, "
                f"GPU KV cache usage: {rng.random() * 90:.1f}%, Prefix cache hit rate: 0.0%"
            )
        else:
            rows.append(
                f'(APIServer pid=4117) INFO:     10.0.0.{number % 250}:{rng.randint(1024, 65000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
            )
    return ("\n".join(rows) + "\n").encode()


def storm_block(rng: random.Random, lines: int) -> bytes:
    """A third of the lines are a traceback with vLLM's header, woven from four processes."""
    frames = [
        "Traceback (most recent call last):",
        '  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/async_llm.py", line 579, in generate',
        "    out = q.get_nowait() or await q.get()",
        "                            ^^^^^^^^^^^^^",
        '  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/output_processor.py", line 85, in get',
        "    raise output",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ]
    calm = healthy_block(rng, lines * 2 // 3).split(b"\n")[:-1]
    rows: list[bytes] = []
    for number, row in enumerate(calm):
        rows.append(row)
        if number % 2:
            text = frames[(number // 2) % len(frames)]
            rows.append(
                f"(APIServer_{number % 4} pid={4117 + number % 4}) ERROR 09-12 10:00:{number % 60:02d} [serving.py:812] {text}".encode()
            )
    return b"\n".join(rows) + b"\n"


def build(path: Path, block: bytes, megabytes: int) -> None:
    """`megabytes` of copies of `block`, then a recorded death."""
    head = DEATH.read_bytes().split(b"Application startup complete")[0]
    with path.open("wb") as file:
        file.write(head + b"Application startup complete.\n")
        while file.tell() < megabytes * 1_000_000:
            file.write(block)
        file.write(DEATH.read_bytes())


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds and peak memory (MB) of one run."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as sink:
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.DEVNULL)
        _, _, usage = os.wait4(child.pid, 0)
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def best(command: list[str], rounds: int) -> tuple[float, float]:
    runs = [timed(command) for _ in range(rounds)]
    return min(seconds for seconds, _ in runs), max(memory for _, memory in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rng = random.Random(7)
    lifesign = [sys.executable, "-m", "lifesign.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        for name, block, target in (
            ("healthy", healthy_block(rng, 30_000), 1.0),
            ("storm", storm_block(rng, 30_000), 3.0),
        ):
            path = Path(folder) / f"{name}.log"
            build(path, block, args.mb)
            grep, _ = best(["grep", "-E", PATTERN, str(path)], args.rounds)
            ours, memory = best([*lifesign, "diagnose", str(path)], args.rounds)
            print(
                f"{name:8s} {args.mb} MB   grep -E {grep:6.2f} s   diagnose {ours:6.2f} s   ratio {ours / grep:5.2f} (target {target})   peak {memory:5.0f} MB (target 100)"
            )
            path.unlink()
        small = Path(folder) / "small.log"
        build(small, healthy_block(rng, 6_000), 1)
        bare, _ = best([sys.executable, "-c", "pass"], args.rounds * 2)
        for name, command, target_s in (
            ("--help", [*lifesign, "--help"], 0.15),
            ("explain", [*lifesign, "explain", "device-oom"], 0.15),
            ("diagnose 1 MB", [*lifesign, "diagnose", str(small)], 0.30),
        ):
            seconds, _ = best(command, args.rounds * 2)
            print(f"{name:14s} {seconds - bare:6.3f} s above bare Python ({bare:.3f} s), target {target_s}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
