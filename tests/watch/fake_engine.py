"""A small engine of real processes for the tests of `watch`: a server with a metrics page, EngineCore, two workers.

`python fake_engine.py server [--no-beacon] [--no-http] [--old-metrics]` prints `{"server": pid, "core": pid, "workers": [...],
"port": n}` once it serves. It works in steps of 0.3 s for ever; the tests stop, kill or confuse its processes.
"""

from __future__ import annotations

import ctypes
import http.server
import json
import os
import subprocess
import sys
import threading
import time

STEP_S = 0.3
state = {"steps": 0, "running": 2}


def title(name: str) -> None:
    """What setproctitle does, as far as the kernel's short name goes."""
    ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)


def work(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        json.loads(json.dumps([{"id": i, "tokens": list(range(40))} for i in range(100)]))


def worker(rank: int) -> None:
    title(f"VLLM::Worker_TP{rank}")
    print("up", flush=True)
    for _ in sys.stdin:
        work(STEP_S)
        print("done", flush=True)


def core(options: list[str]) -> None:
    title("VLLM::EngineCore")
    me = [sys.executable, __file__]
    workers = [subprocess.Popen([*me, "worker", str(rank)], stdin=-1, stdout=-1, text=True) for rank in (0, 1)]
    for one in workers:
        one.stdout.readline()
    beacon = None
    if "--no-beacon" not in options:
        from lifesign.guard.detector.beacon import BeaconWriter, Worker

        beacon = BeaconWriter("cpu")
        beacon.set_workers([Worker(rank, one.pid) for rank, one in enumerate(workers)])
        beacon.set_requests(2, 0)
    print(json.dumps({"core": os.getpid(), "workers": [one.pid for one in workers]}), flush=True)
    while True:
        if beacon:
            beacon.step_started(4, 4, 14.0, STEP_S)
        for one in workers:
            one.stdin.write("step\n")
            one.stdin.flush()
        for one in workers:
            if not one.stdout.readline():
                os._exit(1)
        if beacon:
            beacon.step_done()
        print("step", flush=True)


class Page(http.server.BaseHTTPRequestHandler):
    old = False

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404)
            return
        label = '{engine="0",model_name="tiny"}'
        lines = [f"vllm:num_requests_running{label} {state['running']}.0", f"vllm:num_requests_waiting{label} 0.0"]
        if not self.old:
            lines += [
                f"vllm:generation_tokens_total{label} {4 * state['steps']}",
                f"vllm:prompt_tokens_total{label} 7.0",
                f"vllm:iteration_tokens_total_count{label} {state['steps']}",
                f"vllm:kv_cache_usage_perc{label} 0.1",
            ]
        body = ("# HELP\n" + "\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def server(options: list[str]) -> None:
    title("VLLM::APIServer")
    engine = subprocess.Popen([sys.executable, __file__, "core", *options], stdout=-1, text=True)
    about = json.loads(engine.stdout.readline())
    about |= {"server": os.getpid(), "port": 0}
    Page.old = "--old-metrics" in options
    if "--no-http" not in options:
        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        about["port"] = web.server_port
        threading.Thread(target=web.serve_forever, daemon=True).start()
    print(json.dumps(about), flush=True)
    for _ in engine.stdout:
        state["steps"] += 1
    engine.wait()
    time.sleep(600)


if __name__ == "__main__":
    kind, rest = sys.argv[1], sys.argv[2:]
    if kind == "worker":
        worker(int(rest[0]))
    else:
        {"core": core, "server": server}[kind](rest)
