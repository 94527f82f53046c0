"""The shipped catalog: its size and form, and what is known of the knobs that remedies and lint turn on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lifesign.remedies
from lifesign.remedies.catalog import load

DATA = Path(lifesign.remedies.__file__).parent / "data"
CATALOG = load()


def test_every_stable_release_is_there_in_order() -> None:
    assert len(CATALOG.releases) == 45
    assert CATALOG.releases[0] == "0.8.5"
    assert CATALOG.newest == "0.33.0"


def test_shipped_data_stays_small_and_one_name_a_line() -> None:
    sizes = {path.name: path.stat().st_size for path in DATA.iterdir() if path.suffix == ".json"}
    assert sum(sizes.values()) <= 300_000, sizes
    lines = (DATA / "catalog.json").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith('"VLLM_') for line in lines) == len(
        set(filter(lambda line: line.startswith('"VLLM_'), lines))
    )
    assert max(map(len, lines)) < 1000


# What the real parsers and envs.py of these releases say (research on 45 releases).
OPTIONS = [
    ("--max-num-seqs", "0.8.5", "0.33.0"),
    ("--swap-space", "0.8.5", "0.17.1"),
    ("--task", "0.8.5", "0.12.0"),
    ("--device", "0.8.5", "0.9.2"),
    ("--cuda-graph-sizes", "0.9.0", "0.12.0"),
    ("--cudagraph-capture-sizes", "0.11.1", "0.33.0"),
    ("--max-seq-len-to-capture", "0.8.5", "0.10.2"),
    ("--kv-cache-memory-bytes", "0.10.2", "0.33.0"),
    ("--attention-backend", "0.13.0", "0.33.0"),
    ("--distributed-timeout-seconds", "0.18.0", "0.33.0"),
    ("--cpu-distributed-timeout-seconds", "0.22.0", "0.33.0"),
    ("--optimization-level", "0.12.0", "0.33.0"),
    ("--guided-decoding-backend", "0.8.5", "0.11.2"),
    ("--moe-backend", "0.17.0", "0.33.0"),
    ("--linear-backend", "0.22.0", "0.33.0"),
    ("--device-ids", "0.24.0", "0.33.0"),
]
VARIABLES = [
    ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "0.9.2", "0.33.0"),
    ("VLLM_ENGINE_READY_TIMEOUT_S", "0.14.0", "0.33.0"),
    ("VLLM_RPC_TIMEOUT", "0.8.5", "0.22.1"),
    ("VLLM_ENGINE_ITERATION_TIMEOUT_S", "0.8.5", "0.31.0"),
    ("VLLM_USE_V1", "0.8.5", "0.11.0"),
    ("VLLM_ATTENTION_BACKEND", "0.8.5", "0.14.1"),
    ("VLLM_LOGGING_LEVEL", "0.8.5", "0.33.0"),
    ("VLLM_ALLREDUCE_USE_SYMM_MEM", "0.10.2", "0.33.0"),
]


@pytest.mark.parametrize(("name", "first", "last"), OPTIONS)
def test_options_live_from_first_to_last(name: str, first: str, last: str) -> None:
    here = [release for release in CATALOG.releases if CATALOG.option(name, release) is not None]
    assert (here[0], here[-1]) == (first, last)


@pytest.mark.parametrize(("name", "first", "last"), VARIABLES)
def test_variables_live_from_first_to_last(name: str, first: str, last: str) -> None:
    here = [release for release in CATALOG.releases if CATALOG.env(name, release) is not None]
    assert (here[0], here[-1]) == (first, last)


@pytest.mark.parametrize("name", ["--cudagraph-mode", "--use-deepgemm", "--engine-rpc-timeout", "--request-timeout"])
def test_options_that_never_were(name: str) -> None:
    assert not CATALOG.option_ranges(name)
    assert all(CATALOG.option(name, release) is None for release in CATALOG.releases)


def test_unread_variables() -> None:
    dead = [r for r in CATALOG.releases if (knob := CATALOG.env("VLLM_RPC_TIMEOUT", r)) is not None and knob.unread]
    assert (dead[0], dead[-1]) == ("0.11.0", "0.22.1")
    knob = CATALOG.env("VLLM_RPC_TIMEOUT", "0.10.2")
    assert knob is not None
    assert not knob.unread


def test_defaults_that_moved() -> None:
    def default(name: str, release: str) -> object:
        knob = CATALOG.option(name, release) if name.startswith("-") else CATALOG.env(name, release)
        assert knob is not None
        assert knob.has_default
        return knob.default

    assert default("--gpu-memory-utilization", "0.19.1") == 0.9
    assert default("--gpu-memory-utilization", "0.20.0") == 0.92
    assert default("VLLM_USE_DEEP_GEMM", "0.10.2") is False
    assert default("VLLM_USE_DEEP_GEMM", "0.11.0") is True
    assert default("VLLM_SKIP_P2P_CHECK", "0.10.1") is True
    assert default("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "0.9.2") == 300


def test_negative_forms_and_aliases() -> None:
    off = CATALOG.option("--no-enforce-eager", "0.12.0")
    assert off is not None
    assert (off.name, off.negative) == ("--enforce-eager", True)
    assert CATALOG.option("--disable-log-requests", "0.16.0") is not None
    assert CATALOG.option("--disable-log-requests", "0.32.0") is None
    paired = CATALOG.option("--disable-log-requests", "0.33.0")
    assert paired is not None
    assert (paired.name, paired.negative) == ("--enable-log-requests", True)
    short = CATALOG.option("-cc", "0.12.0")
    assert short is not None
    assert short.name == "--compilation-config"
    assert CATALOG.option("-cc", "0.11.2") is None
    assert CATALOG.option("--max_num_seqs", "0.9.0") is not None


def test_abbreviations_are_not_membership() -> None:
    assert CATALOG.option("--max-num-seq", "0.32.0") is None
    assert CATALOG.abbreviations("--max-num-seq", "0.32.0") == ["--max-num-seqs"]
    assert CATALOG.abbreviations("--device", "0.23.0") == []
    assert CATALOG.abbreviations("--device", "0.30.0") == ["--device-ids"]
    assert len(CATALOG.abbreviations("--device", "0.31.0")) == 2


def test_json_keys() -> None:
    def keys(release: str) -> dict[str, str]:
        found = CATALOG.json_keys("CompilationConfig", release)
        assert found is not None
        return found

    assert "cudagraph_mode" not in keys("0.10.0")
    assert "cudagraph_mode" in keys("0.10.1")
    assert "full_cuda_graph" in keys("0.11.0")
    assert "full_cuda_graph" not in keys("0.11.1")
    assert keys("0.32.0")["pass_config"] == "PassConfig"
    assert CATALOG.json_keys("NoSuchConfig", "0.32.0") is None


@pytest.mark.parametrize(
    ("version", "release", "standing"),
    [
        ("0.32.0", "0.32.0", "exact"),
        ("0.32.0+cpu", "0.32.0", "exact"),
        ("v0.9.0.1", "0.9.0.1", "exact"),
        ("0.11.1rc2.dev3+g12ab", "0.11.0", "development"),
        ("0.40.0", "0.33.0", "newer"),
        ("0.34.0.dev5", "0.33.0", "newer"),
        ("0.6.3", "0.8.5", "older"),
        ("", "0.33.0", "unknown"),
        ("nightly", "0.33.0", "newer"),
    ],
)
def test_basis(version: str, release: str, standing: str) -> None:
    basis = CATALOG.basis(version)
    assert (basis.release, basis.standing) == (release, standing)
    assert basis.verified == (standing in ("exact", "development"))


def test_the_file_is_plain_sorted_json() -> None:
    data = json.loads((DATA / "catalog.json").read_text(encoding="utf-8"))
    for part in ("env", "options", "args", "json"):
        assert list(data[part]) == sorted(data[part]), part
