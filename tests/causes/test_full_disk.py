"""A full disk: what is moved away is the folder that was written to, not the one that is most often full."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths
from tests.causes.test_setup_texts import Frames, log

COMPILE: Frames = (
    ("vllm/compilation/backends.py", "__call__"),
    ("vllm/compilation/compiler_interface.py", "compile"),
)
HUB: Frames = (
    ("vllm/model_executor/model_loader/weight_utils.py", "download_weights_from_hf"),
    ("huggingface_hub/file_download.py", "http_get"),
)
TRITON: Frames = (("triton/runtime/cache.py", "put"),)
INDUCTOR: Frames = (("torch/_inductor/codecache.py", "write_atomic"),)
TEMP: Frames = (("/usr/lib/python3.12/tempfile.py", "_mkstemp_inner"),)
FLASHINFER: Frames = (("flashinfer/jit/core.py", "build_and_load"),)


@pytest.mark.parametrize(
    ("frames", "path", "variable", "others"),
    [
        (COMPILE, "/root/.cache/vllm/torch_compile_cache/ab12/rank_0_0/x.py", "VLLM_CACHE_ROOT=", "HF_HOME"),
        (INDUCTOR, "/root/.cache/vllm/torch_compile_cache/ab12/inductor_cache/q/cq.py", "VLLM_CACHE_ROOT=", "HF_HOME"),
        (INDUCTOR, "/tmp/torchinductor_root/ab/cab.py", "TORCHINDUCTOR_CACHE_DIR=", "HF_HOME"),
        (TRITON, "/root/.triton/cache/ABC/k.cubin", "TRITON_CACHE_DIR=", "HF_HOME"),
        (FLASHINFER, "/root/.cache/flashinfer/0.6.1/90a/x.ninja", "FLASHINFER_WORKSPACE_BASE=", "HF_HOME"),
        (TEMP, "/tmp/tmpab12", "TMPDIR=", "HF_HOME"),
        (HUB, "/data/hf/hub/models--a--b/blobs/1.incomplete", "HF_HOME=", "VLLM_CACHE_ROOT"),
        (HUB, "", "HF_HOME=", "VLLM_CACHE_ROOT"),
    ],
)
def test_the_folder_that_is_full_is_the_one_that_moves(
    frames: Frames, path: str, variable: str, others: str, tmp_path: Path
) -> None:
    file = tmp_path / "vllm.log"
    text = "OSError: [Errno 28] No space left on device" + (f": '{path}'" if path else "")
    file.write_text("\n".join(log("worker", frames, text, "")) + "\n", encoding="utf-8")
    report = diagnose_paths([str(file)])
    assert (report.verdict.cause, report.verdict.subtype) == ("host-resource", "disk-full")
    commands = " ".join(remedy.command for remedy in report.verdict.remedies)
    assert variable in commands
    assert others not in commands
    if path:
        assert f"df -h {path.rsplit('/', 1)[0]};" in commands
