"""Checks of versions, libraries, devices and variables, asked from the engine's own Python without importing torch."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lifesign.guard.evidence.versions import interpreter_of
from lifesign.guard.preflight.model import Finding, Plan, ok
from lifesign.guard.settings import option_of, setting_of
from lifesign.text import T, is_whole

TIMEOUT_S = 20.0
OPTIONAL = ("torchvision", "torchaudio", "torchcodec", "opencv-python-headless")
_CODE = """
import importlib.metadata as m, json, os, sys
out = {"python": sys.version.split()[0], "packages": {}, "unmet": [], "requires_python": "", "cuda": None}
def version(name):
    try: return m.version(name)
    except Exception: return None
for name in ("vllm", "torch", "transformers", "lifesign"):
    out["packages"][name] = version(name)
try:
    from packaging.requirements import Requirement
    for text in m.requires("vllm") or []:
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}): continue
        have = version(need.name)
        if have is None or not need.specifier.contains(have, prereleases=True):
            out["unmet"].append([need.name, have, str(need.specifier)])
    out["requires_python"] = m.metadata("vllm").get("Requires-Python") or ""
    if out["requires_python"]:
        from packaging.specifiers import SpecifierSet
        out["python_ok"] = SpecifierSet(out["requires_python"]).contains(out["python"], prereleases=True)
except Exception as error:
    out["note"] = repr(error)[:200]
try:
    for file in m.files("torch") or []:
        if str(file) == "torch/version.py":
            for line in open(file.locate()):
                if line.startswith("cuda") and "'" in line: out["cuda"] = line.split("'")[1]
except Exception: pass
print(json.dumps(out))
"""
_DRIVER_CUDA = re.compile(r"CUDA Version: {0,4}(\d{1,2})\.(\d{1,2})")


_MEND_IT = T("correct it, or take it out of the command", "改正它，或从命令里去掉")


def check_versions(plan: Plan) -> Iterator[Finding]:
    """vLLM, torch and the rest against what the installed release asks for."""
    if not plan.command:
        yield Finding(
            "note", "command", T("not given: its versions, options, model and port were not looked at", "没有给出：没有检查版本、参数、模型和端口"),
            T("lifesign check -- vllm serve MODEL ...", "lifesign check -- vllm serve 模型 ……"),
        )  # fmt: skip
        return
    python = interpreter_of(plan.command)
    if python is None:
        program = plan.command[0] or "''"
        if shutil.which(program) is None:
            yield Finding(
                "stop", "command", T(f"{program}: no such command", f"{program}：没有这个命令"),
                T("give the full path, or activate the environment that has it", "写全路径，或先激活装有它的环境"),
            )  # fmt: skip
        else:
            yield Finding(
                "note",
                "versions",
                T(f"{program} is no Python program: versions unknown", f"{program} 不是 Python 程序：版本未知"),
            )
        return
    result = plan.helpers.run([python, "-I", "-c", _CODE], min(TIMEOUT_S, plan.timeout_s))
    try:
        found = json.loads(result.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        reason = result.note or " ".join(result.output.split())[-200:]
        yield Finding(
            "stop", "versions", T(f"{python} does not run: {reason}", f"{python} 跑不起来：{reason}"),
            T("reinstall the environment", "重装这个环境"),
        )  # fmt: skip
        return
    yield from judge_versions(found, python)
    with suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(errors="replace").partition("\nflags")[2].partition("\n")[0].split()
        yield from judge_tiles(found, flags, setting_of(plan.command, "--dtype"))
    yield from _driver(plan, found.get("cuda"))


def judge_versions(found: dict[str, Any], python: str) -> Iterator[Finding]:
    """Findings from what the engine's Python said."""
    packages = found.get("packages", {})
    vllm = packages.get("vllm")
    if vllm is None:
        yield Finding(
            "stop", "versions", T(f"vLLM is not installed for {python}", f"{python} 里没有安装 vLLM"),
            T("pip install vllm, or give the right command", "pip install vllm，或改用正确的命令"),
        )  # fmt: skip
        return
    if found.get("python_ok") is False:
        yield Finding(
            "stop", "versions",
            T(f"vLLM {vllm} wants Python {found['requires_python']}, this is {found['python']}", f"vLLM {vllm} 要求 Python {found['requires_python']}，现在是 {found['python']}"),
            T("make the environment anew with such a Python", "用符合要求的 Python 重建环境"),
        )  # fmt: skip
    unmet = [item for item in found.get("unmet", []) if item[0].lower() not in OPTIONAL]
    for name, have, need in unmet[:5]:
        yield Finding(
            "stop" if name == "torch" or have is None else "warn", "versions",
            T(f"vLLM {vllm} wants {name}{need}, there is {have or 'none'}", f"vLLM {vllm} 要求 {name}{need}，现在是 {have or '没装'}"),
            T(f"pip install '{name}{need}'", f"pip install '{name}{need}'"),
        )  # fmt: skip
    major = str(packages.get("transformers") or "").partition(".")[0]
    old = [int(part) for part in re.findall(r"\d{1,4}", vllm)[:2]]
    if major == "5" and old and old <= [0, 11] and not any(item[0] == "transformers" for item in unmet):
        yield Finding(
            "stop", "versions", T(f"transformers 5 with vLLM {vllm}: tokenizers break", f"vLLM {vllm} 配 transformers 5：分词器会出错"),
            T("pip install 'transformers<5'", "pip install 'transformers<5'"),
        )  # fmt: skip
    if not unmet:
        yield ok(
            "versions",
            f"vLLM {vllm}, torch {packages.get('torch')}, Python {found.get('python')}",
            f"vLLM {vllm}、torch {packages.get('torch')}、Python {found.get('python')}",
        )


