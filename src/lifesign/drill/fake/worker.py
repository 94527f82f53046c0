"""The fake worker: loads nothing, answers calls, and dies as it is told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

from lifesign.drill.fake import chains
from lifesign.drill.fake.process import Faults, Log, Pipe, Raised, Settings, name_process, release_of
from lifesign.drill.model import Frame

STEP_POINTS = ("worker.step", "worker.forward", "worker.sample")


class Worker:
    """One rank. `run` returns the exit code."""

    def __init__(self, settings: Settings, rank: int, pipe: Pipe) -> None:
        self.settings, self.rank, self.pipe = settings, rank, pipe
        self.release = release_of(settings)
        self.log = Log(self.release, "worker", rank, settings.workers)
        self.faults = Faults("worker", rank, self.release)

    def run(self) -> int:
        """Load, report ready, serve calls until EngineCore goes away."""
        name_process("VLLM::Worker")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches everybody; EngineCore decides
        if not self._load():
            return 1
        self.pipe.send({"ready": True})
        while True:
            call = self.pipe.receive()
            if call is None:
                self.log.info("parent", "Parent process exited, terminating worker queues")
                return 0
            self.pipe.send(self._answer(str(call["method"])))

    def _load(self) -> bool:
        ranks = self.settings.workers
        self.log.info(
            "world",
            f"world_size={ranks} rank={self.rank} local_rank={self.rank} distributed_init_method=tcp://127.0.0.1:41877 backend=nccl",
        )
        error = self.faults.at("worker.device")
        if error is None:
            self.log.info("load", f"Starting to load model {self.settings.model}...")
            error = self.faults.at("worker.build") or self.faults.at("worker.load")
        if error is not None:
            self._print("worker_failed", "WorkerProc failed to start.", chains.WORKER_MAIN, error)
            return False
        self.log.info("loaded", "Loading weights took 0.04 seconds")
        self.log.info("size", "Model loading took 15.2683 GiB and 0.06 seconds")
        return True

    def _answer(self, method: str) -> dict[str, object]:
        """Do one call; an exception is logged here and its text handed to EngineCore, as vLLM does."""
        base: Iterable[Frame] = chains.WORKER_CALL
        error: Raised | None = None
        if method == "determine_available_memory":
            error = self.faults.at("worker.profile")
        elif method == "compile_or_warm_up_model":
            error = self.faults.at("worker.capture")
        else:
            base = chains.WORKER_BUSY
            for point in STEP_POINTS:
                error = self.faults.at(point)
                if error is not None:
                    break
            else:
                time.sleep(self.settings.step_s)
        if error is None:
            return {"ok": True}
        self._print("worker_error", "WorkerProc hit an exception.", base, error)
        return {"error": error.text}

    def _print(self, key: str, first: str, base: Iterable[Frame], error: Raised) -> None:
        text = chains.traceback_text(self.release, (*base, *error.frames), error.shown)
        twice = f"\n{text}\n" if self.release.version == "0.32.0" and key == "worker_error" else ""
        self.log.error(key, f"{first}\n{text}{twice}")


def main(settings: Settings, rank: int, descriptor: int) -> int:
    """Entry point of the worker process."""
    worker = Worker(settings, rank, Pipe.inherited(descriptor))
    try:
        return worker.run()
    except BrokenPipeError:
        os._exit(1)
