"""A small program that behaves like an engine: server, EngineCore and worker as three processes, and ways to die.

    fake_engine.py [--port N] [--start-s S] [--die HOW] [--after S] [--exit-code N] [--ignore-term] [--noise LINES]

HOW: none, worker-exception (the traceback of a real out-of-memory death), usage (exit 2), model (no such model),
api-exit (exit code N), quick (fails before anything). Signals are up to the test. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import http.server
import os
import signal
import sys
import threading
import time

OOM = """\
(Worker_TP0 pid={pid}) ERROR 11-30 10:00:00 [multiproc_executor.py:812] WorkerProc hit an exception.
(Worker_TP0 pid={pid}) ERROR 11-30 10:00:00 [multiproc_executor.py:812] Traceback (most recent call last):
(Worker_TP0 pid={pid}) ERROR 11-30 10:00:00 [multiproc_executor.py:812]   File "/usr/lib/python3/site-packages/vllm/v1/worker/gpu_model_runner.py", line 3112, in execute_model
(Worker_TP0 pid={pid}) ERROR 11-30 10:00:00 [multiproc_executor.py:812]     hidden_states = self._model_forward(
(Worker_TP0 pid={pid}) ERROR 11-30 10:00:00 [multiproc_executor.py:812] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 800.00 MiB is free.
(EngineCore pid={core}) ERROR 11-30 10:00:00 [core.py:1101] EngineCore encountered a fatal error.
(EngineCore pid={core}) ERROR 11-30 10:00:00 [core.py:1101] RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate 1.50 GiB.', please check the stack trace above for the root cause
"""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def title(name: str) -> None:
    """The kernel's name of this process, as setproctitle would leave it (cut to 15 characters by the kernel)."""
    ctypes.CDLL(None).prctl(15, f"VLLM::{name}".encode()[:15], 0, 0, 0)


def worker(args: argparse.Namespace) -> None:
    title("Worker_TP0")
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = os.getppid()
    time.sleep(args.start_s)
    started = time.monotonic()
    while os.getppid() == parent or args.keep_orphans:
        time.sleep(0.05)
        if args.die == "worker-exception" and time.monotonic() - started > args.after:
            sys.stdout.write(OOM.format(pid=os.getpid(), core=parent))
            sys.stdout.flush()
            os._exit(1)
    os._exit(0)


def core(args: argparse.Namespace) -> None:
    title("EngineCore")
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        worker(args)
    say(
        f"(EngineCore pid={os.getpid()}) INFO 11-30 10:00:00 [core.py:112] Initializing a V1 LLM engine (v0.32.0) with config: model='fake'"
    )
    parent = os.getppid()
    while os.getppid() == parent or args.keep_orphans:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            if status != 256:
                say(
                    f"(EngineCore pid={os.getpid()}) ERROR 11-30 10:00:01 [multiproc_executor.py:301] Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."
                )
            os._exit(1)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os._exit(0)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"ok"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def serve(args: argparse.Namespace) -> int:
    say(f"(APIServer pid={os.getpid()}) INFO 11-30 10:00:00 [utils.py:299] vLLM API server version 0.32.0")
    if args.die == "quick":
        say("something went wrong")
        return args.exit_code
    if args.die == "usage":
        say("usage: vllm serve [model_tag] [options]")
        say("vllm serve: error: unrecognized arguments: --no-such-flag")
        return 2
    if args.die == "model":
        say(
            "OSError: Can't load the configuration of '/srv/none'. If you were trying to load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same name."
        )
        return 1
    # Not an Event: its `set` in a signal handler can wait for the lock that the interrupted `wait` holds.
    asked: list[int] = []

    def on_term(number: int, frame: object) -> None:
        if not args.ignore_term:
            asked.append(number)

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    child = os.fork()
    if child == 0:
        core(args)
    time.sleep(args.start_s)
    server = None
    if args.port:
        http.server.ThreadingHTTPServer.allow_reuse_address = True
        server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    say("INFO:     Application startup complete.")
    for start in range(0, args.noise, 1000):
        say("\n".join(f"INFO line {index}" for index in range(start, min(start + 1000, args.noise))))
    started = time.monotonic()
    while not asked:
        pid = 0 if args.stay else os.waitpid(child, os.WNOHANG)[0]
        if pid:
            say(
                f"(APIServer pid={os.getpid()}) ERROR 11-30 10:00:01 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
            )
            say("INFO:     Application shutdown complete.")
            return 0
        if args.die == "api-exit" and time.monotonic() - started > args.after:
            return args.exit_code
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    say("INFO:     Application shutdown complete.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--start-s", type=float, default=0.2)
    parser.add_argument("--die", default="none")
    parser.add_argument("--after", type=float, default=0.3)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--noise", type=int, default=0)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--keep-orphans", action="store_true")
    parser.add_argument("--stay", action="store_true")
    args, _ = parser.parse_known_args()
    return serve(args)


if __name__ == "__main__":
    sys.exit(main())
