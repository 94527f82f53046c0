"""Values: what an option or a variable can't have, and silence on every value that the real parsers take."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lifesign.remedies import overlay
from lifesign.remedies.catalog import load
from lifesign.remedies.lint import check, env_values, readers
from lifesign.remedies.lint.model import Problem


def problems(version: str, text: str) -> list[Problem]:
    return check(readers.command_line(["vllm", "serve", *text.split()]), version).problems


def seen(version: str, text: str) -> list[tuple[str, str, str, str]]:
    return [(item.severity, item.code, item.name, item.instead) for item in problems(version, text)]


# -- words and switches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m --enforce-eager true", ("value-on-flag", "--enforce-eager", "--enforce-eager")),
        ("--enforce-eager false", ("value-on-flag", "--enforce-eager", "--no-enforce-eager")),
        ("m --enable-prefix-caching=true", ("value-on-flag", "--enable-prefix-caching", "--enable-prefix-caching")),
        ("m --trust-remote-code=False", ("value-on-flag", "--trust-remote-code", "--no-trust-remote-code")),
        ("m --no-enforce-eager=0", ("value-on-flag", "--no-enforce-eager", "--enforce-eager")),
        ("m --enforce-eager=", ("value-on-flag", "--enforce-eager", "--enforce-eager")),
        ("m --enforce-eager=maybe", ("value-on-flag", "--enforce-eager", "")),
        ("m x", ("stray-word", "x", "")),
        ("m --port 8000 x", ("stray-word", "x", "")),
        ("m --max-num-seqs 64 128", ("stray-word", "128", "")),
        ("--model x m", ("stray-word", "m", "")),
        ("m --middleware a b", ("stray-word", "b", "")),
        ("m –max-num-seqs 64", ("typographic-dash", "–max-num-seqs", "--max-num-seqs")),
        ("m —enforce-eager", ("typographic-dash", "—enforce-eager", "--enforce-eager")),
        ("m –-port=1", ("typographic-dash", "–-port=1", "--port=1")),
        ("m –tp 2", ("typographic-dash", "–tp", "-tp")),
    ],
)  # fmt: skip
def test_words_that_the_parser_refuses(text: str, expected: tuple[str, str, str]) -> None:
    assert seen("0.32.0", text) == [("error", *expected)]


@pytest.mark.parametrize(
    "text",
    [
        "m", "--host x m", "-tp 2 m --port 8000", "--model x", "m -tp=2", "m --hf-token", "m --hf-token x",
        "m --served-model-name a b c", "m --cudagraph-capture-sizes 1 2 4", "m --lora-modules a=b c=d",
        "m --middleware a --middleware b", "m --enforce-eager --no-enable-prefix-caching", "m --api-key=",
        "--enforce-eager m", "m --gpu-memory-utilization .9", "m --gpu-memory-utilization +.9", "m --gpu-memory-utilization 1.",
        "m --gpu-memory-utilization 9e-1", "m --max-num-seqs 1_000", "m --max-num-seqs +4", "m --seed -1", "m --max-model-len -1",
        "m --kv-cache-memory-bytes 2G", "m --max-num-batched-tokens 2.5k", "m --compilation-config.cudagraph_mode none",
        "m -cc.mode 3", "m --port 0", "m -cc.mode vllm_compile",
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
def test_what_the_real_parsers_take(version: str, text: str) -> None:
    """Each line was given to the parsers of 0.19.1 and 0.32.0, which took it."""
    assert seen(version, text) == []


def test_words_that_may_be_anything_are_no_stray_words() -> None:
    for text in (
        "vllm serve $M x",
        "vllm serve m $FLAG 5",
        'vllm serve m --max-num-seqs "$N" $X y',
        "vllm serve m -- $X",
    ):
        assert check(readers.script(text, "x"), "0.32.0").problems == []
    assert [p.code for p in check(readers.script("vllm serve m $A --port 1 x", "x"), "0.32.0").problems] == [
        "stray-word"
    ]
    for text in ("docker run vllm/vllm-openai:v0.9.1 m --model x", "docker run vllm/vllm-openai:v0.9.1 serve m"):
        assert check(readers.script(text, "x"), "0.9.1").problems == []


@pytest.mark.parametrize(
    ("text", "code", "instead"),
    [
        ("--max-num-seqs .5", "wrong-type", ""),
        ("--max-num-seqs 1e3", "wrong-type", ""),
        ("--max-num-seqs=", "wrong-type", ""),
        ("--gpu-memory-utilization 0.9.1", "wrong-type", ""),
        ("--gpu-memory-utilization .", "wrong-type", ""),
        ("--kv-cache-memory-bytes 2.5G", "wrong-type", "--kv-cache-memory-bytes 2.5g"),
        ("--cudagraph-capture-sizes 1 2 foo", "wrong-type", ""),
        ("--cudagraph-capture-sizes 1,2,4", "wrong-type", "--cudagraph-capture-sizes 1 2 4"),
        ("--compilation-config.cudagraph_mode FOO", "wrong-type", ""),
        ("--compilation-config.cudagraph_mode piecwise", "wrong-type", "PIECEWISE"),
        ('--compilation-config {"cudagraph_mode":"FOO"}', "wrong-type", ""),
        ("-cc.mode FOO", "wrong-type", ""),
        ("--max-num-seqs 0", "out-of-range", ""),
        ("--max-num-seqs=-3", "out-of-range", ""),
        ("--max-num-seqs -3", "out-of-range", ""),
        ("--tensor-parallel-size 0", "out-of-range", ""),
        ("--port 70000", "out-of-range", ""),
    ],
)  # fmt: skip
def test_values_that_cannot_be(text: str, code: str, instead: str) -> None:
    ((severity, found, _, right),) = seen("0.32.0", "m " + text)
    assert (severity, found, right) == ("error", code, instead)


def test_choices_are_only_claimed_where_the_source_was_read() -> None:
    (later,) = problems("0.33.0", "m --compilation-config.cudagraph_mode FOO")
    assert (later.severity, "0.32.0" in later.message.en) == ("warning", True)
    assert seen("0.18.0", "m --compilation-config.cudagraph_mode FOO") == []


# -- right names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "text", "instead"),
    [
        ("0.11.0", "--attention-backend FLASH_ATTN", "VLLM_ATTENTION_BACKEND=FLASH_ATTN"),
        ("0.11.0", "-cc.cudagraph_mode=NONE", "--compilation-config.cudagraph_mode=NONE"),
        ("0.11.0", "-cc.cudagraph_mode NONE", "--compilation-config.cudagraph_mode"),
        ("0.10.0", "--cudagraph-capture-sizes 1", "--cuda-graph-sizes 1"),
        ("0.10.0", "--runner generate", "--task generate"),
        ("0.8.5", "--kv-cache-memory 1000000", ""),
        ("0.8.5", "-c x", ""),
        ("0.32.0", "-x 1", ""),
        ("0.32.0", "--max-num-sqes many", ""),
        ("0.32.0", "--enfore-eager", "--enforce-eager"),
        ("0.32.0", "--enfore-eager=true", ""),
        ("0.32.0", '-cc {"level":3}', "mode"),
        ("0.11.0", '-O {"mode":3}', "level"),
        ("0.32.0", '-cc {"use_cudagraph":false}', "cudagraph_mode"),
        ("0.32.0", '-cc {"full_cuda_graph":true}', "cudagraph_mode"),
        ("0.10.0", '-O {"cudagraph_mode":"NONE"}', "--enforce-eager"),
    ],
)
def test_the_right_name(version: str, text: str, instead: str) -> None:
    ((severity, _, _, right),) = seen(version, "m " + text)
    assert (severity, right) == ("error", instead)


def test_every_other_name_exists_in_some_release() -> None:
    catalog = load()
    for (group, key), names in overlay.OTHER_KEYS.items():
        assert catalog.json_ranges(group, key), key
        for name in names:
            assert name.startswith("--") or catalog.json_ranges(group, name), name
    for option, rights in overlay.EARLIER.items():
        for right in rights:
            last = right.until or ""
            assert catalog.option(option, last) is None, option
            known = catalog.option(right.knob, last) if right.knob.startswith("-") else catalog.env(right.knob, last)
            assert known is not None, (option, last)


def test_a_release_is_named_once_in_a_sentence() -> None:
    """What the catalog says of a removed option isn't said again by hand."""
    for entry in overlay.RENAMED:
        ranges = load().option_ranges(entry.name)
        ends = [end for part in ranges.split(",") for end in part.split("-") if end and end != "*"]
        assert not [end for end in ends if end in entry.why.en], entry.name


