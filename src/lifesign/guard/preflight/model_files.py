"""Checks of the model: is it there, is it whole, can it be reached? Headers are read, weights are not.

A safetensors file says in its header how long it must be (huggingface/safetensors, "Format": eight bytes little endian,
a JSON header, then the tensors); a cut file and a git-lfs pointer are told apart from a good one without reading it.
"""

from __future__ import annotations

import json
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lifesign.guard.preflight.model import Finding, Plan, ok
from lifesign.text import T

MAX_HEADER_BYTES = 100 << 20
MAX_JSON_BYTES = 64 << 20
LFS_START = b"version https://git-lfs"
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tekken.json",
    "tiktoken.model",
    "vocab.txt",
    "spiece.model",
)
_DOWNLOAD = T("download it again: hf download {model}", "重新下载：hf download {model}")


def check_model(plan: Plan) -> Iterator[Finding]:
    """The model that the command names: a folder, a cached or a remote repository."""
    if not plan.model:
        return
    folder = Path(plan.model).expanduser()
    if folder.is_dir():
        yield from check_folder(folder, plan.model)
        return
    if folder.is_file():
        yield from _single_file(folder)
        return
    if plan.model.startswith(("/", ".", "~")) or plan.model.count("/") > 1:
        parent = folder.parent
        near = (
            ", ".join(sorted(path.name for path in parent.iterdir())[:5])
            if parent.is_dir() and os.access(parent, os.R_OK)
            else ""
        )
        hint = f" ({parent} has: {near})" if near else ""
        yield Finding(
            "stop",
            "model",
            T(f"{plan.model}: no such folder{hint}", f"{plan.model}：没有这个目录{hint}"),
            T("fix the path, or mount the volume", "改正路径，或把卷挂上"),
        )
        return
    yield from _repository(plan, plan.model)


def check_folder(folder: Path, name: str) -> Iterator[Finding]:
    """A local model folder: configuration, weights, tokenizer."""
    bad = False
    for finding in (*_config(folder, name), *_weights(folder, name), *_tokenizer(folder, name)):
        bad = True
        yield finding
    if not bad:
        yield ok(
            "model",
            f"{name}: configuration, weights ({weights_bytes(folder) / 2**30:.2f} GiB) and tokenizer are whole",
            f"{name}：配置、权重（{weights_bytes(folder) / 2**30:.2f} GiB）、分词器齐全",
        )


def weights_bytes(folder: Path) -> int:
    """Bytes of weights in a folder."""
    total = 0
    for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pt"):
        total += sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())
    return total


def _config(folder: Path, name: str) -> Iterator[Finding]:
    path = folder / "config.json"
    if not path.exists():
        if (folder / "params.json").exists():
            return
        yield Finding("stop", "model", T(f"{path} is missing", f"缺少 {path}"), _DOWNLOAD.fill(model=name))
        return
    value = _json(path)
    if isinstance(value, str):
        yield Finding("stop", "model", T(f"{path}: {value}", f"{path}：{value}"), _DOWNLOAD.fill(model=name))
    elif not value.get("architectures") and not value.get("model_type"):
        yield Finding(
            "stop", "model", T(f"{path} names no architecture", f"{path} 里没有 architectures"),
            T("take the config.json of the base model", "换成基座模型的 config.json"),
        )  # fmt: skip


