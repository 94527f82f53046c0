"""The right form for the reader's release, values that are better than what they have, and their own command line."""

from __future__ import annotations

import shlex

import pytest

from lifesign.facts.model import Life
from lifesign.remedies import library as lib
from lifesign.remedies.apply import RenderedRemedy, render
from lifesign.remedies.command import corrected_command
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T


def life(version: str = "0.32.0", **changes: object) -> Life:
    made = Life(version=version, model="org/model")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def shown(remedy: Remedy, at: Life) -> RenderedRemedy:
    rendered = render(remedy, at)
    assert rendered is not None
    return rendered


@pytest.mark.parametrize(
    ("version", "setting"),
    [
        ("0.8.5", "VLLM_ATTENTION_BACKEND=TRITON_ATTN_VLLM_V1"),
        ("0.11.0", "VLLM_ATTENTION_BACKEND=TRITON_ATTN"),
        ("0.12.0", "VLLM_ATTENTION_BACKEND=TRITON_ATTN"),
        ("0.13.0", "--attention-backend TRITON_ATTN"),
        ("0.32.0", "--attention-backend TRITON_ATTN"),
    ],
)
def test_the_form_follows_the_release(version: str, setting: str) -> None:
    assert shown(lib.OTHER_ATTENTION_BACKEND, life(version)).setting == setting


def test_graphs_off_before_and_after_the_mode_existed() -> None:
    assert shown(lib.CUDAGRAPH_NONE, life("0.10.0")).setting == "--enforce-eager"
    later = shown(lib.CUDAGRAPH_NONE, life("0.10.1"))
    assert (later.knob, later.value) == ("--compilation-config", '{"cudagraph_mode": "NONE"}')


def test_where_no_knob_exists_yet_the_answer_says_so_and_names_none() -> None:
    early = shown(lib.LONGER_STEP_TIMEOUT, life("0.9.1"))
    assert (early.kind, early.knob, early.value) == ("upgrade", "", "")
    assert early.note is not None
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS exists from 0.9.2" in early.note.en
    assert early.command == "pip install -U 'vllm>=0.9.2'"
    assert shown(lib.LONGER_STEP_TIMEOUT, life("0.9.2")).knob == "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"


def test_a_knob_that_has_gone_is_not_mentioned() -> None:
    assert render(lib.ENGINE_ITERATION_TIMEOUT, life("0.11.0")) is None
    assert render(lib.ENGINE_ITERATION_TIMEOUT, life("0.10.2")) is not None


@pytest.mark.parametrize(
    ("version", "valid", "part"),
    [
        ("0.32.0", True, None),
        ("0.11.1rc1.dev5", True, "checked against 0.11.0"),
        ("0.40.0", None, "not verified for 0.40.0"),
        ("0.6.1", None, "not verified for 0.6.1"),
        ("", None, "not verified"),
    ],
)
def test_what_is_not_verified_is_marked(version: str, valid: bool | None, part: str | None) -> None:
    rendered = shown(lib.EAGER, life(version))
    assert rendered.valid_in_version is valid
    assert (rendered.note is None) == (part is None)
    assert part is None or part in (rendered.note or T("", "")).en


def test_an_unknown_version_gets_the_newest_form_with_its_range() -> None:
    rendered = shown(lib.OTHER_ATTENTION_BACKEND, life(""))
    assert rendered.knob == "--attention-backend"
    assert rendered.note is not None
    assert "0.13.0+" in rendered.note.en


def test_what_is_set_already_is_not_recommended() -> None:
    assert render(lib.EAGER, life(config={"enforce_eager": True})) is None
    assert render(lib.NCCL_DEBUG_INFO, life(env={"NCCL_DEBUG": "INFO"})) is None
    assert render(lib.NCCL_DEBUG_INFO, life(env={"NCCL_DEBUG": "WARN"})) is not None
    none = {"compilation_config": {"cudagraph_mode": "NONE", "mode": 3}}
    assert render(lib.CUDAGRAPH_NONE, life(config=none)) is None


def test_a_value_that_nothing_fills_is_not_shown() -> None:
    remedy = Remedy("x", "flag", T("a", "甲"), T("b", "乙"), forms=(Form("--max-model-len", "{value}"),))
    assert render(remedy, life()) is None
    filled = render(remedy, life(), {"value": "4096"})
    assert filled is not None
    assert filled.value == "4096"


