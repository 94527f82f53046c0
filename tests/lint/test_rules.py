"""The rules: every wrong name of the mission for four releases, the five traps, contradictions; and silence on what is right."""

from __future__ import annotations

import pytest

from lifesign.remedies.catalog import load
from lifesign.remedies.lint import check, readers
from lifesign.remedies.lint.model import Problem

RELEASES = ("0.8.5", "0.11.0", "0.19.1", "0.32.0")


def problems(version: str, *words: str) -> list[Problem]:
    return check(readers.command_line(list(words)), version).problems


def lint(version: str, text: str) -> list[Problem]:
    return check(readers.script(text, "x"), version).problems


def codes(found: list[Problem]) -> set[str]:
    return {problem.code for problem in found}


STEP = {
    "0.8.5": "",
    "0.11.0": "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=600",
    "0.19.1": "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=600",
}
GRAPHS = {"0.8.5": "--enforce-eager", "0.11.0": "--compilation-config", "0.19.1": "--compilation-config"}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("spelling", ["--cudagraph_mode", "--cudagraph-mode"])
def test_cudagraph_mode_is_no_option(version: str, spelling: str) -> None:
    (found,) = problems(version, "vllm", "serve", "m", spelling, "NONE")
    assert (found.severity, found.code) == ("error", "invented-name")
    assert found.instead.startswith(GRAPHS.get(version, "--compilation-config"))


@pytest.mark.parametrize("version", RELEASES)
def test_use_deepgemm_is_no_option(version: str) -> None:
    (found,) = problems(version, "vllm", "serve", "m", "--use-deepgemm")
    assert (found.code, found.instead) == ("invented-name", "VLLM_USE_DEEP_GEMM=0")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", ["engine_rpc_timeout", "request_timeout", "client_timeout"])