def _json(path: Path) -> dict[str, Any] | str:
    """The object in a file, or a phrase that says what is wrong with it."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return "is far too large for JSON"
        raw = path.read_bytes()
    except OSError as error:
        return error.strerror or str(error)
    if raw.startswith(LFS_START):
        return "is a git-lfs pointer, not the file"
    if not raw.strip():
        return "is empty"
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return f"is no valid JSON ({error})"
    return value if isinstance(value, dict) else "holds no object"


def _weights(folder: Path, name: str) -> Iterator[Finding]:
    files = sorted(
        path for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth") for path in folder.glob(pattern)
    )
    indexes = sorted(folder.glob("*.index.json"))
    wanted: set[str] = set()
    for index in indexes:
        value = _json(index)
        if isinstance(value, str):
            yield Finding("stop", "weights", T(f"{index}: {value}", f"{index}：{value}"), _DOWNLOAD.fill(model=name))
            continue
        listed = value.get("weight_map")
        if isinstance(listed, dict):
            wanted |= {str(part) for part in listed.values()}
    missing = sorted(part for part in wanted if not (folder / part).exists())
    if missing and not (len(missing) == len(wanted) and files):
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        yield Finding(
            "stop",
            "weights",
            T(
                f"{len(missing)} of {len(wanted)} weight files are missing: {shown}",
                f"{len(wanted)} 个权重文件缺 {len(missing)} 个：{shown}",
            ),
            _DOWNLOAD.fill(model=name),
        )
    if not files and not wanted:
        yield Finding(
            "stop", "weights", T(f"{folder} holds no weights", f"{folder} 里没有权重文件"), _DOWNLOAD.fill(model=name)
        )
    for path in files[:2000]:
        trouble = safetensors_trouble(path) if path.suffix == ".safetensors" else _blob_trouble(path)
        if trouble is not None:
            yield Finding(
                "stop",
                "weights",
                T(f"{path.name}: {trouble.en}", f"{path.name}：{trouble.zh}"),
                _DOWNLOAD.fill(model=name),
            )
    partial = sorted(folder.rglob("*.incomplete"))[:1]
    if partial:
        yield Finding(
            "warn",
            "weights",
            T(f"an unfinished download lies in {partial[0].parent}", f"{partial[0].parent} 里有未完成的下载"),
            _DOWNLOAD.fill(model=name),
        )


def safetensors_trouble(path: Path) -> T | None:
    """What is wrong with a safetensors file, from its header and size; None when nothing is."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(len(LFS_START))
            if head.startswith(LFS_START):
                return T("is a git-lfs pointer, not the weights", "只是 git-lfs 指针，不是权重本身")
            if size < 8:
                return T("is empty", "是空文件") if size == 0 else T("is cut", "被截断")
            (length,) = struct.unpack("<Q", head[:8])
            if length > MAX_HEADER_BYTES or 8 + length > size:
                return T(
                    "is cut or no safetensors file (its header is longer than it)",
                    "被截断，或不是 safetensors 文件（文件头比文件还长）",
                )
            file.seek(8)
            header = json.loads(file.read(length))
    except OSError as error:
        reason = error.strerror or str(error)
        return T(f"can't be read: {reason}", f"读不了：{reason}")
    except (ValueError, RecursionError):
        return T("is damaged (its header is no JSON)", "已损坏（文件头不是 JSON）")
    ends = [
        entry["data_offsets"][1]
        for entry in header.values()
        if isinstance(entry, dict) and isinstance(entry.get("data_offsets"), list) and len(entry["data_offsets"]) == 2
    ]
    expected = 8 + length + max((end for end in ends if isinstance(end, int)), default=0)
    if size < expected:
        return T(f"is cut: {size} of {expected} bytes", f"被截断：应有 {expected} 字节，只有 {size} 字节")
    return None


def _blob_trouble(path: Path) -> T | None:
    try:
        with path.open("rb") as file:
            head = file.read(len(LFS_START))
    except OSError as error:
        reason = error.strerror or str(error)
        return T(f"can't be read: {reason}", f"读不了：{reason}")
    if not head:
        return T("is empty", "是空文件")
    return (
        T("is a git-lfs pointer, not the weights", "只是 git-lfs 指针，不是权重本身")
        if head.startswith(LFS_START)
        else None
    )


def _single_file(path: Path) -> Iterator[Finding]:
    trouble = safetensors_trouble(path) if path.suffix == ".safetensors" else _blob_trouble(path)
    if trouble is not None:
        yield Finding(
            "stop", "model", T(f"{path}: {trouble.en}", f"{path}：{trouble.zh}"), _DOWNLOAD.fill(model=path.name)
        )
    else:
        yield ok(
            "model",
            f"{path} ({path.stat().st_size / 2**30:.2f} GiB)",
            f"{path}（{path.stat().st_size / 2**30:.2f} GiB）",
        )


