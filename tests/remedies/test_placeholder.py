"""The placeholder MODEL in commands is a word, never a part of a name."""

from __future__ import annotations

from lifesign.facts.model import Life
from lifesign.remedies.apply import _fill_command


def test_only_the_word_is_filled() -> None:
    life = Life(model="/models/a b")
    assert _fill_command("vllm serve MODEL --port 1", life) == "vllm serve '/models/a b' --port 1"
    for text in (
        "unset VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "hf download ORG/MODEL-FP8 --local-dir MODEL_DIR",
        "ls MODEL_DIR",
    ):
        assert _fill_command(text, life) == text
    assert _fill_command("vllm serve MODEL", Life()) == "vllm serve MODEL"


def test_a_sketch_becomes_the_readers_own_line() -> None:
    life = Life(version="0.21.0", model="/m")
    life.user_args = {
        "model_tag": "/m",
        "tensor_parallel_size": 8,
        "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
    }
    assert (
        _fill_command("env -u LD_LIBRARY_PATH vllm serve MODEL", life)
        == "env -u LD_LIBRARY_PATH vllm serve /m --tensor-parallel-size 8 --kv-transfer-config "
        """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    )
    assert (
        _fill_command("vllm serve MODEL   # without --kv-transfer-config", life)
        == "vllm serve /m --tensor-parallel-size 8   # without --kv-transfer-config"
    )
    assert _fill_command("lifesign guard -- vllm serve MODEL ...", life) == "lifesign guard -- vllm serve /m ..."
