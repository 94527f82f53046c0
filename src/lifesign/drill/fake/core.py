"""The fake EngineCore: starts workers, schedules requests, calls the workers with a time limit, and dies as vLLM does.

With `--patient` the limit is a reason to look instead of a reason to kill: whether the worker is alive and uses CPU decides
(`lifesign.guard.detector.policy.simple_verdict`). That is the difference which `lifesign drill run slow-step` shows.
"""

from __future__ import annotations

import contextlib
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from lifesign.drill.fake import chains
from lifesign.drill.fake.process import Faults, Log, Pipe, Raised, Settings, name_process, release_of
from lifesign.drill.model import Frame, Json

LOOK_EVERY_S = 1.0
WORKING_SHARE = 0.05  # of one CPU over LOOK_EVERY_S
SEGFAULT_TEXT = (
    "!!!!!!! Segfault encountered !!!!!!!\n"
    '  File "./signal/../sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c", line 0, in 0x00007fc2fe65a04f\n'
    '  File "<unknown>", line 0, in at::native::add_(at::Tensor&, at::Tensor const&, c10::Scalar const&)\n'
    '  File "<unknown>", line 0, in _start\n'
    '  File "<unknown>", line 0, in 0xffffffffffffffff\n'
)


class DeadError(Exception):
    """The engine can't go on; the log has been written."""


class Stopped(Exception):
    """SIGTERM or SIGINT arrived; the argument is its name."""