# -- together ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('-cc {"cudagraph_mode":"NONE","cudagraph_capture_sizes":[1,2]}', ["warning"]),
        ("--compilation-config.cudagraph_mode none --cudagraph-capture-sizes 1 2", ["warning"]),
        ('-cc {"cudagraph_mode":"NONE"}', []),
        ('-cc {"cudagraph_mode":"FULL"} --cudagraph-capture-sizes 1 2', []),
        ('-cc {"cudagraph_capture_sizes":[1,2]} --cudagraph-capture-sizes 1 2', ["error"]),
        ('-cc {"max_cudagraph_capture_size":8} --max-cudagraph-capture-size 8', ["error"]),
        ('-cc {"max_cudagraph_capture_size":8} --cudagraph-capture-sizes 1 2', []),
        ('--enforce-eager -cc {"cudagraph_mode":"NONE"}', []),
    ],
)
def test_graphs_that_are_never_captured(text: str, codes: list[str]) -> None:
    found = problems("0.32.0", "m " + text)
    assert [problem.severity for problem in found] == codes
    assert {problem.code for problem in found} <= {"contradiction"}


# -- variables ---------------------------------------------------------------------------------------------------------


def variable(version: str, text: str) -> list[tuple[str, str]]:
    found = check(readers.command_line([text, "vllm", "serve", "m"]), version).problems
    assert {problem.code for problem in found} <= {"wrong-type"}
    return [(problem.severity, problem.instead) for problem in found]


