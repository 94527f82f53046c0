"""No command may bring the CUDA build onto another platform."""

from __future__ import annotations

import pytest

from lifesign.facts.model import Life
from lifesign.remedies import library
from lifesign.remedies.apply import render
from lifesign.remedies.platforms import for_platform


@pytest.mark.parametrize("platform", ["rocm", "npu", "xpu", "cpu", "tpu"])
@pytest.mark.parametrize("command", ["pip install -U vllm", "pip install -U 'vllm>=0.14.0'"])
def test_an_upgrade_names_a_build_of_the_platform(platform: str, command: str) -> None:
    text = for_platform(command, Life(platform=platform))
    assert text != command
    assert "pip install -U vllm " not in text + " "
    assert "0.14.0" in text or "0.14.0" not in command
    assert for_platform(command, Life(platform="cuda")) == command


def test_sglang_is_upgraded_as_sglang() -> None:
    assert for_platform("pip install -U vllm", Life(engine="sglang")) == "pip install -U sglang"


@pytest.mark.parametrize(("platform", "tool"), [("npu", "npu-smi info"), ("rocm", "rocm-smi"), ("cuda", "nvidia-smi")])
def test_the_tool_that_shows_the_devices(platform: str, tool: str) -> None:
    assert for_platform("vllm collect-env; nvidia-smi", Life(platform=platform)).endswith(f"; {tool}")
    assert for_platform("vllm collect-env; nvidia-smi", Life(platform="cpu")) == "vllm collect-env"
    query = "nvidia-smi --query-gpu=name"
    assert for_platform(query, Life(platform=platform)) == query


@pytest.mark.parametrize("platform", ["rocm", "npu", "xpu", "tpu"])
def test_no_remedy_of_the_library_escapes(platform: str) -> None:
    life = Life(version="0.12.0", platform=platform)
    for remedy in library.ALL:
        rendered = render(remedy, life)
        if rendered is not None:
            assert not rendered.command.startswith(("pip install -U vllm ", "pip install -U 'vllm>")), remedy.slug
            assert rendered.command != "pip install -U vllm", remedy.slug