def judge_tiles(found: dict[str, Any], cpu_flags: list[str], dtype: str | None) -> Iterator[Finding]:
    """The CPU build on a CPU with AMX: measured on vLLM 0.30.0 and 0.32.0 (0.27.1 lives); `FLOAT32_ON_CPU` has the rest."""
    version = str(found.get("packages", {}).get("vllm") or "")
    release = [int(part) for part in re.findall(r"\d{1,4}", version.partition("+")[0])[:2]]
    if "+cpu" not in version or release < [0, 30] or "amx_tile" not in cpu_flags or dtype in ("float32", "float"):
        return
    yield Finding(
        "warn", "CPU",
        T(f"AMX with vLLM {version}: a first request of 2 to 4 tokens was seen to kill the engine (SIGILL) in 0.30.0 and 0.32.0", f"AMX 搭配 vLLM {version}：实测 0.30.0 和 0.32.0 的第一个请求若只有 2 到 4 个 token，引擎会被 SIGILL 杀死"),
        T("send a whole sentence first, or use --dtype float32 (twice the memory, slower)", "第一个请求先发一整句话，或加 --dtype float32（占用翻倍，变慢）"),
    )  # fmt: skip


def _driver(plan: Plan, cuda: object) -> Iterator[Finding]:
    """The driver's CUDA against torch's."""
    tool = shutil.which("nvidia-smi")
    if tool is None or not isinstance(cuda, str):
        return
    result = plan.helpers.run([tool], 5.0)
    if result.note:
        yield Finding(
            "stop", "driver", T(f"{result.note}: the driver is wedged", f"{result.note}：驱动卡死"),
            T("look at the kernel log (dmesg | grep -i xid); reset the GPU or reboot", "看内核日志（dmesg | grep -i xid）；重置 GPU 或重启"),
        )  # fmt: skip
        return
    if result.code != 0:
        reason = " ".join(result.output.split())[:200]
        yield Finding(
            "stop", "driver", T(f"nvidia-smi: {reason}", f"nvidia-smi：{reason}"),
            T("install or load the driver; in a container: --gpus all", "安装或加载驱动；容器里要加 --gpus all"),
        )  # fmt: skip
        return
    found = _DRIVER_CUDA.search(result.output[:4000])
    have = (int(found.group(1)), int(found.group(2))) if found else None
    parts = re.findall(r"\d{1,3}", cuda)[:2]
    need = (int(parts[0]), int(parts[1])) if len(parts) == 2 else None
    if have and need and have[0] < need[0]:
        yield Finding(
            "stop", "driver", T(f"the driver knows CUDA {have[0]}.{have[1]}, torch was built for {cuda}", f"驱动只支持 CUDA {have[0]}.{have[1]}，而 torch 是为 {cuda} 编译的"),
            T("a newer driver, or the vLLM build for that CUDA", "升级驱动，或换用对应 CUDA 的 vLLM 版本"),
        )  # fmt: skip
    elif have and need:
        yield ok("driver", f"CUDA {have[0]}.{have[1]}, torch {cuda}", f"CUDA {have[0]}.{have[1]}，torch {cuda}")


