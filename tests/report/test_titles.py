"""A large first letter for a title, but never a name changed by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lifesign.causes import registry
from lifesign.text import capitalized


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("vLLM refused a setting", "vLLM refused a setting"),
        ("torch.compile failed", "torch.compile failed"),
        ("nvcc is missing", "nvcc is missing"),
        ("--enforce-eager is off", "--enforce-eager is off"),
        ("a setting was refused", "A setting was refused"),
        ("memory, then nothing", "Memory, then nothing"),
        ("don't", "Don't"),
        ("NCCL failed", "NCCL failed"),
        ("显存不足", "显存不足"),
        ("", ""),
    ],
)
def test_names_keep_their_letters(text: str, want: str) -> None:
    assert capitalized(text) == want


def test_no_title_changes_the_name_that_it_begins_with() -> None:
    for cause in registry.load()[0]:
        for text in cause.title:
            shown = capitalized(text)
            assert shown == text or (shown[1:] == text[1:] and text.split()[0].rstrip(",.:").islower()), shown


def test_explain_names_vllm() -> None:
    command = [sys.executable, "-m", "lifesign.cli.main", "explain", "user-config", "--lang", "en"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("# user-config: vLLM refused a setting")
