"""The reader's own command: every spelling of a start stays runnable, and only what a remedy changes is changed.

Each result goes through a real shell, which says what words it gets, and through lint's parser.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
from pathlib import Path

import pytest

from lifesign.facts.command_line import read
from lifesign.facts.config import learn_command
from lifesign.facts.model import Life
from lifesign.facts.shell_words import Unreadable
from lifesign.remedies import library as lib
from lifesign.remedies.apply import RenderedRemedy, render
from lifesign.remedies.command import corrected_command
from lifesign.remedies.lint import check, readers
from lifesign.remedies.model import Remedy

BEFORE, AFTER = "--max-num-seqs 256", "--max-num-seqs 128"
FORMS = [
    "vllm serve /m/x",
    "/opt/venv/bin/vllm serve /m/x",
    "python -m vllm.entrypoints.openai.api_server --model /m/x",
    "python3.11 -O -m vllm.entrypoints.cli.main serve /m/x",
    "python /src/vllm/entrypoints/openai/api_server.py --model /m/x",
    "numactl -N 0 -m 0 vllm serve /m/x",
    "env A=1 uv run vllm serve /m/x",
    "A=1 B='two words' vllm serve '/m/my model'",
    "uv run --with vllm vllm serve /m/x",
    "torchrun --nproc-per-node 2 -m vllm.entrypoints.openai.api_server --model /m/x",
    "accelerate launch --num_processes 2 -m vllm.entrypoints.openai.api_server --model /m/x",
    "sudo -E nohup nice -n 5 vllm serve /m/x",
    "lifesign guard --state-dir ./s -- vllm serve /m/x",
    "docker run --gpus all -p 8000:8000 --rm -it vllm/vllm-openai:v0.8.5 --model x",
    "sudo docker --context far run -d --name=v -e A=1 --ipc host vllm/vllm-openai:v0.32.0 org/model",
    "podman run --device nvidia.com/gpu=all --entrypoint vllm my.registry/image:1 serve /m/x",
    "nerdctl run --rm my.registry/image:1 --model=/m/x",
    "docker exec -it box vllm serve /m/x",
    "cd /srv && exec vllm serve /m/x",
]
"""Starts without options; each must keep its words and take one."""


def life(command: str, **changes: object) -> Life:
    made = Life(version="0.32.0", model="org/model")
    for name, value in changes.items():
        setattr(made, name, value)
    assert learn_command(made, command, overrides=True)
    return made


def fixed(command: str, remedy: Remedy = lib.FEWER_SEQUENCES, **changes: object) -> str:
    at = life(command, **changes)
    rendered = render(remedy, at)
    assert rendered is not None
    made = corrected_command(at, [rendered])
    assert made.basis == "command"
    return made.text


def shell_words(text: str) -> list[str]:
    """The words that bash gives to a program, for a text that is one command (`cd /srv &&` and variables taken off)."""
    script = f"show() {{ printf '%s\\0' \"$@\"; }}; show {text}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script], capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("command", FORMS)
@pytest.mark.parametrize("after", ["", " --port 8123", " --port 8123 2>&1 | tee v.log"])
def test_every_form_keeps_its_words(command: str, after: str) -> None:
    made = fixed(f"{command} {BEFORE}{after}")
    assert made == f"{command} {AFTER}{after}"
    one = made.removeprefix("cd /srv && ").partition(" 2>")[0]
    assert shell_words(one) == shlex.split(one)
    assert subprocess.run(["bash", "-n", "-c", made], timeout=20, check=False).returncode == 0
    if "image:1" not in command:  # lint knows vLLM's own images only
        invocations = readers.script(made, "command")
        assert [word.text for found in invocations for word in found.words][-2:] in ([["--port", "8123"], ["--max-num-seqs", "128"]])  # fmt: skip
        assert not [problem for problem in check(invocations, "0.32.0") if problem.severity == "error"]


@pytest.mark.parametrize(
    ("command", "inside"),
    [
        (f"bash -c 'vllm serve /m/x {BEFORE}'", f"vllm serve /m/x {AFTER}"),
        (f"/bin/sh -ec 'cd /srv; exec vllm serve /m/x {BEFORE}' --", f"cd /srv; exec vllm serve /m/x {AFTER}"),
        (f'bash -lc "vllm serve $MODEL {BEFORE}"', f"vllm serve /from/outside {AFTER}"),
        (f"docker run --rm image bash -c 'vllm serve /m/x {BEFORE}'", f"vllm serve /m/x {AFTER}"),
        (f"ssh host 'vllm serve /m/x {BEFORE}'", f"vllm serve /m/x {AFTER}"),
    ],
)
def test_a_quoted_line_is_put_back_in_quotes(command: str, inside: str) -> None:
    made = fixed(command)
    assert inside in [word.replace("$MODEL", "/from/outside") for word in shlex.split(made)]
    # A real shell runs it: `vllm` is a function that shows its words.
    if not command.startswith(("bash", "/bin/sh")):
        return
    show = 'vllm() { printf "%s " "$@"; }; export -f vllm; export MODEL=/from/outside; cd() { :; }; export -f cd; '
    made = made.replace("/bin/sh", "bash").replace("exec vllm", "vllm")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", show + made],
        capture_output=True, text=True, timeout=20, check=True, env={**os.environ, "BASH_ENV": ""},
    )  # fmt: skip
    assert done.stdout.split() == shlex.split(inside.replace("cd /srv; exec ", ""))[1:]


def test_json_inside_double_quotes() -> None:
    made = fixed('bash -c "vllm serve $MODEL"', lib.CUDAGRAPH_NONE)
    assert made == """bash -c "vllm serve $MODEL --compilation-config '{\\"cudagraph_mode\\": \\"NONE\\"}'\""""
    script = 'vllm() { printf "%s\\n" "$@"; }; export -f vllm; MODEL=/m; ' + made
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.splitlines() == ["serve", "/m", "--compilation-config", '{"cudagraph_mode": "NONE"}']


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ("--max-num-seqs 256 --max-num-seqs 512", "512"),
        ("--max-num-seqs=512", "512"),
        ("--max_num_seqs 512", "512"),
        ("--max_num_seqs=256 --port 1 --max-num-seqs=512", "512"),
        ("--max-num-se 512", "512"),
    ],
)
def test_one_option_is_left_and_the_last_counted(given: str, before: str) -> None:
    at = life(f"vllm serve m {given}")
    at.config.setdefault("max_num_seqs", 512)  # an abbreviation is vLLM's parser's business
    rendered = render(lib.FEWER_SEQUENCES, at)
    assert rendered is not None
    made = corrected_command(at, [rendered])
    assert shlex.split(made.text).count("--max-num-seqs") == 1
    assert "--max-num-seqs 256" in made.text
    assert [(change.before, change.after) for change in made.changes] == [(before, "256")]