@pytest.mark.parametrize(
    ("text", "severity", "instead"),
    [
        ("VLLM_USE_DEEP_GEMM=true", "error", "VLLM_USE_DEEP_GEMM=1"),
        ("VLLM_USE_DEEP_GEMM=off", "error", "VLLM_USE_DEEP_GEMM=0"),
        ("VLLM_CPU_KVCACHE_SPACE=40GB", "error", "VLLM_CPU_KVCACHE_SPACE=40"),
        ("VLLM_CPU_KVCACHE_SPACE=40MB", "error", ""),
        ("VLLM_CPU_KVCACHE_SPACE=0.5", "error", ""),
        ("VLLM_CPU_KVCACHE_SPACE=", "error", ""),
        ("VLLM_LOGGING_LEVEL=verbose", "error", ""),
        ("VLLM_WORKER_MULTIPROC_METHOD=forkserver", "error", ""),
        ("VLLM_WORKER_MULTIPROC_METHOD=Spawn", "error", "VLLM_WORKER_MULTIPROC_METHOD=spawn"),
        ("VLLM_LOG_STATS_INTERVAL=1m", "error", ""),
        ("VLLM_PORT=tcp://10.0.0.1:8000", "error", ""),
        ("HF_ENDPOINT=hf-mirror.com", "error", "HF_ENDPOINT=https://hf-mirror.com"),
        ("VLLM_NO_USAGE_STATS=true", "warning", "VLLM_NO_USAGE_STATS=1"),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN=yes", "warning", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
        ("VLLM_DEBUG_LOG_API_SERVER_RESPONSE=1", "warning", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE=true"),
    ],
)
def test_values_of_variables(text: str, severity: str, instead: str) -> None:
    assert variable("0.32.0", text) == [(severity, instead)]
    assert variable("0.19.1", text) == [(severity, instead)]


@pytest.mark.parametrize(
    "text",
    [
        "VLLM_MOE_USE_DEEP_GEMM=1", "VLLM_MOE_USE_DEEP_GEMM=0", "VLLM_CPU_KVCACHE_SPACE=40", "VLLM_LOGGING_LEVEL=debug",
        "VLLM_WORKER_MULTIPROC_METHOD=spawn", "VLLM_LOG_STATS_INTERVAL=.5", "HF_ENDPOINT=https://hf-mirror.com",
        "HF_ENDPOINT=", "VLLM_NO_USAGE_STATS=1", "VLLM_NO_USAGE_STATS=0", "VLLM_NO_USAGE_STATS=false",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=True", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE=TRUE", "VLLM_KV_CACHE_LAYOUT=NHD",
        "VLLM_FLOAT32_MATMUL_PRECISION=HIGH",
    ],
)  # fmt: skip
def test_values_that_variables_can_have(text: str) -> None:
    assert variable("0.32.0", text) == []


def test_the_kinds_of_variables_hold_for_the_releases_that_were_read() -> None:
    text = "VLLM_WORKER_MULTIPROC_METHOD=forkserver"
    (later,) = check(readers.command_line([text, "vllm", "serve", "m"]), "0.33.0").problems
    assert (later.severity, "vLLM 0.32.0" in later.message.en) == ("warning", True)
    assert variable("0.18.0", text) == []
    assert [item for item, _ in variable("0.33.0", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=5m")] == ["error"]
    assert variable("0.27.1", "VLLM_KV_CACHE_LAYOUT=LBNHC") == [("error", "")]
    assert variable("0.30.0", "VLLM_KV_CACHE_LAYOUT=LBNHC") == []
    known = load()
    for name in (*env_values.KINDS, *env_values.CHOICES):
        assert known.env_ranges(name), name


ENGINES = Path.home() / ".cache" / "lifesign" / "engines"


@pytest.mark.parametrize("release", ["0.19.1", "0.27.1", "0.30.0", "0.32.0"])
def test_the_kinds_are_those_of_the_source(release: str) -> None:
    """Every variable of a release that calls int() or float() on its text is known as such; read, not run."""
    sources = list(ENGINES.glob(f"vllm-{release}/lib/python3*/site-packages/vllm/envs.py"))
    if not sources:
        pytest.skip(f"vLLM {release} isn't installed on this machine")
    readers_of = _readers(sources[0])
    assert len(readers_of) > 150
    shapes = {"bool(int(os.": "int-bool", "int(os.": "int", "float(os.": "float"}
    for name, source in readers_of.items():
        kind = next((kind for start, kind in shapes.items() if source.startswith(start)), "")
        if kind and name.startswith("VLLM_") and " or int(" not in source:
            assert env_values.KINDS.get(name) == kind, (name, source)
        if env_values.KINDS.get(name) in ("one", "truth", "true"):
            assert "int(" not in source, (name, source)


def _readers(path: Path) -> dict[str, str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "environment_variables":
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {
                ast.literal_eval(key): ast.unparse(value.body)
                for key, value in pairs
                if key is not None and isinstance(value, ast.Lambda)
            }
    return {}