def test_fields_of_the_finding_fill_the_texts() -> None:
    remedy = Remedy(
        "x", "check", T("look at {rank}", "查看 {rank}"), T("{rank} is behind", "{rank} 落后"), command="true"
    )
    rendered = render(remedy, life(), {"rank": "TP3"})
    assert rendered is not None
    assert rendered.title == T("look at TP3", "查看 TP3")


# -- the reader's command ----------------------------------------------------------------------------------------------


def test_the_command_of_the_log_is_kept_and_one_value_changed() -> None:
    at = life(
        "0.8.5", command="vllm serve 'My Model' --max-num-seqs 256 -tp 2 --port 8001", config={"max_num_seqs": 256}
    )
    made = corrected_command(at, [shown(lib.FEWER_SEQUENCES, at)])
    assert made.text == "vllm serve 'My Model' --max-num-seqs 128 -tp 2 --port 8001"
    assert made.basis == "command"
    assert [(change.knob, change.before, change.after) for change in made.changes] == [("--max-num-seqs", "256", "128")]


def test_an_alias_and_underscores_are_the_same_option() -> None:
    at = life(command="vllm serve m --gpu_memory_utilization=0.95")
    made = corrected_command(at, [shown(lib.LOWER_UTILISATION, at)])
    assert made.text.count("memory") == 1
    assert made.text.startswith("vllm serve m --gpu-memory-utilization ")


def test_variables_go_in_front_and_json_is_merged() -> None:
    at = life(command="""NCCL_DEBUG=WARN vllm serve m -cc '{"mode": 3}'""")
    made = corrected_command(at, [shown(lib.NCCL_DEBUG_INFO, at), shown(lib.CUDAGRAPH_NONE, at)])
    words = shlex.split(made.text)
    assert words[:4] == ["NCCL_DEBUG=INFO", "vllm", "serve", "m"]
    assert words[5] == '{"mode": 3, "cudagraph_mode": "NONE"}'


def test_rebuilt_from_the_logged_arguments() -> None:
    config = {
        "model_tag": "org/model", "model": "org/model", "tensor_parallel_size": 2, "enforce_eager": True, "dtype": "torch.bfloat16",
        "gpu_memory_utilization": 0.95, "served_model_name": ["a", "b c"], "api_key": ["secret-key"], "no_such_argument": 1,
        "hf_overrides": {"x": 1}, "enable_prefix_caching": False,
    }  # fmt: skip
    at = life(config=config)
    made = corrected_command(at, [shown(lib.LOWER_UTILISATION, at)])
    assert made.basis == "config"
    assert "secret-key" not in made.text
    assert "--served-model-name a 'b c'" in made.text
    assert "--dtype bfloat16" in made.text
    assert "--gpu-memory-utilization 0.90" in made.text
    assert "0.95" not in made.text
    assert "--no-enable-prefix-caching" in made.text
    assert made.left_out == ("no_such_argument",)
    assert shlex.split(made.text)


def test_secrets_of_the_command_are_replaced() -> None:
    at = life(command="HF_TOKEN=hf_abcdef vllm serve m --api-key sk-12345 --max-num-seqs 8")
    text = corrected_command(at, []).text
    assert "hf_abcdef" not in text
    assert "sk-12345" not in text
    assert "--max-num-seqs 8" in text


@pytest.mark.parametrize("hostile", ["$(reboot)", "a; rm -rf /", "`id`", "'quoted\" both", "new\nline"])
def test_hostile_names_stay_one_word(hostile: str) -> None:
    at = life(model=hostile)
    words = shlex.split(corrected_command(at, [shown(lib.EAGER, at)]).text)
    assert words == ["vllm", "serve", hostile, "--enforce-eager"]


@pytest.mark.parametrize("command", ["vllm serve 'unclosed", "rm -rf /", ""])
def test_a_command_that_can_not_be_used_is_not_used(command: str) -> None:
    made = corrected_command(life(command=command), [shown(lib.EAGER, life())])
    assert made.text == "vllm serve org/model --enforce-eager"


def test_pipes_end_the_arguments_and_stay() -> None:
    at = life(command="vllm serve m --port 1 2>&1 | tee log")
    assert corrected_command(at, [shown(lib.EAGER, at)]).text == "vllm serve m --port 1 --enforce-eager 2>&1 | tee log"
