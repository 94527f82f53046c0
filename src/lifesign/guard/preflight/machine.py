"""Checks of the machine: left-overs, shared memory, limits, port, disk, memory, home."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lifesign.guard import leftovers
from lifesign.guard.evidence.devices import pids_on_devices
from lifesign.guard.evidence.memory import host_memory, memory_folder, read_memory
from lifesign.guard.preflight.model import Finding, Plan, ok
from lifesign.guard.settings import option_of
from lifesign.text import T, is_whole

SHM_STOP_BYTES = 96 << 20
SHM_WARN_BYTES = 1 << 30
"""vLLM 0.32 with one worker used 160 MiB of /dev/shm; with 64 MiB (docker's default) it did not start."""
FILES_STOP, FILES_WARN = 256, 4096
"""With 64 open files vLLM 0.32 died at start-up, with 100 it failed under 120 idle clients."""
PROCESSES_STOP, PROCESSES_WARN = 128, 1024
CACHE_WARN_BYTES = 2 << 30
LEFT_WARN_BYTES = 256 << 20


def check_leftovers(plan: Plan) -> Iterator[Finding]:
    """Processes, zombies and shared memory of dead engines."""
    found = leftovers.find_processes(list(plan.state_dirs), pids_on_devices(plan.helpers))
    for item in found:
        pid = item.proc.pid if item.proc else 0
        if item.kind == "zombie":
            yield Finding(
                "warn",
                "zombies",
                T(f"{item.name} (pid {pid}) is {item.why.en}", f"{item.name}（pid {pid}）：{item.why.zh}"),
                T("end or restart its parent; signals to it do nothing", "结束或重启它的父进程；给它自己发信号没有用"),
            )
            continue
        blocking = [held for held in item.holds if held.startswith(("/dev/", "device")) or held == f"port {plan.port}"]
        held = f", holds {', '.join(item.holds)}" if item.holds else ""
        held_zh = f"，占着 {'、'.join(item.holds)}" if item.holds else ""
        yield Finding(
            "stop" if blocking else "warn",
            "left-overs",
            T(f"{item.name} (pid {pid}): {item.why.en}{held}", f"{item.name}（pid {pid}）：{item.why.zh}{held_zh}"),
            T("lifesign reap --yes", "lifesign reap --yes"),
        )
    folders = list(plan.state_dirs)
    files = leftovers.find_files(time.time(), recorded=leftovers.recorded_shm(folders))
    certain = [item for item in files if item.certainty == "certain"]
    size = sum(item.size_bytes for item in certain)
    if certain:
        yield Finding(
            "warn" if size > LEFT_WARN_BYTES else "note",
            "left-overs",
            T(
                f"{len(certain)} files and segments of dead engines ({size >> 20} MiB of /dev/shm)",
                f"死掉的引擎留下 {len(certain)} 个文件和共享内存段（/dev/shm 占 {size >> 20} MiB）",
            ),
            T("lifesign reap --yes", "lifesign reap --yes"),
        )
    others = [item for item in files if item.certainty != "certain"]
    size = sum(item.size_bytes for item in others)
    if others:
        yield Finding(
            "warn" if size > LEFT_WARN_BYTES else "note",
            "left-overs",
            T(
                f"{len(others)} files and segments that seem unused, perhaps of dead engines ({size >> 20} MiB of /dev/shm)",
                f"有 {len(others)} 个文件和共享内存段似乎没人用，可能是死掉的引擎留下的（/dev/shm 占 {size >> 20} MiB）",
            ),
            T("lifesign reap shows them", "用 lifesign reap 查看"),
        )
    if not found and not files:
        yield ok("left-overs", "nothing is left of dead engines", "没有死掉的引擎留下的东西")


def check_shm(plan: Plan, folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Size and permission of /dev/shm: every rank's messages go through it."""
    fix = T(
        "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory mounted at /dev/shm",
        "docker run --shm-size=8g（或 --ipc=host）；Kubernetes：把 medium: Memory 的 emptyDir 挂到 /dev/shm",
    )
    try:
        usage = shutil.disk_usage(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 65536)
            probe.flush()
    except OSError as error:
        reason = error.strerror or str(error)
        yield Finding("stop", "/dev/shm", T(f"can't be written: {reason}", f"写不进去：{reason}"), fix)
        return
    free = f"{usage.free >> 20} MiB"
    if usage.free < SHM_STOP_BYTES:
        yield Finding(
            "stop",
            "/dev/shm",
            T(f"only {free} free of {usage.total >> 20} MiB", f"只剩 {free}（共 {usage.total >> 20} MiB）"),
            fix,
        )
    elif usage.free < SHM_WARN_BYTES * (1 if plan.ranks > 1 else 0.25):
        yield Finding(
            "warn",
            "/dev/shm",
            T(f"{free} free: little for {plan.ranks} ranks", f"剩 {free}：{plan.ranks} 个 rank 用会紧张"),
            fix,
        )
    else:
        yield ok("/dev/shm", f"{free} free", f"剩 {free}")


def check_limits(plan: Plan) -> Iterator[Finding]:
    """Limits of the process and of its control group."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FILES_WARN:
        yield Finding(
            "stop" if files < FILES_STOP else "warn",
            "ulimit -n",
            T(f"{files} open files", f"最多打开 {files} 个文件"),
            T(
                "ulimit -n 65536 (docker: --ulimit nofile=65536; systemd: LimitNOFILE=65536)",
                "ulimit -n 65536（docker：--ulimit nofile=65536；systemd：LimitNOFILE=65536）",
            ),
        )
    else:
        yield ok("ulimit -n", "open files: enough", "可打开的文件数足够")
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = _pids_limit()
    least = min(processes if processes != resource.RLIM_INFINITY else 1 << 30, limit)
    if least < PROCESSES_WARN:
        yield Finding(
            "stop" if least < PROCESSES_STOP else "warn",
            "ulimit -u",
            T(f"{least} processes and threads", f"最多 {least} 个进程和线程"),
            T(
                "ulimit -u unlimited (docker: --pids-limit=-1; systemd: TasksMax=infinity)",
                "ulimit -u unlimited（docker：--pids-limit=-1；systemd：TasksMax=infinity）",
            ),
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        yield Finding(
            "stop" if space < 6 << 30 else "warn",
            "ulimit -v",
            T(f"address space limited to {space >> 20} MiB", f"地址空间限制为 {space >> 20} MiB"),
            T("ulimit -v unlimited", "ulimit -v unlimited"),
        )
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if plan.nnodes > 1 and locked != resource.RLIM_INFINITY:
        yield Finding(
            "warn",
            "ulimit -l",
            T(
                f"only {locked >> 20} MiB may be locked: RDMA needs more",
                f"只允许锁定 {locked >> 20} MiB 内存：RDMA 不够用",
            ),
            T(
                "ulimit -l unlimited (docker: --ulimit memlock=-1)",
                "ulimit -l unlimited（docker：--ulimit memlock=-1）",
            ),
        )


def _pids_limit() -> int:
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for base in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
                file = Path(base) / path.lstrip("/") / "pids.max"
                if controllers in ("", "pids") and file.exists():
                    text = file.read_text().strip()
                    if is_whole(text):
                        return int(text)
    return 1 << 30


def check_port(plan: Plan) -> Iterator[Finding]:
    """Whether the engine could listen."""
    if plan.port is None:
        return
    host = option_of(plan.command, "--host") or "0.0.0.0"
    if plan.port > 65535:
        yield Finding(
            "stop", "port", T(f"{plan.port} is no port", f"{plan.port} 不是端口号"),
            T("choose a --port from 1 to 65535", "把 --port 改成 1 到 65535 之间的数"),
        )  # fmt: skip
        return
    problem = _bind_problem(host, plan.port)
    if problem is None:
        yield ok("port", f"{plan.port} is free", f"{plan.port} 空闲")
        return
    if getattr(problem, "errno", None) != errno.EADDRINUSE:
        reason = getattr(problem, "strerror", None) or str(problem)
        yield Finding(
            "stop",
            "port",
            T(f"{host}:{plan.port}: {reason}", f"{host}:{plan.port}：{reason}"),
            T("choose another --host, or a --port above 1023", "换一个 --host，或把 --port 改成大于 1023 的数"),
        )
        return
    holder = leftovers.port_holder(plan.port) or "?"
    yield Finding(
        "stop",
        "port",
        T(f"{plan.port} is held by {holder}", f"{plan.port} 被 {holder} 占用"),
        T(
            "end it (if it is a left-over: lifesign reap --yes) or choose another --port",
            "结束它（若是残留进程：lifesign reap --yes），或换一个 --port",
        ),
    )


def _bind_problem(host: str, port: int) -> OSError | UnicodeError | None:
    """What keeps a server from listening there, or None (connections in TIME_WAIT don't count, as for servers)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        return error
    return None


def check_homes(plan: Plan) -> Iterator[Finding]:
    """Folders that vLLM, torch and Triton write to, and a user that the system knows."""
    environment = plan.environment
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = environment.get("VLLM_CACHE_ROOT") or os.path.join(
        environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "vllm"
    )
    triton = environment.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton")
    tmp = environment.get("TMPDIR") or tempfile.gettempdir()
    bad = False
    for name, variable, path in (
        ("cache", "VLLM_CACHE_ROOT", cache),
        ("triton", "TRITON_CACHE_DIR", triton),
        ("TMPDIR", "TMPDIR", tmp),
    ):
        parent = _existing(Path(path))
        if not os.access(parent, os.W_OK | os.X_OK):
            bad = True
            yield Finding(
                "stop" if name != "triton" or not plan.is_cpu else "warn",
                "folders",
                T(f"{path} can't be written", f"{path} 不可写"),
                T(
                    f"set {variable} (or HOME) to a folder that can be written",
                    f"把 {variable}（或 HOME）设到可写的目录",
                ),
            )
            continue
        free = shutil.disk_usage(parent).free
        if free < CACHE_WARN_BYTES:
            bad = True
            yield Finding(
                "stop" if free < 64 << 20 else "warn",
                "folders",
                T(f"{path}: {free >> 20} MiB free", f"{path}：只剩 {free >> 20} MiB"),
                T(f"make room, or set {variable} to another disk", f"腾出空间，或把 {variable} 指到别的磁盘"),
            )
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        bad = True
        yield Finding(
            "warn",
            "user",
            T(
                f"uid {os.getuid()} has no entry in /etc/passwd: torch asks for its name",
                f"/etc/passwd 里没有 uid {os.getuid()}：torch 会去查用户名",
            ),
            T(
                "add the user to the image, or set USER, HOME and TORCHINDUCTOR_CACHE_DIR",
                "在镜像里建好用户，或设置 USER、HOME 和 TORCHINDUCTOR_CACHE_DIR",
            ),
        )
    if not bad:
        yield ok("folders", "cache and temporary folders can be written", "缓存和临时目录可写")


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def available_bytes() -> int | None:
    """Host memory that an engine could still take: what is available, or what its control group allows, if less."""
    host = host_memory().get("MemAvailable")
    values = read_memory(memory_folder(os.getpid()))
    limit = values.get("memory.max", values.get("memory.limit_in_bytes"))
    used = values.get("memory.current", values.get("memory.usage_in_bytes", 0))
    if isinstance(limit, int) and isinstance(used, int) and limit < 1 << 60:
        allowed = max(0, limit - used)
        return allowed if host is None else min(host, allowed)
    return host


def check_memory(plan: Plan, weights_bytes: int) -> Iterator[Finding]:
    """Host memory against weights (and, on the CPU backend, the KV cache that was asked for)."""
    available = available_bytes()
    if available is None:
        return
    needed = 1536 << 20
    text = plan.environment.get("VLLM_CPU_KVCACHE_SPACE", "")
    cache = int(float(text) * 2**30) if is_whole(text.replace(".", "", 1)) else 0
    if plan.is_cpu:
        needed += weights_bytes + cache
    gib, have = f"{needed / 2**30:.1f} GiB", f"{available / 2**30:.1f} GiB"
    if needed > available:
        yield Finding(
            "stop" if plan.is_cpu else "warn",
            "memory",
            T(f"{have} available, about {gib} needed", f"可用 {have}，大约需要 {gib}"),
            T(
                "a smaller VLLM_CPU_KVCACHE_SPACE or model, or a higher memory limit",
                "调小 VLLM_CPU_KVCACHE_SPACE 或换小模型，或提高内存上限",
            ),
        )
    else:
        yield ok("memory", f"{have} available, about {gib} needed", f"可用 {have}，大约需要 {gib}")
