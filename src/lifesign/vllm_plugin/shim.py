"""Make lifesign's plugin visible to an engine in another virtual environment, without installing anything there.

vLLM finds plugins through the metadata of installed distributions. A folder that holds a link to this package and a
`.dist-info` with its entry points looks like an installed distribution to any Python that has the folder on PYTHONPATH.
The folder holds nothing else: putting this package's real parent on the path would show the engine every other package
of our own environment, and it would load those instead of its own.

The guard, the drill and the tests start engines with `shimmed_environment`. Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import lifesign
from lifesign.errors import UsageError

GENERAL_GROUP = "vllm.general_plugins"
ENTRY_POINT = "lifesign = lifesign.vllm_plugin:register"


def write_shim(folder: Path) -> Path:
    """Turn `folder` (made if need be) into something that PYTHONPATH can name; gives it back.

    Raises UsageError when the folder can't be written. Writing twice is harmless.
    """
    package = Path(lifesign.__file__).resolve().parent
    info = folder / f"lifesign-{lifesign.__version__}.dist-info"
    link = folder / "lifesign"
    try:
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: lifesign\nVersion: {lifesign.__version__}\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(f"[{GENERAL_GROUP}]\n{ENTRY_POINT}\n", encoding="utf-8")
        if link.is_symlink() and link.resolve() != package:
            link.unlink()
        if not link.exists():
            _show_package(package, link)
    except OSError as error:
        raise UsageError(
            f"cannot prepare the engine plugin in {folder}: {error}. Name a folder that can be written."
        ) from error
    return folder


def _show_package(package: Path, link: Path) -> None:
    """Link to the package; where links aren't allowed, copy it."""
    try:
        link.symlink_to(package, target_is_directory=True)
    except FileExistsError:
        return
    except OSError:
        shutil.copytree(package, link, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def shimmed_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A copy of `environment` in which a Python process finds lifesign and its vLLM entry point through `folder`.

    What was on PYTHONPATH stays there, behind ours. The plugin still does nothing unless LIFESIGN_PATIENCE=1 or
    LIFESIGN_FAULT is set as well.
    """
    result = dict(environment)
    shim = str(write_shim(folder))
    rest = [part for part in result.get("PYTHONPATH", "").split(os.pathsep) if part and part != shim]
    result["PYTHONPATH"] = os.pathsep.join([shim, *rest])
    return result
