"""Commands that differ by platform. `pip install vllm` brings the CUDA build, and would destroy any other installation.

Sources: vLLM's installation pages for ROCm, XPU, CPU and TPU; vllm-ascend's (vllm and vllm-ascend are installed as a pair).
"""

from __future__ import annotations

import re

from lifesign.facts.model import Life

_BARE_SMI = re.compile(r"\bnvidia-smi\b(?! -)")
_SMI = {
    "rocm": "rocm-smi",
    "npu": "npu-smi info",
    "xpu": "xpu-smi discovery",
    "tpu": "ls -l /dev/vfio",
}
_UPGRADE = re.compile(r"^pip install -U (?:vllm|'?vllm>=(?P<release>[\w.]{1,20})'?)(?=$|  )")
_NEWER = {
    "rocm": "docker pull vllm/vllm-openai-rocm:latest",
    "npu": "pip install vllm==RELEASE vllm-ascend==RELEASE   # the pair, CANN and torch-npu that vllm-ascend's notes name",
    "tpu": "pip install -U vllm-tpu",
}
_BUILD = {
    "rocm": "a ROCm build",
    "npu": "the vllm-ascend that belongs to it",
    "xpu": "an XPU build",
    "cpu": "a CPU build",
    "tpu": "a TPU build",
}


def for_platform(command: str, life: Life) -> str:
    """`command` as it must read on the log's platform and for its engine; unchanged for CUDA."""
    upgrade = _UPGRADE.match(command)
    if life.engine == "sglang":
        return "pip install -U sglang" if upgrade else command
    if life.platform in ("cuda", ""):
        return command
    if upgrade:
        release = upgrade["release"]
        if release is None and life.platform in _NEWER:
            return _NEWER[life.platform]
        what = f"vllm >= {release}" if release else "a newer vllm"
        build = _BUILD.get(life.platform, "a build for your platform")
        return f"pip list 2>/dev/null | grep -iE 'vllm|torch'   # then {what} as {build}: plain pip brings the CUDA one"
    if life.platform == "cpu":
        return command.removesuffix("; nvidia-smi")
    smi = _SMI.get(life.platform)
    return _BARE_SMI.sub(smi, command) if smi else command
