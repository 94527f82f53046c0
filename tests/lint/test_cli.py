"""`lifesign lint` and `lifesign timeout` as a user meets them: formats, exit codes, sentences for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from lifesign.remedies.lint.model import CODES


def run(
    *arguments: str, cwd: Path | None = None, text: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lifesign.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        input=text,
        env={**os.environ, "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", **env},
    )


BAD = ("lint", "--vllm-version", "0.11.0", "--", "vllm", "serve", "m", "--cudagraph_mode", "NONE")


def test_exit_codes() -> None:
    assert run(*BAD).returncode == 1
    assert run("lint", "--vllm-version", "0.11.0", "--", "vllm", "serve", "m", "--max-num-seqs", "4").returncode == 0
    only_a_note = run("lint", "--vllm-version", "0.12.0", "--", "vllm", "serve", "m", "-O3")
    assert (only_a_note.returncode, "note" in only_a_note.stdout) == (0, True)


def test_terminal_without_escapes_when_piped() -> None:
    done = run(*BAD)
    assert "\x1b" not in done.stdout
    assert '--compilation-config \'{"cudagraph_mode": "NONE"}\'' in done.stdout
    assert "0.11.0" in done.stdout
    chinese = run(*BAD, LC_ALL="zh_CN.UTF-8")
    assert "错误" in chinese.stdout


def test_totals_in_words() -> None:
    base = ("lint", "--vllm-version", "0.32.0", "--", "vllm", "serve", "m")
    one = run(*base, "--use-deepgemm").stdout.splitlines()[-1]
    assert one.startswith("1 error, 0 warnings, 0 notes · ")
    many = (*base, "--use-deepgemm", "--max-num-seqs", "0", "--max-num-seq", "1", "-O3")
    assert run(*many).stdout.splitlines()[-1].startswith("2 errors, 1 warning, 1 note · ")
    assert run(*many, LC_ALL="zh_CN.UTF-8").stdout.splitlines()[-1].startswith("2 个错误，1 个警告，1 个提示 · ")


def test_chinese_sentences_hold_no_english_and_no_half_width_marks() -> None:
    words = ("lint", "--lang", "zh", "--vllm-version", "0.32.0", "--", "vllm", "serve", "m")
    text = run(*words, "--device", "cpu", "--task", "embed", "--cuda-graph-sizes", "1").stdout
    assert "已没有这个选项（到 0.9.2 为止）：" in text
    assert "改用：--runner pooling 或 --convert embed" in text
    for wrong in (" or ", "up to", " to ", "改用:", "选项 ("):
        assert wrong not in text
    english = run(*words[:1], *words[3:], "--cuda-graph-sizes", "1").stdout
    assert "not in 0.32.0 any more (0.9.0 to 0.12.0): renamed" in english
    answer = json.loads(run(*words[:3], "--format", "json", *words[3:], "--task", "embed").stdout)
    assert answer["problems"][0]["instead"] == "--runner pooling 或 --convert embed"


def test_a_command_as_one_word_or_in_a_shell() -> None:
    for words in (("bash", "-c", "vllm serve m --use-deepgemm"), ("vllm serve m --use-deepgemm",)):
        done = run("lint", "--vllm-version", "0.32.0", "--", *words)
        assert (done.returncode, "VLLM_USE_DEEP_GEMM=0" in done.stdout) == (1, True)


def test_options_without_a_separator_work_too() -> None:
    done = run("lint", "--vllm-version", "0.11.0", "vllm", "serve", "m", "--use-deepgemm")
    assert done.returncode == 1
    assert "VLLM_USE_DEEP_GEMM=0" in done.stdout


def test_json(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\nexport NCCL_SOCKET_TIMEOUT=1\nvllm serve m \\\n  --use-deepgemm\n", encoding="utf-8")
    done = run("lint", "--format", "json", "--vllm-version", "0.19.1", "run.sh", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert answer["schema"] == "lifesign.lint/1"
    assert answer["release"] == "0.19.1"
    assert [(p["name"], p["path"], p["line"]) for p in answer["problems"]] == [
        ("NCCL_SOCKET_TIMEOUT", "run.sh", 2),
        ("--use-deepgemm", "run.sh", 4),
    ]
    assert {p["code"] for p in answer["problems"]} <= set(CODES)


SARIF_SHAPE = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "results": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "required": ["ruleId", "level", "message", "locations"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "locations": {
                                    "items": {
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation", "region"],
                                                "properties": {"region": {"properties": {"startLine": {"minimum": 1}}}},
                                            }
                                        }
                                    }
                                },
                            },
                        },
                    }
                },
            },
        },
    },
}


def test_sarif() -> None:
    log = json.loads(run(*BAD[:1], "--format", "sarif", *BAD[1:]).stdout)
    jsonschema.validate(log, SARIF_SHAPE)
    driver = log["runs"][0]["tool"]["driver"]
    for result in log["runs"][0]["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_github_annotations_escape_their_fields(tmp_path: Path) -> None:
    name = "a,b:c%d.sh"
    (tmp_path / name).write_text("vllm serve m --use-deepgemm\n", encoding="utf-8")
    done = run("lint", "--format", "github", "--vllm-version", "0.19.1", name, cwd=tmp_path)
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=a%2Cb%3Ac%25d.sh,line=1,title=")
    assert line.count("::") == 2


def test_escapes_in_a_file_do_not_reach_the_screen(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("vllm serve m --bad\x1b[31m-flag\x07 1\n", encoding="utf-8")
    done = run("lint", "x.sh", cwd=tmp_path)
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert done.returncode == 1


def test_standard_input() -> None:
    done = run("lint", "--vllm-version", "0.32.0", "-", text="vllm serve m --use-deepgemm\n")
    assert done.returncode == 1
    assert "stdin:1" in done.stdout


def test_a_file_without_vllm_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("echo hello\n", encoding="utf-8")
    done = run("lint", "x.sh", cwd=tmp_path)
    assert done.returncode == 0
    assert "nothing that starts vLLM" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("lint", "--vllm-version", "banana", "--", "vllm", "serve", "m"), "no vLLM release"),
        (("lint", "--format", "xml", "--", "vllm", "serve", "m"), "choose one"),
        (("lint", "./none.sh"), "check the path"),
        (("lint", "missing.env", "bad.yaml"), "missing.env: no such file"),
        (("lint", "nosuch"), "nosuch: no such file"),
        (("lint", "--", "ls", "-l"), "no vLLM start"),
        (("lint", "bad.yaml"), "isn't valid YAML"),
        (("lint", "big.txt"), "too large"),
        (("timeout", "--backend", "abacus"), "choose one"),
        (("timeout", "--params", "huge"), "write 7b"),
        (("timeout", "--max-num-seqs", "0"), "correct it"),
        (("timeout", "--dtype", "fp3"), "choose one"),
        (("timeout", "--vllm-version", "banana"), "no vLLM release"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_2(tmp_path: Path, arguments: tuple[str, ...], part: str) -> None:
    (tmp_path / "bad.yaml").write_text("a: [1, 2\nb", encoding="utf-8")
    (tmp_path / "big.txt").write_text("--max-num-seqs 4 \\\n" * 600_000, encoding="utf-8")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# -- timeout -----------------------------------------------------------------------------------------------------------


def timeout(*arguments: str) -> dict[str, object]:
    done = run("timeout", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_policy_on_cpu_and_gpu() -> None:
    cpu = timeout("--backend", "cpu", "--max-num-seqs", "64", "--vllm-version", "0.32.0")
    assert (cpu["policy_s"], cpu["limit_s"], cpu["enough"]) == (364, 364, False)
    assert cpu["setting"] == "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=364"
    gpu = timeout("--backend", "gpu", "--max-num-seqs", "64", "--vllm-version", "0.32.0")
    assert (gpu["policy_s"], gpu["limit_s"], gpu["enough"]) == (42.8, 300, True)


def test_before_0_9_2_there_is_no_knob() -> None:
    old = timeout("--backend", "cpu", "--max-num-seqs", "64", "--vllm-version", "0.8.5")
    # One sequence may need 301 s by the policy: no batch is "small enough" for the fixed 40 s.
    assert (old["setting"], old["default_s"], old["sequences"]) == ("", 40, 0)
    assert "0.9.2" in str(old["note"])
    assert "no batch is sure to fit into 40 s (one sequence: 301 s)" in str(old["note"])
    text = run("timeout", "--backend", "cpu", "--max-num-seqs", "64", "--vllm-version", "0.8.5").stdout
    assert "--max-num-seqs" not in text
    # A measured step says more than the policy: 64 sequences take 25 s, so 34 take a third of 40 s.
    measured = run(
        *("timeout", "--backend", "cpu", "--max-num-seqs", "64", "--step-time", "25", "--vllm-version", "0.8.5")
    ).stdout
    assert "--max-num-seqs 34 --max-num-batched-tokens 2048" in measured
    assert "keep the batch small enough" in measured


def test_measurement_and_estimate_raise_the_limit_up_to_the_cap() -> None:
    slow = timeout(
        "--backend", "cpu", "--max-num-seqs", "64", "--step-time", "60", "--step-seqs", "16", "--vllm-version", "0.32.0"
    )
    assert (slow["step_s"], slow["limit_s"], slow["sequences"]) == (240, 720, 64)
    capped = timeout("--backend", "cpu", "--max-num-seqs", "128", "--step-time", "900", "--vllm-version", "0.32.0")
    assert capped["limit_s"] == 1800
    assert capped["sequences"] == int(128 * 1800 / 2700)
    guess = timeout(
        "--backend", "cpu", "--max-num-seqs", "8", "--params", "70b", "--bandwidth", "10", "--vllm-version", "0.32.0"
    )
    assert guess["step_s"] == 14


@pytest.mark.parametrize(
    ("arguments", "sequences"),
    [
        (("--backend", "cpu", "--vllm-version", "0.9.1"), 256),
        (("--backend", "cpu", "--vllm-version", "0.9.2"), 32),
        (("--backend", "cpu", "--vllm-version", "0.9.2", "--tensor-parallel-size", "2"), 32),
        (("--backend", "cpu", "--vllm-version", "0.10.0"), 128),
        (("--backend", "cpu", "--vllm-version", "0.32.0", "--tensor-parallel-size", "2"), 256),
        (("--backend", "cuda", "--vllm-version", "0.9.2", "--tensor-parallel-size", "2"), 256),
    ],
)
def test_the_default_batch_is_the_release_s(arguments: tuple[str, ...], sequences: int) -> None:
    load = timeout(*arguments)["load"]
    assert isinstance(load, dict)
    assert load["sequences"] == sequences


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--params", "7b"), "--bandwidth is missing"),
        (("--bandwidth", "3000"), "--params is missing"),
        ((), "no step time or model size given"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], said: str) -> None:
    assert str(timeout(*arguments)["how"]).startswith(said)


def test_the_cap_is_named_where_it_cuts() -> None:
    arguments = ("--backend", "gpu", "--step-time", "200", "--step-seqs", "4", "--max-num-seqs")
    cut = timeout(*arguments, "64")
    assert (cut["limit_s"], cut["sequences"]) == (1800, 12)
    assert "9600 s would be needed, but beyond 1800 s" in str(cut["cap"])
    assert timeout(*arguments, "4")["cap"] is None
    text = run("timeout", "--lang", "zh", *arguments, "64").stdout
    assert "× 3 = 9600 秒" in text
    assert "本需 9600 秒，但超过 1800 秒" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--backend", "cuda"), True),
        (("--backend", "rocm", "--tensor-parallel-size", "1"), True),
        (("--backend", "cuda", "--tensor-parallel-size", "2"), False),
        (("--backend", "cpu"), False),
    ],
)
def test_one_device_has_no_such_limit(arguments: tuple[str, ...], said: bool) -> None:
    assert ("uniproc" in run("timeout", *arguments).stdout) is said


def test_a_newer_release_is_marked() -> None:
    assert "not verified for 0.99.0" in run("timeout", "--vllm-version", "0.99.0").stdout