def test_time_outs_that_never_were(version: str, name: str) -> None:
    for found in (
        *problems(version, "vllm", "serve", "m", f"--{name}", "600"),
        *problems(version, "vllm", "serve", "m", f"--{name.replace('_', '-')}=600"),
    ):
        assert (found.severity, found.code) == ("error", "invented-name")
        assert found.instead == STEP.get(version, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=600")
        assert version != "0.8.5" or "0.9.2" in found.message.en


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", ["VLLM_WATCHDOG_TIMEOUT", "NCCL_SOCKET_TIMEOUT"])
def test_variables_that_never_were(version: str, name: str) -> None:
    (found,) = problems(version, f"{name}=600", "vllm", "serve", "m")
    assert (found.severity, found.code) == ("error", "invented-name")
    if name == "NCCL_SOCKET_TIMEOUT":
        assert ("--distributed-timeout-seconds" in found.instead) == (version in ("0.19.1", "0.32.0"))
    else:
        assert ("VLLM_ENGINE_READY_TIMEOUT_S" in found.instead) == (version in ("0.19.1", "0.32.0"))


@pytest.mark.parametrize("version", RELEASES)
def test_rpc_timeout_acts_on_v0_only(version: str) -> None:
    (found,) = problems(version, "VLLM_RPC_TIMEOUT=600000", "vllm", "serve", "m")
    assert found.severity == "warning"
    assert "V0" in found.message.en


def test_python_arguments_that_never_were(tmp_path: object) -> None:
    from lifesign.remedies.lint import python_files

    text = "llm = LLM('m', engine_rpc_timeout=1, request_timeout=2, client_timeout=3, device='cpu', max_num_seqs=4)"
    for version in RELEASES:
        found = check(python_files.read(text, "a.py"), version).problems
        names = {problem.name for problem in found}
        assert {"engine_rpc_timeout", "request_timeout", "client_timeout"} <= names
        assert ("device" in names) == (version != "0.8.5")
        assert "max_num_seqs" not in names


# -- the five traps ----------------------------------------------------------------------------------------------------


def test_trap_1_defined_but_never_read() -> None:
    (found,) = problems("0.12.0", "VLLM_ENGINE_ITERATION_TIMEOUT_S=600", "vllm", "serve", "m")
    assert found.code == "unread-variable"
    assert problems("0.9.2", "VLLM_ENGINE_ITERATION_TIMEOUT_S=600", "vllm", "serve", "m") == []


def test_trap_2_abbreviations() -> None:
    (found,) = problems("0.32.0", "vllm", "serve", "m", "--max-num-seq", "64")
    assert (found.severity, found.code, found.instead) == ("warning", "abbreviated-option", "--max-num-seqs")
    (kv,) = problems("0.12.0", "vllm", "serve", "m", "--kv-cache-memory", "1000000000")
    assert kv.instead == "--kv-cache-memory-bytes"


@pytest.mark.parametrize(
    ("version", "code"),
    [("0.9.2", None), ("0.10.0", "removed-option"), ("0.23.0", "removed-option"), ("0.24.0", "taken-for-another"), ("0.30.0", "taken-for-another"), ("0.31.0", "removed-option")],
)  # fmt: skip
def test_trap_2_device(version: str, code: str | None) -> None:
    found = [
        problem for problem in problems(version, "vllm", "serve", "m", "--device", "cpu") if problem.severity == "error"
    ]
    assert codes(found) == ({code} if code else set())


@pytest.mark.parametrize(
    ("version", "fate"),
    [
        ("0.8.5", "ignored"),
        ("0.9.0", "refused"),
        ("0.9.1", "ignored"),
        ("0.10.0", "ignored"),
        ("0.10.1", None),
        ("0.32.0", None),
    ],
)
def test_trap_3_json_keys(version: str, fate: str | None) -> None:
    found = problems(version, "vllm", "serve", "m", "--compilation-config", '{"cudagraph_mode":"NONE"}')
    assert codes(found) == ({"unknown-json-key"} if fate else set())
    assert all(fate in problem.message.en for problem in found if fate)


@pytest.mark.parametrize(
    ("version", "fate"), [("0.8.5", "ignored"), ("0.9.0", "refused"), ("0.15.1", "ignored"), ("0.16.0", "refused")]
)
def test_trap_3_other_json_options(version: str, fate: str) -> None:
    (found,) = problems(version, "vllm", "serve", "m", "--kv-transfer-config", '{"kv_conector":"X"}')
    assert fate in found.message.en
    assert found.instead == "kv_connector"
    assert problems("0.32.0", "vllm", "serve", "m", "--model-loader-extra-config", '{"anything": 1}') == []


def test_trap_3_misspelt_and_nested_and_dotted() -> None:
    (typo,) = problems("0.32.0", "vllm", "serve", "m", "-cc", '{"cudagraph_modes":"NONE"}')
    assert (typo.code, typo.instead) == ("unknown-json-key", "cudagraph_mode")
    assert codes(problems("0.32.0", "vllm", "serve", "m", "-cc", '{"pass_config":{"nope":1}}')) == {"unknown-json-key"}
    assert codes(problems("0.32.0", "vllm", "serve", "m", "--compilation-config.nope", "1")) == {"unknown-json-key"}
    assert problems("0.32.0", "vllm", "serve", "m", "--compilation-config.cudagraph_mode", "NONE") == []
    assert problems("0.32.0", "vllm", "serve", "m", "-cc.cudagraph_mode=NONE") == []


def test_trap_4_meaning_changes() -> None:
    (dotted,) = problems("0.13.0", "vllm", "serve", "m", "-O.cudagraph_mode=NONE")
    assert (dotted.severity, dotted.code, dotted.instead) == ("error", "changed-meaning", "-cc.cudagraph_mode=NONE")
    assert problems("0.12.0", "vllm", "serve", "m", "-O.cudagraph_mode=NONE") == []
    assert codes(problems("0.12.0", "vllm", "serve", "m", "-O3")) == {"changed-meaning"}
    assert problems("0.11.2", "vllm", "serve", "m", "-O3") == []
    (flipped,) = problems("0.11.0", "VLLM_USE_DEEP_GEMM=1", "vllm", "serve", "m")
    assert (flipped.severity, flipped.code) == ("note", "no-effect")
    assert problems("0.10.2", "VLLM_USE_DEEP_GEMM=1", "vllm", "serve", "m") == []
    assert problems("0.11.0", "VLLM_USE_DEEP_GEMM=0", "vllm", "serve", "m") == []


def test_trap_5_unknown_variables_only_warn() -> None:
    (late,) = problems("0.17.0", "VLLM_NO_SUCH_THING=1", "vllm", "serve", "m")
    assert (late.severity, "warns" in late.message.en) == ("warning", True)
    (early,) = problems("0.16.0", "VLLM_NO_SUCH_THING=1", "vllm", "serve", "m")
    assert "without a word" in early.message.en
    (typo,) = problems("0.32.0", "VLLM_LOGING_LEVEL=DEBUG", "vllm", "serve", "m")
    assert typo.instead == "VLLM_LOGGING_LEVEL=DEBUG"


# -- names, values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "words", "code", "instead"),
    [
        ("0.32.0", "--task embed", "removed-option", "--runner pooling"),
        ("0.18.0", "--swap-space 4", "removed-option", "--kv-offloading-size 4"),
        ("0.32.0", "--guided-decoding-backend xgrammar", "removed-option", "--structured-outputs-config"),
        ("0.9.1", "--attention-backend X", "future-option", ""),
        ("0.32.0", "--max-num-sqes 4", "unknown-option", "--max-num-seqs"),
        ("0.32.0", "--gpu-memory-utilisation 0.9", "unknown-option", "--gpu-memory-utilization"),
        ("0.32.0", "--max-num-seqs many", "wrong-type", ""),
        ("0.32.0", "--gpu-memory-utilization 90", "wrong-type", ""),
        ("0.32.0", "--max-num-seqs", "missing-value", ""),
        ("0.9.0", "--max-num-batched-tokens 2k", "wrong-type", ""),
        ("0.13.0", "--max-model-len auto", "wrong-type", ""),
        ("0.32.0", "--compilation-config {cudagraph_mode:NONE}", "bad-json", ""),
    ],
)
def test_names_and_values(version: str, words: str, code: str, instead: str) -> None:
    (found,) = problems(version, "vllm", "serve", "m", *words.split())
    assert found.code == code
    assert instead in found.instead


