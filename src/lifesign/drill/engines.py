"""Which engine a drill runs against, and the command and environment that start it for a given fault."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lifesign.drill import models
from lifesign.drill.fake.dialect import DEFAULT_RELEASE, RELEASES
from lifesign.drill.model import EngineName, Fault
from lifesign.errors import UsageError
from lifesign.vllm_plugin.shim import shimmed_environment

ENGINE_PYTHON = "LIFESIGN_ENGINE_PYTHON"
FAKE_SCALE = 0.2  # the fake engine's stalls and limits are shorter by this factor
DROPPED = ("VLLM_", "LIFESIGN_", "PYTHON", "PYTEST", "HF_", "PROMETHEUS", "TRITON_", "TORCHINDUCTOR_")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine to drill. `command` is the user's own command for `COMMAND` engines, else empty."""

    name: EngineName
    release: str
    python: str = ""
    command: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        """By how much times of a fault are shortened."""
        return FAKE_SCALE if self.name == "fake" else 1.0

    @property
    def ready_timeout_s(self) -> float:
        """How long a start may take."""
        return 15.0 if self.name == "fake" else 300.0

    def argv(self, fault: Fault, work: Path, port: int) -> list[str]:
        """The command line that starts the engine for `fault`; model folders are made below `work`."""
        if self.command:
            return self._with_port(port)
        limit_s = (fault.rpc_limit_s or 300.0) * self.scale
        if self.name == "fake":
            base = [
                sys.executable,
                "-m",
                "lifesign.drill.fake",
                "/srv/model",
                "--port",
                str(port),
                "--release",
                self.release,
            ]
            return [*base, "--workers", str(fault.start.ranks), "--rpc-timeout-s", f"{limit_s:g}"]
        start = fault.start
        model = start.model_id or str(models.make(work / "models", start.model))
        vllm = Path(self.python).parent / "vllm"
        argv = [str(vllm), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--max-model-len", str(start.max_model_len), "--max-num-seqs", "4"]
        if not start.warm_up:
            argv.append("--enforce-eager")
        if start.ranks > 1:
            argv += ["--tensor-parallel-size", str(start.ranks)]
        if _as_tuple(self.release) < (0, 27):
            argv += ["--distributed-executor-backend", "mp"]  # else one rank would run inside EngineCore
        return [*argv, *start.args]

    def _with_port(self, port: int) -> list[str]:
        """The user's command, made to listen where the drill looks."""
        argv = list(self.command)
        for index, word in enumerate(argv):
            if word == "--port" and index + 1 < len(argv):
                argv[index + 1] = str(port)
                return argv
            if word.startswith("--port="):
                argv[index] = f"--port={port}"
                return argv
        return [*argv, "--port", str(port)]

    def environment(self, fault: Fault, work: Path) -> dict[str, str]:
        """The environment: without the caller's vLLM settings, with an own cache, and lifesign where vLLM finds it."""
        if self.command:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("LIFESIGN_")}
        else:
            environment = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
            environment.pop("VIRTUAL_ENV", None)
        if self.name == "fake":
            return environment | _path_to_lifesign()
        temporary = work / "tmp"
        temporary.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(temporary)
        if not self.command:
            environment |= {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(work / "hf"),
                "VLLM_CACHE_ROOT": str(_cache_folder(self.release)),
                "VLLM_CONFIG_ROOT": str(work / "config"),
            }
            if fault.start.ranks > 1:
                environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
                environment["OMP_NUM_THREADS"] = "1"
                # With two ranks the first request would compile with g++ for longer than the short RPC limit of a drill.
                environment["TORCHDYNAMO_DISABLE"] = "1"
        if fault.rpc_limit_s is not None:
            environment["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = f"{fault.rpc_limit_s:g}"
        for name, value in fault.start.env:
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return shimmed_environment(environment, work / "shim")


def _cache_folder(release: str) -> Path:
    """A cache of our own that drills share: what vLLM keeps there (facts about model classes) saves a third of each start."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "lifesign" / "drill" / f"vllm-{release}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _path_to_lifesign() -> dict[str, str]:
    """So that the fake engine runs the same lifesign as we do, installed or not."""
    import lifesign

    return {"PYTHONPATH": str(Path(lifesign.__file__).resolve().parent.parent)}


def _as_tuple(release: str) -> tuple[int, ...]:
    parts = []
    for part in release.split(".")[:3]:
        digits = "".join(character for character in part if character in "0123456789")
        parts.append(int(digits or 0))
    return tuple(parts)


def choose(text: str, *, python: str | None = None, release: str | None = None) -> Engine:
    """The engine that `--engine` names: `fake`, `vllm`, or a command line that starts a vLLM server.

    `python` is the interpreter of a vLLM environment (default: LIFESIGN_ENGINE_PYTHON, else ours); `release` picks the log
    dialect of the fake engine. Raises UsageError when there is no such engine.
    """
    if text == "fake":
        chosen = release or DEFAULT_RELEASE
        if chosen not in RELEASES:
            raise UsageError(
                f"the fake engine doesn't know release {chosen!r}. It knows {', '.join(sorted(RELEASES))}."
            )
        return Engine("fake", chosen)
    if text == "vllm":
        interpreter = python or os.environ.get(ENGINE_PYTHON) or sys.executable
        return Engine("vllm", vllm_release(interpreter), interpreter)
    command = shlex.split(text)
    if len(command) < 2:
        raise UsageError(f"{text!r} is no engine. Give fake, vllm, or a whole command such as 'vllm serve MODEL'.")
    return Engine("vllm", release or "", command=tuple(command))


def vllm_release(python: str) -> str:
    """The vLLM release installed for an interpreter. Raises UsageError when there is none."""
    probe = "import importlib.metadata as m; print(m.version('vllm'))"
    advice = f"Name the interpreter of a vLLM environment with --python or {ENGINE_PYTHON}, or use --engine fake."
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{python} can't be run: {error}. {advice}") from error
    if done.returncode != 0:
        raise UsageError(f"{python} has no vLLM. {advice}")
    return done.stdout.strip().split("+")[0]


def launch_limits(fault: Fault, cgroup: Path | None) -> str | None:
    """The JSON for `lifesign.drill.launch`, or None when the fault needs no limits."""
    start = fault.start
    limits: dict[str, object] = {}
    if start.open_files:
        limits["open_files"] = start.open_files
    if start.address_space_mib:
        limits["address_space_mib"] = start.address_space_mib
    if cgroup is not None:
        limits["cgroup"] = str(cgroup)
    if start.shm_kib:
        limits["shm"] = start.shm_kib
    if start.shm_read_only:
        limits["shm_read_only"] = True
    return json.dumps(limits) if limits else None
