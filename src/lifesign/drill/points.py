"""Where a fault can be placed: engine-neutral points of an engine's work, and what they are called in vLLM.

A point names a process and the function of vLLM that stands there, for the plugin; and the frames that a traceback shows
above it, for the fake engine (which has no vLLM code to run through). Checked against vLLM 0.32.0 on CPU. Several
targets stand for builds for different hardware; only one of them runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from lifesign.drill.model import Frame, Role

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
LLAMA = "vllm/model_executor/models/llama.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
MULTIPROC = "vllm/v1/executor/multiproc_executor.py"
CORE = "vllm/v1/engine/core.py"


@dataclass(frozen=True, slots=True)
class Point:
    """A place in one process. `targets` are `module:function`, one for each kind of build; `at` is text on the line to blame."""

    role: Role
    phase: str
    targets: tuple[str, ...]
    at: str
    frames: tuple[Frame, ...]


POINTS: dict[str, Point] = {
    "api.wait": Point(
        "api",
        "startup-load",
        ("vllm.v1.engine.core_client:MPClient.__init__",),
        "raise TimeoutError(",
        (Frame("vllm/v1/engine/core_client.py", "__init__", "raise TimeoutError(", 720),),
    ),
    "worker.device": Point(
        "worker",
        "startup-load",
        (
            "vllm.v1.worker.cpu_worker:init_worker_distributed_environment",
            "vllm.v1.worker.gpu_worker:init_worker_distributed_environment",
        ),
        "init_distributed_environment(",
        (
            Frame(WORKER, "init_device", "init_worker_distributed_environment(", 283),
            Frame(WORKER, "init_worker_distributed_environment", "init_distributed_environment(", 1480),
        ),
    ),
    "worker.load": Point(
        "worker",
        "startup-load",
        ("vllm.model_executor.models.llama:LlamaModel.load_weights",),
        "loader.load_weights(",
        (
            Frame(WORKER, "load_model", "self.model_runner.load_model(", 410),
            Frame(RUNNER, "load_model", "self.model = model_loader.load_model(", 5071),
            Frame(LLAMA, "load_weights", "weight_loader(param, loaded_weight)", 470),
        ),
    ),
    "worker.build": Point(
        "worker",
        "startup-load",
        ("vllm.model_executor.models.llama:LlamaForCausalLM.__init__",),
        "super().__init__()",
        (
            Frame(WORKER, "load_model", "self.model_runner.load_model(", 410),
            Frame("vllm/model_executor/model_loader/utils.py", "initialize_model", "model = model_class(", 56),
            Frame(LLAMA, "__init__", "self.model = self._init_model(", 501),
        ),
    ),
    "worker.profile": Point(
        "worker",
        "profile-warmup",
        (
            "vllm.v1.worker.cpu_worker:CPUWorker.determine_available_memory",
            "vllm.v1.worker.gpu_worker:Worker.determine_available_memory",
        ),
        "self.model_runner.warming_up_model()",
        (
            Frame(WORKER, "determine_available_memory", "self.model_runner.profile_run()", 460),
            Frame(RUNNER, "profile_run", "hidden_states, last_hidden_states = self._dummy_run(", 6190),
        ),
    ),
    "worker.capture": Point(
        "worker",
        "graph-capture",
        (
            "vllm.v1.worker.cpu_worker:CPUWorker.compile_or_warm_up_model",
            "vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model",
        ),
        "self.model_runner.warming_up_model()",
        (
            Frame(
                WORKER, "compile_or_warm_up_model", "cuda_graph_memory_bytes = self.model_runner.capture_model()", 760
            ),
        ),
    ),
    "worker.step": Point(
        "worker",
        "serving",
        ("vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",),
        "model_output = self._model_forward(",
        (Frame(WORKER, "execute_model", "output = self.model_runner.execute_model(", 1328),),
    ),
    "worker.forward": Point(
        "worker",
        "serving",
        ("vllm.model_executor.models.llama:LlamaMLP.forward",),
        "self.gate_up_proj(x)",
        (
            Frame(WORKER, "execute_model", "output = self.model_runner.execute_model(", 1328),
            Frame(RUNNER, "execute_model", "model_output = self._model_forward(", 4207),
            Frame(RUNNER, "_model_forward", "return self.model(", 3645),
            Frame(LLAMA, "forward", "hidden_states = self.mlp(hidden_states)", 329),
        ),
    ),
    "worker.sample": Point(
        "worker",
        "serving",
        ("vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",),
        "self.sampler(",
        (
            Frame(WORKER, "sample_tokens", "return self.model_runner.sample_tokens(grammar_output)", 1290),
            Frame(RUNNER, "_sample", "return self.sampler(", 3460),
        ),
    ),
    "core.kv": Point(
        "core",
        "profile-warmup",
        ("vllm.v1.engine.core:EngineCore._initialize_kv_caches",),
        "get_kv_cache_configs(",
        (Frame(CORE, "_initialize_kv_caches", "kv_cache_configs = get_kv_cache_configs(", 330),),
    ),
    "core.schedule": Point(
        "core",
        "serving",
        ("vllm.v1.core.sched.scheduler:Scheduler.schedule",),
        "self.kv_cache_manager.allocate_slots(",
        (
            Frame(CORE, "step", "scheduler_output = self.scheduler.schedule()", 650),
            Frame(
                "vllm/v1/core/sched/scheduler.py", "schedule", "new_blocks = self.kv_cache_manager.allocate_slots(", 480
            ),
        ),
    ),
    "core.update": Point(
        "core",
        "serving",
        ("vllm.v1.core.sched.scheduler:Scheduler.update_from_output",),
        "self._update_request_with_output(",
        (
            Frame(CORE, "step", "engine_core_outputs = self.scheduler.update_from_output(", 690),
            Frame("vllm/v1/core/sched/scheduler.py", "update_from_output", "self._update_request_with_output(", 1200),
        ),
    ),
    "core.grammar": Point(
        "core",
        "serving",
        ("vllm.v1.structured_output:StructuredOutputManager.grammar_bitmask",),
        "self.backend.allocate_token_bitmask(",
        (
            Frame(CORE, "step", "grammar_output = self.scheduler.get_grammar_bitmask(scheduler_output)", 669),
            Frame(
                "vllm/v1/core/sched/scheduler.py",
                "get_grammar_bitmask",
                "bitmask = self.structured_output_manager.grammar_bitmask(",
                2012,
            ),
        ),
    ),
}


def point(name: str) -> Point:
    """The point called `name`. KeyError is a mistake in the vocabulary; a test reads all of it."""
    return POINTS[name]
