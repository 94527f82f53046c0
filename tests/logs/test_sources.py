"""Files whose name promises a compression that their content doesn't keep."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from lifesign.errors import SourceError
from lifesign.logs.reader import read

LINE = b"INFO 11-30 15:33:04 [api_server.py:1] vLLM API server version 0.32.0\n"
NOISE = bytes.fromhex("8d3f0a91c2e5b774fe11a6d8039c5be24f70ae1d")  # 20 bytes that are no text
PACK = {
    ".gz": ("gzip", gzip.compress),
    ".xz": ("xz", lzma.compress),
    ".bz2": ("bzip2", bz2.compress),
    ".zst": ("zstd", zstandard.ZstdCompressor().compress),
}


@pytest.mark.parametrize("suffix", PACK)
def test_noise_with_the_name_of_an_archive_is_refused_by_that_name(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(NOISE)
    with pytest.raises(SourceError, match=f"no {PACK[suffix][0]} file"):
        read([str(path)])


@pytest.mark.parametrize("suffix", PACK)
def test_a_true_archive_is_read_and_plain_text_with_its_name_is_told(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vllm.log{suffix}"
    path.write_bytes(PACK[suffix][1](LINE))
    true = read([str(path)])
    assert (true.lines, true.notes) == (1, [])
    path.write_bytes(LINE + "中文".encode())
    plain = read([str(path)])
    assert plain.lines == 2
    assert [note for note in plain.notes if "plain text" in note]


def test_the_exit_code_says_that_the_input_is_unusable(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(NOISE)
    command = [sys.executable, "-m", "lifesign.cli.main", "diagnose", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no gzip file" in done.stderr
    assert "Traceback" not in done.stderr
