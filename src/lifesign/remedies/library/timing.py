"""Remedies for time: limits that are too short, and steps that never end. First ask whether the worker lives."""

from __future__ import annotations

from lifesign.remedies import limits
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

LONGER_STEP_TIMEOUT = Remedy(
    slug="longer-step-timeout",
    kind="env",
    title=T("a longer limit for one step", "延长单步超时"),
    why=T(
        "The limit is a constant; it knows neither the back end nor the batch. It helps a slow worker, never a hung one.",
        "这个上限是常数，不看后端也不看批大小。它只对慢的 worker 有用，对挂死的没用。",
    ),
    forms=(Form("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "{value}", since="0.9.2"),),
    cost=T("a real hang is noticed later", "真正挂死时发现得更晚"),
    value=limits.step_timeout,
    source="vllm#19544 (0.9.2); a constant before: 40 s in 0.8.5, 300 s from 0.9.0 (vllm#18558)",
)

PATIENCE_PLUGIN = Remedy(
    slug="patience-plugin",
    kind="env",
    title=T("let lifesign wait with sense", "让 lifesign 聪明地等待"),
    why=T(
        "When the limit runs out the plugin looks at the workers first: working ones get more time, stopped or dead ones don't.",
        "超时到了先看 worker：还在干活就再给时间，停住或已死就不给。",
    ),
    forms=(Form("LIFESIGN_PATIENCE", "1"),),
    cost=T("lifesign must be installed in the engine's environment", "引擎环境里要装 lifesign"),
    source="lifesign: plugin",
)

LONGER_READY_TIMEOUT = Remedy(
    slug="longer-ready-timeout",
    kind="env",
    title=T("a longer limit for the start", "延长启动超时"),
    why=T(
        "Loading or compiling took longer than the 600 s that vLLM waits for its engine.",
        "加载或编译超过了 vLLM 等引擎就绪的 600 秒。",
    ),
    forms=(Form("VLLM_ENGINE_READY_TIMEOUT_S", "{value}", since="0.14.0"),),
    cost=T("a start that hangs is noticed later", "启动卡死时发现得更晚"),
    value=limits.ready_timeout,
    source="envs.py: from 0.14.0; 600 s hard-coded in 0.9.1 to 0.13.0",
)

ENGINE_ITERATION_TIMEOUT = Remedy(
    slug="engine-iteration-timeout",
    kind="env",
    title=T("a longer limit for one iteration (V0 engine)", "延长 V0 引擎的迭代超时"),
    why=T(
        "The V0 engine gives a step 60 s unless set otherwise. A hang (NCCL, another node) needs its own cure: look at the stacks with py-spy.",
        "V0 引擎默认每步限 60 秒。如果是挂死（NCCL、其他节点），要另外处理：用 py-spy 看栈。",
    ),
    forms=(Form("VLLM_ENGINE_ITERATION_TIMEOUT_S", "{value}", until="0.10.2"),),
    cost=T("a real hang is noticed later", "真正挂死时发现得更晚"),
    value=limits.iteration_timeout,
    source="envs.py: read by the V0 AsyncLLMEngine only, to 0.10.2",
)

FASTER_STORAGE = Remedy(
    slug="faster-storage",
    kind="check",
    title=T("load from a faster disk", "从更快的磁盘加载"),
    why=T(
        "Copy the weights from NFS or object storage to a local SSD; measure the read speed.",
        "把权重从 NFS 或对象存储拷到本地 SSD；先测读取速度。",
    ),
    command="dd if=$(ls MODEL_DIR/*.safetensors | head -1) of=/dev/null bs=16M count=256 status=progress",
)

PY_SPY_STACKS = Remedy(
    slug="py-spy-stacks",
    kind="collect",
    title=T("take the stacks while it hangs", "挂住的时候抓栈"),
    why=T(
        "Each worker's stack shows where it waits: in a kernel, a collective, a lock, or nowhere.",
        "每个 worker 的栈能看出它卡在内核、集合通信还是锁上。",
    ),
    command="for p in $(pgrep -f 'VLLM::'); do echo == $p; py-spy dump --pid $p; done; nvidia-smi",
    source="vLLM docs: troubleshooting a hang",
)

SLOWER_CLIENTS = Remedy(
    slug="lower-concurrency",
    kind="check",
    title=T("prove it with a small batch", "用小批量验证"),
    why=T(
        "If 1 and 4 sequences work and 64 don't, the step is slow, not dead.",
        "1、4 个序列正常而 64 个不行，说明是步子慢，不是死了。",
    ),
    command="for n in 1 4 16 64; do vllm bench serve --model MODEL --num-prompts $n --max-concurrency $n; done",
)

SUPERVISE = Remedy(
    slug="supervise",
    kind="command",
    title=T("run it under guard", "用 guard 看护运行"),
    why=T(
        "guard keeps the evidence of the next death and restarts with sense.",
        "guard 会保留下一次死亡的现场，并合理重启。",
    ),
    command="lifesign guard --state-dir ./lifesign -- vllm serve MODEL ...",
)
