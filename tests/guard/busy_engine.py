"""A fake engine that really computes: steps of given processor time, counters on a metrics page, all steered by a file.

    busy_engine.py --port N --control FILE

FILE holds JSON: step_cpu_s (processor seconds of a step), sequences (shown as running), page_delay_s, spin (1: the next
step never ends), quiet (1: steps walk over memory that is there already, without a page fault or a switch). It is read again before each step and each page. Three processes with the titles of vLLM, like fake_engine.py. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import http.server
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path

DEFAULTS = {"step_cpu_s": 0.05, "sequences": 1, "page_delay_s": 0.0, "spin": 0.0, "quiet": 0.0}
PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {sequences}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:prompt_tokens_total{{engine="0",model_name="m"}} 5
vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {steps}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {finished}
"""


def title(name: str) -> None:
    ctypes.CDLL(None).prctl(15, f"VLLM::{name}".encode()[:15], 0, 0, 0)


def read_control(path: Path) -> dict[str, float]:
    try:
        return {**DEFAULTS, **json.loads(path.read_text())}
    except (OSError, ValueError):
        return dict(DEFAULTS)


def compute(cpu_s: float) -> None:
    """Spend processor time the way a forward pass does: layer after layer, over fresh memory.

    An anonymous map each time: an allocator that gives the same block again would look like an empty loop.
    """
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        block = mmap.mmap(-1, 1 << 20)
        for at in range(0, len(block), 4096):
            block[at] = 1
        block.close()


def walk(weights: memoryview, cpu_s: float) -> None:
    """Spend processor time as one thread of a long prefill was seen to: over the same weights again and again."""
    until = time.process_time() + cpu_s
    total = 0
    while time.process_time() < until:
        for start in range(0, len(weights), 1 << 20):
            total += sum(weights[start : start + (1 << 20) : 4096])


def spin() -> None:
    """A livelock: busy for ever, and nothing comes of it."""
    while True:
        pass


def worker(counters: mmap.mmap, control: Path) -> None:
    title("Worker_TP0")
    parent = os.getppid()
    steps = 0
    weights = memoryview(b"\1" * (64 << 20))
    while os.getppid() == parent:
        settings = read_control(control)
        if settings["spin"]:
            spin()
        if settings["quiet"]:
            walk(weights, settings["step_cpu_s"])
        else:
            compute(settings["step_cpu_s"])
        steps += 1
        counters[:8] = struct.pack("<Q", steps)
        time.sleep(0.02)
    os._exit(0)


def core(counters: mmap.mmap, control: Path) -> None:
    title("EngineCore")
    child = os.fork()
    if child == 0:
        worker(counters, control)
    parent = os.getppid()
    while os.getppid() == parent:
        if os.waitpid(child, os.WNOHANG)[0]:
            os._exit(1)
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control", type=Path, required=True)
    args = parser.parse_args()
    counters = mmap.mmap(-1, 4096)
    # Not an Event: its `set` in a signal handler can wait for the lock that the interrupted `wait` holds.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    child = os.fork()
    if child == 0:
        core(counters, args.control)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            control = read_control(args.control)
            steps = struct.unpack("<Q", counters[:8])[0]
            text = "ok"
            if self.path == "/metrics":
                time.sleep(control["page_delay_s"])
                sequences = int(control["sequences"])
                text = PAGE.format(sequences=sequences, tokens=steps * sequences, steps=steps, finished=steps // 20)
            elif self.path == "/v1/models":
                text = '{"data": [{"id": "m"}]}'
            self.answer(text)

        def do_POST(self) -> None:
            """One token, once the worker has made another step: never, while it spins."""
            before = struct.unpack("<Q", counters[:8])[0]
            while struct.unpack("<Q", counters[:8])[0] == before:
                time.sleep(0.05)
            self.answer("{}")

        def answer(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("INFO:     Application startup complete.", flush=True)
    while not asked:
        time.sleep(0.1)
        if os.waitpid(child, os.WNOHANG)[0]:
            return 0
    os.kill(child, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