def test_a_short_name_is_the_same_option() -> None:
    made = fixed("vllm serve m -tp 4 -tp 2", lib.MORE_TENSOR_PARALLEL)
    assert made == "vllm serve m --tensor-parallel-size 4"


def test_dotted_options_go_into_the_json() -> None:
    made = fixed("vllm serve m -cc.mode=3 -cc.cudagraph_mode FULL --port 1", lib.CUDAGRAPH_NONE)
    assert shlex.split(made)[3:5] == ["--compilation-config", '{"mode": 3, "cudagraph_mode": "NONE"}']
    assert "-cc." not in made


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve m", "NCCL_DEBUG=INFO vllm serve m"),
        ("A=1 vllm serve m", "A=1 NCCL_DEBUG=INFO vllm serve m"),
        ("NCCL_DEBUG=WARN vllm serve m", "NCCL_DEBUG=INFO vllm serve m"),
        ("export NCCL_DEBUG=WARN; vllm serve m", "export NCCL_DEBUG=INFO; vllm serve m"),
        ("export NCCL_DEBUG=WARN\nvllm serve m", "export NCCL_DEBUG=INFO; vllm serve m"),
        ("env A=1 uv run vllm serve m", "env A=1 NCCL_DEBUG=INFO uv run vllm serve m"),
        ("env -i A=1 vllm serve m", "env -i A=1 NCCL_DEBUG=INFO vllm serve m"),
        ("env -u X vllm serve m", "env -u X env NCCL_DEBUG=INFO vllm serve m"),
        ("cd /x && vllm serve m", "cd /x && NCCL_DEBUG=INFO vllm serve m"),
        ("time vllm serve m", "time NCCL_DEBUG=INFO vllm serve m"),
        ("sudo vllm serve m", "sudo env NCCL_DEBUG=INFO vllm serve m"),
        (
            "docker run --rm vllm/vllm-openai:latest --model m",
            "docker run -e NCCL_DEBUG=INFO --rm vllm/vllm-openai:latest --model m",
        ),
        (
            "docker run -e NCCL_DEBUG=WARN vllm/vllm-openai:latest --model m",
            "docker run -e NCCL_DEBUG=INFO vllm/vllm-openai:latest --model m",
        ),
        (
            "docker run --env=NCCL_DEBUG=WARN vllm/vllm-openai:latest --model m",
            "docker run --env=NCCL_DEBUG=INFO vllm/vllm-openai:latest --model m",
        ),
        (
            "NCCL_DEBUG=WARN docker run vllm/vllm-openai:latest --model m",
            "NCCL_DEBUG=WARN docker run -e NCCL_DEBUG=INFO vllm/vllm-openai:latest --model m",
        ),
        ("docker exec box vllm serve m", "docker exec box env NCCL_DEBUG=INFO vllm serve m"),
        (
            "docker run image bash -c 'vllm serve m'",
            "docker run image bash -c 'NCCL_DEBUG=INFO vllm serve m'",
        ),
    ],
)
def test_a_variable_reaches_the_engine(command: str, expected: str) -> None:
    assert fixed(command, lib.NCCL_DEBUG_INFO) == expected