def test_variables_with_the_wrong_type_or_release() -> None:
    assert codes(lint("0.32.0", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=5m vllm serve m")) == {"wrong-type"}
    assert codes(lint("0.8.5", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=600 vllm serve m")) == {"future-variable"}
    assert codes(lint("0.32.0", "VLLM_USE_V1=0 vllm serve m")) == {"removed-variable"}
    assert codes(lint("0.10.2", "PYTORCH_ALLOC_CONF=x:1 vllm serve m")) == {"no-effect"}
    assert lint("0.11.1", "PYTORCH_ALLOC_CONF=x:1 vllm serve m") == []
    assert codes(lint("0.32.0", "NCCL_DEBGU=INFO vllm serve m")) == {"misspelt-variable"}
    assert lint("0.32.0", "NCCL_SOME_PLUGIN_THING=1 VLLM_ASCEND_X=1 MY_VAR=2 vllm serve m") == []


def test_one_word_in_a_list() -> None:
    (found,) = problems("0.32.0", "vllm", "serve", "m", "--max-num-seqs 64")
    assert (found.code, found.instead) == ("one-word", '"--max-num-seqs", "64"')


# -- together ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "text", "code"),
    [
        ("0.32.0", "vllm serve m --enforce-eager --cudagraph-capture-sizes 1 2 4", "contradiction"),
        ("0.32.0", """vllm serve m --enforce-eager -cc '{"cudagraph_capture_sizes":[1]}'""", "contradiction"),
        ("0.32.0", "vllm serve m --max-num-seqs 64 --max-num-batched-tokens 32", "contradiction"),
        ("0.32.0", "vllm serve m --port 1 --port 2", "contradiction"),
        ("0.32.0", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m -tp 2", "trap"),
        (
            "0.32.0",
            """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m --kv-transfer-config '{"kv_connector":"X"}'""",
            "trap",
        ),
        ("0.13.0", "VLLM_ATTENTION_BACKEND=X vllm serve m --attention-backend Y", "contradiction"),
    ],
)
def test_combinations(version: str, text: str, code: str) -> None:
    assert code in codes(lint(version, text))


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --enforce-eager --max-num-seqs 64 --max-num-batched-tokens 2048",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m -tp 2 --disable-custom-all-reduce",
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512 vllm serve m -tp 2",
        "vllm serve m --cudagraph-capture-sizes 1 2 4 --no-enforce-eager",
        "vllm serve m --port 1 --port 1",
        "vllm serve m --max-model-len 128k --max-num-batched-tokens 8K",
        "vllm serve m --max_num_seqs=64 --no-enable-prefix-caching -q fp8 --served-model-name a b c",
        "vllm serve $MODEL --max-num-seqs $N --gpu-memory-utilization ${UTIL:-0.9} $EXTRA",
        "HF_ENDPOINT=https://hf-mirror.com NCCL_DEBUG=INFO VLLM_LOGGING_LEVEL=DEBUG vllm serve m",
        """vllm serve m --speculative-config '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'""",
        """vllm serve m --limit-mm-per-prompt '{"image": 1}' --hf-overrides '{"any": "key"}' --api-key -1""",
    ],
)
def test_silence_on_what_is_right(text: str) -> None:
    assert lint("0.32.0", text) == []


@pytest.mark.parametrize("release", load().releases)
def test_every_option_of_a_release_is_known_to_its_rules(release: str) -> None:
    """No option of the real parser is ever called unknown, removed or abbreviated in its own release."""
    catalog = load()
    for name in catalog.option_names(release):
        knob = catalog.option(name, release)
        assert knob is not None
        value = {"int": "1", "float": "0.5", "json": "{}"}.get(knob.type.rstrip("?*+"), "x")
        value = "1" if name.endswith(("capture-sizes", "graph-sizes")) else value
        words = [name, value] if knob.takes_value else [name]
        bad = {
            "unknown-option",
            "removed-option",
            "future-option",
            "abbreviated-option",
            "taken-for-another",
            "wrong-type",
            "missing-value",
            "value-on-flag",
            "stray-word",
            "out-of-range",
        }
        assert not codes(problems(release, "vllm", "serve", "m", *words)) & bad, (release, name)


def test_the_image_names_the_release() -> None:
    from lifesign.remedies.lint import manifests

    text = "services:\n  a:\n    image: vllm/vllm-openai:v0.9.1\n    command: --attention-backend X\n"
    report = check(manifests.read(text, "c.yml"))
    assert report.release == "0.9.1"
    assert codes(report.problems) == {"future-option"}
    assert check(manifests.read(text, "c.yml"), "0.32.0").problems == []