class Rank:
    """A worker process and our end of its pipe."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], pipe: Pipe) -> None:
        self.number, self.process, self.pipe = number, process, pipe


class Core:
    """EngineCore. `run` returns the exit code."""

    def __init__(self, settings: Settings, pipe: Pipe) -> None:
        self.settings, self.api = settings, pipe
        self.release = release_of(settings)
        self.log = Log(self.release, "core")
        self.faults = Faults("core", 0, self.release)
        self.ranks: list[Rank] = []
        self.waiting: queue.Queue[Json] = queue.Queue()
        self.running: list[dict[str, Any]] = []
        self.steps = 0

    def run(self) -> int:
        """Start, serve until told to stop or until something dies."""
        name_process("VLLM::EngineCore")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            self._start()
            self.api.send({"ready": True})
            threading.Thread(target=self._read_requests, daemon=True).start()
            while True:
                self._loop_once()
        except DeadError:
            self.api.send({"dead": True})
            return 1
        except Stopped as stop:
            if "core_stop" in self.release.at:
                text = (
                    f"[shutdown] EngineCore: trigger received signal={stop}"
                    if self.release.shutdown_lines
                    else "Shutdown initiated (timeout=0)"
                )
                self.log.info("core_stop", text)
            return 0
        finally:
            self._end_workers()

    @staticmethod
    def _on_signal(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    def _start(self) -> None:
        self.log.info(
            "core",
            f"Initializing a V1 LLM engine (v{self.release.version}) with config: model={self.settings.model!r}, "
            f"speculative_config=None, tokenizer={self.settings.model!r}, dtype=torch.bfloat16, max_seq_len=4096, "
            f"tensor_parallel_size={self.settings.workers}, quantization=None, enforce_eager=False, kv_cache_dtype=auto",
        )
        for number in range(self.settings.workers):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "lifesign.drill.fake", "--role", "worker", "--rank", str(number)]
            process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), *self.settings.argv()], pass_fds=[theirs.fileno()]
            )
            theirs.close()
            self.ranks.append(Rank(number, process, Pipe(ours)))
        for rank in self.ranks:
            if rank.pipe.receive() is None:
                self._say_native_death(rank)
                self._fail_to_start(chains.core_building(self.release), chains.BUILDING)
        self._call_at_start("determine_available_memory")
        error = self.faults.at("core.kv")
        if error is not None:
            self._fail_to_start([*chains.core_start(self.release), *error.frames], error.shown)
        self.log.info("kv", "GPU KV cache size: 102,400 tokens")
        self.log.info("concurrency", "Maximum concurrency for 4,096 tokens per request: 25.00x")
        self._call_at_start("compile_or_warm_up_model")
        self.log.info("init", "init engine (profile, create kv cache, warmup model) took 0.10 seconds")

    def _call_at_start(self, method: str) -> None:
        for rank in self.ranks:
            rank.pipe.send({"method": method})
        for rank in self.ranks:
            answer = rank.pipe.receive()
            frames = chains.core_profiling(self.release)
            if answer is None:
                self._say_worker_died(rank)
                self._fail_to_start([*frames, *chains.RING_CANCELLED], "RuntimeError: cancelled")
            elif "error" in answer:
                self._fail_to_start([*frames, *chains.RPC_ERROR], self._worker_failed(str(answer["error"])))

    def _fail_to_start(self, frames: list[Frame], last: str) -> None:
        text = chains.traceback_text(self.release, frames, last)
        self.log.error("start_failed", f"EngineCore failed to start.\n{text}")
        self.log.plain(f"Process {self.release.core_name}:\n{text}")
        raise DeadError

    def _read_requests(self) -> None:
        while True:
            message = self.api.receive()
            if message is None:
                # The API server is gone. vLLM's EngineCore stays behind as an orphan; so do we, for half a minute.
                time.sleep(30)
                self._end_workers()
                signal.raise_signal(signal.SIGKILL)
                return
            self.waiting.put(message)

    def _loop_once(self) -> None:
        while len(self.running) < self.settings.max_num_seqs and not self.waiting.empty():
            self.running.append(dict(self.waiting.get()))
        if not self.running:
            self._watch_idle()
            return
        self._step()

    def _watch_idle(self) -> None:
        """Wait for a request, noticing meanwhile when a worker goes away."""
        with contextlib.suppress(queue.Empty):
            self.running.append(dict(self.waiting.get(timeout=0.05)))
        readable, _, _ = select.select([rank.pipe.connection for rank in self.ranks], [], [], 0)
        for rank in self.ranks:
            if rank.pipe.connection in readable and rank.pipe.receive() is None:
                self._die_with_worker(rank)

    def _step(self) -> None:
        self.steps += 1
        if any(request.get("grammar") for request in self.running):
            self._raise_here(self.faults.at("core.grammar"))
        self._raise_here(self.faults.at("core.schedule"))
        for rank in self.ranks:
            rank.pipe.send({"method": "execute_model", "sequences": len(self.running)})
        for rank in self.ranks:
            answer = self._await(rank)
            if answer is None:
                self._die_with_worker(rank)
            elif "error" in answer:
                last = self._worker_failed(str(answer["error"]))
                self._die([*chains.core_step(self.release), *chains.RPC_ERROR], last)
        self._raise_here(self.faults.at("core.update"))
        for request in list(self.running):
            request["left"] -= 1
            done = request["left"] <= 0
            self.api.send({"id": request["id"], "text": " tok", "done": done})
            if done:
                self.running.remove(request)

    def _await(self, rank: Rank) -> Json | None:
        """The answer of one rank; the fixed limit kills, the patient one looks."""
        try:
            return rank.pipe.receive(self.settings.rpc_timeout_s)
        except TimeoutError:
            if self.settings.patient:
                return self._be_patient(rank)
        self._die_of_timeout()
        return None

    def _be_patient(self, rank: Rank) -> Json | None:
        from lifesign.guard.detector.policy import simple_verdict

        started_s = time.monotonic()
        before_s = _cpu_s(rank.process.pid)
        while True:
            try:
                answer = rank.pipe.receive(LOOK_EVERY_S)
            except TimeoutError:
                now_s = _cpu_s(rank.process.pid)
                alive = now_s is not None and rank.process.poll() is None
                used_s = max(0.0, (now_s or 0.0) - (before_s or 0.0))
                working = used_s >= WORKING_SHARE * LOOK_EVERY_S
                over_s = self.settings.rpc_timeout_s + time.monotonic() - started_s
                self.log.record(
                    "WARNING",
                    "worker_died",
                    f"lifesign: execute_model has taken {over_s:.1f} s (limit {self.settings.rpc_timeout_s:g} s); worker rank "
                    f"{rank.number} pid {rank.process.pid} used {used_s:.2f} s of CPU in the last {LOOK_EVERY_S:g} s: "
                    f"{'UNHEALTHY, waiting on' if working else 'no sign of work'}",
                )
                if simple_verdict(alive, working) == "dead":
                    self._die_of_timeout()
                before_s = now_s
            else:
                if answer is not None:
                    self.log.info("worker_died", f"lifesign: worker rank {rank.number} answered; HEALTHY again")
                return answer

    def _worker_failed(self, text: str) -> str:
        return f"RuntimeError: Worker failed with error '{text}', please check the stack trace above for the root cause"

    def _raise_here(self, error: Raised | None) -> None:
        if error is not None:
            self._die([*chains.core_step(self.release)[:3], *error.frames], error.shown)

    def _die_of_timeout(self) -> None:
        step = chains.core_step(self.release)
        inner = chains.traceback_text(self.release, chains.RING_TIMEOUT, "TimeoutError")
        outer = chains.traceback_text(
            self.release, [*step, *chains.RPC_TIMEOUT], "TimeoutError: RPC call to execute_model timed out."
        )
        self._dump()
        self._fatal(inner + chains.CHAINED + outer)

    def _die_with_worker(self, rank: Rank) -> None:
        self._say_worker_died(rank)
        self._die([*chains.core_step(self.release), *chains.RING_CANCELLED], "RuntimeError: cancelled")

    def _say_native_death(self, rank: Rank) -> int | None:
        try:
            code: int | None = rank.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            code = None
        if code == -signal.SIGSEGV:
            self.log.plain(SEGFAULT_TEXT, prefixed=False)
        return code

    def _say_worker_died(self, rank: Rank) -> None:
        code = self._say_native_death(rank)
        shown = f" (exit code: {code})" if self.release.exit_code_in_death else ""
        self.log.error(
            "worker_died", f"Worker proc VllmWorker-{rank.number} died unexpectedly{shown}, shutting down executor."
        )

    def _die(self, frames: list[Frame], last: str) -> None:
        self._dump()
        self._fatal(chains.traceback_text(self.release, frames, last))

    def _dump(self) -> None:
        names = [str(request["id"]) for request in self.running]
        self.log.error(
            "dump",
            f"Dumping input data for V1 LLM engine (v{self.release.version}) with config: model={self.settings.model!r}",
        )
        self.log.error(
            "dump",
            f"Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[], scheduled_cached_reqs={names}, "
            f"total_num_scheduled_tokens={len(names)}, finished_req_ids=[])",
        )
        self.log.error(
            "dump", f"Dumping scheduler stats: SchedulerStats(num_running_reqs={len(names)}, num_waiting_reqs=0)"
        )

    def _fatal(self, text: str) -> None:
        self.log.error("fatal", f"EngineCore encountered a fatal error.\n{text}")
        if self.release.repeats_fatal:
            self.log.plain(f"Process {self.release.core_name}:\n{text}")
        raise DeadError

    def _end_workers(self) -> None:
        for rank in self.ranks:
            rank.pipe.connection.close()
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGCONT)
                rank.process.terminate()
        for rank in self.ranks:
            try:
                rank.process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait(timeout=5)


def _cpu_s(pid: int) -> float | None:
    """CPU seconds that a process has used; None when it is gone."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def main(settings: Settings, descriptor: int) -> int:
    """Entry point of the EngineCore process."""
    return Core(settings, Pipe.inherited(descriptor)).run()
