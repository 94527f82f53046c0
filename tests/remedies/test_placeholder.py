"""The placeholder MODEL in commands is a word, never a part of a name."""

from __future__ import annotations

from lifesign.facts.model import Life
from lifesign.remedies.sketch import filled


def test_only_the_word_is_filled() -> None:
    life = Life(model="/models/a b")
    assert filled("vllm serve MODEL --port 1", life) == "vllm serve '/models/a b' --port 1"
    for text in (
        "unset VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "hf download ORG/MODEL-FP8 --local-dir MODEL_DIR",
        "ls MODEL_DIR",
    ):
        assert filled(text, life) == text
    assert filled("vllm serve MODEL", Life()) == "vllm serve MODEL"


def test_a_repository_is_filled_by_a_repository_only() -> None:
    text = "hf download ORG/MODEL --local-dir ./model; hf download ORG/MODEL-FP8"
    assert filled(text, Life(model="org/m-7b")) == "hf download org/m-7b --local-dir ./model; hf download ORG/MODEL-FP8"
    for model in ("/models/m", "./m", "~/org/m", "m", "a/b/c", "s3://bucket/m", "org/m v2"):
        assert filled(text, Life(model=model)) == text, model


def test_a_sketch_of_a_start_says_that_it_is_one() -> None:
    """`vllm serve /m` alone would lose the tensor-parallel size and fail for another reason."""
    from lifesign.remedies import library

    for remedy in library.ALL:
        if remedy.command and "vllm serve MODEL" in remedy.command:
            assert "vllm serve MODEL ..." in remedy.command, remedy.slug
    assert filled("lifesign guard -- vllm serve MODEL ...", Life(model="/m")) == "lifesign guard -- vllm serve /m ..."