def check_devices(plan: Plan) -> Iterator[Finding]:
    """Enough devices for the ranks of this node."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return
    result = plan.helpers.run(
        [tool, "--query-gpu=index,memory.total,memory.used", "--format=csv,noheader,nounits"], 5.0
    )
    if result.code != 0:
        return
    rows = [line.split(",") for line in result.output.splitlines() if line.count(",") == 2]
    visible = plan.environment.get("CUDA_VISIBLE_DEVICES")
    count = len(rows) if visible is None else len([part for part in visible.split(",") if part.strip()])
    ranks = max(1, plan.ranks // plan.nnodes)
    if ranks > count:
        yield Finding(
            "stop", "devices", T(f"{ranks} ranks on this node, {count} GPUs to be seen", f"本节点要跑 {ranks} 个 rank，只看得到 {count} 块 GPU"),
            T("a smaller --tensor-parallel-size, or more devices in CUDA_VISIBLE_DEVICES", "减小 --tensor-parallel-size，或在 CUDA_VISIBLE_DEVICES 里多给几块"),
        )  # fmt: skip
    wanted = option_of(plan.command, "--gpu-memory-utilization") or "0.9"
    share = float(wanted) if is_whole(wanted.replace(".", "", 1)) else 0.9
    for index, total, used in rows:
        if is_whole(total.strip()) and is_whole(used.strip()) and int(used) > int(total) * (1 - share):
            yield Finding(
                "stop", "devices", T(f"GPU {index.strip()}: {used.strip()} of {total.strip()} MiB are in use, {share:g} of it is wanted", f"GPU {index.strip()}：{total.strip()} MiB 已用 {used.strip()} MiB，而要占 {share:g}"),
                T("end what uses it (lifesign reap shows left-overs), or lower --gpu-memory-utilization", "结束占用它的进程（lifesign reap 可找残留），或调低 --gpu-memory-utilization"),
            )  # fmt: skip


def check_variables(plan: Plan) -> Iterator[Finding]:
    """Variables that are known to stop an engine with these settings."""
    environment = plan.environment
    if "libvgpu" in environment.get("LD_PRELOAD", "") and environment.get("CUDA_DISABLE_CONTROL") != "true":
        yield Finding(
            "warn", "variables", T("LD_PRELOAD has a vGPU shim (libvgpu.so): NCCL can hang", "LD_PRELOAD 里有 vGPU 垫片（libvgpu.so）：NCCL 可能卡死"),
            T("CUDA_DISABLE_CONTROL=true", "CUDA_DISABLE_CONTROL=true"),
        )  # fmt: skip
    alloc = environment.get("PYTORCH_CUDA_ALLOC_CONF", "") + environment.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:True" in alloc and plan.ranks > 1 and "--disable-custom-all-reduce" not in plan.command:
        yield Finding(
            "warn", "variables", T("expandable_segments with several ranks: custom all-reduce can die at graph capture (vllm#42609)", "多 rank 时开着 expandable_segments：自定义 all-reduce 会在捕获图时崩溃（vllm#42609）"),
            T("take it out of PYTORCH_CUDA_ALLOC_CONF, or --disable-custom-all-reduce", "从 PYTORCH_CUDA_ALLOC_CONF 里去掉，或加 --disable-custom-all-reduce"),
        )  # fmt: skip
    if not plan.is_cpu and any("cuda" in part.lower() for part in environment.get("LD_LIBRARY_PATH", "").split(":")):
        yield Finding(
            "note", "variables", T("LD_LIBRARY_PATH brings its own CUDA libraries before torch's", "LD_LIBRARY_PATH 会让别的 CUDA 库排在 torch 自带的前面"),
            T("unset LD_LIBRARY_PATH if cuBLAS or NCCL fail", "若 cuBLAS 或 NCCL 报错，先 unset LD_LIBRARY_PATH"),
        )  # fmt: skip


def check_command_line(plan: Plan) -> Iterator[Finding]:
    """The command line through `lint`."""
    if not plan.command:
        return
    from lifesign.errors import LifesignError
    from lifesign.remedies.lint import check, readers

    version = ""
    python = interpreter_of(plan.command)
    if python is not None:
        code = "import importlib.metadata as m; print(m.version('vllm'))"
        answer = plan.helpers.run([python, "-I", "-c", code], 10.0)
        version = answer.output.strip().partition("+")[0] if answer.code == 0 else ""
    try:
        report = check(readers.command_line(list(plan.command)), version)
    except LifesignError as error:
        yield Finding("note", "command line", T(f"lint: {error}", f"lint：{error}"))
        return
    for problem in report.problems[:20]:
        level = {"error": "stop", "warning": "warn"}.get(problem.severity, "note")
        what = T(f"{problem.name}: {problem.message.en}", f"{problem.name}：{problem.message.zh}")
        instead = T(problem.instead, problem.instead) if problem.instead else _MEND_IT
        yield Finding(level, "command line", what, instead)  # type: ignore[arg-type]
    if report.checked and not report.problems:
        yield ok(
            "command line", f"every flag is known to vLLM {report.release}", f"所有参数 vLLM {report.release} 都认得"
        )