def _tokenizer(folder: Path, name: str) -> Iterator[Finding]:
    there = [folder / file for file in TOKENIZERS if (folder / file).exists()]
    if not there and not list(folder.glob("*.gguf")):
        yield Finding(
            "stop", "tokenizer", T(f"{folder} holds no tokenizer", f"{folder} 里没有分词器"),
            T("copy the tokenizer files of the base model, or give --tokenizer", "拷入基座模型的分词器文件，或用 --tokenizer 指定"),
        )  # fmt: skip
    for path in there:
        trouble = _json(path) if path.suffix == ".json" else (_blob_trouble(path) or {})
        if isinstance(trouble, str):
            yield Finding(
                "stop", "tokenizer", T(f"{path.name}: {trouble}", f"{path.name}：{trouble}"), _DOWNLOAD.fill(model=name)
            )
        elif isinstance(trouble, T):
            yield Finding(
                "stop",
                "tokenizer",
                T(f"{path.name}: {trouble.en}", f"{path.name}：{trouble.zh}"),
                _DOWNLOAD.fill(model=name),
            )


def cached_snapshot(model: str, environment: dict[str, str] | Any) -> Path | None:
    """The newest snapshot of a repository in the Hugging Face cache, or None."""
    home = environment.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    hub = Path(environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub"))
    snapshots = hub / ("models--" + model.replace("/", "--")) / "snapshots"
    try:
        found = [path for path in snapshots.iterdir() if path.is_dir()]
    except OSError:
        return None
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _repository(plan: Plan, model: str) -> Iterator[Finding]:
    environment = plan.environment
    snapshot = cached_snapshot(model, environment)
    forbidden = environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if snapshot is not None:
        yield from check_folder(snapshot, model)
    if forbidden or plan.offline:
        if snapshot is None and not forbidden:
            yield Finding(
                "note", "hub", T(f"{model} is not in the cache and would be downloaded; with --offline the hub was not asked", f"缓存里没有 {model}，启动时会下载；因为 --offline，没有询问 hub"),
                T("without --offline: whether the hub has it", "去掉 --offline 可检查 hub 上有没有"),
            )  # fmt: skip
        elif snapshot is None:
            yield Finding(
                "stop", "hub", T(f"{model} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it", f"缓存里没有 {model}，而 HF_HUB_OFFLINE 又禁止下载"),
                T(f"unset HF_HUB_OFFLINE, or first: hf download {model}", f"取消 HF_HUB_OFFLINE，或先执行：hf download {model}"),
            )  # fmt: skip
        return
    yield from check_hub(plan, model, have=snapshot is not None)


def check_hub(plan: Plan, model: str, *, have: bool) -> Iterator[Finding]:
    """Whether the hub (or the mirror in HF_ENDPOINT) answers for this repository; bounded by the plan's time-out."""
    environment = plan.environment
    if environment.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        base, path = "https://www.modelscope.cn", f"/api/v1/models/{model}"
    else:
        base = (environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        path = f"/api/models/{model}"
    mirror = T(
        "set HF_ENDPOINT to a mirror you can reach, or download elsewhere and give the local folder; with a complete cache set HF_HUB_OFFLINE=1",
        "把 HF_ENDPOINT 设成连得上的镜像，或在别处下载后给本地目录；缓存齐全时设 HF_HUB_OFFLINE=1",
    )
    headers = {"User-Agent": "lifesign-check"}
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    level = "note" if have else "stop"
    try:
        request = urllib.request.Request(base + path, headers=headers, method="GET")
        with urllib.request.urlopen(request, timeout=min(plan.timeout_s, 8.0)) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            what = T(
                f"{base} answers {error.code} for {model}: gated, private, or no such model",
                f"{base} 对 {model} 返回 {error.code}：需要授权、私有，或不存在",
            )
            fix = T(
                f"accept the licence on its page and set HF_TOKEN{' to a token that may read it' if token else ''}",
                "在模型页面同意协议，并设置有权限的 HF_TOKEN",
            )
        elif error.code == 404:
            what = T(f"{base} knows no model {model}", f"{base} 上没有 {model}")
            fix = T("fix the name, or give a local folder", "改正名字，或给本地目录")
        else:
            what, fix = T(f"{base} answers {error.code}", f"{base} 返回 {error.code}"), mirror
        yield Finding("note" if have else "stop", "hub", what, fix)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        yield Finding(level, "hub", T(f"{base} can't be reached: {reason}", f"连不上 {base}：{reason}"), mirror)  # type: ignore[arg-type]
    else:
        yield ok("hub", f"{base} has {model}", f"{base} 上有 {model}")