def test_secrets_are_hidden_in_every_place() -> None:
    text = fixed(
        "export HF_TOKEN=one; docker run -e HF_TOKEN=two -e VLLM_API_KEY=$VLLM_API_KEY vllm/vllm-openai:latest --model m --api-key three"
    )
    assert not [word for word in ("one", "two", "three") if word in text.replace("vllm-openai", "")]
    assert "VLLM_API_KEY=$VLLM_API_KEY" in text
    assert text.endswith("--model m --api-key *** --max-num-seqs 128")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("ls -la", "starts no vLLM"),
        ("torchrun x.py", "starts no vLLM"),
        ("vllm bench serve --model m", "starts no vLLM"),
        ("docker run ubuntu bash start.sh", "starts no vLLM"),
        ("docker exec box uv run pytest", "starts no vLLM"),
        ("", "starts no vLLM"),
        ("vllm serve x 'unclosed", "quote"),
        ("vllm serve x $(cat args", "bracket"),
        ("vllm serve x \\", "next line"),
        ('bash -c "vllm serve $A --x \'{\\"a\\": 1}\'"', "nested quotes"),
        ("for m in a b\ndo vllm serve $m\ndone", "loops"),
        ("vllm serve m <<EOF\nx\nEOF", "here-document"),
    ],
)
def test_what_can_not_be_changed_safely_is_refused_with_a_reason(command: str, part: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(command)
    assert part in refused.value.reason.en
    assert not learn_command(Life(), command, overrides=True)


def test_nothing_is_learnt_from_a_command_that_is_refused() -> None:
    at = Life(config={"max_num_seqs": 4})
    assert not learn_command(at, "./start.sh --max-num-seqs 256", overrides=True)
    assert (at.command, at.config) == ("", {"max_num_seqs": 4})


def test_settings_and_variables_are_learnt_from_one_that_works() -> None:
    at = Life(config={"max_num_seqs": 4}, env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "100"})
    command = "docker run -e VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=900 vllm/vllm-openai:v0.8.5 --model x --max-num-seqs 256 --port $PORT"
    assert learn_command(at, command, overrides=True)
    assert at.config["max_num_seqs"] == 256
    assert "port" not in at.config
    assert at.env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "900"
    # What the log says stays where the command is the log's own.
    assert learn_command(at, "vllm serve x --max-num-seqs 8")
    assert at.config["max_num_seqs"] == 256


def remedy_of(knob: str, value: str, direction: int) -> RenderedRemedy:
    return RenderedRemedy("x", "flag", lib.EAGER.title, lib.EAGER.why, knob=knob, value=value, direction=direction)


@pytest.mark.parametrize(
    ("value", "direction", "changed"),
    [
        ("128", -1, True),
        ("256", -1, False),
        ("512", -1, False),
        ("256.0", 0, False),
        ("512", 1, True),
        ("128", 1, False),
    ],
)
def test_a_change_is_never_equal_or_worse(value: str, direction: int, changed: bool) -> None:
    at = life("vllm serve m --max-num-seqs 256")
    made = corrected_command(at, [remedy_of("--max-num-seqs", value, direction)])
    assert (len(made.changes) == 1) is changed
    assert made.text == f"vllm serve m --max-num-seqs {value if changed else 256}"


def test_a_command_that_the_logged_arguments_contradict_is_another_run_s() -> None:
    at = Life(version="0.32.0", model="m")
    learn_command(at, "vllm serve m --max-num-seqs 4")
    at.user_args = {"model": "m", "max_num_seqs": 256}
    at.config.update(at.user_args)
    assert corrected_command(at, []).basis == "config"
    at.user_args["max_num_seqs"] = 4
    assert corrected_command(at, []).basis == "command"


def test_the_log_s_own_module_start_is_kept(tmp_path: Path) -> None:
    """`+ python3 -m vllm...`, as `set -x` prints it."""
    from lifesign.report.diagnose import diagnose_paths

    sample = Path(__file__).resolve().parents[2] / "samples" / "engine-dead-sampler-oom.log"
    log = tmp_path / "v.log"
    command = "python3 -m vllm.entrypoints.openai.api_server --model /srv/tiny --max-num-seqs 4"
    log.write_text(f"+ {command}\n{sample.read_text(encoding='utf-8')}", encoding="utf-8")
    verdict = diagnose_paths([str(log)]).verdict
    assert verdict.command == command.replace("seqs 4", "seqs 1")
    assert verdict.changes == ["--max-num-seqs: 4 -> 1"]


