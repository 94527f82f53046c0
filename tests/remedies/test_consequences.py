"""What a remedy gains or costs is told in the log's own figures, and left out where the log has none."""

from __future__ import annotations

import pytest

from lifesign.facts.model import Life
from lifesign.remedies import consequences, sizing
from lifesign.remedies import library as lib
from lifesign.remedies.apply import render


def life(**figures: float) -> Life:
    made = Life(version="0.20.2", model="m")
    made.figures = {name: (float(value), number) for number, (name, value) in enumerate(figures.items(), 1)}
    return made


def test_bytes_per_token_from_the_log_agree_with_the_shape() -> None:
    # Llama-3.1-8B in bf16: 32 layers, 8 KV heads of 128: 128 KiB per token.
    shape = consequences.kv_shape_bytes(32, 8, 128, 2)
    assert shape == 131072
    at = life(kv_available_gib=56.30, kv_tokens=461_200)
    logged = consequences.kv_bytes_per_token(at)
    assert logged is not None
    assert logged == pytest.approx(shape, rel=0.001)


def test_fp8_says_how_many_tokens() -> None:
    rendered = render(lib.KV_CACHE_FP8, life(kv_available_gib=8.0, kv_tokens=65_536))
    assert rendered is not None
    assert rendered.how is not None
    assert "128.0 KiB per token" in rendered.how.en
    assert "131,072" in rendered.how.en
    assert rendered.lines == (1, 2)


def test_eager_says_what_the_graphs_took() -> None:
    rendered = render(lib.EAGER, life(graph_gib=0.54))
    assert rendered is not None
    assert rendered.how is not None
    assert "553 MiB" in rendered.how.en


def test_a_smaller_share_says_what_it_costs() -> None:
    at = life(free_gib=0.6, tried_gib=1.1, total_gib=24.0, kv_available_gib=8.0, kv_tokens=65_536)
    rendered = render(lib.LOWER_UTILISATION, at)
    assert rendered is not None
    assert rendered.how is not None
    assert rendered.value == "0.87"
    lost = (0.92 - 0.87) * 24.0 * sizing.GIB / 131072
    assert f"{lost:,.0f} of 65,536 tokens" in rendered.how.en


@pytest.mark.parametrize("remedy", [lib.KV_CACHE_FP8, lib.EAGER])
def test_without_figures_the_advice_stands_alone(remedy: object) -> None:
    rendered = render(remedy, life())  # type: ignore[arg-type]
    assert rendered is not None
    assert rendered.how is None


@pytest.mark.parametrize(
    "bad", [{"kv_available_gib": 0, "kv_tokens": 10}, {"kv_available_gib": 5, "kv_tokens": 0}, {"kv_tokens": 5}]
)
def test_figures_that_make_no_sense(bad: dict[str, float]) -> None:
    assert consequences.kv_bytes_per_token(life(**bad)) is None
    assert consequences.kv_halved(life(**bad)) is None
    assert consequences.cache_lost(life(**bad)) is None