def every_remedy() -> list[Remedy]:
    """Those of the library and of every kind of every cause."""
    from lifesign.causes import registry

    causes, _ = registry.load()
    found = [*lib.ALL, *(each for cause in causes for kind in cause.subtypes.values() for each in kind.remedies)]
    return list({remedy.slug: remedy for remedy in found}.values())


VALUES: dict[str, tuple[object, ...]] = {
    "--max-num-seqs": (1, 2, 16, 512),
    "--max-num-batched-tokens": (256, 2048, 65536),
    "--max-model-len": (256, 4096, 131072),
    "--gpu-memory-utilization": (0.3, 0.5, 0.9, 0.97),
    "--tensor-parallel-size": (1, 2, 8),
    "--cpu-offload-gb": (1, 64),
    "--max-loras": (1, 8),
    "--max-lora-rank": (8, 512),
}
TIMES = ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_CPU_KVCACHE_SPACE")  # fmt: skip
FIGURES = ("free_gib", "tried_gib", "total_gib", "weights_gib", "est_max_len", "dummy_requests", "vocab_size", "derived_max_len", "lora_rank", "ram_gib", "max_num_batched_tokens")  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_no_remedy_of_any_cause_makes_a_setting_equal_or_worse(seed: int) -> None:
    draw = random.Random(seed)
    remedies = every_remedy()
    assert len(remedies) > 100
    changed = 0
    for _ in range(12):
        options = {name: draw.choice(values) for name, values in VALUES.items() if draw.random() < 0.8}
        times = {name: draw.choice((1, 60, 1800, 7200)) for name in TIMES if draw.random() < 0.7}
        command = " ".join(
            [*(f"{name}={value}" for name, value in times.items()), "vllm serve m"]
            + [f"{name} {value}" for name, value in options.items()]
        )
        # The log's own idea of the settings is another one: what the reader gives must win.
        at = life(command, version=draw.choice(["0.8.5", "0.9.2", "0.32.0"]), platform=draw.choice(["cuda", "cpu"]))
        at.figures = {name: (draw.choice([0.5, 1.2, 24, 80, 4096]), 1) for name in draw.sample(FIGURES, 6)}
        for remedy in remedies:
            rendered = render(remedy, at, {"value": "1"})
            if rendered is None or not rendered.knob:
                continue
            for change in corrected_command(at, [rendered]).changes:
                if change.before is None:
                    continue
                assert change.before != change.after, (remedy.slug, command, change)
                if change.knob != rendered.knob or not rendered.direction:
                    continue
                changed += 1
                moved = float(change.after or 0) - float(change.before)
                assert moved * rendered.direction > 0, (remedy.slug, command, change)
    assert changed > 50


@pytest.mark.parametrize(("given", "count"), [("8k", 8000), ("8K", 8192), ("0.5M", 524288), ("8192", 8192)])
def test_counts_with_a_letter_are_numbers(given: str, count: int) -> None:
    at = life(f"vllm serve m --max-model-len {given}")
    assert at.config["max_model_len"] == count
    at.figures["est_max_len"] = (184352, 1)
    shorter = render(lib.SHORTER_CONTEXT, at)  # 184,352 isn't
    assert shorter is not None
    assert int(shorter.value) < count
    made = corrected_command(at, [remedy_of("--max-model-len", "999999", -1)])
    assert (made.text, made.changes) == (f"vllm serve m --max-model-len {given}", ())


@pytest.mark.parametrize("seed", range(3))
def test_any_text_is_read_or_refused_and_a_shell_reads_the_same_again(seed: int) -> None:
    draw = random.Random(seed)
    parts = [
        "vllm", "serve", "vllm serve", " ", " ", " ", "'", '"', "\\", "$", "$(", ")", "${A}", "`", "|", "&&", ";", "\n", ">", "2>&1", "<(", "#",
        "--max-num-seqs", "-tp", "=", "8", "bash -c ", "docker run ", "vllm/vllm-openai:v0.9.0", "-e A=1", "env ", "{", "[", "*", "中",
    ]  # fmt: skip
    good = 0
    for _ in range(3000):
        text = "".join(draw.choices(parts, k=draw.randint(3, 14)))
        if draw.random() < 0.5:
            text = "vllm serve m " + text
        try:
            line = read(text)
        except Unreadable:
            continue
        good += 1
        again = read(line.text())
        assert again.text() == line.text(), text
        assert again.settings() == line.settings(), text
        assert again.variables() == line.variables(), text
    assert good > 300
